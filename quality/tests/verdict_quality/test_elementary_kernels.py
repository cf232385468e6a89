"""Why some faults of float32 are counted apart: a real device's exp is as far off as they are."""

from __future__ import annotations

import numpy as np
import pytest

from quality.verdict_quality.tables import EXP_ROUNDINGS

mindspore = pytest.importorskip("mindspore")


def test_noise_of_16_roundings_is_what_the_exp_of_mindspore_has_on_cpu() -> None:
    """In roundings of element and input together: exp answers to a rounding of x by x of its own."""
    given = np.random.default_rng(3).standard_normal(50_000).astype(np.float32) * 3
    exact = np.exp(given.astype(np.float64))
    tested = mindspore.mint.exp(mindspore.Tensor(given)).asnumpy().astype(np.float64)
    error = np.abs(tested - exact) / (2.0**-24 * exact * (1 + np.abs(given)))
    assert 16 < error.max() <= EXP_ROUNDINGS + 0.5
    assert np.sqrt(np.square(error).mean()) > 4
