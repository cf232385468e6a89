"""A dump whose records, those of Cells included, are read as values that are finite or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import Dump, DumpError, Place, TensorValue
from msprobe_collector.dump_format.leaves import Leaf, flatten
from pytest_msprobe.overflow.finiteness import (
    FINITE,
    Counts,
    Finiteness,
    can_overflow,
    of_array,
    of_plain,
    of_statistics,
    plain_word,
)

_STATISTICS = ("Max", "Min", "Mean", "Norm")
_INPUT_FIELD = re.compile(r"(?:input_args|input_kwargs|input|parameters)(?:[.\[]|$)")


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """One value of a record.

    Attributes:
        path: place in the record, `input.0`.
        field: the same in dump.json, `input_args[0]`.
        dtype: as the dump writes it.
        shape: of a tensor; () for plain values.
        is_input, is_plain: whether it went in; whether it is a Python number.
        finiteness: what it holds.
        tensor: of a value that is not finite, for loading its data; None where the dump has none.
        fault: why it cannot be read, "" when it can.
    """

    path: str
    field: str
    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    is_plain: bool
    finiteness: Finiteness
    tensor: TensorValue | None = None
    fault: str = ""

    def __str__(self) -> str:
        where = self.finiteness.first_index
        place = f", first at {list(where)}" if where else ""
        size = f" {self.shape}" if not self.is_plain else ""
        return f"{self.path} {self.dtype}{size} holds {self.finiteness}{place}"


@dataclass(frozen=True, slots=True)
class RecordValues:
    """The values of one record.

    Attributes:
        inputs, outputs: in the order of the record.
        has_inputs, has_outputs: whether the record tells at all what went in and what came out.
    """

    inputs: tuple[ObservedValue, ...]
    outputs: tuple[ObservedValue, ...]
    has_inputs: bool
    has_outputs: bool

    @property
    def fault(self) -> str:
        """Why the record cannot be judged, "" when every value can be read."""
        return "; ".join(value.fault for value in (*self.inputs, *self.outputs) if value.fault)

    @property
    def bad(self) -> tuple[ObservedValue, ...]:
        """Those that are not finite."""
        return tuple(value for value in (*self.inputs, *self.outputs) if value.finiteness.is_bad)

    @property
    def unknown(self) -> tuple[ObservedValue, ...]:
        """Outputs of which the dump holds neither data nor statistics."""
        return tuple(value for value in self.outputs if not value.finiteness.is_known)


class OverflowDump(Dump):
    """See `Dump`; any task that records values."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            DumpError: it cannot be read, or holds no values.
        """
        super().__init__(path)
        problem = ""
        if self.task == "structure":
            problem = "a dump of task 'structure' holds no values; dump with statistics or tensor"
        elif not self._records:
            problem = "this dump holds no record; dump a step that runs"
        if problem:
            raise DumpError(problem, file=str(path), field="task" if self.task == "structure" else "data")

    def values(self, record: str) -> RecordValues:
        """What the values of `record` hold.

        Raises:
            DumpError: the record cannot be decoded.
        """
        encoded = self.decoded(record)
        counts = dict(_counts(encoded, ""))
        leaves = flatten(encoded, file=str(self.path), record=record)
        found = [self._observed(record, leaf, counts.get(leaf.field.lstrip("."), Counts())) for leaf in leaves]
        inputs = tuple(value for value in found if value.is_input)
        outputs = tuple(value for value in found if not value.is_input)
        has_inputs = any(map(_INPUT_FIELD.match, encoded))
        return RecordValues(inputs, outputs, has_inputs, bool(outputs) or "output" in encoded)

    def _observed(self, record: str, leaf: Leaf, counts: Counts) -> ObservedValue:
        is_input = _INPUT_FIELD.match(leaf.field) is not None
        finiteness, tensor, fault = FINITE, None, leaf.fault
        if leaf.tensor is not None:
            try:
                finiteness = self._finiteness(record, leaf.field, leaf.tensor, counts)
            except DumpError as error:
                fault = str(error)
            tensor = leaf.tensor if finiteness.is_bad and leaf.tensor.data_name is not None else None
        elif not fault:
            finiteness = of_plain(leaf.dtype, str(leaf.statistics[0]))
        is_plain = not leaf.is_tensor
        return ObservedValue(
            leaf.path, leaf.field, leaf.dtype, leaf.shape, is_input, is_plain, finiteness, tensor, fault
        )

    def _finiteness(self, record: str, field: str, tensor: TensorValue, counts: Counts) -> Finiteness:
        if not can_overflow(tensor):
            return FINITE
        assert tensor.dtype is not None  # can_overflow has seen to it
        if tensor.data_name is None or tensor.dtype.array_name is None:
            return of_statistics(tensor, counts)
        counted = of_array(self.tensors.load(tensor, Place(str(self.path), record, field)))
        if counted.is_bad:
            return counted
        # Mean and Norm overflow where the data does not. Max, Min and counts that say otherwise than the file stay a
        # finding: somebody saw what they say.
        return of_statistics(replace(tensor, mean=None, norm=None), counts)


def _counts(encoded: Any, field: str) -> Iterator[tuple[str, Counts]]:
    """(field, counts) of every tensor in `encoded` that has some; statistics are put into today's words on the way."""
    if isinstance(encoded, list):
        for index, item in enumerate(encoded):
            yield from _counts(item, f"{field}[{index}]")
    elif isinstance(encoded, dict) and "shape" in encoded and "dtype" in encoded:
        encoded.update({key: plain_word(encoded[key]) for key in _STATISTICS if key in encoded})
        found = Counts(_count(encoded.get("NaN_count")), _count(encoded.get("Inf_count")))
        if found != Counts():
            yield field, found
    elif isinstance(encoded, dict):
        for key, item in encoded.items():
            yield from _counts(item, f"{field}.{key}" if field else key)


def _count(number: Any) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) and number >= 0 else None
