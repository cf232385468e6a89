from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_msprobe.numerics.diagnosis import explain, summarise
from pytest_msprobe.numerics.indices import check_indices
from pytest_msprobe.numerics.judgement import CosineMaxAbs, compare_scalars
from pytest_msprobe.numerics.measurement import measure

STANDARD = CosineMaxAbs()


def texts(tested: np.ndarray, reference: np.ndarray) -> tuple[list[str], str]:
    metrics = measure(tested, reference, off_bound=STANDARD.off_bound)
    judgement = STANDARD.judge(metrics)
    explanation = explain(
        metrics, judgement, label="Mint.matmul.3.forward.output.0", dtype=str(tested.dtype), shape=tested.shape
    )
    return explanation.split("\n"), summarise(metrics, judgement)


def test_a_wrong_float_output() -> None:
    lines, summary = texts(np.array([[1.5, 0.25], [0.0, -2.0]]), np.array([[1.25, 0.25], [0.5, -2.0]]))
    assert lines == [
        "Mint.matmul.3.forward.output.0 float64 (2, 2): "
        "Cosine 0.974987 is not above 0.99; a limit of 0.9749 would pass.",
        "  Max absolute error 0.5 is not below 0.0001; a limit of 0.501 would pass.",
        "  cosine              0.974987",
        "  max absolute error  0.5 at [1, 0] (tested 0.0, benchmark 0.5)",
        "  max relative error  1 at [1, 0] (tested 0.0, benchmark 0.5)",
        "  max ULP error       4.5036e+15",
        "  off                 2 of 4 elements (50 %) off by 0.0001 or more",
    ]
    assert summary == (
        "Cosine 0.974987 is not above 0.99; a limit of 0.9749 would pass. "
        "Max absolute error 0.5 is not below 0.0001; a limit of 0.501 would pass. "
        "Worst at [1, 0] (tested 0.0, benchmark 0.5). 2 of 4 elements (50 %) off by 0.0001 or more."
    )


def test_a_pass_has_figures_but_no_message() -> None:
    lines, summary = texts(np.array(2.0), np.array(2.0))
    assert lines == [
        "Mint.matmul.3.forward.output.0 float64 (): pass",
        "  cosine              1",
        "  max absolute error  0",
        "  max relative error  0",
        "  max ULP error       0",
    ]
    assert summary == ""


def test_an_unmatched_nan() -> None:
    lines, summary = texts(np.array([1.0, math.nan, 3.0]), np.array([1.0, 2.0, 3.0]))
    reason = "1 of 3 elements has a NaN or Inf that the other side lacks, first at [1] (tested nan, benchmark 2.0)."
    assert lines[0].endswith(f": {reason}")
    assert "  max absolute error  inf at [1] (tested nan, benchmark 2.0)" in lines
    assert summary == f"{reason} 1 of 3 elements (33.3 %) off by 0.0001 or more."


def test_a_structural_mismatch_has_no_figures() -> None:
    lines, summary = texts(np.zeros((2, 3)), np.zeros((3, 2)))
    assert len(lines) == 1
    assert lines[0].endswith(": Shapes differ: tested (2, 3), benchmark (3, 2).")
    assert summary == "Shapes differ: tested (2, 3), benchmark (3, 2)."


def test_integers() -> None:
    lines, summary = texts(np.array([1, 2**53 + 1]), np.array([1, 2**53]))
    assert summary == "1 of 2 elements differs, first at [1] (tested 9007199254740993, benchmark 9007199254740992)."
    assert lines[0].endswith(f": {summary}")
    assert lines[-1] == "  off                 1 of 2 elements (50 %) off"
    assert not any("ULP" in line for line in lines)


def test_an_empty_output() -> None:
    lines, summary = texts(np.zeros((0, 3)), np.zeros((0, 3)))
    assert lines == ["Mint.matmul.3.forward.output.0 float64 (0, 3): pass", "  no element to compare"]
    assert summary == ""


def test_python_values_read_the_same_way() -> None:
    metrics, judgement = compare_scalars(2.5, 2.0, STANDARD)
    assert summarise(metrics, judgement) == (
        "Max absolute error 0.5 is not below 0.0001; a limit of 0.501 would pass. "
        "Worst (tested 2.5, benchmark 2.0). 1 of 1 element (100 %) off by 0.0001 or more."
    )


def test_indices_read_the_same_way() -> None:
    metrics = check_indices(np.array([1.0, 2.0]), np.array([5]), np.array([1]), axis=0, unique_along_axis=False)
    assert summarise(metrics, STANDARD.judge(metrics)) == (
        "1 of 1 element differs, first at [0] (tested 5, benchmark 1) (the index is not in 0..1)."
    )


@pytest.mark.parametrize("cosine", [-0.99999, -0.5, 0.0, 0.5, 0.98999])
def test_every_value_can_be_typed_in_again(cosine: float) -> None:
    tested, reference = np.array([0.1, cosine]), np.array([1 / 3, 1.0])
    lines, _ = texts(tested, reference)
    worst = next(line for line in lines if line.startswith("  max absolute error"))
    written = [float(part.split(" ")[1]) for part in worst[worst.index("(") + 1 : -1].split(", ")]
    at = int(np.abs(tested - reference).argmax())
    assert written == [tested[at], reference[at]]
