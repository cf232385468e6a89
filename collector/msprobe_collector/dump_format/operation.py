"""Names of records of every kind, taken apart: what ran, which call of it, and in which direction."""

from __future__ import annotations

from dataclasses import dataclass

from msprobe_collector.dump_format import is_cell_record, split_record_name

GRADIENTS = "parameters_grad"


@dataclass(frozen=True, slots=True)
class Operation:
    """A record of a dump, of which only the name is known yet.

    Attributes:
        record: full name.
        name: what ran, without the call number: `Mint.matmul`, `Cell.net.fc.Dense`.
        number: which call of it; "" where the name has none.
        phase: `forward`, `backward`, `parameters_grad`, or "" for other records.
        index: place in the order of execution.
    """

    record: str
    name: str
    number: str
    phase: str
    index: int

    @classmethod
    def of(cls, record: str, index: int) -> Operation:
        """The operation that the full record name `record` names."""
        found = split_record_name(record)
        if is_cell_record(record):
            return cls._of_cell(record, index)
        if found is not None:
            name, _, number = found[0].rpartition(".")
            return cls(record, name, number, found[1], index)
        front, _, last = record.rpartition(".")
        if last == "debug":  # saved by hand: {name}.{number}.debug
            name, _, number = front.rpartition(".")
            return cls(record, name or front, number if name else "", "", index)
        return cls(record, record, "", "", index)

    @classmethod
    def _of_cell(cls, record: str, index: int) -> Operation:
        front, _, last = record.rpartition(".")
        if last == GRADIENTS:
            return cls(record, front, "", GRADIENTS, index)
        name, _, phase = front.rpartition(".")
        if last.isdecimal() and phase in ("forward", "backward", GRADIENTS):
            return cls(record, name, last, phase, index)
        return cls(record, record, "", "", index)

    @property
    def is_cell(self) -> bool:
        """Whether a Cell or Module ran, not an API."""
        return is_cell_record(self.record)

    @property
    def call(self) -> str:
        """Name that its directions share: `Mint.matmul.3`, `Cell.net.fc.Dense.0`; the record's own for others."""
        return f"{self.name}.{self.number}" if self.phase in ("forward", "backward") else self.record

    @property
    def bare(self) -> str:
        """The callable's own name: `matmul` of `Mint.matmul`, `Dense` of `Primitive.dense.Dense`."""
        return self.name.rpartition(".")[2]
