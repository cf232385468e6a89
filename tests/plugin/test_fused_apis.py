"""Dumps of fused APIs, judged by our own references through real pytest runs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

RANDOM = np.random.default_rng(11)
HEADS, SIZE = 2, 4
QUERY, KEY, VALUE, INCOMING = (
    RANDOM.standard_normal((3, 2, HEADS * SIZE)).astype(np.float32).astype(np.float16) for _ in range(4)
)
X = RANDOM.standard_normal((4, 8)).astype(ml_dtypes.bfloat16)
GAMMA = RANDOM.standard_normal(8).astype(ml_dtypes.bfloat16)
KEYWORDS: dict[str, Any] = {"scalar_value": 0.5, "input_layout": "SBH", "sparse_mode": 3}


def by_head(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64).reshape(3, 2, HEADS, SIZE).transpose(1, 2, 0, 3)


def back(x: np.ndarray) -> np.ndarray:
    return x.transpose(2, 0, 1, 3).reshape(3, 2, HEADS * SIZE).astype(np.float16)


def attention() -> tuple[np.ndarray, list[np.ndarray]]:
    """Output and gradients of causal attention, computed here and rounded once."""
    q, k, v, d_output = (by_head(x) for x in (QUERY, KEY, VALUE, INCOMING))
    weights = np.where(np.tri(3), np.exp(0.5 * q @ k.swapaxes(-1, -2)), 0.0)
    weights /= weights.sum(-1, keepdims=True)
    d_weights = d_output @ v.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True))
    gradients = 0.5 * d_scores @ k, 0.5 * d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_output
    return back(weights @ v), [back(gradient) for gradient in gradients]


def rms_norm() -> list[np.ndarray]:
    wide = X.astype(np.float64)
    rstd = (np.mean(wide**2, -1, keepdims=True) + 1e-6) ** -0.5
    return [(wide * rstd * GAMMA.astype(np.float64)).astype(ml_dtypes.bfloat16), rstd.astype(np.float32)]


def dump(folder: Any, *, factor: float = 1.0) -> DumpBuilder:
    output, gradients = attention()
    builder = DumpBuilder(folder)
    builder.call(
        "Functional.flash_attention_score.0",
        [QUERY, KEY, VALUE, HEADS],
        [(output * factor).astype(np.float16)],
        keywords=KEYWORDS,
        incoming=[INCOMING],
        gradients=[gradient * np.float16(factor) for gradient in gradients],
    )
    y, rstd = rms_norm()
    return builder.call("Functional.rms_norm.0", [X, GAMMA], [y * ml_dtypes.bfloat16(factor), rstd])


def test_right_values_pass_in_float64(pytester: pytest.Pytester, reports: Reports) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dump(pytester.path).write()}")
    result.assert_outcomes(passed=3)
    assert {row["Bench Dtype"] for row in reports.details.values()} == {"Float64"}
    assert len(reports.details) == 6


def test_wrong_values_are_errors(pytester: pytest.Pytester, reports: Reports) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dump(pytester.path, factor=1.25).write()}")
    result.assert_outcomes(failed=3)
    assert reports.details["Functional.rms_norm.0.forward.output.1"]["Status"] == "pass"


def test_what_needs_other_ranks_is_a_skip_that_says_so(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path).call("Functional.all_gather_matmul.0", [X, X.T, "hccl_world_group", 2], [X])
    pytester.runpytest(f"--msprobe-dump={builder.write()}", "--msprobe-bench=torch").assert_outcomes(skipped=1)
    assert (
        "not checkable offline: it gathers the other ranks' matrices"
        in (reports.results["Functional.all_gather_matmul.0"]["Message"])
    )
