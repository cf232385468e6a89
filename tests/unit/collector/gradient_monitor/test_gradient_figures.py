"""Figures of a gradient against values worked out by hand and, for large ones, against NumPy on the whole."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from msprobe_collector.configuration import GradientMonitorSettings
from msprobe_collector.gradient_monitor import (
    _CHUNK_ELEMENTS,
    columns,
    interval_labels,
    md5_of_gradient,
    measure_gradient,
    row,
)


def test_md5_is_that_of_the_float32_bytes() -> None:
    expected = "6e55f044605a4991f15fd4505d83faf4"
    assert md5_of_gradient(np.array([1, 2, 3], np.float32)) == expected
    assert md5_of_gradient(np.array([1, 2, 3], np.float64)) == expected
    assert md5_of_gradient(np.array([[1, 9], [2, 9], [3, 9]], np.float32)[:, 0]) == expected, "a view with strides"


def test_intervals_are_closed_on_the_right() -> None:
    figures = measure_gradient(np.array([9.3, 5.4, -1.0, -12.3], np.float32), [-10, 0, 10])
    assert figures.interval_counts == (1, 1, 2, 0)
    assert measure_gradient(np.array([-10.0, 0, 10]), [-10, 0, 10]).interval_counts == (1, 1, 1, 0)


def test_nan_is_counted_and_in_no_interval() -> None:
    figures = measure_gradient(np.array([1, math.nan, 2, math.inf, -math.inf], np.float16), [0])
    assert (figures.nans, figures.infs) == (1, 2)
    assert figures.interval_counts == (1, 3)
    assert math.isnan(figures.max)
    assert math.isnan(figures.min)
    assert math.isnan(figures.norm)


@pytest.mark.parametrize("place", [0, 5, _CHUNK_ELEMENTS, _CHUNK_ELEMENTS + 6])
def test_nan_shows_wherever_it_stands(place: int) -> None:
    values = np.ones(_CHUNK_ELEMENTS + 7, np.float32)
    values[place] = math.nan
    figures = measure_gradient(values)
    assert figures.nans == 1
    assert math.isnan(figures.max)
    assert math.isnan(figures.min)
    assert math.isnan(figures.norm)


def test_inf_shows() -> None:
    figures = measure_gradient(np.array([1, -math.inf], np.float32))
    assert (figures.max, figures.min, figures.norm, figures.infs) == (1, -math.inf, math.inf, 1)


def test_a_norm_neither_overflows_nor_loses_digits() -> None:
    assert measure_gradient(np.full(4, 1e30, np.float32)).norm == pytest.approx(2e30, rel=1e-7)
    assert measure_gradient(np.full(4, 60000, np.float16)).norm == 120000 - 2 * (60000 - float(np.float16(60000)))
    assert measure_gradient(np.array(-3, np.float32)).norm == 3


def test_an_empty_gradient_has_no_extremes() -> None:
    figures = measure_gradient(np.empty((0, 3), np.float32), [0])
    assert (figures.size, figures.norm, figures.nans, figures.infs, figures.zeros) == (0, 0, 0, 0, 0)
    assert math.isnan(figures.max)
    assert math.isnan(figures.min)
    assert figures.interval_counts == (0, 0)


def test_chunks_add_up_to_the_whole() -> None:
    values = np.random.default_rng(7).normal(size=(2, _CHUNK_ELEMENTS // 2 + 3)).astype(np.float32)
    values[1, ::10] = 0
    figures = measure_gradient(values, [-1, 0, 1])
    whole = values.astype(np.float64)
    assert (figures.max, figures.min) == (whole.max(), whole.min())
    assert figures.norm == pytest.approx(np.linalg.norm(whole), rel=1e-14)
    assert figures.zeros == np.count_nonzero(whole == 0)
    edges = [-np.inf, -1, 0, 1, np.inf]
    assert figures.interval_counts == tuple(
        np.count_nonzero((whole > left) & (whole <= right)) for left, right in pairwise(edges)
    )


def settings(level: str, bounds: tuple[float, ...] = (-1, 0, 1)) -> GradientMonitorSettings:
    return GradientMonitorSettings(level=level, parameters=(), bounds=bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "middle"),
    [("L0", ["MD5"]), ("L1", []), ("L2", ["(-inf, -1]", "(-1, 0]", "(0, 1]", "(1, inf)", "=0"])],
)
def test_columns_of_a_level(level: str, middle: list[str]) -> None:
    expected = ["param_name", *middle, "max", "min", "norm", "shape", "nan", "inf"]
    assert columns(settings(level)) == expected
    assert len(row("fc.weight", np.ones((2, 2), np.float32), settings(level))) == len(expected)


def test_one_bound_makes_two_intervals() -> None:
    assert interval_labels([0.5]) == ["(-inf, 0.5]", "(0.5, inf)"]


def test_a_row_reads_back() -> None:
    cells = row("fc.weight", np.array([[9.3, 0], [-1.0, -12.3]], np.float32), settings("L2", (-10, 0, 10)))
    assert cells[0] == "fc.weight"
    assert cells[1:6] == ["0.25", "0.5", "0.25", "0.0", "0.25"]
    assert [np.float32(cell) for cell in cells[6:8]] == [np.float32(9.3), np.float32(-12.3)]
    assert cells[9:] == ["[2, 2]", "0", "0"]
