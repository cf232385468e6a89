"""How calls of MindSpore are seen: hooks on APIs, Primitives, Cells and jit functions, and taps inside graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msprobe_collector import logger
from msprobe_collector.mindspore.discovery import (
    JitCalls,
    MindSporeWaits,
    PrimitiveCalls,
    find_apis,
    is_searched,
    named_cells,
    own_parameters,
    unreachable_names,
)
from msprobe_collector.mindspore.gradients import MindSporeTap
from msprobe_collector.mindspore.mindspore_internals import is_graph_mode
from msprobe_collector.mindspore.optimizers import OptimizerCalls
from msprobe_collector.mindspore.provenance import MindSporeProvenances
from msprobe_collector.mindspore.static_graph.taps import GraphTaps
from msprobe_collector.recording.observing import CallObserver, FrameworkWatch, LayerObserver
from msprobe_collector.recording.session import Session
from msprobe_collector.recording.swaps import Installation


class CellObserver(LayerObserver):
    """Sees calls of Cells."""

    kind = "Cell"
    sees_inside_calls = True
    layers_of = staticmethod(named_cells)
    parameters_of = staticmethod(own_parameters)


class MindSporeCallWatch(FrameworkWatch):
    """See `msprobe_collector.framework.CallWatch`."""

    _optimizers: OptimizerCalls

    def __init__(self, session: Session) -> None:
        """Load what hooks MindSpore; nothing is hooked yet."""
        from mindspore import nn

        super().__init__(session)
        guard = session.guard
        self._tap = MindSporeTap(guard)
        self._waits = MindSporeWaits(guard)
        api_calls = CallObserver(session, self._tap, self._waits)
        self._layers = CellObserver(session, self._tap, nn.Cell)
        self._provenances = MindSporeProvenances(guard, sees_writes=session.configuration.collects_apis)
        session.recorder.provenances = self._provenances if self._provenances.is_supported else None
        self._apis = Installation(api_calls.wrapped, is_searched=is_searched)
        self._primitives = PrimitiveCalls(api_calls.wrapped, guard)
        self._jits = JitCalls(
            api_calls.wrapped,
            guard,
            originals_in_place=self._originals_in_place,
            records=session.configuration.collects_apis,
        )
        self._graphs = GraphTaps(session.recorder, guard.faults, staging=session.staging)
        self._optimizers = OptimizerCalls(session)
        self._are_apis_found = False
        of_apis = (self._apis, self._waits, self._primitives) if session.configuration.collects_apis else ()
        # Cells also where they are not recorded: the model's batch is seen there.
        self._installed = (*of_apis, self._layers, self._optimizers, self._jits, self._provenances)
        self._endings = (self._graphs.close_step,)

    def prepare(self, models: Sequence[Any]) -> None:
        """Tap the Cells that run in graphs, before the first compilation."""
        if self._session.configuration.collects_cells and models:
            self._graphs.install(models)

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], object] | None) -> None:
        """See `CallWatch`."""
        if is_graph_mode():
            return
        if self._session.configuration.collects_apis:
            self._find_apis()
            self._primitives.watch(models)
        super().watch(models, on_root_forward=on_root_forward)

    def install(self) -> None:
        """See `CallWatch`."""
        if not is_graph_mode():
            super().install()

    def settle(self) -> None:
        """Wait for graphs."""
        self._graphs.settle()

    def end_step(self) -> None:
        """See `CallWatch`."""
        super().end_step()
        self._tap.end_step()

    def remove(self) -> None:
        """Take the taps out of the Cells."""
        self._graphs.remove()

    def add_api(self, owner: Any, name: str, call: str) -> None:
        """See `CallWatch`."""
        self._apis.register(owner, name, call)

    def remove_api(self, owner: Any, name: str) -> bool:
        """See `CallWatch`."""
        return self._apis.remove(owner, name)

    def _find_apis(self) -> None:
        if self._are_apis_found:
            return
        self._are_apis_found = True
        targets = find_apis(self._session.configuration.api_list)
        self._apis.add(targets)
        if hidden := unreachable_names(targets):
            logger.warning(
                "calls through class attributes or default arguments that were bound before start() are "
                "not collected: %s",
                ", ".join(hidden),
            )

    @contextmanager
    def _originals_in_place(self) -> Iterator[None]:
        """Nothing is hooked inside, where a compiler reads the functions that the names hold."""
        enter = self._guard.enter
        enter("entering a jit function", self._look_away)
        try:
            yield
            # The calls inside are numbered before those that follow; what the graph raises is raised by its own call.
            enter("leaving a jit function", self._graphs.settle)
        finally:
            # Not after a stop() inside.
            if self._session.recorder.is_collecting or self._layers.on_root_forward is not None:
                enter("leaving a jit function", self.install)

    def _look_away(self) -> None:
        self._apis.uninstall()
        self._primitives.uninstall()
        self._optimizers.uninstall()
        self._layers.uninstall()
        self._graphs.run_inside(self._guard.activity.cell)
