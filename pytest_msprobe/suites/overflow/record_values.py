"""A dump whose records, those of Cells included, are read as values that are finite or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError, Place, TensorValue
from msprobe_collector.dump_format.fields import INPUT_FIELDS, OUTPUT
from msprobe_collector.dump_format.leaves import Leaf, flatten
from pytest_msprobe.suites.overflow.finiteness import (
    FINITE,
    Finiteness,
    can_overflow,
    of_array,
    of_plain,
    of_statistics,
)


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """One value of a record.

    Attributes:
        path: place in the record, `input.0`.
        place: the same in dump.json.
        dtype: as the dump writes it.
        shape: of a tensor; () for plain values.
        is_input, is_plain: whether it went in; whether it is a Python number.
        finiteness: what it holds.
        tensor: of a value that is not finite, for loading its data; None where the dump has none.
        fault: why it cannot be read, "" when it can.
    """

    path: str
    place: Place
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
        """Values that are not finite."""
        return tuple(value for value in (*self.inputs, *self.outputs) if value.finiteness.is_bad)


class OverflowDump(Dump):
    """See `Dump`; any task that records values."""

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file; `data_dirs` as for `Dump`.

        Raises:
            DumpError: it cannot be read, or holds no values.
        """
        super().__init__(path, data_dirs)
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
        fields = (found := self.record(record)).fields
        values = [self._observed(leaf) for leaf in flatten(found)]
        inputs = tuple(value for value in values if value.is_input)
        outputs = tuple(value for value in values if not value.is_input)
        return RecordValues(inputs, outputs, not INPUT_FIELDS.isdisjoint(fields), bool(outputs) or OUTPUT in fields)

    def _observed(self, leaf: Leaf) -> ObservedValue:
        finiteness, tensor, fault = FINITE, leaf.tensor, leaf.fault
        if tensor is not None:
            try:
                finiteness = self._finiteness(tensor, leaf.place)
            except DumpError as error:
                fault = str(error)
            tensor = tensor if finiteness.is_bad and tensor.data_name is not None else None
        elif not fault:
            finiteness = of_plain(leaf.value)
        is_input, is_plain = not leaf.is_output, not leaf.is_tensor
        return ObservedValue(
            leaf.path, leaf.place, leaf.dtype, leaf.shape, is_input, is_plain, finiteness, tensor, fault
        )

    def _finiteness(self, tensor: TensorValue, place: Place) -> Finiteness:
        if not can_overflow(tensor):
            return FINITE
        assert tensor.dtype is not None  # can_overflow has seen to it
        if tensor.data_name is None or tensor.dtype.array_name is None:
            return of_statistics(tensor)
        counted = of_array(self.tensors.load(tensor, place))
        if counted.is_bad:
            return counted
        # Mean and Norm overflow where the data does not. Max, Min and counts that say otherwise than the file stay a
        # finding: somebody saw what they say.
        return of_statistics(replace(tensor, mean=None, norm=None))
