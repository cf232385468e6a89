"""What the verdicts say beyond pass and error: honest kernels, modes of the device, rounding, patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.cases.second_runs import rounded_incoming, with_rounded_operands
from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.suites.precheck.options import Hf32, NumericSettings
from quality.verdict_quality.dumps import write_dump
from quality.verdict_quality.honest import honest_recordings
from quality.verdict_quality.judging import Judge
from quality.verdict_quality.recordings import Recording, record
from quality.verdict_quality.samples import Sample

FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def recorded(name: str, *arguments: Any, dtype: np.dtype[Any] = FLOAT32) -> Recording:
    found = record(Sample(name, arguments, {}, has_gradient=True), dtype)
    assert found is not None
    return found


def factors() -> tuple[Any, Any]:
    rng = np.random.default_rng(31)
    return rng.standard_normal((64, 256)).astype(np.float32), rng.standard_normal((256, 48)).astype(np.float32)


def hf32_output(recording: Recording) -> Any:
    from quality.verdict_quality.recordings import BENCHMARK

    call = with_rounded_operands(recording.call, "HF32")
    return round_once(BENCHMARK.forward(call, differentiate=()).outputs[0].value, FLOAT32)


@pytest.fixture
def product(tmp_path: Path) -> tuple[Recording, Judge]:
    recording = recorded("Mint.matmul.0", *factors())
    return recording, Judge(write_dump(tmp_path / "dump", [(recording, recording.ideal)]))


def test_hf32_operands_are_named(product: tuple[Recording, Judge]) -> None:
    recording, judge = product
    found = judge.verdict("Mint.matmul.0", "forward", "backward-error", altered=lambda _: [hf32_output(recording)])
    assert found.status == "error"
    assert found.outputs[0].pattern == "matches operands rounded to 11 bits (HF32)"
    assert "not explained by rounding" in found.explanation


@pytest.mark.parametrize(
    ("hf32", "status"),
    [
        (Hf32("matmul"), "pass"),
        (Hf32("all"), "pass"),
        (Hf32(patterns=("Mint.mat*",)), "pass"),
        (Hf32("conv"), "error"),
        (Hf32(), "error"),
    ],
)
def test_hf32_operands_are_allowed_where_the_option_says_so(
    product: tuple[Recording, Judge], hf32: Hf32, status: str
) -> None:
    recording, judge = product
    numeric = NumericSettings(hf32=hf32)
    altered = lambda _: [hf32_output(recording)]  # noqa: E731
    assert (
        judge.verdict("Mint.matmul.0", "forward", "backward-error", altered=altered, numeric=numeric).status == status
    )
    faulty = lambda values: [1.01 * values[0]]  # noqa: E731
    assert (
        judge.verdict("Mint.matmul.0", "forward", "backward-error", altered=faulty, numeric=numeric).status == "error"
    )


def test_incoming_gradients_are_operands() -> None:
    incoming = np.array([1 + 2.0**-20], np.float32)
    assert rounded_incoming((incoming, None), "TF32") == (np.array([1.0]), None)


def test_the_default_rule_says_that_rounding_explains_it(tmp_path: Path) -> None:
    left, right = factors()
    recording = recorded("Mint.matmul.0", left, right, dtype=BFLOAT16)
    # Each element rounded upwards or downwards at random: within one ULP, and far beyond 1e-4.
    ideal = recording.ideal.outputs[0].value
    assert isinstance(ideal, np.ndarray)
    nudged = np.where(
        np.random.default_rng(32).random(ideal.shape) < 0.2, np.nextafter(ideal, BFLOAT16.type(np.inf)), ideal
    )
    judge = Judge(write_dump(tmp_path / "dump", [(recording, recording.ideal)]))
    found = judge.verdict("Mint.matmul.0", "forward", "cosine-maxabs", altered=lambda _: [nudged.astype(BFLOAT16)])
    assert found.status == "error"
    assert found.outputs[0].rounding == "explained by rounding"
    assert found.outputs[0].pattern == ""
    assert found.outputs[0].message.endswith("Explained by rounding.")


def test_the_default_rule_says_how_far_beyond_rounding_an_error_is(product: tuple[Recording, Judge]) -> None:
    _, judge = product
    found = judge.verdict("Mint.matmul.0", "forward", "cosine-maxabs", altered=lambda values: [256 * values[0]])
    row = found.outputs[0]
    assert row.status == "error"
    assert row.pattern == "256 x too large"
    assert row.rounding.startswith("not explained by rounding (")
    assert row.ratio is not None
    assert row.ratio > 1e4
    assert "median error" in found.explanation


@pytest.mark.parametrize("standard", ["backward-error", "cosine-maxabs", "fused"])
def test_a_pass_has_a_ratio_of_at_most_one(product: tuple[Recording, Judge], standard: str) -> None:
    _, judge = product
    row = judge.verdict("Mint.matmul.0", "forward", standard).outputs[0]
    assert row.ratio is not None
    assert 0 <= row.ratio <= 1
    assert (row.rounding, row.pattern) == ("", "")


HONEST = "MintFunctional.gelu MintFunctional.log_softmax Functional.flash_attention_score Functional.rms_norm".split()


@pytest.mark.parametrize("dtype", [FLOAT32, np.dtype(np.float16), BFLOAT16], ids=str)
def test_honest_kernels_pass(dtype: np.dtype[Any], tmp_path: Path) -> None:
    """Textbook formulas with float32 inside, which round far more than their inputs explain."""
    pairs = list(honest_recordings(dtype, lambda name: name in HONEST, seeds=(7,)))
    assert len(pairs) > 15
    judge = Judge(write_dump(tmp_path / "dump", pairs))
    found = [
        (recording.name, direction, judge.verdict(recording.name, direction, "backward-error").status)
        for recording, _ in pairs
        for direction in ("forward", "backward")
    ]
    # Where rounding may be as large as the result, as in one gradient of an attention, it is not judged.
    others = [one for one in found if one[2] != "pass"]
    assert len(others) <= 1
    assert [one for one in others if one[2] == "error"] == []
