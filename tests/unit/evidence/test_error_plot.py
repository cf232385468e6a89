"""The errors behind the plot of a failure, and the bounds of the plot itself."""

from __future__ import annotations

import base64
import sys

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.evidence.pictures import ErrorPlotter, collect_errors
from pytest_msprobe.verdicts import OutputRow

ROW = OutputRow("output.0", "Float64", "Float32", (8,), "error", figures={"cosine": 0.0, "max_abs": 1.0})
PASS = OutputRow("output.1", "Float64", "Float32", (8,), "pass", figures={"cosine": 1.0, "max_abs": 0.0})


def test_errors_are_told_by_place_and_size() -> None:
    reference = np.ones(1000)
    tested = reference.astype(np.float32)
    tested[500:] += np.float32(0.5)
    tested[3] = np.nan
    errors = collect_errors(tested, reference)
    assert errors.exact == 499
    assert errors.decades == ((-1, 500),)
    assert list(np.flatnonzero(errors.is_nonfinite)) == [0]
    assert errors.largest[:120].max() == 0
    assert errors.largest[121:].min() == 0.5


def test_nan_and_inf_on_both_sides_are_exact() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0])
    errors = collect_errors(values.astype(np.float32), values)
    assert (errors.exact, errors.decades, errors.is_nonfinite.any()) == (4, (), False)


def test_the_benchmark_is_rounded_to_the_tested_dtype() -> None:
    reference = np.linspace(0, 1, 300)
    assert collect_errors(reference.astype(ml_dtypes.bfloat16), reference).exact > 290


def test_large_outputs_are_sampled() -> None:
    large = np.broadcast_to(np.float32(1), 240 * (1 << 14) * 3)
    errors = collect_errors(large, np.broadcast_to(np.float64(1), large.shape))
    assert errors.step == 3
    assert errors.exact == 240 * (1 << 14)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.needs("matplotlib")
def test_every_kind_of_element_gives_a_small_picture(dtype: type) -> None:
    tested = np.arange(64).reshape(8, 8) % 2
    picture = ErrorPlotter().draw([PASS, ROW], [(tested, tested), (tested.astype(dtype), (1 - tested).astype(dtype))])
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert len(picture) < 60_000


def test_nothing_to_draw_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones(4)
    plotter = ErrorPlotter()
    assert plotter.draw([PASS], [(values, values)]) == ""
    assert plotter.draw([ROW], [(values, np.ones(5))]) == ""
    assert plotter.draw([ROW], [(1, 2)]) == ""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plotter.draw([ROW], [(values, values + 1)]) == ""


@pytest.mark.needs("matplotlib")
def test_only_so_many_are_drawn() -> None:
    plotter = ErrorPlotter()
    plotter._left = 1
    pair = (np.ones(4), np.zeros(4))
    assert plotter.draw([ROW], [pair])
    assert plotter.draw([ROW], [pair]) == ""
