"""One recorded API call: what happens around it while the collector runs.

Modules: their calls and parameters, seen from one place, `nn.Module.__call__`.

Communication of torch.distributed: functions that modes do not see, that fill arguments or end later.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.values import AUTOCAST
from msprobe_collector.pytorch.api_names import ApiNames, as_called, changes_first_argument
from msprobe_collector.pytorch.gradients import GradientTap, Recomputation, Sources, autocast_of, sequence_number
from msprobe_collector.pytorch.threads_and_graphs import ThreadSwaps
from msprobe_collector.recording.gradients import BackwardCall
from msprobe_collector.recording.observing import Activity, FaultLog, backward_parent, guarded, named_layers
from msprobe_collector.recording.recorder import OpenRecord, Recorder
from msprobe_collector.recording.swaps import MethodSwaps, WaitedCalls


def named_modules(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(path, Module) of every Module below the `models`, each once under its first path; the models have ""."""
    return named_layers(models, lambda model: model.named_modules())


def own_parameters(module: Any) -> dict[str, Any]:
    """The parameters that stand on `module` itself."""
    return dict(module.named_parameters(recurse=False))


class ModuleCalls:
    """Records the Modules of the watched models; counts the forwards of the first."""

    def __init__(
        self,
        recorder: Recorder,
        tap: GradientTap,
        activity: Activity,
        faults: FaultLog,
        *,
        remember: Callable[[BackwardCall], None],
        recomputation: Recomputation,
        threads: ThreadSwaps,
    ) -> None:
        self._recorder = recorder
        self._tap = tap
        self._activity = activity
        self._faults = faults
        self._remember = remember
        self._recomputation = recomputation
        self._threads = threads
        self._labels: dict[int, str] = {}
        self._watched: list[Any] = []
        self._root: Any = None
        self._swaps = MethodSwaps()
        #: Called before each forward of the first model.
        self.on_root_forward: Callable[[], None] | None = None

    def watch(self, models: Sequence[Any], *, records: bool) -> None:
        """Watch `models`; with `records` their inner Modules are recorded."""
        self._root = models[0]
        if records:
            self._watched = list(models)
            self._labels = {
                id(module): f"Module.{path}.{type(module).__name__}" for path, module in named_modules(models) if path
            }

    def label(self, module: Any) -> str | None:
        """`Module.{path}.{Class}` of a watched Module, else None."""
        return self._labels.get(id(module))

    @property
    def are_in(self) -> bool:
        """Whether calls of Modules are seen."""
        return self._swaps.are_in

    def install(self) -> None:
        """See calls of Modules from now on."""
        if not self._swaps.are_in:
            self._swaps.put(nn.Module, "__call__", self._recorded)

    def uninstall(self) -> None:
        """Put the original `nn.Module.__call__` back."""
        self._swaps.uninstall()

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def recorded(module: Any, *args: Any, **kwargs: Any) -> Any:
            if module is self._root and self.on_root_forward is not None and not self._recomputation.is_running():
                self.on_root_forward()
            label = self._labels.get(id(module))
            if label is None or not self._recorder.is_collecting or self._activity.is_inside:
                return original(module, *args, **kwargs)
            return self._observe(functools.partial(original, module), label, module, args, kwargs)

        return recorded

    def _observe(
        self, original: Callable[..., Any], label: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        cells = self._activity.cells
        if self._recomputation.is_running():
            repeated = self._recomputation.next_call(label)
            name, parent = repeated.name, repeated.parent
            record = None
        else:
            parent = self._activity.cell
            name = f"{label}.forward.{self._recorder.number(label)}"
            self._recomputation.note(label, name, parent)
            record = self._before(name, args, kwargs)
        floor = sequence_number() if name and self._recorder.wants("backward") and torch.is_grad_enabled() else -1
        threads = self._threads.count
        cells.append(name or label)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if record is not None:
                self._recorder.end_quietly(record)
            raise
        finally:
            cells.pop()
        if record is not None:
            self._after(record, module, result)
        if floor >= 0:
            if self._threads.count > threads:
                floor = 0  # nodes of another thread have numbers of their own
            self._attach(name, parent, args, kwargs, floor, result)
        return result

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenRecord | None:
        record: OpenRecord | None = None
        with self._activity.own_work():
            try:
                record = self._recorder.begin(name, "forward", self._activity.cell)
                self._recorder.inputs(record, args, kwargs)
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(name, error)
                if record is not None:
                    record.fault = f"{type(error).__name__}: {error}"
        return record

    def _after(self, record: OpenRecord, module: Any, result: Any) -> None:
        with self._activity.own_work():
            try:
                self._recorder.outputs(record, result)
                self._recorder.part(record, "parameters", "parameters", own_parameters(module))
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(record.name, error)
                record.fault = f"{type(error).__name__}: {error}"
            finally:
                self._recorder.end_quietly(record)

    def _attach(
        self, name: str, parent: str | None, args: tuple[Any, ...], kwargs: dict[str, Any], floor: int, result: Any
    ) -> None:
        front, _, number = name.rpartition(".")
        backward_name = f"{front.removesuffix('.forward')}.backward.{number}"
        recorder, step = self._recorder, self._recorder.step_mark
        begun: list[OpenRecord] = []

        def begin() -> None:
            if step == recorder.step_mark:
                begun.append(recorder.begin(backward_name, "backward", backward_parent(parent)))

        with self._activity.own_work():
            try:
                sources = self._tap.sources(args, kwargs, floor)
                parted = sources.parted_by()

                def completed(incoming: list[Any], outgoing: list[Any]) -> None:
                    if begun and step == recorder.step_mark:
                        listed, others = parted(outgoing)
                        recorder.gradients(begun[0], incoming, listed, others)
                        recorder.end(begun[0])

                results = result if isinstance(result, (tuple, list)) else (result,)
                backward = self._tap.attach(sources, results, on_complete=completed, on_begin=begin)
                if backward is not None and backward.is_of_several:
                    self._remember(backward)
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(backward_name, error)


#: Functions of torch.distributed that move values.
_FUNCTIONS = (
    *("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "batch_isend_irecv"),
    *("broadcast", "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter"),
    *("send", "_all_gather_base", "_reduce_scatter_base"),
)


def functions() -> Iterator[tuple[Any, str]]:
    """(module, name) of each function to record; none where PyTorch was built without torch.distributed."""
    from torch import distributed

    if distributed.is_available():
        for name in _FUNCTIONS:
            if hasattr(distributed, name):
                yield distributed, name


def outputs_of(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a communication call put out: its result, or, where it fills its arguments, these as they are now."""
    parts = list(result) if isinstance(result, (list, tuple)) else [result]
    if all(part is None or isinstance(part, int) or _is_handle(part) for part in parts):
        return [*args, *kwargs.values()]
    return [None if _is_handle(part) else part for part in parts]


def handles_of(result: Any) -> list[Any]:
    """Handles in `result` on which someone must still wait."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [part for part in parts if _is_handle(part)]


def _is_handle(value: Any) -> bool:
    from torch import distributed

    work = getattr(distributed, "Work", None)
    return work is not None and isinstance(value, work)


class Waits(WaitedCalls):
    """Sees the training wait on the handles of asynchronous communication."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        super().__init__(activity, faults)
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See waits from now on."""
        from torch import distributed

        if distributed.is_available() and not self._swaps.are_in:
            self._swaps.put(distributed.Work, "wait", self.seen_wait)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()


#: A backward that hooks have not finished when the step ends; kept only for calls of several nodes.
Unfinished = Callable[[BackwardCall], None]
#: What starts backward passes.
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


_OPERATORS_FILE = torch._ops.__file__
_TORCH = str(Path(torch.__file__).parent) + "/"


class _Thread(threading.local):
    is_in_backward = False


class CallMode(torch.overrides.TorchFunctionMode):
    """Sees every call of PyTorch's API in the thread that entered it, by whatever name it was made."""

    def __init__(self, calls: ApiCalls) -> None:
        super().__init__()
        self._calls = calls
        self._thread = _Thread()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, recorded if it is to be; inside it the mode is off, so that only outermost calls are seen."""
        calls = self._calls
        call = calls.names.of(func)
        if (
            call is None
            or not calls.recorder.is_collecting
            or calls.activity.is_inside
            or (call.startswith("Aten.") and _is_inside_torch(sys._getframe(1)))
        ):
            if func not in _BACKWARD:
                return func(*args, **(kwargs or {}))
            self._thread.is_in_backward = True
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._thread.is_in_backward = False
        try:
            if call.startswith("Tensor."):
                call = calls.names.as_written(call, sys._getframe(1))
            else:
                args, kwargs = as_called(func, sys._getframe(1), args, kwargs or {})
        except Exception as error:  # the border between the collector and the user's training
            calls.faults.note(call, error)
        return calls.observe(func, call, args, kwargs or {})

    def on_again(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        """The function that starts PyTorch's engine, with the mode on.

        A call of `backward` is one of PyTorch's API, but what runs inside is the script's: its own autograd functions,
        hooks, forwards that are recomputed.
        """

        @functools.wraps(run_backward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._thread.is_in_backward:
                return run_backward(*args, **kwargs)
            self._thread.is_in_backward = False
            with self:
                return run_backward(*args, **kwargs)

        return run


def _is_inside_torch(frame: FrameType) -> bool:
    """Whether PyTorch itself calls an operator by its own name, as DTensor does in a backward pass."""
    while frame.f_code.co_filename == _OPERATORS_FILE and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TORCH)


class ApiCalls:
    """Records outermost calls and returns exactly what they return."""

    def __init__(
        self,
        recorder: Recorder,
        tap: GradientTap,
        activity: Activity,
        faults: FaultLog,
        *,
        names: ApiNames,
        remember: Unfinished,
        waits: Waits,
        recomputation: Recomputation,
    ) -> None:
        self.recorder = recorder
        self.activity = activity
        self.names = names
        self._tap = tap
        self.faults = faults
        self._remember = remember
        self._waits = waits
        self._recomputation = recomputation
        self._wants_backward = recorder.wants("backward")

    def wrapped(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        """`original`, which modes do not see, recorded as calls of `call` (`Distributed.all_reduce`)."""
        activity = self.activity

        @functools.wraps(original, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if activity.is_inside or not self.recorder.is_collecting:
                return original(*args, **kwargs)
            return self.observe(original, call, args, kwargs)

        return recorded

    def observe(self, original: Callable[..., Any], call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `original`, and record it as `call`."""
        activity = self.activity
        activity.is_inside = True
        record: OpenRecord | None = None
        try:
            is_in_place = changes_first_argument(call) or kwargs.get("inplace") is True
            name, parent = self._named(call)
            if name.endswith(".forward"):
                record = self._before(name, args, kwargs)
            floor = sequence_number() if self._wants_backward and name and torch.is_grad_enabled() else -1
            sources = self._sources(name, args, kwargs, floor, is_in_place=True) if is_in_place else None
            result = original(*args, **kwargs)
            if record is not None:
                after = self._after_communication if is_communication(call) else self._after
                after(record, result, args, kwargs)
                record = None
            if floor >= 0:
                if sources is None:
                    sources = self._sources(name, args, kwargs, floor)
                returned = args[0] if result is None and is_in_place else result
                self._attach(name, parent, sources, returned, is_in_place=is_in_place)
            return result
        finally:
            activity.is_inside = False
            if record is not None:
                # The call raised: its arguments are what is wanted now.
                self.recorder.end_quietly(record)

    def _named(self, call: str) -> tuple[str, str | None]:
        """(record, Module record that runs it); the record's name ends in `.forward`, unless the call repeats one."""
        if self._recomputation.is_running():
            repeated = self._recomputation.next_call(call)
            return repeated.name, repeated.parent
        name = f"{call}.{self.recorder.number(call)}"
        self._recomputation.note(call, name, self.activity.cell)
        return f"{name}.forward", self.activity.cell

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpenRecord | None:
        record: OpenRecord | None = None
        try:
            record = self.recorder.begin(name, "forward", self.activity.cell)
            self.recorder.inputs(record, args, kwargs)
            if autocast := autocast_of(args, kwargs):
                self.recorder.part(record, AUTOCAST, AUTOCAST, autocast)
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, name, error)
        return record

    def _sources(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], floor: int, *, is_in_place: bool = False
    ) -> Sources | None:
        if floor < 0:
            return None
        sources: Sources | None = guarded(
            self.faults, name, lambda: self._tap.sources(args, kwargs, floor, is_in_place=is_in_place)
        )
        return sources

    def _after(self, record: OpenRecord, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.recorder.outputs(record, result)
            self.recorder.end(record)
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, record.name, error)
            self.recorder.end_quietly(record)

    def _after_communication(
        self, record: OpenRecord, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Finish a communication call like `_after`; outputs may come later or stand in the arguments."""

        def take_outputs() -> None:
            self._after(record, outputs_of(result, args, kwargs), args, kwargs)

        def give_up() -> None:
            record.fault = "the script had not waited for its handle when the step ended: the outputs are not known"
            self.recorder.end_quietly(record)

        handles = handles_of(result)
        if handles:
            self._waits.expect(handles[-1], take_outputs=take_outputs, give_up=give_up)
        else:
            take_outputs()

    def _attach(
        self, name: str, parent: str | None, sources: Sources | None, result: Any, *, is_in_place: bool
    ) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        if sources is None or not any(isinstance(value, torch.Tensor) and value.requires_grad for value in results):
            return
        backward_name = f"{name.removesuffix('.forward')}.backward"
        backward_of_parent = backward_parent(parent)
        step, recorder, parted = self.recorder.step_mark, self.recorder, sources.parted_by()

        def completed(incoming: list[Any], outgoing: list[Any]) -> None:
            listed, others = parted(outgoing)
            recorder.backward(backward_name, backward_of_parent, incoming, listed, others=others, step_mark=step)

        try:
            backward = self._tap.attach(sources, results, on_complete=completed, is_in_place=is_in_place)
            if backward is not None and backward.is_of_several:
                self._remember(backward)
        except Exception as error:  # the border between the collector and the user's training
            self.faults.note(backward_name, error)

    def _fault(self, record: OpenRecord | None, where: str, error: BaseException) -> None:
        self.faults.note(where, error)
        if record is not None:
            record.fault = f"{type(error).__name__}: {error}"
