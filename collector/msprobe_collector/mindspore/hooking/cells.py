"""Cells: their calls, parameters and parameter gradients, seen from one place, `nn.Cell.__call__`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msprobe_collector.dump_format.writing.framework_values import ComputationFailed
from msprobe_collector.mindspore.hooking.gradients import GradientTap, Sources
from msprobe_collector.recording.activity import Activity, backward_parent
from msprobe_collector.recording.backward_call import BackwardCall
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.layers import named_layers
from msprobe_collector.recording.open_record import OpenRecord
from msprobe_collector.recording.recorder import Recorder

logger = logging.getLogger("msprobe_collector")


def named_cells(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(path, Cell) of every Cell below the `models`, each once under its first path; the models have the path ""."""
    return named_layers(models, lambda model: model.cells_and_names())


class CellCalls:
    """Records the Cells of the watched models; counts the forwards of the first."""

    def __init__(
        self,
        recorder: Recorder,
        tap: GradientTap,
        activity: Activity,
        faults: FaultLog,
        *,
        remember: Callable[[BackwardCall], None],
    ) -> None:
        self._recorder = recorder
        self._tap = tap
        self._activity = activity
        self._faults = faults
        self._remember = remember
        self._labels: dict[int, str] = {}
        self._watched: list[Any] = []
        self._root: Any = None
        self._original: Callable[..., Any] | None = None
        #: Called before each forward of the first model.
        self.on_root_forward: Callable[[], None] | None = None

    def watch(self, models: Sequence[Any], *, records: bool) -> None:
        """Watch `models`; with `records` their inner Cells are recorded."""
        self._root = models[0]
        if not records or self._watched == list(models):
            return
        self._watched = list(models)
        self._labels = {id(cell): f"Cell.{path}.{type(cell).__name__}" for path, cell in named_cells(models) if path}

    def label(self, cell: Any) -> str | None:
        """`Cell.{path}.{Class}` of a watched Cell, else None."""
        return self._labels.get(id(cell))

    def put_in(self) -> None:
        """See Cell calls from now on."""
        from mindspore import nn

        if self._original is None:
            self._original = nn.Cell.__call__
            nn.Cell.__call__ = self._recorded(self._original)

    def take_out(self) -> None:
        """Put the original `nn.Cell.__call__` back."""
        from mindspore import nn

        if self._original is not None:
            nn.Cell.__call__ = self._original
            self._original = None

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def recorded(cell: Any, *args: Any, **kwargs: Any) -> Any:
            """Run the Cell, with a record of it where it is watched.

            Raises:
                Exception: the error of the script's own computation, where reading a value brought it up.
            """
            if cell is self._root and self.on_root_forward is not None:
                self.on_root_forward()
            label = self._labels.get(id(cell))
            if label is None or not self._recorder.is_collecting:
                return original(cell, *args, **kwargs)
            try:
                return self._observe(functools.partial(original, cell), label, cell, args, kwargs)
            except ComputationFailed as failure:
                raise failure.error from None

        return recorded

    def _observe(
        self, original: Callable[..., Any], label: str, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        cells, outer = self._activity.cells, self._activity.cell
        number = self._recorder.number(label)
        record, sources = self._before(f"{label}.forward.{number}", args, kwargs)
        cells.append(f"{label}.forward.{number}")
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if record is not None:
                self._recorder.end_quietly(record)
            raise
        finally:
            cells.pop()
        if record is not None:
            self._after(record, sources, cell, result)
            if sources is not None:
                self._attach(f"{label}.backward.{number}", backward_parent(outer), sources, result)
        return result

    def _before(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[OpenRecord | None, Sources | None]:
        record: OpenRecord | None = None
        sources: Sources | None = None
        with self._activity.own_work():
            try:
                record = self._recorder.begin(name, "forward", self._activity.cell)
                self._recorder.inputs(record, args, kwargs)
                if self._recorder.wants("backward"):
                    sources = self._tap.sources(args, kwargs)
            except ComputationFailed:
                if record is not None:
                    self._recorder.end_quietly(record)
                raise
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(name, error)
                if record is not None:
                    record.fault = f"{type(error).__name__}: {error}"
        return record, sources

    def _after(self, record: OpenRecord, sources: Sources | None, cell: Any, result: Any) -> None:
        with self._activity.own_work():
            try:
                self._recorder.outputs(record, result)
                self._recorder.part(record, "parameters", "parameters", own_parameters(cell))
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(record.name, error)
                record.fault = f"{type(error).__name__}: {error}"
            finally:
                self._recorder.end_quietly(record)

    def _attach(self, name: str, parent: str | None, sources: Sources, result: Any) -> None:
        step = self._recorder.step_mark
        begun: list[OpenRecord] = []

        def begin() -> None:
            if step == self._recorder.step_mark:
                begun.append(self._recorder.begin(name, "backward", parent))

        def completed(incoming: list[Any], outgoing: list[Any]) -> None:
            if begun and step == self._recorder.step_mark:
                listed, others = sources.parted(outgoing)
                self._recorder.gradients(begun[0], incoming, listed, others)
                self._recorder.end(begun[0])

        with self._activity.own_work():
            try:
                results = self._tap.tensors(result if isinstance(result, (tuple, list)) else (result,))
                backward = self._tap.attach(sources, results, on_complete=completed, on_begin=begin)
                if backward is not None and backward.is_of_several:
                    self._remember(backward)
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(name, error)


def own_parameters(cell: Any) -> dict[str, Any]:
    """The parameters that stand on `cell` itself, by the last segment of their names."""
    return {
        parameter.name.rpartition(".")[2]: parameter for parameter in cell._params.values() if parameter is not None
    }
