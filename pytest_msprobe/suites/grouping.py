"""Records of a dump as groups, of every kind, Cells too, and what judging a call may cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from msprobe_collector.dump_format import DIRECTIONS, ApiName, Dump
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.apis.fact_table import text_of
from pytest_msprobe.suites.contract import Group, ItemRecord, escape


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


def operation_of(record: ItemRecord) -> Operation:
    """Return the operation of a record of `group_operations`."""
    payload: Operations = record.payload
    return payload.by_part[record.part]


def group_operations(operations: Iterable[Operation], prefix: str = "") -> Iterator[Group]:
    """One group per call: its directions, or `record` for a record that has none; `prefix` goes before the names."""
    calls = defaultdict[str, dict[str, Operation]](dict)
    for operation in operations:
        part = operation.phase if operation.phase in DIRECTIONS else "record"
        calls[operation.call][part] = operation
    for call, by_part in calls.items():
        payload = Operations(by_part, is_golden_only=bool(prefix))
        yield Group(escape(f"{prefix}{call}"), f"{prefix}{call}", tuple(by_part), payload)


def api_of(operation: Operation) -> ApiName:
    """The name that hooks get: of a Cell or another record, its first word is the type."""
    kind, _, rest = operation.name.partition(".")
    return ApiName(kind, rest or operation.name, int(operation.number) if operation.number.isdecimal() else 0)


def estimate_cost(dump: Dump, call: str) -> float:
    """Cost of checking the API call named `call` in both directions, in elements read or written."""
    cost = 20_000.0  # before it touches anything
    shapes = dump.shapes(f"{call}.forward")
    cost += sum(map(prod, (*shapes, *dump.shapes(f"{call}.backward"))))
    kind = text_of("products", call.rpartition(".")[0])
    if len(shapes) > 1 and shapes[0] and kind:
        passes = 3 if f"{call}.backward" in dump else 1
        # A multiply-add in a product costs a core about this share of reading and writing an element.
        cost += passes / 16 * prod(shapes[-1]) * _products_of_an_element(kind, shapes)
    return cost


def _products_of_an_element(kind: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """How many products an element of the output adds up: of a convolution those of the kernel of a channel."""
    kernel = shapes[1]
    if kind in ("conv", "transposed") and len(shapes) > 2 and len(kernel) == len(shapes[0]):
        return prod(kernel[1:])
    return shapes[0][-1]
