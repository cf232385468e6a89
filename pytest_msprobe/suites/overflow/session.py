"""What the items of one overflow run share in one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.engines.protocol import DeviceSpecification
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.contract import Context
from pytest_msprobe.suites.overflow.first_anomaly import (
    Anomaly,
    RankDump,
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
        self._ranks = {path: rank for paths in self.steps.values() for path, rank in rank_numbers(paths).items()}
        self._rules = read_rules(settings.rules)
        self._data_dirs = context.values["data_dir"]
        self._max_memory_bytes = settings.max_memory_bytes // context.sharers
        self._dumps: dict[Path, OverflowDump] = {}
        self._unreadable: set[Path] = set()
        self._surveys: dict[Path, Survey] = {}
        self._anomalies: dict[Path, list[Anomaly]] = {}

    def dump(self, path: Path) -> OverflowDump:
        """The dump at `path`, read once. Raises DumpError."""
        if path not in self._dumps:
            self._dumps[path] = OverflowDump(path, self._data_dirs)
        return self._dumps[path]

    def survey(self, path: Path) -> Survey:
        """The survey of the dump at `path`. Raises DumpError."""
        if path not in self._surveys:
            self._surveys[path] = Survey(self.dump(path), self._rules)
        return self._surveys[path]

    def recomputer(self, path: Path) -> Recomputer:
        """The object that computes origins of the dump at `path` again. Imports NumPy."""
        from pytest_msprobe.suites.overflow.recomputation import Recomputer

        return Recomputer(self.dump(path), self.engines, self.settings.seed, self._max_memory_bytes)

    def rank(self, path: Path) -> int:
        """The rank of the dump at `path`."""
        return self._ranks[path]

    def anomalies(self, folder: Path) -> list[Anomaly]:
        """The first anomaly of each rank of a step that has one, the earliest first; of the dumps that can be read."""
        if folder not in self._anomalies:
            ranks = []
            for path in self.steps[folder]:
                try:
                    ranks.append(RankDump(self.rank(path), self.dump(path), self.survey(path)))
                except DumpError:
                    continue  # the collection reports it
            self._anomalies[folder] = first_anomalies(ranks)
        return self._anomalies[folder]

    def unjudged(self, folder: Path) -> int:
        """How many dumps and records of a step cannot be read, or do not tell."""
        return sum(self.survey(path).unjudged if self._is_readable(path) else 1 for path in self.steps[folder])

    def is_leader(self, path: Path) -> bool:
        """Whether the dump at `path` is the first of its step that can be read, which represents all of them."""
        return next((one for one in self.steps[step_folder(path)] if self._is_readable(one)), None) == path

    def _is_readable(self, path: Path) -> bool:
        if path in self._unreadable:
            return False
        try:
            self.dump(path)
        except DumpError:
            self._unreadable.add(path)
        return path not in self._unreadable

    def close(self) -> None:
        """End what the engines hold outside this process."""
        self.engines.close()
