"""Where and how much a failing output is off, in some hundred characters: what the page draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.evidence.error_plot import DecadeCounts, ErrorPlotter, absolute_errors, can_be_drawn
from pytest_msprobe.verdicts import OutputRow, Verdict

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
