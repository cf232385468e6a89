"""Index outputs (argmax, topk, sort, ...) under ties: an index is right when it selects the right value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.dtypes import kind_of
from pytest_msprobe.numerics.expected import Absolute
from pytest_msprobe.numerics.judgement import Judgement, plain_judgement, unforgivable_reasons
from pytest_msprobe.numerics.measurement import Element, Metrics, measure, structural_mismatch, unravelled


class SelectedValues:
    """Passes when all indices are right as `check_indices` has it, whatever the standard of the other outputs."""

    name: ClassVar[str] = "selected-values"
    off_bound: ClassVar[float] = Absolute.ANY_DIFFERENCE

    def judge(self, metrics: Metrics) -> Judgement:
        """Return the verdict on indices, of which none may be wrong."""
        return plain_judgement(unforgivable_reasons(metrics))


def select(source: npt.NDArray[Any], indices: npt.NDArray[Any], axis: int | None) -> npt.NDArray[Any]:
    """The values of `source` that `indices` point at, in the shape of `indices`.

    `axis` None: positions in the flattened source. Otherwise positions along `axis`; `indices` may have any length
    there, or lack that axis (argmax without keepdim).

    Raises:
        ValueError: the axis does not exist, or the other axes do not fit.
        IndexError: an index is outside 0..n-1 (negative ones too: no API returns them).
    """
    layout = _Layout.of(source, indices, axis)
    if layout.outside().any():
        raise IndexError(f"Indices must be in {layout.range_text}, found {indices.min()} to {indices.max()}.")
    return layout.selected()


def check_indices(
    source: npt.NDArray[Any],
    tested: npt.NDArray[Any],
    reference: npt.NDArray[Any],
    axis: int | None,
    *,
    unique_along_axis: bool,
    values: npt.NDArray[Any] | None = None,
    is_stable: bool = False,
) -> Metrics:
    """Metrics of tested indices into `source`, the input that device and benchmark both got.

    An element is unequal when its index is out of range, when it repeats an earlier one along `axis` although
    `unique_along_axis` (sort, argsort, topk), when it selects another value than the benchmark's index does (NaN equals
    NaN) or than the tested `values` output holds there, or when it stands behind a later one of an equal value although
    `is_stable`. So indices that differ only among ties are equal, with cosine 1 and errors 0: the figures are
    those of the selected values, and None when some index is out of range. `first_unequal` holds the indices.
    Where an index is out of range, values are not looked at. Shapes or dtypes that disagree or do not fit the source,
    and benchmark indices out of range, are a structural mismatch. No index at all: as in `measure`.
    """
    structural = structural_mismatch(tested, reference) or _unusable(source, reference, axis)
    if structural or tested.size == 0:
        return Metrics(kind_of(tested.dtype), tested.size, structural=structural)
    layout, benchmark_layout = _Layout.of(source, tested, axis), _Layout.of(source, reference, axis)
    outside = layout.outside()
    faults = [(f"the index is not in {layout.range_text}", outside)]
    if unique_along_axis:
        faults.append(("the index occurs twice", layout.repeated()))
    figures = Metrics("int", tested.size)
    if not outside.any():
        selected, benchmark_selected = layout.selected(), benchmark_layout.selected()
        faults.append(("the index selects another value", _is_unequal(selected, benchmark_selected)))
        if values is not None and values.shape == selected.shape and values.dtype == selected.dtype:
            faults.append(
                ("the values output holds another value than the index selects", _is_unequal(selected, values))
            )
        if is_stable:
            faults.append(("the index stands behind a later one of an equal value", layout.swapped()))
        figures = measure(selected, benchmark_selected, off_bound=Absolute.ANY_DIFFERENCE)
    return _entered(faults, figures, tested, reference)


def scatter_by_index(
    incoming: npt.NDArray[Any], source: npt.NDArray[Any], indices: npt.NDArray[Any], axis: int | None
) -> npt.NDArray[Any] | None:
    """The gradient in float64 of a selection from `source`: each element of `incoming` goes where its index points.

    None when the indices do not fit, are out of range, or differ in shape from `incoming`.
    """
    try:
        layout = _Layout.of(source, indices, axis)
    except ValueError:
        return None
    if incoming.shape != indices.shape or layout.outside().any():
        return None
    gradient = np.zeros(layout.source.shape)
    places = list(np.indices(layout.indices.shape, sparse=True))
    places[layout.axis] = layout.indices
    np.add.at(gradient, tuple(places), incoming.astype(np.float64).reshape(layout.indices.shape))
    return gradient.reshape(source.shape)


def _unusable(source: npt.NDArray[Any], reference: npt.NDArray[Any], axis: int | None) -> str | None:
    if kind_of(reference.dtype) != "int":
        return f"Indices must be integers, not {reference.dtype}."
    if kind_of(source.dtype) == "other":
        return f"Elements of dtype {source.dtype} cannot be selected."
    try:
        layout = _Layout.of(source, reference, axis)
    except ValueError as error:
        return str(error)
    return f"The benchmark's indices are not all in {layout.range_text}." if layout.outside().any() else None


def _is_unequal(tested: npt.NDArray[Any], reference: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    # Only NaN differs from itself; np.isnan does not know every dtype.
    both_nan = np.not_equal(tested, tested) & np.not_equal(reference, reference)
    return np.asarray((tested != reference) & ~both_nan)


def _entered(
    faults: list[tuple[str, npt.NDArray[np.bool_]]],
    figures: Metrics,
    tested: npt.NDArray[Any],
    reference: npt.NDArray[Any],
) -> Metrics:
    """`figures` of the selected values, turned into metrics of the indices that had to be equal."""
    unequal = np.logical_or.reduce([mask for _, mask in faults])
    count = int(np.count_nonzero(unequal))
    figures = replace(figures, kind="int", max_ulp=None, nonfinite_mismatches=0, first_nonfinite=None, off_bound=None)
    figures = replace(figures, off_count=count, unequal_count=count, first_unequal=None)
    if count == 0:
        return figures
    index = unravelled(int(unequal.argmax()), unequal.shape)
    first = Element(index, tested[index].item(), reference[index].item())
    note = next(note for note, mask in faults if mask[index])
    return replace(figures, first_unequal=first, unequal_note=note)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A source and indices into it with the same number of axes, and how the indices were shaped before."""

    source: npt.NDArray[Any]
    indices: npt.NDArray[np.int64]
    axis: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, source: npt.NDArray[Any], indices: npt.NDArray[Any], axis: int | None) -> _Layout:
        """Source and indices with the axis to select along; both flat for no axis or a 0-d source.

        Raises:
            ValueError: the axis does not exist, or the indices do not fit the source along the others.
        """
        shape = indices.shape
        indices = indices.astype(np.int64, copy=False)
        if axis is None or source.ndim == 0:
            return cls(source.reshape(-1), indices.reshape(-1), 0, shape)
        if not -source.ndim <= axis < source.ndim:
            raise ValueError(f"Axis {axis} does not exist in a source of shape {source.shape}.")
        axis %= source.ndim
        if indices.ndim == source.ndim - 1:
            indices = np.expand_dims(indices, axis)
        others, indexed = (array.shape[:axis] + array.shape[axis + 1 :] for array in (source, indices))
        if indices.ndim != source.ndim or others != indexed:
            raise ValueError(f"Indices of shape {shape} do not fit axis {axis} of a source of shape {source.shape}.")
        return cls(source, indices, axis, shape)

    @property
    def range_text(self) -> str:
        """The valid indices, for messages."""
        count = self.source.shape[self.axis]
        return f"0..{count - 1}" if count else "the empty source"

    def outside(self) -> npt.NDArray[np.bool_]:
        """True where an index is out of range, in the shape that the indices had."""
        count = self.source.shape[self.axis]
        return np.asarray((self.indices < 0) | (self.indices >= count)).reshape(self.shape)

    def repeated(self) -> npt.NDArray[np.bool_]:
        """True where an index occurred earlier along the axis, in the shape that the indices had."""
        indices = np.moveaxis(self.indices, self.axis, -1)
        order = np.argsort(indices, axis=-1, kind="stable")
        ordered = np.take_along_axis(indices, order, axis=-1)
        is_repeated = np.zeros(indices.shape, dtype=np.bool_)
        np.put_along_axis(is_repeated, order[..., 1:], ordered[..., 1:] == ordered[..., :-1], axis=-1)
        return np.moveaxis(is_repeated, -1, self.axis).reshape(self.shape)

    def swapped(self) -> npt.NDArray[np.bool_]:
        """True where the index before it selects an equal value further on, in the shape that the indices had."""
        indices = np.moveaxis(self.indices, self.axis, -1)
        selected = np.moveaxis(np.take_along_axis(self.source, self.indices, axis=self.axis), self.axis, -1)
        is_swapped = np.zeros(indices.shape, dtype=np.bool_)
        is_swapped[..., 1:] = ~_is_unequal(selected[..., 1:], selected[..., :-1]) & (
            indices[..., 1:] < indices[..., :-1]
        )
        return np.moveaxis(is_swapped, -1, self.axis).reshape(self.shape)

    def selected(self) -> npt.NDArray[Any]:
        """The values at the indices, in the shape that the indices had."""
        return np.asarray(np.take_along_axis(self.source, self.indices, axis=self.axis)).reshape(self.shape)
