"""A small picture of where and how much an output is off, for the HTML page. Matplotlib is optional (extra `plot`).

Where and how much a failing output is off, in some hundred characters: what the page draws.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.verdicts import OutputRow, Verdict

_BINS = 240
#: Of larger outputs every n-th element is looked at: at most 4 million, some 50 ms.
_PLOT_ELEMENTS = 1 << 14
_MOST_PLOTS = 100


@dataclass(frozen=True, slots=True)
class Errors:
    """|tested - benchmark|, one entry per bin of neighbouring elements.

    Attributes:
        largest: largest finite error of each bin.
        is_nonfinite: whether the bin has a NaN or inf that stands on one side only.
        decades: elements by power of ten of their error, as (exponent, count); exact ones are in none.
        exact: elements without an error.
        step: every how many elements one was looked at.
    """

    largest: npt.NDArray[np.float64]
    is_nonfinite: npt.NDArray[np.bool_]
    decades: tuple[tuple[int, int], ...]
    exact: int
    step: int


class ErrorPlotter:
    """Draws the worst output of a failing item, for the first hundred of this process."""

    def __init__(self) -> None:
        self._left = _MOST_PLOTS

    @classmethod
    def if_possible(cls) -> ErrorPlotter | None:
        """A plotter, or None without Matplotlib."""
        return cls() if find_spec("matplotlib") is not None else None

    def draw(self, rows: Sequence[OutputRow], pairs: Sequence[tuple[Any, Any]]) -> str:
        """A PNG in base64 of the worst failing row; "" when there is nothing to draw. `pairs` are its arrays, by row.

        Never raises: a picture is not a verdict.
        """
        failed = [(row, pair) for row, pair in zip(rows, pairs) if row.status == "error" and can_be_drawn(*pair)]
        if not failed or self._left <= 0:
            return ""
        row, (tested, reference) = max(failed, key=lambda entry: entry[0].badness)
        self._left -= 1
        try:
            picture = _picture(row.label, collect_errors(tested, reference), tested.size)
        except Exception:
            return ""
        return base64.b64encode(picture).decode("ascii")


def can_be_drawn(tested: Any, reference: Any) -> bool:
    """Whether two values are arrays of one shape with more than one element."""
    arrays = isinstance(tested, np.ndarray) and isinstance(reference, np.ndarray)
    return arrays and tested.shape == reference.shape and tested.size > 1


class DecadeCounts:
    """Elements by the power of ten of their error.

    Attributes:
        exact: elements without an error.
    """

    def __init__(self) -> None:
        self.exact = 0
        self._counts = np.zeros(700, np.int64)

    def add(self, errors: npt.NDArray[np.float64]) -> None:
        """Count finite errors."""
        finite = errors[np.isfinite(errors)]
        above = finite[finite > 0]
        self.exact += finite.size - above.size
        self._counts += np.bincount(np.floor(np.log10(above)).astype(np.int64) + 350, minlength=700)[:700]

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(exponent, count), ascending."""
        return tuple((int(at) - 350, int(self._counts[at])) for at in np.flatnonzero(self._counts))


def collect_errors(tested: Array, reference: Array) -> Errors:
    """The errors in bins, without a temporary of the outputs' size."""
    flat_tested, flat_reference = tested.reshape(-1), reference.reshape(-1)
    edges = np.linspace(0, flat_tested.size, min(_BINS, flat_tested.size) + 1).astype(np.int64)
    step = max(1, -(-int(np.diff(edges).max()) // _PLOT_ELEMENTS))
    largest = np.zeros(len(edges) - 1)
    is_nonfinite = np.zeros(len(edges) - 1, np.bool_)
    counts = DecadeCounts()
    for index, (start, stop) in enumerate(pairwise(edges)):
        part = slice(int(start), int(stop), step)
        errors = absolute_errors(flat_tested[part], flat_reference[part])
        finite = errors[np.isfinite(errors)]
        counts.add(errors)
        largest[index] = finite.max(initial=0.0)
        is_nonfinite[index] = finite.size != errors.size
    return Errors(largest, is_nonfinite, counts.pairs(), counts.exact, step)


def absolute_errors(tested: Array, reference: Array) -> npt.NDArray[np.float64]:
    """|tested - reference|, the latter rounded to the tested dtype; NaN or inf where one side alone is not finite."""
    wide = np.complex128 if tested.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        actual = tested.astype(wide)
        expected = round_once(reference, tested.dtype).astype(wide)
        errors = np.abs(actual - expected)
        is_same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return np.where(is_same, 0.0, errors)


def _picture(label: str, errors: Errors, size: int) -> bytes:
    # Figure without pyplot: no window system, no state shared with the user's own plots.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2), dpi=80)
    where, how_much = figure.subplots(
        1,
        2,
        width_ratios=(3, 2),
        gridspec_kw={"left": 0.07, "right": 0.99, "bottom": 0.21, "top": 0.86, "wspace": 0.14},
    )
    _draw_places(where, errors, size)
    _draw_decades(how_much, errors)
    title = {"fontsize": 8, "parse_math": False, "loc": "left"}
    where.set_title(f"{label}: largest |tested - benchmark| by position", **title)
    how_much.set_title(f"elements by size of their error; {errors.exact:,} exact", **title)
    for axes in (where, how_much):
        axes.minorticks_off()  # most of the time would go into them
        axes.tick_params(labelsize=7)
        axes.yaxis.get_offset_text().set_fontsize(7)
        axes.xaxis.get_offset_text().set_fontsize(7)
        axes.spines[["top", "right"]].set_visible(False)
    target = BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _draw_places(axes: Any, errors: Errors, size: int) -> None:
    edges = np.linspace(0, size, len(errors.largest) + 1)
    axes.stairs(errors.largest, edges, fill=True, color="#c62828")
    above = errors.largest[errors.largest > 0]
    axes.ticklabel_format(scilimits=(-3, 5))
    if not above.size:
        axes.set_yticks([])
    elif above.max() > 100 * above.min():
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(above.min() / 2, above.max() * 1e-12))
    bad = edges[:-1][errors.is_nonfinite] + size / len(errors.largest) / 2
    axes.plot(bad, np.full(bad.size, 0.96), "kx", markersize=4, transform=axes.get_xaxis_transform())
    axes.set_xlim(0, size)
    sampled = f", one of {errors.step} elements looked at" if errors.step > 1 else ""
    marked = "; x: NaN or Inf on one side" if bad.size else ""
    axes.set_xlabel(f"flat index{sampled}{marked}", fontsize=7, labelpad=1)


def _draw_decades(axes: Any, errors: Errors) -> None:
    if not errors.decades:
        axes.set_axis_off()
        return
    low = max(errors.decades[0][0], errors.decades[-1][0] - 11)
    counts = dict(errors.decades)
    exponents = list(range(low, errors.decades[-1][0] + 1))
    axes.bar(range(len(exponents)), [counts.get(exponent, 0) for exponent in exponents], color="#57606a")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    every = 1 + len(exponents) // 7
    axes.set_xticks(range(0, len(exponents), every), [f"1e{exponent}" for exponent in exponents[::every]])
    axes.set_xlabel("error from", fontsize=7, labelpad=1)


_ROWS, _COLUMNS = 40, 64
#: Of larger outputs every n-th row is looked at: at most 5 million elements, some 60 ms.
_BIN_ELEMENTS = 1 << 17
_MOST_PICTURES = 300


class ErrorPictures:
    """Adds pictures to failing outputs, to the first some hundred of this process."""

    def __init__(self) -> None:
        self._left = _MOST_PICTURES

    def added(self, rows: Sequence[OutputRow], pairs: Iterable[tuple[Any, Any]]) -> tuple[OutputRow, ...]:
        """`rows` with pictures of those that failed; `pairs` are their arrays, by row.

        Never raises: a picture is not a verdict.
        """
        drawn = [self._with_picture(row, *pair) for row, pair in zip(rows, pairs)]
        return (*drawn, *rows[len(drawn) :])

    def _with_picture(self, row: OutputRow, tested: Any, reference: Any) -> OutputRow:
        if row.status != "error" or self._left <= 0 or not can_be_drawn(tested, reference):
            return row
        self._left -= 1
        try:
            return replace(row, picture=error_picture(tested, reference))
        except Exception:
            return row


def illustrated(
    pictures: ErrorPictures | None, plotter: ErrorPlotter | None, verdict: Verdict, pairs: Sequence[tuple[Any, Any]]
) -> Verdict:
    """`verdict` with what either page draws of a failure; `pairs` are the values behind its outputs."""
    if verdict.status != "error":
        return verdict
    if pictures is not None:
        verdict = replace(verdict, outputs=pictures.added(verdict.outputs, pairs))
    return verdict if plotter is None else replace(verdict, plot=plotter.draw(verdict.outputs, pairs))


def error_picture(tested: Array, reference: Array) -> dict[str, Any]:
    """|tested - reference| of two arrays of one shape, in types of JSON.

    Returns:
        `of`: rows and columns of the array, whose last axis are the columns; `rows` and `columns` of the picture;
        `cells`: one character each, row by row: `0` where all elements are equal, `9` where one is off by `largest` or
        up to ten times less, `8` up to a hundred times less and so on to `1`, `N` where NaN or Inf stand on one side;
        `decades`: elements by power of ten of their error, `exact`: those without, among the elements looked at.
    """
    columns = tested.shape[-1] if tested.ndim else 1
    tested, reference = tested.reshape(-1, columns), reference.reshape(-1, columns)
    row_edges, column_edges = _edges(len(tested), _ROWS), _edges(columns, _COLUMNS)
    largest = np.zeros((len(row_edges) - 1, len(column_edges) - 1))
    is_nonfinite = np.zeros(largest.shape, np.bool_)
    counts = DecadeCounts()
    for index, (start, stop) in enumerate(pairwise(row_edges)):
        part = slice(start, stop, max(1, -(-(stop - start) * columns // _BIN_ELEMENTS)))
        errors = absolute_errors(tested[part], reference[part])
        counts.add(errors)
        is_finite = np.isfinite(errors)
        largest[index] = np.maximum.reduceat(np.where(is_finite, errors, 0.0).max(axis=0), column_edges[:-1])
        is_nonfinite[index] = np.logical_or.reduceat(~is_finite.all(axis=0), column_edges[:-1])
    return {
        "of": list(tested.shape),
        "rows": largest.shape[0],
        "columns": largest.shape[1],
        "largest": float(largest.max()),
        "cells": "".join(_marks(largest, is_nonfinite)),
        "decades": [list(pair) for pair in counts.pairs()],
        "exact": counts.exact,
    }


def _edges(size: int, most: int) -> list[int]:
    return [int(edge) for edge in np.linspace(0, size, min(most, size) + 1)]


def _marks(largest: npt.NDArray[np.float64], is_nonfinite: npt.NDArray[np.bool_]) -> list[str]:
    top = float(largest.max())
    return [
        "N" if bad else "0" if error == 0 else str(9 - min(8, int(math.log10(top / error))))
        for error, bad in zip(largest.flat, is_nonfinite.flat)
    ]
