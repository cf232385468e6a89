"""Which recorded gradient belongs to which argument.

The dump itself as an engine: what the training run really produced is what is tested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress, permutations, product
from typing import Any

import numpy as np

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    FieldPath,
    ForwardRecord,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
    tensor_positions,
)
from msprobe_collector.dump_format.values import OTHER_GRADIENTS, OUTPUT, items_of
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, Output, Unsupported, leaves


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
    Arguments of integers have no gradient: where a position would give them one, only the others are counted.
    """
    arguments, outgoing = forward.arguments or (), backward.outgoing or ()
    positions = tensor_positions(arguments)
    can_have = [_is_differentiable(arguments[position]) for position in positions]
    if api.type != "Primitive" and len(outgoing) < len(positions) and None not in outgoing:
        needs = [has and _needs_gradient(arguments[position]) for position, has in zip(positions, can_have)]
        can_have = needs if sum(needs) >= len(outgoing) else can_have  # the existing tool leaves out the others
    recorded = [
        index
        for index, value in enumerate(outgoing)
        if isinstance(value, TensorValue) and (index >= len(positions) or can_have[index] or _is_differentiable(value))
    ]
    is_misplaced = any(not has for index, has in enumerate(can_have) if index in recorded)
    is_by_shape = api.type == "Primitive" and forward.attributes is None
    if is_misplaced or is_by_shape:
        positions = tuple(compress(positions, can_have))
        is_by_shape = is_by_shape or any(
            index >= len(positions) or _look(arguments[positions[index]]) != _look(outgoing[index])
            for index in recorded
        )
    if is_by_shape:
        return _by_shape(arguments, positions, outgoing, recorded)
    entries: dict[LeafPath, int | str] = {("input", positions[i]): i for i in recorded if i < len(positions)}
    unmatched: list[int | str] = [index for index in recorded if index >= len(positions)]
    inner = {".".join(map(str, path)): path for path in _tensor_paths(forward)}
    for name in backward.others:
        if name in inner:
            entries[inner[name]] = name
        else:
            unmatched.append(name)
    return GradientPairing(entries, (), tuple(unmatched))


def best_order(recorded: Sequence[Array], references: Sequence[Array]) -> tuple[int, ...]:
    """The order of `recorded` (indices) that lies nearest to `references`, by the sum of largest differences.

    All arrays have one shape. More than five keep their order, as trying them all would take too long.
    """
    indices = tuple(range(len(recorded)))
    # Up to this many interchangeable gradients every order is tried; 5! = 120 comparisons of
    # equal-shaped arrays.
    if len(recorded) > 5:
        return indices
    with np.errstate(all="ignore"):
        wide = [_widened(array) for array in references]
        distance = {pair: _distance(_widened(recorded[pair[0]]), wide[pair[1]]) for pair in product(indices, indices)}
    return min(permutations(indices), key=lambda order: sum(map(distance.__getitem__, zip(order, indices))))


def _tensor_paths(forward: ForwardRecord) -> Iterator[LeafPath]:
    """Paths of every tensor among the arguments that can have a gradient."""
    waiting: list[tuple[LeafPath, Value]] = [(("input",), forward.arguments), (("kwargs",), forward.keywords)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, TensorValue) and not value.is_numpy and _is_differentiable(value):
            yield path
        waiting += [((*path, step), item) for step, item in items_of(value)]


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
    waiting: dict[tuple[object, ...], list[LeafPath]] = defaultdict(list)
    for position in positions:
        waiting[_look(arguments[position])].append(("input", position))
    looks = {_look(outgoing[index]) for index in recorded}
    interchangeable = [tuple(paths) for look, paths in waiting.items() if len(paths) > 1 and look in looks]
    entries: dict[LeafPath, int | str] = {}
    unmatched = []
    for index in recorded:
        candidates = waiting.get(_look(outgoing[index]))
        if candidates:
            entries[candidates.pop(0)] = index
        else:
            unmatched.append(index)
    return GradientPairing(entries, tuple(interchangeable), tuple(unmatched))


def _is_differentiable(value: Value) -> bool:
    """Whether a tensor can have, or be, a gradient: not one of integers or bools."""
    return isinstance(value, TensorValue) and (value.dtype is None or value.dtype.kind in ("float", "complex"))


def _needs_gradient(value: Value) -> bool:
    """Whether the dump does not say that a tensor requires no gradient."""
    return not isinstance(value, TensorValue) or value.requires_grad != "False"


def _look(value: Value) -> tuple[object, ...]:
    return (value.dtype, value.shape) if isinstance(value, TensorValue) else ()


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """The recorded outputs and gradients of one API call, loaded when asked for.

    Attributes:
        name: `recorded`.
        label: for people.
        forward_record, backward_record, pairing: what the dump says of the call.
        tensors: the files with values.
        file: the dump.json.
        drawn: inputs that the dump holds no values of, and may grow: what a benchmark makes of drawn ones says nothing
            of the recorded results.
        ended: the exception that ended the step, "" without one.
    """

    name = "recorded"
    label = "recorded values"

    forward_record: ForwardRecord
    backward_record: BackwardRecord | None
    pairing: GradientPairing
    tensors: TensorFolder
    file: str
    drawn: Sequence[str] = ()
    ended: str = ""

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Always None: whether real data is there shows when it is loaded."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> RecordedExecution:
        """The recorded outputs.

        Raises:
            Unsupported: the dump holds only statistics of them, or of an argument of the call.
        """
        if self.drawn:
            self._refuse_drawn()
        return RecordedExecution(self, call, differentiate)

    def close(self) -> None:
        """Nothing is held."""

    def load_outputs(self, call: str) -> tuple[Output, ...]:
        """Every recorded output leaf of the API call named `call`.

        Raises:
            Unsupported: the dump holds no outputs of this call.
        """
        if self.forward_record.outputs is None:
            why = f"the step ended in {self.ended}" if self.ended else "cut by data_mode or scope?"
            raise Unsupported(f"the dump holds no outputs of this call ({why})")
        return tuple(self._leaves((), self.forward_record.outputs, FieldPath(self.file, f"{call}.forward", OUTPUT)))

    def load_gradient(self, call: str, path: LeafPath) -> Array | None:
        """The recorded gradient of one argument, or None where none was recorded.

        Raises:
            Unsupported: it was made of other values than those of the forward record, or of drawn ones.
        """
        entry, record = self.pairing.entries.get(path), self.backward_record
        if entry is None or record is None:
            return None
        if self.drawn:
            self._refuse_drawn()
        if record.is_recomputed_otherwise:
            raise Unsupported("its forward was computed again in the backward, with other values than the first time")
        value = record.others[entry] if isinstance(entry, str) else (record.outgoing or ())[entry]
        if not isinstance(value, TensorValue):
            return None
        return self._load(value, FieldPath(self.file, f"{call}.backward", gradient_field(entry)) / entry)

    def _refuse_drawn(self) -> None:
        more = f" and {len(self.drawn) - 1} more" if len(self.drawn) > 1 else ""
        raise Unsupported(f"the dump holds no values of {self.drawn[0]}{more}, which the recorded results depend on")

    def _leaves(self, path: tuple[int | str, ...], value: Value, place: FieldPath) -> list[Output]:
        if isinstance(value, (tuple, dict)):
            return [leaf for step, item in items_of(value) for leaf in self._leaves((*path, step), item, place / step)]
        if isinstance(value, TensorValue):
            return [Output(path, self._load(value, place))]
        if isinstance(value, PlainValue):
            return [Output(path, value.value)]
        return [Output(path, None if value is None else str(value))]

    def _load(self, value: TensorValue, place: FieldPath) -> Array:
        if value.data_name is None:
            raise Unsupported("the dump holds only statistics of this call; check it on a device instead")
        return self.tensors.load(value, place)


@dataclass(frozen=True, slots=True)
class RecordedExecution:
    """The recorded values of one API call, as an execution."""

    engine: RecordedEngine
    call: Call
    differentiate: tuple[LeafPath, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every recorded output leaf."""
        return self.engine.load_outputs(str(self.call.api))

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """The recorded gradients, in the dtypes of the arguments; `incoming` is what they were computed from."""
        dtypes = {path: getattr(value, "dtype", None) for path, value in leaves(self.call)}
        load = partial(self.engine.load_gradient, str(self.call.api))
        return tuple(_as_computed(load(path), dtypes.get(path)) for path in self.differentiate)


def _as_computed(gradient: Array | None, dtype: Any) -> Array | None:
    """A gradient that was widened when it was handed on, in the `dtype` in which it was computed."""
    if gradient is None or dtype is None or dtype.itemsize >= gradient.dtype.itemsize:
        return gradient
    with np.errstate(over="ignore"):
        narrow = gradient.astype(dtype)
    is_same = np.array_equal(narrow.astype(gradient.dtype), gradient, equal_nan=True)
    return narrow if is_same else gradient
