"""Where and how much a failing output is off, in some hundred characters: what both pages draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import round_once
from pytest_msprobe.numerics.measurement import is_same
from pytest_msprobe.verdicts import OutputRow, Verdict

_ROWS, _COLUMNS = 40, 64
#: Of larger outputs every n-th row is looked at: at most 5 million elements, some 60 ms.
_BIN_ELEMENTS = 1 << 17
_MOST_PICTURES = 300


def absolute_errors(tested: Array, reference: Array) -> npt.NDArray[np.float64]:
    """|tested - reference|, the latter rounded to the tested dtype; NaN or inf where one side alone is not finite."""
    wide = np.complex128 if tested.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        actual = tested.astype(wide)
        expected = round_once(reference, tested.dtype).astype(wide)
        errors = np.abs(actual - expected)
        return np.where(is_same(actual, expected), 0.0, errors)


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
        if row.status != "error" or self._left <= 0:
            return row
        if not (isinstance(tested, np.ndarray) and isinstance(reference, np.ndarray)):
            return row
        if tested.shape != reference.shape or tested.size <= 1:
            return row
        self._left -= 1
        try:
            return replace(row, picture=error_picture(tested, reference))
        except Exception:
            return row


def illustrated(pictures: ErrorPictures | None, verdict: Verdict, pairs: Sequence[tuple[Any, Any]]) -> Verdict:
    """`verdict` with pictures of what failed; `pairs` are the values behind its outputs."""
    if pictures is None or verdict.status != "error":
        return verdict
    return replace(verdict, outputs=pictures.added(verdict.outputs, pairs))


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
    least = -350  # float64 has no power of ten below
    exact, counts = 0, np.zeros(700, np.int64)
    for index, (start, stop) in enumerate(pairwise(row_edges)):
        part = slice(start, stop, max(1, -(-(stop - start) * columns // _BIN_ELEMENTS)))
        errors = absolute_errors(tested[part], reference[part])
        is_finite = np.isfinite(errors)
        exact += int(np.count_nonzero(errors == 0))
        decades = np.floor(np.log10(errors[is_finite & (errors > 0)])).astype(np.int64)
        counts += np.bincount(decades - least, minlength=counts.size)
        largest[index] = np.maximum.reduceat(np.where(is_finite, errors, 0.0).max(axis=0), column_edges[:-1])
        is_nonfinite[index] = np.logical_or.reduceat(~is_finite.all(axis=0), column_edges[:-1])
    return {
        "of": list(tested.shape),
        "rows": largest.shape[0],
        "columns": largest.shape[1],
        "largest": float(largest.max()),
        "cells": "".join(_marks(largest, is_nonfinite)),
        "decades": [[at + least, counts.item(at)] for at in np.flatnonzero(counts).tolist()],
        "exact": exact,
    }


def _edges(size: int, most: int) -> list[int]:
    return [int(edge) for edge in np.linspace(0, size, min(most, size) + 1)]


def _marks(largest: npt.NDArray[np.float64], is_nonfinite: npt.NDArray[np.bool_]) -> list[str]:
    top = float(largest.max())
    marks = ["0"] * largest.size
    for place in np.flatnonzero(largest).tolist():
        marks[place] = str(9 - min(8, int(math.log10(top / largest.item(place)))))
    for place in np.flatnonzero(is_nonfinite).tolist():
        marks[place] = "N"
    return marks
