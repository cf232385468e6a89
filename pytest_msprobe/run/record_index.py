"""From node ids back to records, on the process that hands out work and collects nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.engines.process import time_limit_seconds
from pytest_msprobe.run.nodes import row_of
from pytest_msprobe.run.run import names_of
from pytest_msprobe.suites.contract import Group, ItemRecord, Suite, SuiteError, file_id
from pytest_msprobe.verdicts import Verdict, VerdictRow


class RecordIndex:
    """The records of a run by their node ids; its files are read when it is first asked."""

    def __init__(self, suite: Suite, root: Path, timeout_seconds: float | None, seed: int) -> None:
        """An index over the files of `suite`, in a run whose rootdir is `root`."""
        self._suite = suite
        self._root = root
        self._timeout_seconds = timeout_seconds
        self._seed = seed
        self.names = names_of(suite)

    def scope_of(self, node_id: str) -> str:
        """What the node ids of a group's records share; a record that belongs to none is its own."""
        return node_id if node_id in self._alone else node_id.rpartition("::")[0]

    def cost_of(self, node_ids: Sequence[str]) -> float:
        """Estimated cost of items of one group; 0 for items that are not ours."""
        place = self._group_of(node_ids[0])
        return 0.0 if place is None else self._suite.cost(*place) * len(node_ids) / len(place[1].parts)

    def device_of(self, node_id: str) -> str | None:
        """The device that must judge an item; None for any."""
        place = self._group_of(node_id)
        return None if place is None else self._suite.device_of(ItemRecord(*place, node_id.rpartition("::")[2]))

    def time_limit_seconds(self, node_id: str) -> float | None:
        """How long the check of an item may take in a worker."""
        place = self._group_of(node_id)
        return None if place is None else time_limit_seconds(self._timeout_seconds, self._suite.cost(*place))

    def row_of_lost_item(
        self, node_id: str, selected: Sequence[str], message: str, *, device: str, host: str
    ) -> VerdictRow | None:
        """The error row of an item whose process died in it, or None when it is not one of ours.

        `selected` are the node ids of the run that belong to the same group.
        """
        place = self._group_of(node_id)
        if place is None:
            return None
        file, group = place
        selected_parts = {other.rpartition("::")[2] for other in selected}
        parts = tuple(filter(selected_parts.__contains__, group.parts))
        record = ItemRecord(file, group, node_id.rpartition("::")[2], parts)
        attachment = self._suite.attachment_of_unjudged(record, "error", message)
        verdict = Verdict("error", message, device=device, attachment=attachment)
        return row_of(node_id, record, verdict, suite=self._suite, seed=self._seed, host=host)

    def parts_of(self, name: str) -> Sequence[str] | None:
        """The records of the group that reports call `name`; None for an unknown one."""
        return self._parts.get(name)

    def is_among(self, node_id: str, names: Collection[str]) -> bool:
        """Whether the group of an item is one of those that reports call `names`."""
        place = self._group_of(node_id)
        return place is not None and self.names.of(str(place[0]), place[1].call) in names

    def _group_of(self, node_id: str) -> tuple[Path, Group] | None:
        """The group of an item, and its file; None for an item that is not ours."""
        return self._groups.get(self.scope_of(node_id))

    @cached_property
    def _parts(self) -> dict[str, Sequence[str]]:
        return {self.names.of(str(file), group.call): group.parts for file, group in self._groups.values()}

    @cached_property
    def _groups(self) -> dict[str, tuple[Path, Group]]:
        groups: dict[str, tuple[Path, Group]] = {}
        for path in self._suite.files:
            prefix = file_id(path, self._root)
            try:
                for group in self._suite.groups(path):
                    scope = group.scope or group.parts[0]
                    groups[f"{prefix}::{scope}"] = path, group
            except (DumpError, SuiteError):
                continue  # the workers report it
        return groups

    @cached_property
    def _alone(self) -> frozenset[str]:
        return frozenset(key for key, (_, group) in self._groups.items() if not group.scope)
