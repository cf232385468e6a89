"""API calls of a dump as groups of records: for the suites that run them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msprobe_collector.dump_format import (
    DIRECTIONS,
    Direction,
    Dump,
    is_cell_record,
    parse_api_name,
    split_record_name,
)
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.suites.contract import Group, Record
from pytest_msprobe.suites.node_names import escape
from pytest_msprobe.verdicts import Verdict

#: Part of the node id of a record that has no valid name.
RECORD = "record"


def group_api_calls(names: Iterable[str], devices: Sequence[str] = ()) -> Iterator[Group]:
    """One group per API call, in the order of their first records, then one per record without a valid name.

    Args:
        names: of the records; those of Cells are left out.
        devices: each of which has records of its own, `forward-device3`; () for records of no particular one.
    """
    calls: dict[str, list[Direction]] = {}
    invalid = []
    for name in names:
        if is_cell_record(name):
            continue
        found = split_record_name(name)
        if found is not None:
            calls.setdefault(found[0], []).append(found[1])
        else:
            invalid.append(name)
    endings = [f"-device{escape(device)}" for device in devices] or [""]
    for call, directions in calls.items():
        parts = [part for part in DIRECTIONS if part in directions]
        yield Group(escape(call), call, tuple(f"{part}{ending}" for ending in endings for part in parts))
    for name in invalid:
        yield Group(escape(name), name, (RECORD,))


def direction_and_device(part: str) -> tuple[str, str]:
    """(direction, device) of a part: `("forward", "3")` of `forward-device3`; "" for no device."""
    direction, _, device = part.partition("-device")
    return direction, device


def api_headline(record: Record) -> str:
    """`Mint.matmul, call 2, forward`."""
    if record.part == RECORD:
        return f"record {record.call}"
    api = parse_api_name(record.call)
    return f"{api.type}.{api.api}, call {api.number}, {record.part}"


def with_call_site(verdict: Verdict, lines: Sequence[str], dump: Dump, call: str) -> Verdict:
    """A failure that says in full what differs, then `lines`, then which line of the script made the call."""
    texts = [verdict.explanation or shown(verdict.message), *lines]
    properties = verdict.properties
    frame = dump.stacks.user_frame(f"{call}.forward")
    if frame is not None:
        texts.append(f"called from {frame.file}:{frame.line}, in {frame.function}:\n    {frame.source}")
        properties = (*properties, ("called_from", f"{frame.file}:{frame.line}"))
    return replace(verdict, explanation="\n\n".join(texts), properties=properties)
