"""The rates of wrong verdicts on a small slice: what quality/results says of more APIs."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.diagnosis import NOTHING_MORE
from pytest_msprobe.suites.precheck import check
from quality.verdict_quality import tables
from quality.verdict_quality.faults import CATALOGUE
from quality.verdict_quality.quality import Figures, Slice, measure
from quality.verdict_quality.recordings import record
from quality.verdict_quality.samples import DTYPES, Sample
from quality.verdict_quality.sizes import NOTHING, Envelopes, envelopes, size_of
from quality.verdict_quality.target import Target

pytest.importorskip("expecttest", reason="PyTorch's OpInfo database needs expecttest")

#: Least share of visible faults that a standard must catch in each dtype.
LEAST_CAUGHT = {
    ("cosine-maxabs", "float32"): 0.70,
    ("cosine-maxabs", "bfloat16"): 0.80,
    # Noise of 16 roundings is among the faults, about half of which rounding of the inputs explains.
    ("backward-error", "float32"): 0.93,
    ("backward-error", "bfloat16"): 0.95,
}
STANDARDS = tuple(dict.fromkeys(standard for standard, _ in LEAST_CAUGHT))
#: The tables have float16 as well.
CHECKED = ("float32", "bfloat16")
#: Together they meet every fault of the catalogue.
APIS = (
    "Mint.matmul Mint.matmul.1004 MintFunctional.softmax MintFunctional.softmax.1005 MintFunctional.layer_norm "
    "MintFunctional.gelu Mint.mul Mint.add Mint.tanh Mint.sort Mint.index_select"
).split()


@pytest.fixture(scope="module")
def figures() -> Figures:
    with pytest.MonkeyPatch.context() as patch:
        # What more is known of a failure takes longer than its verdict, and changes none.
        patch.setattr(check, "diagnose", lambda *given, **named: NOTHING_MORE)
        return measure(Slice(CHECKED, STANDARDS, devices=("ideal", "native"), apis=tuple(APIS)))


@pytest.mark.parametrize("dtype", CHECKED)
@pytest.mark.parametrize("standard", STANDARDS)
def test_ideal_outputs_pass(figures: Figures, standard: str, dtype: str) -> None:
    of_these = [v for v in figures.verdicts if (v.standard, v.dtype, v.device) == (standard, dtype, "ideal")]
    assert len(of_these) > 50
    assert tables.false_alarms(of_these) == []
    assert tables.unjudged(of_these) == []


@pytest.mark.parametrize(("standard", "dtype"), LEAST_CAUGHT)
def test_visible_faults_are_caught(figures: Figures, standard: str, dtype: str) -> None:
    of_these = [one for one in tables.visible(figures.planted) if (one.standard, one.dtype) == (standard, dtype)]
    assert len(of_these) > 800
    assert LEAST_CAUGHT[standard, dtype] <= tables.caught_share(of_these)
    # A NaN or an Inf passes under no standard.
    assert tables.caught_share([one for one in of_these if one.fault.endswith(("NaN", "Inf"))]) == 1


@pytest.mark.parametrize("dtype", CHECKED)
def test_backward_error_catches_what_is_no_question_of_rounding(figures: Figures, dtype: str) -> None:
    large = [
        one
        for one in tables.visible(figures.planted)
        if (one.standard, one.dtype) == ("backward-error", dtype) and one.size.conditioned > 64
    ]
    assert len(large) > 300
    assert tables.caught_share(large) >= 0.97


def test_every_fault_of_the_catalogue_happens(figures: Figures) -> None:
    assert {one.fault for one in figures.planted} == set(CATALOGUE)


def test_no_fault_goes_without_a_verdict(figures: Figures) -> None:
    assert {one.status for one in tables.visible(figures.planted)} <= {"pass", "error"}


def test_the_default_standard_fails_a_good_device_in_bfloat16(figures: Figures) -> None:
    """The weakness that the tables show and that a dtype-aware standard is for."""
    native = [v for v in figures.verdicts if (v.standard, v.dtype, v.device) == ("cosine-maxabs", "bfloat16", "native")]
    assert tables.false_alarms(native)


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_the_neighbouring_number_is_two_roundings_off(dtype: str, unit: float) -> None:
    right = np.ones(3, DTYPES[dtype])
    faulty = right.copy()
    faulty[1] = 1 + 2 * unit
    size = size_of(faulty, right, NOTHING)
    assert size.roundings == pytest.approx(2, rel=1e-3)
    assert not size.is_observable
    faulty[1] = 1 + 4 * unit
    assert size_of(faulty, right, NOTHING).is_visible
    assert not size_of(faulty, right, Envelopes(4 * unit, 4 * unit, 4 * unit)).is_visible


def test_what_no_rounding_makes_is_infinitely_large() -> None:
    right = np.array([1.0, np.inf, np.nan], np.float32)
    assert size_of(np.array([1.0, np.inf, np.nan], np.float32), right, NOTHING).roundings == 0
    for faulty in ([np.nan, np.inf, np.nan], [1.0, 2.0, np.nan], [1.0, np.inf, 0.0]):
        assert size_of(np.array(faulty, np.float32), right, NOTHING).conditioned == math.inf
    assert size_of(np.array([1, 2]), np.array([1, 3]), NOTHING).conditioned == math.inf
    assert size_of(np.array([1, 3]), np.array([1, 3]), NOTHING).roundings == 0


def test_the_envelope_is_what_rounding_the_inputs_moves() -> None:
    near_one = np.array([1 + 2.0**-7, 1.0], ml_dtypes.bfloat16)
    sample = Sample("Mint.sub.0", (near_one.astype(np.float32), np.ones(2, np.float32)), {}, has_gradient=False)
    recording = record(sample, DTYPES["bfloat16"])
    assert recording is not None
    envelope = envelopes(Target(recording, "forward", 0, np.random.default_rng(0))).inputs
    # Each of the two inputs, of size 1, moves by 2**-8; the first one by a little more.
    np.testing.assert_allclose(envelope, [2 * 2.0**-8 + 2.0**-15, 2 * 2.0**-8], rtol=1e-9)
