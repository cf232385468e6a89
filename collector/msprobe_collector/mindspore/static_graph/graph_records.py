"""From values that a running graph hands over to records."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from msprobe_collector.dump_format.writing.framework_values import TensorValues
from msprobe_collector.mindspore.static_graph.layouts import (
    NOT_COLLECTED,
    Layout,
    Layouts,
    copied,
    gradient_places,
    rebuilt,
    whole_tensors,
)
from msprobe_collector.mindspore.tensor_values import TENSOR
from msprobe_collector.recording.activity import backward_parent
from msprobe_collector.recording.faults import FaultLog, guarded
from msprobe_collector.recording.open_record import OpenRecord
from msprobe_collector.recording.recorder import Recorder


@dataclass(slots=True)
class _Call:
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
        self._calls: dict[tuple[str, int], _Call] = {}
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
            try:
                return self._arrive(layout, position, number, value)
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(layout.label, error)
                return number if number >= 0 else NOT_COLLECTED

    def close_step(self) -> bool:
        """Write what has not all arrived, and begin another step. Whether a graph with taps has run."""
        with self._lock:
            for (label, number), call in self._calls.items():
                if call.record is not None:
                    self._recorder.end_quietly(call.record)
                if call.awaited:
                    guarded(self._faults, label, functools.partial(self._end, label, number, call))
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
        record.stack = "[]" if record.stack else ""
        self._calls[label, number] = _Call(parent, record)
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

    def _end_forward(self, label: str, number: int, call: _Call) -> None:
        assert call.record is not None
        record, call.record = call.record, None
        self._open[label].remove(number)
        self._recorder.end(record)

    def _await_gradients(self, call: _Call, arguments: Any, outputs: Layout) -> None:
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

    def _end(self, label: str, number: int, call: _Call) -> None:
        if any(gradient is not None for gradient in (*call.incoming, *call.outgoing)):
            self._recorder.backward(
                f"{label}.backward.{number}",
                backward_parent(call.parent),
                call.incoming,
                call.outgoing,
                step_mark=self._recorder.step_mark,
            )
