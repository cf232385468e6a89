"""The steps of a run in one process, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msprobe_collector.dump_format.dump import Slot
from pytest_msprobe.suites.contract import SuiteError
from pytest_msprobe.suites.sharded.blame import Blame
from pytest_msprobe.suites.sharded.logical import LogicalRun
from pytest_msprobe.suites.sharded.options import ShardedSettings
from pytest_msprobe.suites.sharded.outline import StepOutline
from pytest_msprobe.suites.sharded.ranks import RunSteps, step_folders
from pytest_msprobe.suites.sharded.step_judge import StepJudge


class ShardedSession(RunSteps):
    """The steps of a run that a logical run judges.

    Attributes:
        settings: what the run was asked to do.
    """

    def __init__(self, settings: ShardedSettings, dumps: Sequence[Path], logical: Sequence[Path]) -> None:
        """A run over `dumps`, judged by the dumps `logical`."""
        super().__init__(step_folders(dumps), settings.data_dir)
        self.settings, self._logical = settings, logical
        self._blames: dict[Path, Blame] = {}

    def blame(self, path: Path) -> Blame:
        """What judges the step that the dump at `path` is of, and tells what is at fault.

        Raises:
            SuiteError: there is no logical run of this step.
            DumpError: it cannot be read.
        """
        folder = self.folders[path]
        if folder not in self._blames:
            logical = LogicalRun.read(self.logical_of(path), self.settings.data_dir)
            self._blames[folder] = Blame(StepJudge(StepOutline(self.step(path), logical)))
        return self._blames[folder]

    def logical_of(self, path: Path) -> list[Path]:
        """The dumps of the logical run for the step of the dump at `path`; of one step each, that one.

        Raises:
            SuiteError: there is none, or there are several.
        """
        steps = step_folders(self._logical)
        if len(self.steps) > 1 or len(steps) > 1:
            number = Slot.of(path).step
            steps = {folder: paths for folder, paths in steps.items() if Slot.of(paths[0]).step == number}
        if len(steps) != 1:
            what = f"{len(steps)} dumps" if steps else "no dump"
            raise SuiteError(f"{path}: the logical run has {what} of {Slot.of(path)}; name one with --msprobe-logical")
        (paths,) = steps.values()
        return paths

    def is_leader(self, path: Path) -> bool:
        """Whether the dump at `path` is the first of its step that can be read, which represents all of them."""
        leader = self.step(path).leader
        return leader is not None and leader.path == path
