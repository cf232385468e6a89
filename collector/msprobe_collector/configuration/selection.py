"""Which records are wanted, and which half of each: scope, list, tensor_list and data_mode."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from msprobe_collector.configuration.tasks import Level
from msprobe_collector.dump_format import DIRECTIONS, Direction, is_cell_record, split_record_name

Part = Literal["input", "output"]
PARTS: tuple[Part, ...] = ("input", "output")
_CELL_CALL = re.compile(r"(Cell|Module)\..+\.(forward|backward)\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Which records are collected. The parts of it combine by "and".

    Attributes:
        scope: full names of the first and the last record, both included; None for no bounds.
        names: substrings of record names, whatever their case, of which one must match (key `list`); empty for all.
        tensor_names: substrings of record names whose tensors are saved also in task `statistics`.
        directions: which of forward and backward.
        parts: which of inputs and outputs of a record.
    """

    scope: tuple[str, str] | None = None
    names: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()
    directions: frozenset[Direction] = frozenset(DIRECTIONS)
    parts: frozenset[Part] = frozenset(PARTS)

    def lists(self, record: str) -> bool:
        """Whether the key `list` admits the record of this name."""
        return not self.names or bool(self.matches(record))

    def matches(self, record: str) -> list[str]:
        """The names of the key `list` that the record's name holds."""
        record = record.lower()
        return [name for name in self.names if name.lower() in record]

    def lists_tensors(self, record: str) -> bool:
        """Whether the key `tensor_list` asks for the tensors of the record of this name."""
        return any(name in record for name in self.tensor_names)


def check_scope(scope: tuple[str, str], level: Level) -> None:
    """Refuse a scope whose names cannot occur at `level`.

    Raises:
        ValueError: a name is not that of a record, or of a kind that `level` does not write.
    """
    for name in scope:
        is_cell = _CELL_CALL.fullmatch(name) is not None
        is_api = not is_cell_record(name) and split_record_name(name) is not None
        if level == "L0" and not is_cell:
            raise ValueError(
                f"{name!r} is not a Cell record, as level L0 writes them; such is Cell.net.Dense.forward.0"
            )
        if level == "L1" and not is_api:
            raise ValueError(f"{name!r} is not an API record, as level L1 writes them; such is Mint.add.0.forward")
        if not (is_api or is_cell):
            raise ValueError(f"{name!r} is not a record name; such are Mint.add.0.forward and Cell.net.Dense.forward.0")


def parse_scope(value: object) -> tuple[str, str] | None:
    """First and last record name; None for an empty list.

    Raises:
        ValueError: it is neither an empty list nor a list of two names.
    """
    if value == []:
        return None
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(name, str) and name for name in value)):
        raise ValueError(f"{value!r} is not two record names, the first and the last, nor an empty list")
    return value[0], value[1]


def parse_data_mode(value: object) -> tuple[frozenset[Direction], frozenset[Part]]:
    """(directions, parts) that a list such as ["forward", "input"] keeps; an axis that it does not name is kept whole.

    Raises:
        ValueError: it is not a list, names something else, or names `all` beside others.
    """
    allowed = ("all", *DIRECTIONS, *PARTS)
    if not isinstance(value, list) or any(mode not in allowed for mode in value):
        raise ValueError(f"{value!r} is not a list of {', '.join(allowed)}")
    if "all" in value and len(value) > 1:
        raise ValueError(f"{value!r} has 'all' beside others; give either")
    directions = frozenset(direction for direction in DIRECTIONS if direction in value)
    parts = frozenset(part for part in PARTS if part in value)
    return directions or frozenset(DIRECTIONS), parts or frozenset(PARTS)
