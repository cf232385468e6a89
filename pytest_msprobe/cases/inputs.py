"""What an API call is given: real recorded values, or random ones in their range. Made once, shared by both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from msprobe_collector.dump_format import (
    DtypeValue,
    ForwardRecord,
    OpaqueValue,
    Place,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
    parse_api_name,
    tensors_in,
)
from msprobe_collector.dump_format.fields import ARGUMENTS, ATTRIBUTES, INCOMING, KEYWORDS
from pytest_msprobe.cases.argument_roles import fitted
from pytest_msprobe.cases.random_data import generator_for, has_known_range, random_array
from pytest_msprobe.engines.protocol import Argument, Array, NumpyArgument, Unsupported

#: Arguments that one message names.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class InputSource:
    """Where the values of one dump's arguments come from.

    Attributes:
        file: the dump.json, for error sentences.
        tensors: its tensor files.
        seed: the run's seed for random data.
    """

    file: str
    tensors: TensorFolder
    seed: int

    def arguments(
        self, call: str, record: ForwardRecord
    ) -> tuple[tuple[Argument, ...], dict[str, Argument], list[str]]:
        """(positional arguments, keyword arguments, notes on what the dump left open) of a forward call.

        Raises:
            DumpError: a tensor file is unusable.
            Unsupported: an argument is something that the dump names but does not hold.
        """
        notes: list[str] = []
        place = Place(self.file, f"{call}.forward", ARGUMENTS)
        positional = tuple(
            self._argument(i, value, place / i, notes, record) for i, value in enumerate(record.arguments or ())
        )
        place = Place(self.file, f"{call}.forward", KEYWORDS)
        keywords = {
            key: self._argument(key, value, place / key, notes, record) for key, value in record.keywords.items()
        }
        return positional, keywords, notes

    def attributes(self, call: str, record: ForwardRecord) -> dict[str, Argument] | None:
        """What the class of a Primitive was called with; None where the dump does not say.

        Raises:
            DumpError, Unsupported: as `arguments`.
        """
        place = Place(self.file, f"{call}.forward", ATTRIBUTES)
        if record.attributes is None:
            return None
        return {name: self._value(value, place / name, []) for name, value in record.attributes.items()}

    def incoming(self, call: str, values: tuple[Value, ...]) -> tuple[Array | None, ...]:
        """Incoming gradient per output tensor of a backward call; None where the dump has null."""
        place = Place(self.file, f"{call}.backward", INCOMING)
        return tuple(
            self._tensor(value, place / i, []) if isinstance(value, TensorValue) else None
            for i, value in enumerate(values)
        )

    def _argument(
        self, position: int | str, value: Value, place: Place, notes: list[str], record: ForwardRecord
    ) -> Argument:
        """One argument; where it is drawn, so that its API can use it."""
        found = self._value(value, place, notes)
        tensor = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if not isinstance(tensor, TensorValue) or tensor.data_name is not None or tensor.is_numpy:
            return found
        api = parse_api_name(place.record.rpartition(".")[0]).short
        generator = generator_for(self.seed, place / "role")
        if isinstance(found, tuple):
            return (fitted(api, position, tensor, cast("Array", found[0]), record, generator),)
        return fitted(api, position, tensor, cast("Array", found), record, generator)

    def _value(self, value: Value, place: Place, notes: list[str]) -> Argument:
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

    def _tensor(self, value: TensorValue, place: Place, notes: list[str]) -> Array:
        if value.data_name is not None:
            return self.tensors.load(value, place)
        if not has_known_range(value):
            notes.append(f"{place.field} has no recorded range and was drawn from the default one")
        return random_array(value, generator_for(self.seed, place), place)


def drawn_arguments(record: ForwardRecord) -> str:
    """Names and ranges of the arguments that the dump holds by their statistics only; "" where it holds all."""
    values = {f"{ARGUMENTS}.{index}": value for index, value in enumerate(record.arguments or ())}
    values |= {f"{KEYWORDS}.{key}": value for key, value in record.keywords.items()}
    drawn = [
        f"{name} {tensor.dtype.name if tensor.dtype else 'of unknown dtype'} {tensor.shape} "
        f"from {tensor.minimum} to {tensor.maximum}"
        for name, value in values.items()
        for tensor in tensors_in(value)
        if tensor.data_name is None and tensor.size
    ]
    return ", ".join(drawn[:_NAMED]) + (f", and {len(drawn) - _NAMED} more" if len(drawn) > _NAMED else "")
