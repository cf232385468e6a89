"""One recorded API call: what happens around the original callable while the collector runs.

Cells: their calls, parameters and parameter gradients, seen from one place, `nn.Cell.__call__`.

Communication: calls that fill their arguments, and those whose results are there only after `wait`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.writing.encoding import ComputationFailed
from msprobe_collector.mindspore.gradients import GradientTap, Sources
from msprobe_collector.recording.gradients import BackwardCall
from msprobe_collector.recording.observing import Activity, FaultLog, backward_parent, guarded, named_layers
from msprobe_collector.recording.recorder import OpenRecord, Recorder
from msprobe_collector.recording.swaps import MethodSwaps, WaitedCalls

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

    def install(self) -> None:
        """See Cell calls from now on."""
        from mindspore import nn

        if self._original is None:
            self._original = nn.Cell.__call__
            nn.Cell.__call__ = self._recorded(self._original)

    def uninstall(self) -> None:
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


def outputs_of(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a communication call put out: its result, or, where it fills its arguments, these as they are now."""
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    if all(part is None or is_handle(part) for part in parts):
        return [*args, *kwargs.values()]
    return [None if is_handle(part) else part for part in parts]


def handles_of(result: Any) -> list[Any]:
    """Handles in `result` on which someone must still wait."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part for part in parts if is_handle(part) and getattr(part, "handle", None) is not None]


def is_handle(value: Any) -> bool:
    """Whether `value` is what an asynchronous communication returns to wait on."""
    return type(value).__name__ in ("CommHandle", "CommHandle_")


class Waits(WaitedCalls):
    """Sees the training wait on handles."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        super().__init__(activity, faults)
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See waits from now on, and let operations of a batch be named by recorded functions."""
        if self._swaps.are_in:
            return
        from mindspore.communication import comm_func
        from mindspore.mint import distributed
        from mindspore.ops import function

        newer = getattr(function, "comm_func", None)  # MindSpore 2.7.1
        for owner in dict.fromkeys(getattr(module, "CommHandle", None) for module in (comm_func, newer)):
            if owner is not None and "wait" in vars(owner):
                self._swaps.put(owner, "wait", self.seen_wait)
        for module in (distributed, newer):
            # It takes only the very functions isend and irecv, whose names hold recorded ones now.
            if (owner := getattr(module, "P2POp", None)) is not None:
                self._swaps.put(owner, "__new__", lambda new: staticmethod(_with_originals(new)))

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()


def _with_originals(new: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new)
    def make(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return new(cls, getattr(op, "__wrapped__", op), *args, **kwargs)

    return make


#: A backward that hooks have not finished when the step ends; kept only for calls of several nodes.
Unfinished = Callable[[BackwardCall], None]
#: What is done with a call that returned: its record, the sources of its gradients, its result and its arguments.
_After = Callable[[OpenRecord, "Sources | None", Any, tuple[Any, ...], dict[str, Any]], None]


class ApiCalls:
    """Makes callables that record their outermost calls and return exactly what the originals return."""

    def __init__(
        self,
        recorder: Recorder,
        tap: GradientTap,
        activity: Activity,
        faults: FaultLog,
        *,
        remember: Unfinished,
        waits: Waits,
    ) -> None:
        self._recorder = recorder
        self._tap = tap
        self._activity = activity
        self._faults = faults
        self._remember = remember
        self._waits = waits
        self._wants_backward = recorder.wants("backward")

    def wrapped(
        self, original: Callable[..., Any], call: str, *, attributes: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """`original`, recorded as calls of `call` (`Mint.add`), with a Primitive's constructor `attributes`."""
        activity = self._activity
        observe = self._observe if attributes is None else functools.partial(self._observe, attributes=attributes)
        after = self._after_communication if is_communication(call) else self._after_call

        @functools.wraps(original, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if activity.is_inside:
                return original(*args, **kwargs)
            return observe(after, original, call, args, kwargs)

        return recorded

    def _observe(
        self,
        after: _After,
        original: Callable[..., Any],
        call: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        activity = self._activity
        if not self._recorder.is_collecting:
            return original(*args, **kwargs)
        activity.is_inside = True
        record: OpenRecord | None = None
        try:
            record, sources = self._before(call, args, kwargs, attributes)
            result = original(*args, **kwargs)
            if record is not None:
                after(record, sources, result, args, kwargs)
                record = None
            return result
        except ComputationFailed as failure:
            raise failure.error from None
        finally:
            activity.is_inside = False
            if record is not None:
                # The call raised: its arguments are what is wanted now.
                self._recorder.end_quietly(record)

    def _after_call(
        self, record: OpenRecord, sources: Sources | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._after(record, sources, result)

    def _after_communication(
        self, record: OpenRecord, sources: Sources | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Finish a communication call like `_after_call`; outputs may come later or stand in the arguments."""

        def take_outputs() -> None:
            self._after(record, None, outputs_of(result, args, kwargs))

        def give_up() -> None:
            record.fault = "the script had not waited for its handle when the step ended: the outputs are not known"
            self._recorder.end_quietly(record)

        handles = handles_of(result)
        if handles:
            self._waits.expect(handles[-1], take_outputs=take_outputs, give_up=give_up)
        else:
            take_outputs()
        if sources is not None:
            guarded(self._faults, record.name, functools.partial(self._attach, record, sources, result))

    def _before(
        self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], attributes: Mapping[str, Any] | None
    ) -> tuple[OpenRecord | None, Sources | None]:
        record: OpenRecord | None = None
        sources: Sources | None = None
        try:
            name = f"{call}.{self._recorder.number(call)}.forward"
            record = self._recorder.begin(name, "forward", self._activity.cell)
            self._recorder.inputs(record, args, kwargs)
            if attributes is not None:
                self._recorder.part(record, "attributes", "attributes", attributes)
            if self._wants_backward:
                sources = self._tap.sources(args, kwargs)
        except ComputationFailed:
            if record is not None:
                self._recorder.end_quietly(record)
            raise
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, call, error)
        return record, sources

    def _after(self, record: OpenRecord, sources: Sources | None, result: Any) -> None:
        try:
            self._recorder.outputs(record, result)
            self._recorder.end(record)
            if sources is not None:
                self._attach(record, sources, result)
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, record.name, error)
            self._recorder.end_quietly(record)

    def _attach(self, record: OpenRecord, sources: Sources, result: Any) -> None:
        results = self._tap.tensors(result if isinstance(result, (tuple, list)) else (result,))
        if not results:
            return
        name = f"{record.name.removesuffix('.forward')}.backward"
        parent = backward_parent(self._activity.cell)
        step = self._recorder.step_mark

        def completed(incoming: list[Any], outgoing: list[Any]) -> None:
            listed, others = sources.parted(outgoing)
            self._recorder.backward(name, parent, incoming, listed, others=others, step_mark=step)

        backward = self._tap.attach(sources, results, on_complete=completed)
        if backward is not None and backward.is_of_several:
            self._remember(backward)

    def _fault(self, record: OpenRecord | None, where: str, error: BaseException) -> None:
        self._faults.note(where, error)
        if record is not None:
            record.fault = f"{type(error).__name__}: {error}"
