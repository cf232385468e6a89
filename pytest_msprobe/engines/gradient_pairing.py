"""Which recorded gradient belongs to which argument."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    ForwardRecord,
    TensorValue,
    Value,
    tensor_positions,
)
from msprobe_collector.dump_format.fields import OTHER_GRADIENTS, OUTPUT
from pytest_msprobe.engines.protocol import Array, LeafPath

#: Up to this many interchangeable gradients every order is tried; 5! = 120 comparisons of equal-shaped arrays.
_MOST_INTERCHANGEABLE = 5


@dataclass(frozen=True, slots=True)
class GradientPairing:
    """Recorded gradients of one API call, by argument.

    Attributes:
        entries: for each argument that has a recorded gradient, in the order of the record: its index in the backward
            record's `output`, or its path in `other_gradients`.
        interchangeable: groups of arguments whose gradients cannot be distinguished by shape and dtype.
        unmatched: the same of recorded gradients that belong to no tensor argument.
    """

    entries: dict[LeafPath, int | str]
    interchangeable: tuple[tuple[LeafPath, ...], ...]
    unmatched: tuple[int | str, ...]


def gradient_field(entry: int | str) -> str:
    """The field of a backward record in which the gradient `entry` stands."""
    return OTHER_GRADIENTS if isinstance(entry, str) else OUTPUT


def pair_gradients(api: ApiName, forward: ForwardRecord, backward: BackwardRecord) -> GradientPairing:
    """Pairs recorded gradients with arguments: by position among the tensor arguments, nulls counted, others by path.

    Existing collectors write those of a Primitive in the order in which their hooks fire, without nulls; there shape
    and dtype decide, and what they leave open is `interchangeable`. Ours, which write attributes, keep the positions.
    """
    arguments, outgoing = forward.arguments or (), backward.outgoing or ()
    positions = tensor_positions(arguments)
    recorded = [index for index, value in enumerate(outgoing) if isinstance(value, TensorValue)]
    if api.type == "Primitive" and forward.attributes is None:
        return _by_shape(arguments, positions, outgoing, recorded)
    entries: dict[LeafPath, int | str] = {("input", positions[i]): i for i in recorded if i < len(positions)}
    inner = {".".join(map(str, path)): path for path in _tensor_paths(forward)}
    entries |= {inner[path]: path for path in backward.others if path in inner}
    unmatched: list[int | str] = [index for index in recorded if index >= len(positions)]
    unmatched += [path for path in backward.others if path not in inner]
    return GradientPairing(entries, (), tuple(unmatched))


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


def _tensor_paths(forward: ForwardRecord) -> Iterator[LeafPath]:
    """Paths of every tensor among the arguments."""
    waiting: list[tuple[LeafPath, Value]] = [(("input", at), value) for at, value in enumerate(forward.arguments or ())]
    waiting += [(("kwargs", name), value) for name, value in forward.keywords.items()]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, TensorValue) and not value.is_numpy:
            yield path
        elif isinstance(value, tuple):
            waiting += [((*path, at), item) for at, item in enumerate(value)]
        elif isinstance(value, dict):
            waiting += [((*path, key), item) for key, item in value.items()]


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
    entries: dict[LeafPath, int | str] = {}
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
