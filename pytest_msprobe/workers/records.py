"""What the process that hands out the work must know of records, of which it has node ids only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pytest_msprobe.verdicts import VerdictRow


class Costs(Protocol):
    """What a schedule must know."""

    def scope_of(self, node_id: str) -> str:
        """What the ids of records that belong together share."""

    def device_of(self, node_id: str) -> str | None:
        """The device that must judge a record; None for any."""

    def cost_of(self, node_ids: Sequence[str]) -> float:
        """Estimated cost of records that belong together."""


class Records(Costs, Protocol):
    """What must be known when a worker dies."""

    def time_limit_seconds(self, node_id: str) -> float | None:
        """How long the check of a record may take in a worker; None for ever."""

    def is_among(self, node_id: str, names: Collection[str]) -> bool:
        """Whether the group of a record is one of those that reports call `names`."""

    def row_of_lost_item(
        self, node_id: str, selected: Sequence[str], message: str, *, device: str, host: str
    ) -> VerdictRow | None:
        """The error row of a record whose process died in it, or None when it is not one of ours."""
