"""Where the elements of an output stand that are off: one box, a tile, columns, a stride, the last block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.metrics import unravelled

Mask = npt.NDArray[np.bool_]

#: A region counts as off when so many of its elements are: some of a wrong block are right by chance.
_FILLED = 0.7
_NEARLY_ALL = 0.9


def describe_region(is_off: Mask) -> str:
    """Where the elements are, such as ``columns 992 to 1023`` or ``one 16 x 16 tile at [.., 32:48, 64:80]``.

    "" where they are everywhere, or nowhere.
    """
    places = np.flatnonzero(is_off)
    if places.size in (0, is_off.size) or (places.size > 8 and places.size >= _NEARLY_ALL * is_off.size):
        return ""
    if places.size == 1:
        return f"one element at {list(unravelled(int(places[0]), is_off.shape))}"
    found = _box(is_off) or _run(places, is_off.size) or _lines(is_off) or _stride(places)
    return found or f"{places.size} of {is_off.size} elements, scattered"


def _box(is_off: Mask) -> str:
    """One box of indices that is smaller than the output along some axis."""
    spans = [_span(is_off, axis) for axis in range(is_off.ndim)]
    volume = int(np.prod([stop - start for start, stop in spans]))
    partial = [axis for axis, (start, stop) in enumerate(spans) if stop - start < is_off.shape[axis]]
    filled = np.count_nonzero(is_off) / volume
    places = np.flatnonzero(is_off)
    if (
        is_off.ndim == 1
        or not partial
        or filled < _FILLED
        or volume <= 2
        or filled < places.size / (places[-1] - places[0] + 1)
    ):
        return ""  # nothing, or rather a run of elements
    if len(partial) == 1:
        return _slab(partial[0], spans[partial[0]], is_off.shape)
    sizes = " x ".join(str(stop - start) for start, stop in spans if stop - start > 1)
    return f"one {sizes} tile at {_slices(spans, is_off.shape)}"


def _span(is_off: Mask, axis: int) -> tuple[int, int]:
    others = tuple(other for other in range(is_off.ndim) if other != axis)
    hit = np.flatnonzero(is_off.any(axis=others))
    return int(hit[0]), int(hit[-1]) + 1


def _slab(axis: int, span: tuple[int, int], shape: tuple[int, ...]) -> str:
    name = {len(shape) - 1: "column", len(shape) - 2: "row"}.get(axis, f"index on axis {axis}:")
    start, stop = span
    if stop - start == 1:
        return f"{name} {start}"
    plural = f"{name}s" if name in ("row", "column") else f"indices on axis {axis}:"
    return f"{plural} {start} to {stop - 1}"


def _slices(spans: Sequence[tuple[int, int]], shape: tuple[int, ...]) -> str:
    """A region as NumPy writes it: ``[.., 32:48, 64:80]``, the axes before the first partial one left out."""
    first = next(axis for axis, (start, stop) in enumerate(spans) if stop - start < shape[axis])
    shown = [f"{start}:{stop}" if stop - start > 1 else str(start) for start, stop in spans[first:]]
    return f"[{', '.join([*(['..'] if first else []), *shown])}]"


def _run(places: npt.NDArray[np.int64], size: int) -> str:
    """Elements in one run of memory."""
    first, last = int(places[0]), int(places[-1])
    length = last - first + 1
    if places.size < _FILLED * length or length >= size:
        return ""
    if last == size - 1:
        return f"the last {length} of {size} elements"
    return f"the first {length} of {size} elements" if first == 0 else f"{length} elements from flat position {first}"


def _lines(is_off: Mask) -> str:
    """Whole rows or columns, not side by side."""
    if is_off.ndim < 2:
        return ""
    rows = is_off.reshape(-1, is_off.shape[-1])
    for name, table in (("rows", rows), ("columns", rows.T)):
        shares = table.mean(axis=1)
        hit = np.flatnonzero(shares)
        if hit.size < len(shares) and (shares[hit] >= _FILLED).all():
            step = _step(hit)
            every = f"every {_ordinal(step)} of the {name}, from {hit[0]}" if step > 1 and hit.size > 2 else ""
            shown = ", ".join(map(str, hit[:4])) + (", .." if hit.size > 4 else "")
            return every or f"{hit.size} of {len(shares)} {name}: {shown}"
    return ""


def _stride(places: npt.NDArray[np.int64]) -> str:
    step = _step(places)
    if step < 2 or places.size < 8:
        return ""
    expected = (int(places[-1]) - int(places[0])) // step + 1
    return f"every {_ordinal(step)} element, from {places[0]}" if places.size >= _FILLED * expected else ""


def _step(places: npt.NDArray[Any]) -> int:
    return int(np.gcd.reduce(np.diff(places))) if places.size > 1 else 0


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
