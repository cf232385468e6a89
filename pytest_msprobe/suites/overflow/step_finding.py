"""Where a training step goes wrong first, over all its ranks, in words and in the form that crosses processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.slot import Slot
from pytest_msprobe.suites.overflow.first_anomaly import Anomaly
from pytest_msprobe.suites.overflow.session import OverflowSession


@dataclass(frozen=True, slots=True)
class RankAnomaly:
    """The first anomaly of one rank.

    Attributes:
        rank, dump, record: where it is.
        level: `origin`, or `propagated` when no record made what the first one passes on.
        values: what is not finite, one text each.
        cells: Cells that it ran in, outermost first.
        stack: call stack, innermost frame first.
        communications: how many communications are known to come before it.
    """

    rank: int
    dump: str
    record: str
    level: str
    values: list[str]
    cells: list[str]
    stack: list[str]
    communications: int

    @classmethod
    def of(cls, session: OverflowSession, anomaly: Anomaly) -> RankAnomaly:
        """The form of `anomaly` for reports."""
        dump, operation = session.dump(anomaly.path), anomaly.record.operation
        forward = f"{operation.call}.forward"
        frames = dump.stacks.frames(forward) or dump.stacks.frames(operation.record)
        return cls(
            anomaly.rank,
            str(anomaly.path),
            operation.record,
            anomaly.record.level,
            [str(value) for value in anomaly.record.observation.bad] if anomaly.record.observation else [],
            list(dump.ancestors(operation.record)),
            [str(frame) for frame in frames],
            anomaly.layer,
        )

    def __str__(self) -> str:
        what = "" if self.level == "origin" else ", which passes on what no record made: collect its producer"
        return f"rank {self.rank}, {self.record}{what}"


@dataclass(frozen=True, slots=True)
class StepAnomalies:
    """The first anomaly of each rank of a step.

    Attributes:
        folder: of the step.
        step: its number, None where the folder does not say.
        anomalies: the earliest first; empty when there is none.
        unjudged: dumps and records that cannot be read, or do not tell.
    """

    folder: str
    step: int | None
    anomalies: list[RankAnomaly]
    unjudged: int

    @classmethod
    def of(cls, session: OverflowSession, folder: Path) -> StepAnomalies:
        """The finding on the step in `folder`."""
        found = [RankAnomaly.of(session, anomaly) for anomaly in session.anomalies(folder)]
        return cls(str(folder), Slot.of(session.steps[folder][0]).step, found, session.unjudged(folder))

    @property
    def headline(self) -> str:
        """One line."""
        place = f"step {self.step}" if self.step is not None else self.folder
        if not self.anomalies:
            left = f"; {self.unjudged} dumps or records could not be judged" if self.unjudged else ""
            return f"no anomaly in {place}: no record makes NaN or Inf{left}"
        return f"first anomaly of {place}: {self.anomalies[0]}"

    def details(self) -> Iterator[str]:
        """What is not finite there, where it was called, and what goes wrong on other ranks first."""
        first, *others = self.anomalies
        yield from (f"  {value}" for value in first.values)
        if first.cells:
            yield f"  in {' > '.join(first.cells)}"
        if first.stack:
            yield f"  called from {first.stack[0]}"
        for other in others:
            order = "not ordered by any communication" if other.communications == first.communications else "later"
            yield f"  {order}: {other}"

    def to_wire(self) -> dict[str, Any]:
        """The finding in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> StepAnomalies:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)
