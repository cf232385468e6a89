"""From node ids back to API calls, on the process that hands out work and collects nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path

from msprobe_collector.dump_format import DIRECTIONS, Direction, Dump, DumpError
from pytest_msprobe.node_names import escape
from pytest_msprobe.precheck.cost import estimate_cost
from pytest_msprobe.precheck.nodes import group_records
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.precheck.time_limit import time_limit_seconds
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.row import VerdictRow


class CallIndex:
    """The API calls of a run's dumps by the part of their node ids that both directions share."""

    def __init__(self, session: CheckSession, dumps: Sequence[Path]) -> None:
        """An index over `dumps`; they are read when it is first asked."""
        self._session = session
        self._dumps = dumps

    def cost_of(self, node_ids: Sequence[str]) -> float:
        """Estimated cost of the items of one API call; 0 for items that are not ours."""
        found = self._calls.get(node_ids[0].rpartition("::")[0])
        return 0.0 if found is None else estimate_cost(*found) * len(node_ids) / len(DIRECTIONS)

    def row_of_lost_item(
        self, node_id: str, selected: Sequence[Direction], message: str, *, device: str, host: str
    ) -> VerdictRow | None:
        """The error row of an item whose process died in it, or None when it is not one of ours."""
        scope, _, last = node_id.rpartition("::")
        found = self._calls.get(scope)
        if found is None:
            return None
        dump, call = found
        return VerdictRow(
            node_id=node_id,
            dump=str(dump.path),
            call=call,
            direction=next((direction for direction in DIRECTIONS if direction == last), None),
            recorded=tuple(direction for direction in DIRECTIONS if f"{call}.{direction}" in dump),
            selected=tuple(selected),
            status="error",
            message=message,
            device=device,
            seed=self._session.settings.seed,
            host=host,
        )

    def time_limit_seconds(self, node_id: str) -> float | None:
        """How long the check of an item may hang in a worker."""
        found = self._calls.get(node_id.rpartition("::")[0])
        if found is None:
            return None
        return time_limit_seconds(self._session.settings.timeout_seconds, estimate_cost(*found))

    def directions_of(self, names: CallNames) -> Callable[[str], Sequence[Direction] | None]:
        """A function from a call's name in reports to the directions that the dumps hold; None for an unknown one."""
        found = {names.of(str(dump.path), call): (dump, call) for dump, call in self._calls.values()}

        def directions(name: str) -> Sequence[Direction] | None:
            if name not in found:
                return None
            dump, call = found[name]
            return [direction for direction in DIRECTIONS if f"{call}.{direction}" in dump]

        return directions

    def is_among(self, node_id: str, names: Collection[str]) -> bool:
        """Whether the API call of an item is one of those that reports call `names`."""
        found = self._calls.get(node_id.rpartition("::")[0])
        return found is not None and self._names.of(str(found[0].path), found[1]) in names

    @cached_property
    def _names(self) -> CallNames:
        return CallNames(self._dumps)

    @cached_property
    def _calls(self) -> dict[str, tuple[Dump, str]]:
        calls: dict[str, tuple[Dump, str]] = {}
        for path in self._dumps:
            try:
                dump = self._session.dump(path)
            except DumpError:
                continue  # the workers report it
            prefix = self._session.node_id(path)
            names, strangers = group_records(dump)
            calls.update((f"{prefix}::{escape(name)}", (dump, name)) for name in (*names, *strangers))
        return calls
