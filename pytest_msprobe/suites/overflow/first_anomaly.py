"""The first anomaly of a training step across its ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.dump_format.slot import Slot
from pytest_msprobe.suites.overflow.communication import layers, meetings
from pytest_msprobe.suites.overflow.record_values import OverflowDump
from pytest_msprobe.suites.overflow.survey import Survey, SurveyedRecord

_RANK_FOLDER = re.compile(r"rank_?\d*|proc\d+")


@dataclass(frozen=True, slots=True)
class RankDump:
    """One rank's dump of a step: its number, the dump, its survey."""

    rank: int
    dump: OverflowDump
    survey: Survey


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Where a rank goes wrong first.

    Attributes:
        rank: its number.
        path: of its dump.json.
        record: the record.
        layer, gap: layer of the last communication before it, and number of records since.
    """

    rank: int
    path: Path
    record: SurveyedRecord
    layer: int
    gap: int


def step_folder(path: Path) -> Path:
    """The folder that the ranks of one step share, for the dump at `path`; the dump's own for one without ranks."""
    folder = path.parent
    return folder.parent if _RANK_FOLDER.fullmatch(folder.name) else folder


def steps_of(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The dumps of each step folder, by rank."""
    steps: dict[Path, list[Path]] = {}
    for path in paths:
        steps.setdefault(step_folder(path), []).append(path)
    return {
        folder: sorted(found, key=lambda path: (Slot.of(path).rank or 0, str(path))) for folder, found in steps.items()
    }


def rank_numbers(paths: Sequence[Path]) -> dict[Path, int]:
    """The rank of each dump of one step: the number in its folder's name, its place among the others without one."""
    found = {}
    for place, path in enumerate(paths):
        rank = Slot.of(path).rank if path.parent.name.startswith("rank") else None
        found[path] = place if rank is None else rank
    return found


def first_anomalies(ranks: Sequence[RankDump]) -> list[Anomaly]:
    """The first anomaly of each rank that has one; the earliest rank's first.

    An origin goes before a record that only passes on what nobody made, whatever the order. Those of one layer are not
    ordered by any communication: then that comes first which has fewer records after its rank's last communication.
    """
    layer_of = layers({one.rank: meetings(one.dump, one.rank) for one in ranks})
    found = []
    for one in ranks:
        record = one.survey.first
        if record is not None:
            layer, gap = _place(one, record, layer_of)
            found.append(Anomaly(one.rank, one.dump.path, record, layer, gap))
    return sorted(found, key=lambda it: (it.record.level != "origin", it.layer, it.gap, it.rank))


def _place(one: RankDump, record: SurveyedRecord, layer_of: Mapping[tuple[int, str], int]) -> tuple[int, int]:
    """(layer of the last communication up to `record` itself, number of records since)."""
    layer = gap = 0
    for name in one.survey.records:
        gap += 1
        if (one.rank, name) in layer_of:
            layer, gap = layer_of[one.rank, name], 0
        if name == record.operation.record:
            break
    return layer, gap
