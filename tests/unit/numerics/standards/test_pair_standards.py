"""What holds for every standard that looks at elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.numerics.judgement import Judgement, Standard, compare_scalars
from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS, Metrics, measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.numerics.standards.cann import MereMare, MixedTolerance
from pytest_msprobe.numerics.standards.elementwise import (
    AbsoluteThreshold,
    AccumulativeError,
    AgainstSecondOpinion,
    Binary,
    Thousandth,
    Ulp,
)

STANDARDS: dict[str, Standard] = {
    standard.name: standard
    for standard in (
        *(AbsoluteThreshold(), AgainstSecondOpinion(), Ulp(), Binary(), Thousandth(), AccumulativeError()),
        *(MereMare(), MixedTolerance()),
    )
}
each_standard = pytest.mark.parametrize("standard", STANDARDS.values(), ids=STANDARDS)


@each_standard
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@given(reference=arrays(np.float64, 9, elements=st.floats(allow_nan=True)))
def test_what_a_perfect_device_returns_passes(standard: Standard, dtype: type, reference: np.ndarray) -> None:
    ideal = round_once(reference, np.dtype(dtype))
    assert verdict(standard, ideal, reference, dtype) == Judgement("pass")


@each_standard
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_lost_tensor_is_an_error(standard: Standard, dtype: type) -> None:
    reference = np.linspace(0.5, 2, 64)
    found = verdict(standard, np.zeros(64), reference, dtype, second=reference)
    assert found.status == "error"
    assert all(reason.endswith(".") for reason in found.reasons)


@pytest.mark.parametrize("standard", [*STANDARDS.values(), BackwardError()], ids=[*STANDARDS, "backward-error"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_signalling_nan_is_an_error_without_a_warning(standard: Standard, dtype: type) -> None:
    """Memory that a device did not write may hold one; warnings are errors here."""
    tested = np.linspace(0.5, 2, 64).astype(dtype)
    reference = tested.astype(np.float64)
    tested.view(f"u{tested.itemsize}")[3] = np.array(np.inf, dtype).view(f"u{tested.itemsize}") + 1
    assert verdict(standard, tested, reference, dtype, second=reference).status == "error"


@each_standard
def test_nan_on_one_side_is_an_error(standard: Standard) -> None:
    for tested, reference in (([1, np.nan], [1, 2]), ([1, 2], [1, np.nan]), ([1, np.inf], [1, -np.inf])):
        assert verdict(standard, tested, reference, second=[1.0, 0.5]).status == "error"


@each_standard
def test_nan_on_both_sides_hides_no_error_elsewhere(standard: Standard) -> None:
    assert verdict(standard, [np.nan, np.inf, 5], [np.nan, np.inf, 1], second=[np.nan, np.inf, 1]).status == "error"
    assert verdict(standard, [np.nan, np.inf, 1], [np.nan, np.inf, 1]).is_pass


@each_standard
def test_integers_must_be_equal(standard: Standard) -> None:
    def judged(tested: list[int], tolerance: int = 0) -> Judgement:
        left, right = np.array(tested, np.int8), np.array([1, 127], np.int8)
        return standard.judge(measure(left, right, off_bound=1.0, integer_tolerance=tolerance))

    assert judged([1, 127]).is_pass
    assert judged([2, 127]).reasons == ("1 of 2 elements differs, first at [0] (tested 2, benchmark 1).",)
    assert judged([2, 126], 1).is_pass
    assert judged([2, 125], 1).reasons == ("1 of 2 elements differs, first at [1] (tested 125, benchmark 127).",)


@each_standard
def test_shapes_must_agree_and_nothing_equals_nothing(standard: Standard) -> None:
    assert verdict(standard, [1, 2], [[1, 2]]).reasons == ("Shapes differ: tested (2,), benchmark (1, 2).",)
    assert verdict(standard, [], []).is_pass


@each_standard
def test_an_error_behind_the_first_chunk_is_seen(standard: Standard) -> None:
    reference = np.ones(CHUNK_ELEMENTS + 3)
    tested = reference.copy()
    tested[-100:] = 3  # 0.15 % of all
    found = verdict(standard, tested, reference, np.float16, second=reference)
    assert found.status == "error"


@each_standard
def test_python_floats_are_judged_within_an_ulp(standard: Standard) -> None:
    dtype = np.dtype(np.float32)
    limit = 0 if standard.name == "binary" else 1
    for ulps in (0, 1, 2):
        value = 1 + ulps * 2.0**-23
        assert compare_scalars(value, 1.0, standard, dtype=dtype)[1].is_pass == (ulps <= limit)
    assert not compare_scalars([1.0 + 1j], [1.5 + 1j], standard)[1].is_pass


@pytest.mark.parametrize("name", sorted(set(STANDARDS) - {"binary", "thousandth"}))
def test_a_dtype_without_constants_is_a_skip_that_says_so(name: str) -> None:
    found = verdict(STANDARDS[name], [1.5], [1.0], np.float64, second=[1.0])
    assert found == Judgement("skip", (f"{name} has no bounds for float64; choose another standard for it.",))
    assert verdict(STANDARDS[name], [1.0], [1.0], np.float64).is_pass


@each_standard
def test_complex_numbers_have_the_bounds_of_their_parts(standard: Standard) -> None:
    reference = np.array([1 + 1j, -2j, 3])
    assert verdict(standard, reference, reference, np.complex64).is_pass
    assert verdict(standard, reference * 1.2, reference, np.complex64, second=reference).status == "error"


def test_metrics_alone_never_skip() -> None:
    assert all(standard.judge(Metrics("float", 1, max_abs=0.0)).is_pass for standard in STANDARDS.values())
