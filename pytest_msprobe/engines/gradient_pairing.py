"""Which recorded gradient belongs to which argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from msprobe_collector.dump_format import ApiName, ForwardRecord, TensorValue, Value, tensor_positions
from pytest_msprobe.engines.protocol import Array, LeafPath

#: Up to this many interchangeable gradients every order is tried; 5! = 120 comparisons of equal-shaped arrays.
_MOST_INTERCHANGEABLE = 5


@dataclass(frozen=True, slots=True)
class GradientPairing:
    """Recorded gradients of one API call, by argument.

    Attributes:
        entries: index into the backward record's `output` for each argument that has a recorded gradient.
        interchangeable: groups of arguments whose gradients cannot be distinguished by shape and dtype.
        unmatched: indices of recorded gradients that belong to no tensor argument.
    """

    entries: dict[LeafPath, int]
    interchangeable: tuple[tuple[LeafPath, ...], ...]
    unmatched: tuple[int, ...]


def pair_gradients(api: ApiName, forward: ForwardRecord, outgoing: tuple[Value, ...]) -> GradientPairing:
    """Pairs recorded gradients with arguments: by position among the tensor arguments, nulls counted.

    Existing collectors write those of a Primitive in the order in which their hooks fire, without nulls; there shape
    and dtype decide, and what they leave open is `interchangeable`.
    """
    arguments = forward.arguments or ()
    positions = tensor_positions(arguments)
    recorded = [index for index, value in enumerate(outgoing) if isinstance(value, TensorValue)]
    if api.type == "Primitive":
        return _by_shape(arguments, positions, outgoing, recorded)
    entries: dict[LeafPath, int] = {("input", positions[i]): i for i in recorded if i < len(positions)}
    return GradientPairing(entries, (), tuple(i for i in recorded if i >= len(positions)))


def best_order(recorded: Sequence[Array], references: Sequence[Array]) -> tuple[int, ...]:
    """The order of `recorded` (indices) that lies nearest to `references`, by the sum of largest differences.

    All arrays have one shape. More than five keep their order, as trying them all would take too long.
    """
    indices = tuple(range(len(recorded)))
    if len(recorded) > _MOST_INTERCHANGEABLE:
        return indices
    with np.errstate(all="ignore"):
        wide = [_widened(array) for array in references]
        distance = [[_distance(_widened(array), reference) for reference in wide] for array in recorded]
    return min(permutations(indices), key=lambda order: sum(distance[i][place] for place, i in enumerate(order)))


def _distance(array: Array, reference: Array) -> float:
    if array.shape != reference.shape or not array.size:
        return 0.0
    # The same NaN or infinity on both sides is not a difference; on one side it is the largest.
    is_same = (array == reference) | (np.isnan(array) & np.isnan(reference))
    largest = float(np.max(np.where(is_same, 0.0, np.abs(array - reference))))
    return largest if largest == largest else float("inf")


def _widened(array: Array) -> Array:
    return np.asarray(array, dtype=np.complex128 if array.dtype.kind == "c" else np.float64)


def _by_shape(
    arguments: tuple[Value, ...], positions: tuple[int, ...], outgoing: tuple[Value, ...], recorded: list[int]
) -> GradientPairing:
    waiting: dict[tuple[object, ...], list[LeafPath]] = {}
    for position in positions:
        waiting.setdefault(_look(arguments[position]), []).append(("input", position))
    interchangeable = {
        look: tuple(paths)
        for look, paths in waiting.items()
        if len(paths) > 1 and any(_look(outgoing[i]) == look for i in recorded)
    }
    entries: dict[LeafPath, int] = {}
    unmatched = []
    for index in recorded:
        candidates = waiting.get(_look(outgoing[index]))
        if candidates:
            entries[candidates.pop(0)] = index
        else:
            unmatched.append(index)
    return GradientPairing(entries, tuple(interchangeable.values()), tuple(unmatched))


def _look(value: Value) -> tuple[object, ...]:
    return (value.dtype, value.shape) if isinstance(value, TensorValue) else ()
