"""What an API call gets: its arguments, and which recorded gradient belongs to which; and the dump as an engine.

- What an argument drawn at random must be beyond its statistics: a mask of so many, sorted, positive definite, unique.
- Random values that an API refuses, or that mean nothing to it, make a check fail that says nothing about the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, permutations, product
from typing import Any, cast

import numpy as np

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    DtypeValue,
    FieldPath,
    ForwardRecord,
    OpaqueValue,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
    parse_api_name,
    tensor_positions,
    tensors_in,
)
from msprobe_collector.dump_format.values import (
    ARGUMENTS,
    ATTRIBUTES,
    INCOMING,
    KEYWORDS,
    OTHER_GRADIENTS,
    OUTPUT,
    items_of,
)
from pytest_msprobe.cases.random_data import generator_for, has_known_range, random_array
from pytest_msprobe.engines.protocol import Argument, Array, Call, LeafPath, NumpyArgument, Output, Unsupported, leaves
from pytest_msprobe.numerics.expected import Absolute, Times

#: (drawn values, the record, a generator) -> values that fit.
Role = Callable[[Array, ForwardRecord, np.random.Generator], Array]

_IGNORED = -100


def _positive_definite(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return array
    wide = array.astype(np.float64)
    size = max(float(np.abs(wide).max(initial=0)), Absolute.ZERO_OF_FLOAT32)
    product = wide @ wide.swapaxes(-1, -2) / size + size * np.eye(array.shape[-1])
    return np.asarray(product, array.dtype)


def _factor(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """A matrix with triangles far from singular: its diagonal outweighs the rest of each row and column."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        return array
    changed = array.copy()
    size = max(float(np.abs(array.astype(np.float64)).max(initial=0)), Absolute.ZERO_OF_FLOAT32)
    changed[..., np.eye(array.shape[-1], dtype=np.bool_)] = array.shape[-1] * size
    return changed


def _invertible(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """Matrices as drawn, but for those nearly singular, as half of them are with values of 0 and 1 only."""
    # Larger ones would take seconds, and values drawn independently are hardly ever singular then.
    if array.ndim < 2 or not 0 < array.shape[-1] == array.shape[-2] <= 256:
        return array
    is_singular = np.linalg.cond(array.astype(np.float64)) > Times.WORST_CONDITION
    if not is_singular.any():
        return array
    return np.where(is_singular[..., None, None], _factor(array, record, generator), array)


def _sorted(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    return np.sort(array, axis=-1) if array.ndim else array


def _strictly_inside(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """Probabilities whose logarithms exist, also after rounding."""
    inside = Absolute.INSIDE
    return np.clip(array.astype(np.float64), inside, 1 - inside).astype(array.dtype)


def _targets(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """Class indices: what is below 0 is the index to ignore, and all others are from 0 on."""
    if array.dtype.kind != "i" or not array.size or int(array.min()) >= 0:
        return array
    classes = max(1, int(array.max()) + 1)
    between = (array < 0) & (array != _IGNORED)
    changed = array.copy()
    changed[between] = generator.integers(0, classes, int(between.sum()))
    return changed


def _mask(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """A mask with as many True as the recorded output has elements."""
    output = next(iter(tensors_in(record.outputs or ())), None)
    if array.dtype != np.bool_ or output is None or output.size > array.size or len(output.shape) != 1:
        return array
    mask = np.zeros(array.size, np.bool_)
    mask[generator.choice(array.size, output.size, replace=False)] = True
    return mask.reshape(array.shape)


def _unique(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """Indices that meet no place twice, so that the order of writing does not matter, where the range allows it."""
    if array.dtype.kind not in "iu" or array.size < 2:
        return array
    low, high = int(array.min()), int(array.max())
    length = array.shape[0]
    if high - low + 1 < length:
        return array
    lines = array.reshape(length, -1)
    columns = [generator.choice(np.arange(low, high + 1), length, replace=False) for _ in range(lines.shape[1])]
    indices: Array = np.stack(columns, axis=1).astype(array.dtype).reshape(array.shape)
    return indices


def _lengths(array: Array, record: ForwardRecord, generator: np.random.Generator) -> Array:
    """Lengths from 1 on, the longest first."""
    return np.maximum(np.sort(array)[::-1], 1).astype(array.dtype) if array.dtype.kind in "iu" else array


_INVERTED = "inv inverse inv_ex matrixinverse solve solve_ex det logdet slogdet"
#: (short names of APIs, the role, arguments that have it by position or keyword).
_ROLE_TABLE: tuple[tuple[str, Role, tuple[int | str, ...]], ...] = (
    ("cholesky cholesky_ex", _positive_definite, (0, "input", "A")),
    (_INVERTED, _invertible, (0, "input", "A", "x")),
    ("cholesky_solve", _factor, (1, "input2", "L")),
    ("cholesky_inverse", _factor, (0, "input", "input_x", "L")),
    ("solve_triangular", _factor, (0, "a", "A")),
    ("triangular_solve", _factor, (1, "A")),
    ("searchsorted", _sorted, (0, "sorted_sequence")),
    ("bucketize", _sorted, (1, "boundaries")),
    ("binary_cross_entropy", _strictly_inside, (0, "input", "logits")),
    ("cross_entropy nll_loss cross_entropy_loss", _targets, (1, "target", "labels")),
    ("masked_select", _mask, (1, "mask")),
    ("getitem __getitem__", _mask, (1,)),
    ("scatter scatter_ index_copy index_copy_ index_fill", _unique, (2, "index")),
    ("index_put index_put_ scatter_update scatter_nd scatter_nd_update", _unique, (1, "indices")),
    ("ctc_loss", _lengths, (2, 3, "input_lengths", "target_lengths")),
    ("grouped_matmul grouped_matmul_v2", _sorted, ("group_list",)),
)
_ROLES = {name: dict.fromkeys(places, role) for names, role, places in _ROLE_TABLE for name in names.split()}


def fitted(
    api: str, place: int | str, array: Array, record: ForwardRecord, generator: Callable[[], np.random.Generator]
) -> Array:
    """`array`, drawn for the argument at `place` of the API of this short name, or values like it that fit.

    Its shape and dtype stay; an argument without a role stays as it is.
    """
    role = _ROLES.get(api.lower(), {}).get(place)
    return array if role is None or not array.size else np.asarray(role(array, record, generator()))


#: Arguments that one message names.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class InputSource:
    """Where the values of one dump's arguments come from.

    Attributes:
        file: the dump.json, for error sentences.
        tensors: its tensor files.
        seed: the run's seed for random data.
        drawn: places and ranges of the tensors that were drawn so far, since the dump holds no values of them.
    """

    file: str
    tensors: TensorFolder
    seed: int
    drawn: list[str] = field(default_factory=list)

    def arguments(
        self, call: str, record: ForwardRecord
    ) -> tuple[tuple[Argument, ...], dict[str, Argument], list[str]]:
        """(positional arguments, keyword arguments, notes on what the dump left open) of a forward call.

        Raises:
            DumpError: a tensor file is unusable.
            Unsupported: an argument is something that the dump names but does not hold.
        """
        notes: list[str] = []
        place = FieldPath(self.file, f"{call}.forward", ARGUMENTS)
        positional = tuple(
            self._argument(i, value, place / i, notes, record) for i, value in enumerate(record.arguments or ())
        )
        place = FieldPath(self.file, f"{call}.forward", KEYWORDS)
        keywords = {
            key: self._argument(key, value, place / key, notes, record) for key, value in record.keywords.items()
        }
        return positional, keywords, notes

    def attributes(self, call: str, record: ForwardRecord) -> dict[str, Argument] | None:
        """What the class of a Primitive was called with; None where the dump does not say.

        Raises:
            DumpError, Unsupported: as `arguments`.
        """
        place = FieldPath(self.file, f"{call}.forward", ATTRIBUTES)
        if record.attributes is None:
            return None
        return {name: self._value(value, place / name, []) for name, value in record.attributes.items()}

    def incoming(
        self, call: str, values: tuple[Value, ...], outputs: tuple[Value, ...] | None = None
    ) -> tuple[Array | None, ...]:
        """Incoming gradient per output tensor of a backward call; None where the dump has null.

        Gradients of tensors inside dicts and lists stand in `values` as the tensors stand in the forward's `outputs`.
        """
        place = FieldPath(self.file, f"{call}.backward", INCOMING)
        holders = [output for output in outputs or () if _takes_gradients(output)]
        gradients: list[Array | None] = []
        for i, value in enumerate(values):
            is_nested = isinstance(value, (dict, tuple)) and i < len(holders)
            gradients += self._gradients(value, holders[i] if is_nested else None, place / i)
        return tuple(gradients)

    def _gradients(self, value: Value, output: Value, place: FieldPath) -> list[Array | None]:
        if not isinstance(output, (dict, tuple)):
            return [self._tensor(value, place, []) if isinstance(value, TensorValue) else None]
        gradients: list[Array | None] = []
        for step, item in output.items() if isinstance(output, dict) else enumerate(output):
            if _takes_gradients(item):
                gradient = value.get(str(step)) if isinstance(value, dict) else None
                if isinstance(value, tuple) and isinstance(step, int) and step < len(value):
                    gradient = value[step]
                gradients += self._gradients(gradient, item, place / step)
        return gradients

    def _argument(
        self, position: int | str, value: Value, place: FieldPath, notes: list[str], record: ForwardRecord
    ) -> Argument:
        """One argument; where it is drawn, so that its API can use it."""
        argument = self._value(value, place, notes)
        tensor = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if not isinstance(tensor, TensorValue) or tensor.data_name is not None or tensor.is_numpy:
            return argument
        api = parse_api_name(place.record.rpartition(".")[0]).short
        array = cast("Array", argument[0] if isinstance(argument, tuple) else argument)
        array = fitted(api, position, array, record, lambda: generator_for(self.seed, place / "role"))
        return (array,) if isinstance(argument, tuple) else array

    def _value(self, value: Value, place: FieldPath, notes: list[str]) -> Argument:
        if isinstance(value, TensorValue):
            array = self._tensor(value, place, notes)
            return NumpyArgument(array) if value.is_numpy else array
        if isinstance(value, PlainValue):
            return value.value
        if isinstance(value, DtypeValue):
            return value.dtype
        if isinstance(value, OpaqueValue):
            if value.type_name == "torch.device":
                return "cpu"  # where values are compared
            raise Unsupported(f"{place.field} is a {value}, which a dump names but does not hold")
        if isinstance(value, tuple):
            return tuple(self._value(item, place / i, notes) for i, item in enumerate(value))
        if isinstance(value, dict):
            return {key: self._value(item, place / key, notes) for key, item in value.items()}
        return value

    def _tensor(self, value: TensorValue, place: FieldPath, notes: list[str]) -> Array:
        if value.data_name is not None:
            return self.tensors.load(value, place)
        if not has_known_range(value):
            notes.append(f"{place.field} has no recorded range and was drawn from the default one")
        if value.size:
            self.drawn.append(f"{place.field} {_described(value)}")
        return random_array(value, generator_for(self.seed, place), place)


def _described(tensor: TensorValue) -> str:
    """`Float32 (2, 3) from -1.0 to 1.0`."""
    where = f"from {tensor.minimum} to {tensor.maximum}" if has_known_range(tensor) else "without a recorded range"
    return f"{tensor.dtype.name if tensor.dtype else 'of unknown dtype'} {tensor.shape} {where}"


def some_of(drawn: Sequence[str]) -> str:
    """The first of `drawn`, and how many there are besides."""
    return ", ".join(drawn[:_NAMED]) + (f", and {len(drawn) - _NAMED} more" if len(drawn) > _NAMED else "")


def _takes_gradients(output: Value) -> bool:
    return any(not tensor.is_numpy for tensor in tensors_in(output))


def drawn_arguments(record: ForwardRecord) -> str:
    """Names and ranges of the arguments that the dump holds by their statistics only; "" where it holds all."""
    values = {f"{ARGUMENTS}.{index}": value for index, value in enumerate(record.arguments or ())}
    values |= {f"{KEYWORDS}.{key}": value for key, value in record.keywords.items()}
    return some_of(
        [
            f"{name} {_described(tensor)}"
            for name, value in values.items()
            for tensor in tensors_in(value)
            if tensor.data_name is None and tensor.size
        ]
    )


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
        if isinstance(value, (tuple, dict)):
            waiting += [((*path, step), item) for step, item in items_of(value)]
        elif isinstance(value, TensorValue) and not value.is_numpy and _is_differentiable(value):
            yield path


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

    The dump itself is the engine: what the training run really produced is what is tested.

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
