"""What an API call is given: real recorded values, or random ones in their range. Made once, shared by both sides.

- What an argument drawn at random must be beyond its statistics: a mask of so many, sorted, positive definite, unique.
- Random values that an API refuses, or that mean nothing to it, make a check fail that says nothing about the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from msprobe_collector.dump_format import (
    DtypeValue,
    FieldPath,
    ForwardRecord,
    OpaqueValue,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
    parse_api_name,
    tensors_in,
)
from msprobe_collector.dump_format.values import ARGUMENTS, ATTRIBUTES, INCOMING, KEYWORDS
from pytest_msprobe.cases.random_data import generator_for, has_known_range, random_array
from pytest_msprobe.engines.protocol import Argument, Array, NumpyArgument, Unsupported
from pytest_msprobe.numerics.expected import Absolute, Relative, Times

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
    inside = Relative.RECORDED_MEAN
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
