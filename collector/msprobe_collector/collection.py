"""A collection: hooks and recorder put together, switched on and off step by step."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msprobe_collector.configuration import Configuration, DumpSwitch
from msprobe_collector.debug_values import SavedValues
from msprobe_collector.hooking.activity import Activity
from msprobe_collector.hooking.api_calls import ApiCalls
from msprobe_collector.hooking.backward_call import BackwardCall
from msprobe_collector.hooking.cells import CellCalls, named_cells
from msprobe_collector.hooking.communication import Waits
from msprobe_collector.hooking.discovery import ApiTarget, find_apis
from msprobe_collector.hooking.gradients import GradientTap
from msprobe_collector.hooking.installation import Installation, unreachable_names
from msprobe_collector.hooking.jit_calls import JitCalls
from msprobe_collector.hooking.parameter_gradients import ParameterGradients
from msprobe_collector.hooking.primitives import PrimitiveCalls
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.recorder import Recorder, guarded
from msprobe_collector.run_folder import communication_rank, is_scheduler, step_folder
from msprobe_collector.static_graph.graph_taps import GraphTaps, is_graph_mode

logger = logging.getLogger("msprobe_collector")

#: Backwards that are kept before those that are complete are thrown out.
_LEAST_UNFINISHED = 256


class Collection:
    """Collects dynamic-graph training as a configuration asks.

    Attributes:
        is_finished: the last step of the configuration is over; nothing will be collected any more.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._switch = DumpSwitch(configuration)
        self._faults = FaultLog()
        self._activity = Activity()
        self._recorder = Recorder(configuration, self._faults)
        self._tap = GradientTap(self._activity, self._faults)
        self._unfinished: list[BackwardCall] = []
        self._most_unfinished = _LEAST_UNFINISHED
        self._waits = Waits(self._activity, self._faults)
        self._api_calls = ApiCalls(
            self._recorder,
            self._tap,
            self._activity,
            self._faults,
            remember=self._remember,
            waits=self._waits,
        )
        self._cells = CellCalls(self._recorder, self._tap, self._activity, self._faults, remember=self._remember)
        self._parameters = ParameterGradients(self._recorder, self._activity, self._faults)
        self._apis = Installation(self._api_calls.wrapped)
        self._primitives = PrimitiveCalls(self._api_calls.wrapped)
        self._jits = JitCalls(
            self._api_calls.wrapped,
            originals_in_place=self._originals_in_place,
            records=configuration.collects_apis,
        )
        self._graphs = GraphTaps(
            self._recorder, self._faults, staging=configuration.dump_path / f"graph_files_{os.getpid()}"
        )
        self.saved = SavedValues(self._recorder, self._activity, self._faults)
        self._targets: list[ApiTarget] | None = None
        self._rank: int | None = None
        #: Folders that were begun before this process had a rank.
        self._nameless: list[Path] = []
        self._root_forwards = 0
        self._range: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._is_closed = False
        self._has_warned_of_rank = False
        self.is_finished = False
        os.register_at_fork(after_in_child=self._disown)

    def start(
        self, step: int, models: Sequence[Any], *, token_range: tuple[int, int] | None = None, rank: int | None = None
    ) -> None:
        """Collect from now on, if the configuration wants `step` of this rank.

        Args:
            step: number of the training step.
            models: Cells to watch; may be empty at level L1.
            token_range: first and last forward of the first model to collect, counted from 0 in this step.
            rank: of this process; None asks MindSpore's communication.
        """
        if is_scheduler() or self._ends_before(step):
            return
        if self._configuration.collects_cells and models:
            # Before the first compilation, whichever step is collected.
            self._graphs.put_in(models)
        if not self._configuration.steps.admits(step) or not self._switch.is_on():
            return
        self._learn_rank(rank)
        if not self._is_wanted_rank() or self._recorder.is_exhausted:
            return
        if not self._open(step) or self._configuration.level == "debug":
            return
        self._watch(models, token_range)
        self._install()
        self._recorder.is_collecting = token_range is None

    def stop(self) -> None:
        """Put the originals back and bring what waits onto the disk. Gradients still arrive until `close_step`."""
        guarded(self._faults, "reading the values of graphs", self._graphs.settle)
        self._learn_rank(None)
        self._recorder.is_collecting = False
        self._uninstall()
        self._recorder.flush()

    def close_step(self) -> None:
        """End the step: its files are complete, and call numbers begin anew."""
        was_collecting = self._recorder.is_collecting
        self._learn_rank(None)
        with self._activity.own_work():
            endings = [backward.complete for backward in self._unfinished]
            endings += [self._waits.give_up, self._parameters.flush, self.saved.flush, self._graphs.close_step]
            for end in endings:
                guarded(self._faults, "ending the step", end)
        self._unfinished.clear()
        self._parameters.remove()
        self._root_forwards = 0
        self._recorder.close_step()
        self._recorder.is_collecting = False
        if was_collecting:
            self._uninstall()

    def close(self) -> None:
        """End for good: everything is written, no hook stays, and what never appeared is warned about."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        self.close_step()
        self._uninstall()
        self._graphs.remove()
        for name in self._recorder.filter.never_met():
            logger.warning(
                "no record had the name %r, which scope or list asks for; nothing was collected for it", name
            )
        if self._recorder.lost_records:
            logger.warning(
                "%d records are missing from the dump: they could not be written", self._recorder.lost_records
            )
        for line in self._faults.summary():
            logger.warning("%s", line)

    def open_step(self, step: int) -> None:
        """Open the files of `step` without collecting, for values that are saved by hand."""
        self._learn_rank(None)
        if self._configuration.steps.admits(step) and self._is_wanted_rank():
            self._open(step)

    def add_api(self, target: ApiTarget) -> None:
        """Collect calls of `target` too."""
        self._apis.add([target])

    def remove_api(self, owner: Any, name: str) -> bool:
        """Collect calls of `owner.name` no more; False when they were not collected."""
        return self._apis.remove(owner, name)

    def _open(self, step: int) -> bool:
        """Begin the files of `step`; where the disk refuses them, training goes on without."""
        folder = step_folder(self._configuration.dump_path, step, self._rank)
        if self._rank is None and folder not in self._nameless:
            self._nameless.append(folder)
        try:
            self._recorder.open_step(folder)
        except OSError as error:
            logger.warning("%s cannot be written: %s; nothing is collected in step %d", folder, error.strerror, step)
            return False
        return True

    def _learn_rank(self, given: int | None) -> None:
        """Take the rank as soon as there is one; folders that were begun without get its name."""
        if given is not None or self._rank is None:
            self._rank = given if given is not None else communication_rank()
        if self._rank is None:
            return
        for folder in self._nameless:
            target = folder.with_name(f"rank{self._rank}")
            try:
                if folder == self._recorder.folder:
                    self._recorder.move_step(target)
                else:
                    folder.rename(target)
            except OSError as error:
                logger.warning("%s cannot be renamed to %s: %s; it stays", folder, target.name, error.strerror)
        self._nameless.clear()

    def _ends_before(self, step: int) -> bool:
        last = self._configuration.steps.last
        if last is not None and step > last and not self.is_finished:
            self.is_finished = True
            self.close()
            logger.info("every step that %s names has been collected", self._configuration.file)
        return self.is_finished

    def _is_wanted_rank(self) -> bool:
        ranks = self._configuration.ranks
        if ranks.last is None:
            return True
        if self._rank is None and not self._has_warned_of_rank:
            self._has_warned_of_rank = True
            logger.warning(
                "rank names some ranks, but this process has none yet: call mindspore.communication.init() "
                "first or give start() a rank_id; nothing is collected until then"
            )
        return self._rank is not None and ranks.admits(self._rank)

    def _watch(self, models: Sequence[Any], token_range: tuple[int, int] | None) -> None:
        configuration = self._configuration
        if is_graph_mode():
            return
        if configuration.collects_apis and self._targets is None:
            self._targets = find_apis(configuration.api_list)
            self._apis.add(self._targets)
            if hidden := unreachable_names(self._targets):
                logger.warning(
                    "calls through class attributes or default arguments that were bound before start() are "
                    "not collected: %s",
                    ", ".join(hidden),
                )
        if configuration.collects_apis and models:
            self._primitives.watch(models)
        if models:
            self._cells.watch(models, records=configuration.collects_cells)
        if configuration.collects_cells and self._recorder.wants("backward"):
            for _, cell in named_cells(models):
                if (label := self._cells.label(cell)) is not None:
                    self._parameters.watch(label, cell)
        self._range = token_range
        self._cells.on_root_forward = None if token_range is None else self._count_root_forward

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

    def _install(self) -> None:
        if is_graph_mode():
            return
        if self._configuration.collects_apis:
            self._apis.put_in()
            self._waits.put_in()
            self._primitives.put_in()
        if self._configuration.collects_cells or self._range is not None:
            self._cells.put_in()
        self._jits.put_in()

    def _uninstall(self) -> None:
        self._apis.take_out()
        self._waits.take_out()
        self._primitives.take_out()
        self._cells.take_out()
        self._jits.take_out()

    @contextmanager
    def _originals_in_place(self) -> Iterator[None]:
        """Nothing is hooked inside, where a compiler reads the functions that the names hold."""
        self._apis.take_out()
        self._primitives.take_out()
        self._cells.take_out()
        self._graphs.run_inside(self._activity.cell)
        try:
            yield
            # The calls inside are numbered before those that follow; what the graph raises is raised by its own call.
            self._graphs.settle()
        finally:
            # Not after a stop() inside.
            if self._recorder.is_collecting or self._range is not None:
                self._install()

    def _disown(self) -> None:
        """A forked child writes nothing: the files belong to its parent."""
        self._recorder.is_collecting = False
        self._recorder.disown()
