"""How calls of PyTorch are seen: a mode for its API, one method for Modules, nodes for gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msprobe_collector.pytorch.calls import ApiCalls, ApiInstallation, named_modules
from msprobe_collector.pytorch.checkpoints import CheckpointSwaps, Recomputation
from msprobe_collector.pytorch.communication import PeerOperations, PipelineStages, TorchWaits
from msprobe_collector.pytorch.gradients import ReducedGradients, TorchTap
from msprobe_collector.pytorch.optimizers import OptimizerSteps
from msprobe_collector.pytorch.parameter_names import inside_compiled, own_parameters
from msprobe_collector.pytorch.provenance import TorchProvenances
from msprobe_collector.pytorch.tensor_values import torch_values
from msprobe_collector.pytorch.threads_and_graphs import CompiledGraphs, CompiledRegions, GraphCaptures, ThreadSwaps
from msprobe_collector.recording.observing import FrameworkWatch, LayerObserver
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


class TorchCallWatch(FrameworkWatch):
    """See `msprobe_collector.framework.CallWatch`."""

    _optimizers: OptimizerSteps

    def __init__(self, session: Session) -> None:
        """Nothing is installed yet."""
        from torch import nn

        super().__init__(session)
        guard = session.guard
        self._threads = ThreadSwaps(guard, self._seen_in_thread)
        tap = TorchTap(guard, torch_values(), self._threads)
        self._recomputation = recomputation = Recomputation([])
        self._reduced = ReducedGradients(self._parameters, guard, torch_values())
        self._checkpoints = CheckpointSwaps(recomputation, guard, self._reduced)
        self._waits = TorchWaits(guard)
        self._provenances = TorchProvenances(guard, lambda: self._checkpoints.backward_passes)
        if session.configuration.task != "overflow_check":  # which record is in the dump is not known while it runs
            session.recorder.provenances = self._provenances
        self._peers = PeerOperations()
        stages = PipelineStages(guard, self._peers)
        calls = ApiCalls(
            session,
            tap,
            self._waits,
            number=recomputation.number,
            on_empty=self._provenances.allocated,
            peers=self._peers,
        )
        self._apis = ApiInstallation(calls, session.configuration.api_list)
        self._layers = ModuleObserver(session, tap, nn.Module, number=recomputation.number)
        self._optimizers = OptimizerSteps(session)
        graphs = CompiledGraphs(guard, calls.observe_border)
        self._compiled = CompiledRegions(guard, self._suspend, self._note_compiled, graphs.install)
        captures = GraphCaptures(guard, session.recorder.flush)
        of_apis = (self._apis, self._waits) if session.configuration.collects_apis else ()
        # Modules also where they are not recorded: the model's batch is seen there.
        self._installed = (self._checkpoints, *of_apis, self._layers, self._optimizers, stages)
        self._installed += (self._threads, captures, self._compiled, graphs)

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], object] | None) -> None:
        """See `CallWatch`."""
        is_repeated = self._recomputation.is_running
        counts = None if on_root_forward is None else lambda: is_repeated() or on_root_forward()
        super().watch(models, on_root_forward=counts)
        modules = list(named_modules(models))
        if models:
            self._compiled.watch(modules)
        if models and self._session.recorder.provenances is not None:
            self._guard.enter("names of parameters", self._provenances.watch, modules)
        if self._session.configuration.collects_cells and self._session.recorder.wants("backward"):
            for _, module in self._layers.layers:
                self._reduced.watch(own_parameters(module).values())

    def end_step(self) -> None:
        """See `CallWatch`."""
        super().end_step()
        self._reduced.remove()
        self._peers.clear()

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
        had_mode, had_modules = self._apis.suspend(), self._layers.is_installed
        had_optimizers = self._optimizers.is_installed
        self._layers.uninstall()
        self._optimizers.uninstall()

        def resume() -> None:
            if had_mode:
                self._apis.resume()
            if had_modules:
                self._layers.install()
            if had_optimizers:
                self._optimizers.install()

        return resume
