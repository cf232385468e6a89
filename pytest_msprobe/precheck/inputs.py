"""What an API call is given: real recorded values, or random ones in their range. Made once, shared by both sides."""

from __future__ import annotations

from dataclasses import dataclass

from msprobe_collector.dump_format import (
    DtypeValue,
    ForwardRecord,
    OpaqueValue,
    Place,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
    tensors_in,
)
from pytest_msprobe.engines.protocol import Argument, Array, NumpyArgument, Unsupported
from pytest_msprobe.precheck.random_data import generator_for, has_known_range, random_array


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
        place = Place(self.file, f"{call}.forward", "input_args")
        positional = tuple(self._value(value, place / i, notes) for i, value in enumerate(record.arguments or ()))
        place = Place(self.file, f"{call}.forward", "input_kwargs")
        keywords = {key: self._value(value, place / key, notes) for key, value in record.keywords.items()}
        return positional, keywords, notes

    def incoming(self, call: str, values: tuple[Value, ...]) -> tuple[tuple[Array | None, ...], list[str]]:
        """(incoming gradient per output tensor, notes) of a backward call; None where the dump has null."""
        notes: list[str] = []
        place = Place(self.file, f"{call}.backward", "input")
        found = [
            self._tensor(value, place / i, notes) if isinstance(value, TensorValue) else None
            for i, value in enumerate(values)
        ]
        return tuple(found), notes

    def _value(self, value: Value, place: Place, notes: list[str]) -> Argument:
        if isinstance(value, TensorValue):
            array = self._tensor(value, place, notes)
            return NumpyArgument(array) if value.is_numpy else array
        if isinstance(value, PlainValue):
            return value.value
        if isinstance(value, DtypeValue):
            return value.dtype
        if isinstance(value, OpaqueValue):
            raise Unsupported(f"{place.field} is a {value.type_name}, which a dump names but does not hold")
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


def needed_bytes(values: Value) -> int:
    """Memory in bytes that checking tensors like `values` takes at most: a copy, float64 twice, and a gradient."""
    return sum(value.size * ((value.dtype.item_bytes if value.dtype else 8) + 3 * 8) for value in tensors_in(values))
