"""What the items of one overflow run share in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.dump import Slot
from pytest_msprobe.engines.protocol import DeviceSpecification
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.contract import Context
from pytest_msprobe.suites.overflow.first_anomaly import (
    RankAnomaly,
    StepAnomalies,
    first_anomalies,
    rank_numbers,
    step_folder,
    steps_of,
)
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.overflow.survey import Survey
from pytest_msprobe.suites.overflow.values import OverflowDump, read_rules

if TYPE_CHECKING:
    from pytest_msprobe.suites.overflow.recomputation import Recomputer


class OverflowSession:
    """The dumps of a run, read and surveyed once.

    Attributes:
        settings: what the run was asked to do.
        steps: dumps by step folder, in the order of their ranks.
        ranks: rank of each dump.
        engines: who computes origins again.
    """

    def __init__(self, context: Context) -> None:
        """A session over the dumps of a run.

        Raises:
            RuleError: the file of --msprobe-overflow-rules is not what it should be.
        """
        settings = self.settings = OverflowSettings.of(context.values)
        self.steps = steps_of(context.dumps)
        # Nothing runs on a device here, so that MindSpore's CPU needs no process of its own.
        self.engines = Engines(
            EngineChoice(DeviceSpecification("mindspore", "cpu"), settings.bench, settings.bench_python)
        )
        self.ranks = {path: rank for paths in self.steps.values() for path, rank in rank_numbers(paths).items()}
        self._rules = read_rules(settings.rules)
        self._max_memory_bytes = settings.max_memory_bytes // context.sharers
        self._dumps = cache(lambda path: OverflowDump(path, settings.data_dir))
        self._unreadable: set[Path] = set()
        self._surveys = cache(lambda path: Survey(self.dump(path), self._rules))
        self._anomalies: dict[Path, list[RankAnomaly]] = {}

    def dump(self, path: Path) -> OverflowDump:
        """The dump at `path`, read once. Raises DumpError."""
        return self._dumps(path)

    def survey(self, path: Path) -> Survey:
        """The survey of the dump at `path`. Raises DumpError."""
        return self._surveys(path)

    def recomputer(self, path: Path) -> Recomputer:
        """The object that computes origins of the dump at `path` again. Imports NumPy."""
        from pytest_msprobe.suites.overflow.recomputation import Recomputer

        return Recomputer(self.dump(path), self.engines, self.settings.seed, self._max_memory_bytes)

    def anomalies(self, folder: Path) -> list[RankAnomaly]:
        """The first anomaly of each rank of a step that has one, the earliest first; of the dumps that can be read."""
        if folder not in self._anomalies:
            ranks = [(self.ranks[path], self.survey(path)) for path in self._readable(folder)]
            self._anomalies[folder] = first_anomalies(ranks)
        return self._anomalies[folder]

    def anomalies_of_step(self, folder: Path) -> StepAnomalies:
        """The finding on the step in `folder`."""
        dumps, readable = self.steps[folder], [*self._readable(folder)]
        unjudged = len(dumps) - len(readable) + sum(self.survey(path).unjudged for path in readable)
        return StepAnomalies(str(folder), Slot.of(dumps[0]).step, self.anomalies(folder), unjudged)

    def is_leader(self, path: Path) -> bool:
        """Whether the dump at `path` is the first of its step that can be read, which represents all of them."""
        return next(self._readable(step_folder(path)), None) == path

    def _readable(self, folder: Path) -> Iterator[Path]:
        """The dumps of a step that can be read; the collection reports the others."""
        for path in self.steps[folder]:
            if path not in self._unreadable:
                try:
                    self.dump(path)
                except DumpError:
                    self._unreadable.add(path)
                else:
                    yield path
