"""Modules: their calls and parameters, seen from one place, `nn.Module.__call__`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from msprobe_collector.pytorch.watching.gradients import GradientTap, sequence_number
from msprobe_collector.pytorch.watching.recomputation import Recomputation
from msprobe_collector.pytorch.watching.threads import ThreadSwaps
from msprobe_collector.recording.activity import Activity, backward_parent
from msprobe_collector.recording.backward_call import BackwardCall
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.layers import named_layers
from msprobe_collector.recording.method_swaps import MethodSwaps
from msprobe_collector.recording.open_record import OpenRecord
from msprobe_collector.recording.recorder import Recorder


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

    def put_in(self) -> None:
        """See calls of Modules from now on."""
        if not self._swaps.are_in:
            self._swaps.put(nn.Module, "__call__", self._recorded)

    def take_out(self) -> None:
        """Put the original `nn.Module.__call__` back."""
        self._swaps.take_out()

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
