"""A collection: hooks and recorder put together, switched on and off step by step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msprobe_collector import logger
from msprobe_collector.configuration import Configuration, DumpSwitch, RowSlice
from msprobe_collector.dump_format.manifest import MANIFEST_FILE
from msprobe_collector.framework import CallWatch, Framework
from msprobe_collector.recording.folders import (
    ONLY_PROCESS,
    FolderInUseError,
    WrittenRun,
    closing_lines,
    dumps_before,
    own_folder,
    remove_dump_and_folders,
)
from msprobe_collector.recording.gradients import BackwardCall
from msprobe_collector.recording.guard import ComputationFailed, Guard
from msprobe_collector.recording.manifest import ManifestRecorder
from msprobe_collector.recording.other_records import SavedValues
from msprobe_collector.recording.recorder import Recorder
from msprobe_collector.recording.session import Session

#: Backwards that are kept before those that are complete are thrown out.
_LEAST_UNFINISHED = 256


class Collection:
    """Collects the training of one framework as a configuration asks.

    Attributes:
        saved: what `PrecisionDebugger.save` writes.
        is_finished: the last step of the configuration is over; nothing will be collected any more.
    """

    def __init__(self, configuration: Configuration, framework: Framework, guard: Guard) -> None:
        self._configuration = configuration
        self._framework = framework
        self._switch = DumpSwitch(configuration)
        self._guard, self._faults = guard, guard.faults
        self._recorder = Recorder(configuration, framework.name, framework.values, self._faults)
        self._unfinished: list[BackwardCall] = []
        self._most_unfinished = _LEAST_UNFINISHED
        staging = configuration.dump_path / f"graph_files_{os.getpid()}"
        self._manifest = ManifestRecorder(
            guard, lambda: self._recorder.folder, framework.run_facts, configuration.dump_path
        )
        session = Session(configuration, self._recorder, self._guard, self._remember, staging, self._manifest)
        self._calls: CallWatch = framework.watch_calls(session)
        self.saved = SavedValues(self._recorder, framework.values, framework.register_gradient_hook, guard)
        self._rank: int | None = None
        #: Folders that were begun before this process had a rank.
        self._nameless: list[Path] = []
        self._root_forwards = 0
        self._range: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._began = time.time()
        self._written = WrittenRun()
        #: Numbers of the steps that had a dump before the one that is open.
        self._steps_before: set[int] = set()
        #: Another process writes to the folder of this one's rank, or to that of the only process.
        self._is_rank_taken = self._is_shared = False
        self._is_closed = False
        self._has_warned_of_rank = False
        self.is_finished = False
        os.register_at_fork(after_in_child=lambda: guard.enter("a fork", self._disown))

    def start(
        self,
        step: int,
        models: Sequence[Any],
        *,
        token_range: tuple[int, int] | None = None,
        rank: int | None = None,
        rows: RowSlice | None = None,
    ) -> None:
        """Collect from now on, if the configuration wants `step` of this rank.

        Args:
            step: number of the training step.
            models: layers to watch; may be empty at level L1.
            token_range: first and last forward of the first model to collect, counted from 0 in this step.
            rank: of this process; None asks the framework's communication.
            rows: of the batch, which are collected in place of the whole.
        """
        if self._framework.is_helper() or self._ends_before(step):
            return
        self._calls.prepare(models)
        if not self._configuration.steps.admits(step) or not self._switch.is_on():
            return
        self._learn_rank(rank)
        if not self._is_wanted_rank() or self._recorder.writer.is_exhausted:
            return
        if not self._open(step) or self._configuration.level == "debug":
            return
        self._recorder.encoder.slices = (*self._configuration.slices, *([] if rows is None else [rows]))
        self._faults.guarded(MANIFEST_FILE, self._manifest.begin, step, models, self._ranks())
        self._range = token_range
        try:
            self._calls.watch(models, on_root_forward=None if token_range is None else self._count_root_forward)
            self._calls.install()
        except BaseException:
            self._calls.uninstall()
            raise
        self._recorder.is_collecting = token_range is None

    def stop(self) -> None:
        """Put the originals back and bring what waits onto the disk. Gradients still arrive until `close_step`.

        Raises:
            ComputationFailed: the script's graphs raised; everything is done all the same.
        """
        actions = (self._calls.settle, self._learn_rank, self._learn_ranks, self._see_no_more, self._recorder.flush)
        self._in_turn("stopping", *actions, lambda: self._manifest.complete(self._ranks()))

    def _see_no_more(self) -> None:
        self._recorder.is_collecting = False
        self._calls.uninstall()

    @property
    def written_tensors(self) -> tuple[int, int]:
        """Number and bytes of the tensors that went to files, or are on their way."""
        encoder = self._recorder.encoder
        return encoder.saved_values, encoder.saved_bytes

    @property
    def has_written(self) -> bool:
        """Whether any step has a dump."""
        return bool(self._written.steps)

    def note_error(self, error: BaseException) -> None:
        """Note that `error` of the script ends the step that is open; its run.json will say so."""
        self._manifest.note_error(error)

    def close_step(self) -> None:
        """End the step: its files are complete, and call numbers begin anew.

        Raises:
            ComputationFailed: an error of the script's own computation came up only now; the step is closed all the
                same.
        """
        backwards, self._unfinished, self._root_forwards = self._unfinished, [], 0
        ends = (
            self._calls.end_step,
            self._manifest.end,
            self.saved.flush,
            self._recorder.close_step,
            self._see_no_more,
        )
        self._in_turn("ending the step", self._learn_rank, *(backward.complete for backward in backwards), *ends)

    def discard_step(self) -> None:
        """End the step, and leave nothing of it on the disk."""
        folder = self._recorder.folder
        self.stop()
        self.close_step()
        if folder is not None:
            self._recorder.writer.written, self._written.steps = self._recorder.records_before, self._steps_before
            self._faults.guarded(str(folder), remove_dump_and_folders, folder)

    def write_to(self, dump_path: Path) -> None:
        """Write the next steps below another root."""
        self.close_step()
        self._configuration = replace(self._configuration, dump_path=dump_path)

    def _in_turn(self, where: str, *actions: Callable[[], object]) -> None:
        """Do all of `actions`, whatever goes wrong in one. An error of the script's own computation goes on then."""
        failure: ComputationFailed | None = None
        for action in actions:
            try:
                self._faults.guarded(where, action)
            except ComputationFailed as error:
                failure = error
                self.note_error(error.error)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End for good: everything is written, no hook stays, and what never appeared is warned about."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        # Removed once more, for what a fault in the first attempt left in place.
        remove = self._calls.remove
        self._in_turn("ending the collection", self.close_step, remove, remove, self._say_what_is_missing)
        self._in_turn("ending the collection", self._recorder.release, self._say_what_was_written)

    def _say_what_is_missing(self) -> None:
        for name in self._recorder.filter.never_met():
            near = self._recorder.filter.near(name)
            logger.warning(
                "no record had the name %r, which scope or list asks for; nothing was collected for it%s",
                name,
                f"; near it are {', '.join(near)}" if near else "",
            )
        if self._recorder.writer.lost:
            logger.warning(
                "%d records are missing from the dump: they could not be written", self._recorder.writer.lost
            )
        for line in self._faults.summary():
            logger.warning("%s", line)

    def _say_what_was_written(self) -> None:
        if self._framework.is_helper():
            return
        written = self._written
        written.records, written.replaced = self._recorder.writer.written, self._recorder.replaced
        written.kept = list(dumps_before(self._configuration.dump_path, self._began))
        for line in closing_lines(self._configuration, written):
            logger.info("%s", line)

    def open_step(self, step: int) -> None:
        """Open the files of `step` without collecting, for values that are saved by hand."""
        self._learn_rank(None)
        if self._configuration.steps.admits(step) and self._is_wanted_rank():
            self._open(step)

    def add_api(self, owner: Any, name: str, call: str) -> None:
        """Collect calls of `owner.name` too, as `call`."""
        self._calls.add_api(owner, name, call)

    def remove_api(self, owner: Any, name: str) -> bool:
        """Collect calls of `owner.name` no more; False when they were not collected."""
        return self._calls.remove_api(owner, name)

    def _open(self, step: int) -> bool:
        """Begin the files of `step`; where the disk refuses them, training continues without."""
        if self._rank is not None and not self._is_rank_taken:
            owner = f"rank{self._rank}"
        else:
            owner = own_folder() if self._is_shared else ONLY_PROCESS
        folder = self._configuration.dump_path / f"step{step}" / owner
        if self._recorder.folder != folder:
            self._steps_before = set(self._written.steps)
        try:
            self._recorder.open_step(folder, is_shared=owner == ONLY_PROCESS, ranks=self._ranks())
        except FolderInUseError:
            return self._open_beside(step, folder)
        except OSError as error:
            logger.warning("%s cannot be written: %s; nothing is collected in step %d", folder, error.strerror, step)
            return False
        if self._rank is None and folder not in self._nameless:
            self._nameless.append(folder)
        self._written.steps.add(step)
        self._written.roots.add(self._configuration.dump_path)
        self._written.owners.add(folder.name)
        return True

    def _open_beside(self, step: int, folder: Path) -> bool:
        """Write to the folder of the process: another one has taken the rank's, or that of an only process."""
        was_shared, self._is_shared = self._is_shared, True
        if self._rank is None or self._is_rank_taken:
            return False if was_shared else self._open(step)
        self._is_rank_taken = True
        logger.warning(
            "%s is being written by another process; this one writes to %s beside it: "
            "give each process its own rank_id or dump_path",
            folder,
            own_folder(),
        )
        return self._open(step)

    def _learn_rank(self, rank: int | None = None) -> None:
        """Take the rank as soon as there is one; folders that were begun without get its name."""
        if rank is not None:
            self._rank = rank
        elif self._rank is None:
            self._rank = self._framework.rank()
        if self._rank is None:
            return
        for folder in self._nameless:
            target = folder.with_name(f"rank{self._rank}")
            try:
                self._recorder.rename_step(folder, target)
                self._written.owners.discard(folder.name)
                self._written.owners.add(target.name)
            except OSError as error:
                logger.warning("%s cannot be renamed to %s: %s; it stays", folder, target.name, error.strerror)
        self._nameless.clear()

    def _learn_ranks(self) -> None:
        """Groups of processes may be made while a step runs."""
        self._recorder.learn_ranks(self._ranks())

    def _ranks(self) -> dict[str, object] | None:
        ranks: dict[str, object] | None = self._faults.guarded("the groups of processes", self._framework.ranks)
        if ranks is not None and (wanted := self._configuration.ranks.ranges):
            return {**ranks, "collected": list(map(list, wanted))}
        return ranks

    def _ends_before(self, step: int) -> bool:
        last = self._configuration.steps.last
        if last is not None and step > last and not self.is_finished:
            self.is_finished = True
            self.close()
            logger.info("the steps to collect, %s, are over: nothing more is collected", self._configuration.steps)
        return self.is_finished

    def _is_wanted_rank(self) -> bool:
        ranks = self._configuration.ranks
        if ranks.last is None:
            return True
        if self._rank is None and not self._has_warned_of_rank:
            self._has_warned_of_rank = True
            logger.warning(
                "rank names some ranks, but this process has none yet: initialise communication "
                "first or give start() a rank_id; nothing is collected until then"
            )
        return self._rank is not None and ranks.admits(self._rank)

    def _count_root_forward(self) -> None:
        assert self._range is not None
        first, last = self._range
        self._recorder.is_collecting = first <= self._root_forwards <= last
        self._root_forwards += 1

    def _remember(self, backward: BackwardCall) -> None:
        """Keep a backward that may lack gradients when the step ends; those that are complete make room."""
        self._unfinished.append(backward)
        if len(self._unfinished) > self._most_unfinished:
            self._unfinished = [backward for backward in self._unfinished if not backward.is_complete]
            self._most_unfinished = max(_LEAST_UNFINISHED, 2 * len(self._unfinished))

    def _disown(self) -> None:
        """A forked child writes nothing: the files belong to its parent."""
        self._recorder.is_collecting = False
        self._recorder.disown()
