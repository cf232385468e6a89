"""How calls of PyTorch are seen: a mode for its API, one method for Modules, nodes for gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from msprobe_collector.framework import Session
from msprobe_collector.pytorch.api_names import ApiNames
from msprobe_collector.pytorch.calls import ApiCalls, ModuleCalls, Waits, named_modules, own_parameters
from msprobe_collector.pytorch.gradients import CheckpointSwaps, GradientTap, Recomputation
from msprobe_collector.pytorch.installation import ApiInstallation, left_out
from msprobe_collector.pytorch.tensor_values import torch_values
from msprobe_collector.pytorch.threads_and_graphs import CompiledRegions, ThreadSwaps
from msprobe_collector.recording.gradients import ParameterGradients
from msprobe_collector.recording.observing import guarded


class TorchCallWatch:
    """See `msprobe_collector.framework.CallWatch`."""

    def __init__(self, session: Session) -> None:
        """Nothing is put in yet."""
        self._session = session
        recorder, activity, faults = session.recorder, session.activity, session.faults
        tap = GradientTap(activity, faults, torch_values())
        recomputation = Recomputation([])
        self._checkpoints = CheckpointSwaps(recomputation)
        self._waits = Waits(activity, faults)
        calls = ApiCalls(
            recorder,
            tap,
            activity,
            faults,
            names=ApiNames(left_out(session.configuration.api_list)),
            remember=session.remember,
            waits=self._waits,
            recomputation=recomputation,
        )
        self._apis = ApiInstallation(calls, session.configuration.api_list)
        collects = session.configuration.collects_apis
        self._threads = ThreadSwaps(activity, self._apis.in_this_thread if collects else nullcontext)
        self._modules = ModuleCalls(
            recorder,
            tap,
            activity,
            faults,
            remember=session.remember,
            recomputation=recomputation,
            threads=self._threads,
        )
        self._parameters = ParameterGradients(recorder, activity, faults)
        self._compiled = CompiledRegions(self._suspend)
        self._sharded: list[tuple[str, str, Any]] = []

    def prepare(self, models: Sequence[Any]) -> None:
        """Nothing needs to be done before a step that is collected."""

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], None] | None) -> None:
        """See `CallWatch`."""
        collects = self._session.configuration.collects_cells
        if models:
            self._modules.watch(models, records=collects)
        if collects and self._session.recorder.wants("backward"):
            for _, module in named_modules(models):
                if (label := self._modules.label(module)) is not None:
                    self._parameters.watch(label, own_parameters(module))
                    self._sharded += [(label, *item) for item in own_parameters(module).items() if _is_sharded(item[1])]
        self._modules.on_root_forward = on_root_forward

    def install(self) -> None:
        """See `CallWatch`."""
        self._checkpoints.install()
        if self._session.configuration.collects_apis:
            self._apis.install()
            self._waits.install()
        if self._session.configuration.collects_cells or self._modules.on_root_forward is not None:
            self._modules.install()
        self._threads.install()
        self._compiled.install()

    def uninstall(self) -> None:
        """See `CallWatch`."""
        self._compiled.uninstall()
        self._threads.uninstall()
        self._apis.uninstall()
        self._waits.uninstall()
        self._modules.uninstall()
        self._checkpoints.uninstall()

    def settle(self) -> None:
        """Take the gradients of sharded parameters, which FSDP sets without a hook of autograd."""
        sharded, self._sharded = self._sharded, []
        with self._session.activity.own_work():
            for label, name, parameter in sharded:
                if parameter.grad is not None:
                    take = functools.partial(self._parameters.take, label, name, parameter.grad)
                    guarded(self._session.faults, label, take)

    def end_step(self) -> None:
        """See `CallWatch`."""
        for end in (self._waits.give_up, self._parameters.flush):
            guarded(self._session.faults, "ending the step", end)
        self._parameters.remove()

    def remove(self) -> None:
        """Nothing stays."""

    def add_api(self, owner: Any, name: str, call: str) -> None:
        """See `CallWatch`."""
        self._apis.add(owner, name, call)

    def remove_api(self, owner: Any, name: str) -> bool:
        """See `CallWatch`."""
        return self._apis.remove(owner, name)

    def _suspend(self) -> Callable[[], None]:
        """Take out what a compiler would trace; returns what puts it back."""
        had_mode, had_modules = self._apis.suspend(), self._modules.are_in
        self._modules.uninstall()

        def resume() -> None:
            if had_mode:
                self._apis.resume()
            if had_modules:
                self._modules.install()

        return resume


def _is_sharded(parameter: Any) -> bool:
    return parameter.requires_grad and hasattr(parameter, "placements")
