"""How calls of PyTorch are seen: a mode for its API, one method for Modules, nodes for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msprobe_collector.pytorch.calls import ApiCalls, named_modules
from msprobe_collector.pytorch.checkpoints import CheckpointSwaps, Recomputation
from msprobe_collector.pytorch.communication import PeerOperations, TorchWaits
from msprobe_collector.pytorch.compiled_graphs import CompiledGraphs
from msprobe_collector.pytorch.gradients import TorchTap
from msprobe_collector.pytorch.installation import ApiInstallation
from msprobe_collector.pytorch.optimizers import OptimizerSteps
from msprobe_collector.pytorch.parameter_names import inside_compiled, own_parameters
from msprobe_collector.pytorch.pipelines import PipelineStages
from msprobe_collector.pytorch.provenance import TorchProvenances
from msprobe_collector.pytorch.reduced_gradients import ReducedGradients
from msprobe_collector.pytorch.tensor_values import torch_values
from msprobe_collector.pytorch.threads_and_graphs import CompiledRegions, GraphCaptures, ThreadSwaps
from msprobe_collector.recording.gradients import ParameterGradients
from msprobe_collector.recording.observing import LayerObserver
from msprobe_collector.recording.session import Session


class ModuleObserver(LayerObserver):
    """Sees calls of Modules."""

    kind = "Module"
    sees_inside_calls = False
    layers_of = staticmethod(named_modules)
    parameters_of = staticmethod(own_parameters)

    def class_name(self, layer: Any) -> str:
        """See `LayerObserver`; a compiled Module has the name of the one that is compiled."""
        return type(inside_compiled(layer)).__name__


class TorchCallWatch:
    """See `msprobe_collector.framework.CallWatch`."""

    def __init__(self, session: Session) -> None:
        """Nothing is installed yet."""
        from torch import nn

        self._session = session
        self._guard = guard = session.guard
        self._threads = ThreadSwaps(guard, self._seen_in_thread)
        tap = TorchTap(guard, torch_values(), self._threads)
        self._recomputation = recomputation = Recomputation([])
        self._parameters = ParameterGradients(session.recorder, guard)
        self._reduced = ReducedGradients(self._parameters, guard, torch_values())
        self._checkpoints = CheckpointSwaps(recomputation, guard, self._reduced)
        self._waits = TorchWaits(guard)
        self._provenances = TorchProvenances(guard, lambda: self._checkpoints.backward_passes)
        if session.configuration.task != "overflow_check":  # which record is in the dump is not known while it runs
            session.recorder.provenances = self._provenances
        self._peers = PeerOperations()
        self._stages = PipelineStages(guard, self._peers)
        calls = ApiCalls(
            session,
            tap,
            self._waits,
            number=recomputation.number,
            on_empty=self._provenances.allocated,
            peers=self._peers,
        )
        self._apis = ApiInstallation(calls, session.configuration.api_list)
        self._modules = ModuleObserver(session, tap, nn.Module, number=recomputation.number)
        self._optimizers = OptimizerSteps(session)
        self._graphs = CompiledGraphs(guard, calls.observe_border)
        self._compiled = CompiledRegions(guard, self._suspend, self._note_compiled, self._graphs.install)
        self._captures = GraphCaptures(guard, session.recorder.flush)

    def prepare(self, models: Sequence[Any]) -> None:
        """Nothing needs to be done before a step that is collected."""

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], None] | None) -> None:
        """See `CallWatch`."""
        collects = self._session.configuration.collects_cells
        if models:
            self._modules.watch(models, records=collects)
            modules = list(named_modules(models))
            self._guard.enter("names of parameters", self._optimizers.names.watch, modules)
            self._compiled.watch(modules)
            if self._session.recorder.provenances is not None:
                self._guard.enter("names of parameters", self._provenances.watch, modules)
        if collects and self._session.recorder.wants("backward"):
            for label, module in self._modules.layers:
                parameters = own_parameters(module)
                self._parameters.watch(label, parameters)
                self._reduced.watch(parameters.values())
        if on_root_forward is not None:
            self._modules.on_root_forward = lambda: self._recomputation.is_running() or on_root_forward()
        else:
            self._modules.on_root_forward = None

    def install(self) -> None:
        """See `CallWatch`."""
        self._checkpoints.install()
        if self._session.configuration.collects_apis:
            self._apis.install()
            self._waits.install()
        self._modules.install()  # also where Modules are not recorded: the model's batch is seen there
        self._optimizers.install()
        self._stages.install()
        self._threads.install()
        self._captures.install()
        self._compiled.install()
        self._graphs.install()

    def uninstall(self) -> None:
        """See `CallWatch`."""
        self._graphs.uninstall()
        self._compiled.uninstall()
        self._captures.uninstall()
        self._threads.uninstall()
        self._apis.uninstall()
        self._waits.uninstall()
        self._modules.uninstall()
        self._optimizers.uninstall()
        self._stages.uninstall()
        self._checkpoints.uninstall()

    def settle(self) -> None:
        """Nothing is recorded later than it runs."""

    def end_step(self) -> None:
        """See `CallWatch`."""
        for end in (self._waits.give_up, self._parameters.flush, self._optimizers.end_step):
            self._guard.faults.guarded("ending the step", end)
        self._parameters.remove()
        self._reduced.remove()
        self._peers.clear()

    def remove(self) -> None:
        """Nothing stays."""

    def add_api(self, owner: Any, name: str, call: str) -> None:
        """See `CallWatch`."""
        self._apis.add(owner, name, call)

    def remove_api(self, owner: Any, name: str) -> bool:
        """See `CallWatch`."""
        return self._apis.remove(owner, name)

    def _seen_in_thread(self) -> AbstractContextManager[None]:
        return self._apis.in_this_thread() if self._session.configuration.collects_apis else nullcontext()

    def _note_compiled(self, facts: dict[str, object]) -> None:
        if self._session.manifest is not None:
            self._session.manifest.note_compiled(facts)

    def _suspend(self) -> Callable[[], None]:
        """Take out what a compiler would trace; returns what puts it back."""
        had_mode, had_modules = self._apis.suspend(), self._modules.is_installed
        had_optimizers = self._optimizers.is_installed
        self._modules.uninstall()
        self._optimizers.uninstall()

        def resume() -> None:
            if had_mode:
                self._apis.resume()
            if had_modules:
                self._modules.install()
            if had_optimizers:
                self._optimizers.install()

        return resume
