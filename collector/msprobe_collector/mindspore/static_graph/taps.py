"""Level L0 inside graphs, whatever the device: taps on Cells, and records from what they hand over.

- Which Cells are tapped inside graphs, and how the taps go in and out.
- From values that a running graph hands over to records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from msprobe_collector import logger
from msprobe_collector.dump_format.writing.encoding import TensorValues
from msprobe_collector.mindspore.discovery import named_cells
from msprobe_collector.mindspore.mindspore_internals import TENSOR, graph_executors, is_graph_mode, wait_for_graphs
from msprobe_collector.mindspore.static_graph.files import StagedRecords
from msprobe_collector.mindspore.static_graph.layouts import (
    LAYOUTS,
    NOT_COLLECTED,
    Layout,
    Layouts,
    copied,
    gradient_places,
    rebuilt,
    whole_tensors,
)
from msprobe_collector.recording.guard import ComputationFailed, FaultLog
from msprobe_collector.recording.observing import backward_of_layer, warn_of_no_layers
from msprobe_collector.recording.recorder import OpenRecord, Recorder
from msprobe_collector.recording.swaps import MethodSwaps

#: Makes a tapped construct for (cell, label).
TapMaker = Callable[[Any, str], Callable[..., Any]]


class _Tap:
    """The tapped construct of a Cell, made when it is first put in."""

    def __init__(self, cell: Any, label: str, make: TapMaker) -> None:
        # Past Cell.__setattr__, which looks for parameters and other Cells.
        self._attributes: dict[str, Any] = vars(cell)
        self._make = functools.cache(lambda: make(cell, label))
        self._before: dict[str, Any] = {}

    def install(self) -> None:
        """Replace the construct; one of the Cell's own, not its class's, is kept aside."""
        tapped = self._make()
        self._before = {"construct": self._attributes["construct"]} if "construct" in self._attributes else {}
        self._attributes["construct"] = tapped

    def uninstall(self) -> None:
        """Put the original back."""
        self._attributes.pop("construct", None)
        self._attributes.update(self._before)


class GraphCells:
    """Puts tapped constructs on the Cells that run inside graphs.

    A graph keeps the code with which it was compiled, so taps go in at the first start() and stay until the end; they
    pass on nothing while nothing is collected. In PyNative mode any Cell may be called by a jit function: there taps
    are in place only while the compiler reads. When the compiler refuses a graph with taps, they come out of every
    Cell, and it is compiled once more as if they had never been.

    Attributes:
        may_have_run: whether a graph may have been compiled with taps.
        always_inside: labels of Cells that run in no other way than inside a graph.
    """

    def __init__(self, make_tap: TapMaker, faults: FaultLog) -> None:
        self._make_tap = make_tap
        self._faults = faults
        self._tapped: list[_Tap] = []
        #: Cells that run in a graph only when a jit function calls them.
        self._callable: list[_Tap] = []
        self._known: set[int] = set()
        self._compilers = MethodSwaps()
        self.may_have_run = False
        self.always_inside: set[str] = set()

    def install(self, models: Sequence[Any], *, is_graph_mode: bool) -> dict[str, str]:
        """Tap the Cells of `models`, those that are not tapped yet.

        Args:
            models: the watched models.
            is_graph_mode: whether all Cells run inside a graph, or only those below a Cell whose construct is jitted
                and those that a jit function calls.

        Returns:
            Label of each Cell of `models` that can be tapped, with that of the nearest one around it in the same
            graph, or "".
        """
        paths, jitted = {}, set()
        for path, cell in named_cells(models):
            if not path or not _can_be_tapped(cell):
                continue
            label = f"Cell.{path}.{type(cell).__name__}"
            is_inside = is_graph_mode or any(is_jitted(around) for around in _cells_around(models, path))
            if not is_inside and is_jitted(cell):
                # Seen from outside, where its backward is.
                jitted.add(path)
                continue
            if is_inside:
                self.always_inside.add(label)
            if id(cell) not in self._known:
                self._known.add(id(cell))
                self._add(_Tap(cell, label, self._make_tap), stays=is_inside)
            paths[path] = label
        if paths:
            self._guard_compiler()
        return {label: _around(path, paths, jitted) for path, label in paths.items()}

    def uninstall(self) -> None:
        """Put every original construct back."""
        self._callable.clear()
        self.always_inside.clear()
        while self._tapped:
            self._tapped.pop().uninstall()
        self._compilers.uninstall()

    @contextmanager
    def _untapped(self) -> Iterator[None]:
        """No taps inside; after an error they are back."""
        for tap in self._tapped:
            tap.uninstall()
        try:
            yield
        except BaseException:
            for tap in self._tapped:
                tap.install()
            raise

    def _give_up(self) -> None:
        self.uninstall()
        logger.warning("the graph is compiled without taps; nothing inside graphs is collected from now on")

    def _add(self, tap: _Tap, *, stays: bool) -> None:
        if stays:
            tap.install()
            self._tapped.append(tap)
            self.may_have_run = True
        else:
            self._callable.append(tap)

    @contextmanager
    def _all_tapped(self) -> Iterator[None]:
        """Taps on the Cells that a jit function may call."""
        installed: list[_Tap] = []
        try:
            for tap in self._callable:
                tap.install()
                installed.append(tap)
            self.may_have_run = self.may_have_run or bool(installed)
            yield
        finally:
            for tap in installed:
                tap.uninstall()

    def _guard_compiler(self) -> None:
        if not self._compilers.are_in:
            api = graph_executors()
            for owner in (api._JitExecutor, api._CellGraphExecutor):
                self._compilers.put(owner, "compile", self._guarded)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_with_taps(executor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                with self._all_tapped():
                    return original(executor, *args, **kwargs)
            except Exception as error:
                if not self._tapped and not self._callable:
                    raise
                refusal = error
            with self._untapped():  # what is refused again is an error of the script
                result = original(executor, *args, **kwargs)
            self._faults.note("compiling a graph whose Cells are collected", refusal)
            self._faults.guarded("compiling a graph without taps", self._give_up)
            return result

        return compile_with_taps


def _can_be_tapped(cell: Any) -> bool:
    from mindspore import nn

    # Its own backward or its in-place updates would see other tensors; containers have no code.
    if isinstance(cell, nn.Optimizer) or hasattr(cell, "bprop"):
        return False
    name = type(cell).__name__
    has_code = type(cell).construct is not nn.Cell.construct and not isinstance(cell, (nn.CellList, nn.CellDict))
    return has_code and name != "DistributedGradReducer" and not name.startswith("_")


def _cells_around(models: Sequence[Any], path: str) -> Iterator[Any]:
    cell, names = models[0], path.split(".")
    if len(models) > 1:
        cell = models[int(names.pop(0))]
    for name in names:
        yield cell
        cell = cell._cells[name]


def is_jitted(cell: Any) -> bool:
    """Return whether the construct of `cell` is decorated by `mindspore.jit`."""
    return hasattr(cell.construct, "__wrapped_by_jit__")


def _around(path: str, paths: dict[str, str], jitted: set[str]) -> str:
    front = path.rpartition(".")[0]
    while front and front not in jitted:
        if front in paths:
            return paths[front]
        front = front.rpartition(".")[0]
    return ""


@dataclass(slots=True)
class _TappedCall:
    """One call of a Cell while its values arrive.

    Attributes:
        incoming, outgoing: gradients of its outputs and of its arguments, None where none has come.
        awaited: (moment, index) of gradients that may still come.
        arrays: of the inputs or outputs that arrive now.
    """

    parent: str | None
    record: OpenRecord | None = None
    incoming: list[TensorValues | None] = field(default_factory=list)
    outgoing: list[TensorValues | None] = field(default_factory=list)
    awaited: set[tuple[str, int]] = field(default_factory=set)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)


class GraphRecords:
    """Numbers the calls of Cells inside graphs and writes their records.

    Runs in the threads of the graph, so it raises nothing and takes a lock. The gradients of a call whose first Cell
    input takes none stay in memory until the step ends; everything else is on its way to disk at once.

    Attributes:
        outer: forward record of the dynamic Cell that runs the graph, or None.
    """

    def __init__(self, recorder: Recorder, faults: FaultLog, layouts: Layouts) -> None:
        self._recorder = recorder
        self._faults = faults
        self._layouts = layouts
        self._lock = RLock()
        self._parents: Mapping[str, str] = {}
        self._always_inside: Set[str] = frozenset()
        self._calls: dict[tuple[str, int], _TappedCall] = {}
        self._open: dict[str, list[int]] = {}
        self.outer: str | None = None
        self._was_reached = False

    def watch(self, parents: Mapping[str, str], always_inside: Set[str]) -> None:
        """Take Cells with these labels.

        Args:
            parents: label of each Cell, with that of the nearest tapped Cell around it, or "".
            always_inside: labels of those that run in no other way than inside a graph.
        """
        self._parents = parents
        self._always_inside = always_inside

    def arrive(self, layout: Layout, position: int, number: int, value: np.ndarray[Any, Any]) -> int:
        """Take one value; see `Receiver`."""
        with self._lock:
            answer: int | None = self._faults.guarded(layout.label, self._arrive, layout, position, number, value)
        if answer is not None:
            return answer
        return number if number >= 0 else NOT_COLLECTED

    def close_step(self) -> bool:
        """Write what has not all arrived, and begin another step. Whether a graph with taps has run."""
        with self._lock:
            for (label, number), call in self._calls.items():
                if call.record is not None:
                    self._recorder.end_quietly(call.record)
                if call.awaited:
                    self._faults.guarded(label, self._end, label, number, call)
            self._calls.clear()
            self._open.clear()
            was_reached, self._was_reached = self._was_reached, False
            return was_reached

    def _arrive(self, layout: Layout, position: int, number: int, value: np.ndarray[Any, Any]) -> int:
        self._was_reached = True
        if number < 0 and not self._recorder.is_collecting:
            return NOT_COLLECTED
        array = copied(value, whole_tensors(layout.description)[position])
        if layout.moment in ("inputs", "outputs"):
            if number < 0:
                number = self._begin(layout.label)
            self._take(layout, position, number, array)
        else:
            self._take_gradient(layout, number, array)
        return number

    def _begin(self, label: str) -> int:
        number = self._recorder.number(label)
        parent = self._parent_of(label)
        record = self._recorder.begin(f"{label}.forward.{number}", "forward", parent)
        # The stack of the graph's thread says nothing of the training script.
        record.stack = record.stack and "[]"
        self._calls[label, number] = _TappedCall(parent, record)
        self._open.setdefault(label, []).append(number)
        return number

    def _parent_of(self, label: str) -> str | None:
        parent = self._parents.get(label)
        if not parent:
            return self.outer
        if running := self._open.get(parent):
            return f"{parent}.forward.{running[-1]}"
        # A call whose inputs are constants may begin before the call around it; a jit function may call any Cell.
        return f"{parent}.forward.0" if parent in self._always_inside else self.outer

    def _take(self, layout: Layout, position: int, number: int, array: np.ndarray[Any, Any]) -> None:
        call = self._calls.get((layout.label, number))
        if call is None or call.record is None:
            return
        call.arrays.append(array)
        if position < layout.tensor_count - 1:
            return
        arrays, call.arrays = call.arrays, []
        if layout.moment == "inputs":
            arguments, keywords = rebuilt(layout.description, arrays)
            self._recorder.inputs(call.record, arguments, keywords)
            return
        inputs = self._layouts[layout.of_inputs]
        if inputs.tensor_count == 0:
            arguments, keywords = rebuilt(inputs.description, [])
            self._recorder.inputs(call.record, arguments, keywords)
        self._recorder.outputs(call.record, rebuilt(layout.description, arrays))
        self._end_forward(layout.label, number, call)
        self._await_gradients(call, inputs.description[1][0], layout)

    def _end_forward(self, label: str, number: int, call: _TappedCall) -> None:
        assert call.record is not None
        record, call.record = call.record, None
        self._open[label].remove(number)
        self._recorder.end(record)

    def _await_gradients(self, call: _TappedCall, arguments: Any, outputs: Layout) -> None:
        sides = {
            "input_gradient": gradient_places(arguments),
            "output_gradient": gradient_places(outputs.description),
        }
        call.outgoing = [None] * len(sides["input_gradient"])
        call.incoming = [None] * len(sides["output_gradient"])
        call.awaited = {(side, index) for side, places in sides.items() for index, may in enumerate(places) if may}

    def _take_gradient(self, layout: Layout, number: int, array: np.ndarray[Any, Any]) -> None:
        call = self._calls.get((layout.label, number))
        if call is None:
            return
        side = call.outgoing if layout.moment == "input_gradient" else call.incoming
        side[layout.index] = TensorValues(array, layout.description[1], TENSOR)
        call.awaited.discard((layout.moment, layout.index))
        if not call.awaited:
            del self._calls[layout.label, number]
            self._end(layout.label, number, call)

    def _end(self, label: str, number: int, call: _TappedCall) -> None:
        if any(gradient is not None for gradient in (*call.incoming, *call.outgoing)):
            self._recorder.backward(
                f"{label}.backward.{number}",
                call.parent and backward_of_layer(call.parent),
                call.incoming,
                call.outgoing,
                step_mark=self._recorder.step_mark,
            )


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

    def install(self, models: Sequence[Any]) -> None:
        """Tap the Cells of `models` that will run inside graphs. Graphs that were compiled before stay without taps."""
        self._faults.guarded("tapping Cells inside graphs", self._install, models)

    def _install(self, models: Sequence[Any]) -> None:
        parents = self._cells.install(models, is_graph_mode=is_graph_mode())
        if parents:
            self._records.watch(parents, self._cells.always_inside)
        elif is_graph_mode():
            warn_of_no_layers(models)

    def run_inside(self, cell: str | None) -> None:
        """The graph that runs next belongs to the dynamic Cell record `cell`."""
        self._records.outer = cell

    def settle(self) -> None:
        """Wait for graphs that were started and still run.

        Raises:
            ComputationFailed: one of them raised.
        """
        if self._cells.may_have_run:
            try:
                wait_for_graphs()
            except Exception as error:
                raise ComputationFailed(error) from error

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
        self._cells.uninstall()
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
