"""Level L0 inside graphs, whatever the device: taps on Cells, and records from what they hand over."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msprobe_collector.mindspore.mindspore_internals import is_graph_mode
from msprobe_collector.mindspore.mindspore_internals import wait_for_graphs
from msprobe_collector.mindspore.static_graph.graph_cells import GraphCells
from msprobe_collector.mindspore.static_graph.graph_records import GraphRecords
from msprobe_collector.mindspore.static_graph.layouts import LAYOUTS
from msprobe_collector.mindspore.static_graph.staged_records import StagedRecords
from msprobe_collector.recording.faults import FaultLog, guarded
from msprobe_collector.recording.recorder import Recorder

logger = logging.getLogger("msprobe_collector")


class GraphTaps:
    """Collects the Cells that run inside graphs: in GRAPH_MODE all, else those below a jitted Cell or that a jit
    function calls.
    """

    def __init__(self, recorder: Recorder, faults: FaultLog, *, staging: Path) -> None:
        """Prepare for the present device: CPU, or Ascend, whose values pass through files in `staging`."""
        import mindspore

        self._recorder = recorder
        self._faults = faults
        self._target = str(mindspore.get_context("device_target"))
        self._gradients = recorder.wants("backward")
        self._records: GraphRecords | StagedRecords
        if self._target == "Ascend":
            self._records = StagedRecords(recorder, faults, folder=staging)
        else:
            self._records = GraphRecords(recorder, faults, LAYOUTS)
        self._cells = GraphCells(self._tapped, faults)
        self._warned = False

    def put_in(self, models: Sequence[Any]) -> None:
        """Tap the Cells of `models` that will run inside graphs. Graphs that were compiled before stay without taps."""
        guarded(self._faults, "tapping Cells inside graphs", lambda: self._put_in(models))

    def _put_in(self, models: Sequence[Any]) -> None:
        parents = self._cells.put_in(models, is_graph_mode=is_graph_mode())
        if parents:
            self._records.watch(parents, self._cells.always_inside)

    def run_inside(self, cell: str | None) -> None:
        """The graph that runs next belongs to the dynamic Cell record `cell`."""
        self._records.outer = cell

    def settle(self) -> None:
        """Wait for graphs that were started and still run."""
        if self._cells.may_have_run:
            wait_for_graphs()

    def close_step(self) -> None:
        """Write what the graphs of the step have left."""
        if not self._cells.may_have_run:
            return
        was_collecting = self._recorder.folder is not None
        was_reached = self._records.close_step()
        if was_collecting and self._cells.always_inside and not was_reached and not self._warned:
            self._warned = True
            logger.warning(
                "no graph with taps ran in this step: call start(net) before the network is compiled, "
                "that is before its first run"
            )

    def remove(self) -> None:
        """Put the original constructs back."""
        self._cells.take_out()
        if self._cells.may_have_run and isinstance(self._records, StagedRecords):
            self._records.remove()

    @functools.cached_property
    def _receiver(self) -> int:
        assert isinstance(self._records, GraphRecords)
        return LAYOUTS.add_receiver(self._records)

    def _tapped(self, cell: Any, label: str) -> Any:
        if isinstance(self._records, StagedRecords):
            from msprobe_collector.mindspore.static_graph.graph_code.ascend import tapped_construct as tapped_on_ascend

            return tapped_on_ascend(cell, label, folder=self._records.folder, gradients=self._gradients)
        from msprobe_collector.mindspore.static_graph.graph_code.cpu import tapped_construct

        return tapped_construct(cell, label, receiver=self._receiver, gradients=self._gradients)
