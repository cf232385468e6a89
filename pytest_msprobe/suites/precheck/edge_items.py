"""Items for edge cases: those of the first recorded call of every API of a dump."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msprobe_collector.dump_format import DIRECTIONS, Dump, DumpError, parse_api_name
from pytest_msprobe.apis.not_judged import reason_not_judged
from pytest_msprobe.apis.random import random_api
from pytest_msprobe.cases.edge_cases import WITH_GRADIENTS, edge_cases_of
from pytest_msprobe.suites.contract import Group
from pytest_msprobe.suites.node_names import escape


class EdgeCase(NamedTuple):
    """The payload of a group.

    Attributes:
        call: name of the recorded call that it is made from.
        name: a key of `EDGE_CASES`.
    """

    call: str
    name: str


def edge_case_groups(dump: Dump, calls: Iterable[str]) -> Iterator[Group]:
    """One group for each edge case, called `Mint.matmul.0-empty`; random APIs have none, nor have those not judged.

    A recorded call has no "-" behind its number, so that no other group has such a name.
    """
    seen = set()
    for call in calls:
        api = parse_api_name(call)
        if (api.type, api.api) in seen:
            continue
        if reason_not_judged(api, dump.framework) is not None or random_api(api, dump.framework) is not None:
            continue
        try:
            record = dump.forward(call)
        except DumpError:
            continue  # its own item says so
        if record is None or record.arguments is None:
            continue
        seen.add((api.type, api.api))
        directions = DIRECTIONS if f"{call}.backward" in dump else DIRECTIONS[:1]
        for name in edge_cases_of(record):
            parts = directions if name in WITH_GRADIENTS else DIRECTIONS[:1]
            yield Group(escape(f"{call}-{name}"), f"{call}-{name}", parts, EdgeCase(call, name))


def recorded_call(group: Group) -> str:
    """Name of the recorded call of a group: of an edge case, the one that it is made from."""
    return group.payload.call if isinstance(group.payload, EdgeCase) else group.call
