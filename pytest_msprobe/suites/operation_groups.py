"""Records of every kind, Cells too, as groups: for the suites that judge more than API calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msprobe_collector.dump_format import DIRECTIONS, ApiName
from msprobe_collector.dump_format.operation import Operation
from pytest_msprobe.suites.contract import Group
from pytest_msprobe.suites.node_names import escape


@dataclass(frozen=True, slots=True)
class Operations:
    """The payload of a group.

    Attributes:
        by_part: the records by the last components of their node ids.
        is_golden_only: whether only the golden dump has them.
    """

    by_part: dict[str, Operation]
    is_golden_only: bool = False

    @property
    def call(self) -> str:
        """Name of the call in its own dump."""
        return next(iter(self.by_part.values())).call


def group_operations(operations: Iterable[Operation], prefix: str = "") -> Iterator[Group]:
    """One group per call: its directions, or `record` for a record that has none; `prefix` goes before the names."""
    calls: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        part = operation.phase if operation.phase in DIRECTIONS else "record"
        calls.setdefault(operation.call, {})[part] = operation
    for call, by_part in calls.items():
        payload = Operations(by_part, is_golden_only=bool(prefix))
        yield Group(escape(f"{prefix}{call}"), f"{prefix}{call}", tuple(by_part), payload)


def api_of(operation: Operation) -> ApiName:
    """The name that hooks get: of a Cell or another record, its first word is the type."""
    kind, _, rest = operation.name.partition(".")
    return ApiName(kind, rest or operation.name, int(operation.number) if operation.number.isdecimal() else 0)
