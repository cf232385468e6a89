"""Further results for one direction of an API call, computed when a standard asks for them and once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msprobe_collector.dump_format import tensors_in
from pytest_msprobe.engines.protocol import Array, Call, Engine, Execution, Unsupported
from pytest_msprobe.numerics import Metrics, OutputPair, Perturbed
from pytest_msprobe.precheck.case import Case
from pytest_msprobe.precheck.elementary import FLOAT32_ERROR, is_elementary
from pytest_msprobe.precheck.executions import Executions, Raised
from pytest_msprobe.precheck.output_order import in_one_order
from pytest_msprobe.precheck.perturbation import Perturbation, accumulated_terms

#: Each perturbation is a forward (and a backward) of the benchmark: at most three of them with the unperturbed one.
_PERTURBATIONS = (1, 2)

Incoming = tuple["Array | None", ...]
#: What of an execution is compared, for these incoming gradients.
Results = Callable[[Execution, Incoming], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Bench:
    """Who may be asked.

    Attributes:
        engine: the benchmark that was used.
        second: an engine that runs the call in the tested dtype; None when there is none.
    """

    engine: Engine
    second: Engine | None


class Opinions:
    """Results for perturbed inputs and of a second engine."""

    def __init__(
        self, case: Case, executions: Executions, bench: Bench, results: Results, *, incoming: Incoming = ()
    ) -> None:
        """For the `results` of one direction, with its `incoming` gradients when it is a backward."""
        self._case = case
        self._executions = executions
        self._bench = bench
        self._results = results
        self._incoming = incoming

    def pair(self, position: int, tested: Array, reference: Array, metrics: Metrics) -> OutputPair:
        """What a standard gets for the output at `position`."""

        def fitting(found: Sequence[Any] | None) -> Array | None:
            value = found[position] if found is not None and position < len(found) else None
            return value if getattr(value, "shape", None) == reference.shape else None

        return OutputPair(
            tested,
            reference,
            metrics,
            accumulated_terms(self._case.call, self._incoming, [reference.size, *self._recorded_sizes]),
            FLOAT32_ERROR if is_elementary(self._case.api.short) else 0.0,
            lambda: tuple(
                Perturbed(array, perturbation.relative_size)
                for perturbation, run in self._perturbed
                if (array := fitting(run)) is not None
            ),
            lambda: fitting(self._second),
        )

    @cached_property
    def _recorded_sizes(self) -> list[int]:
        """Sizes of the forward's outputs, which gradients use again."""
        return [tensor.size for tensor in tensors_in(self._case.forward.outputs or ()) if tensor.size]

    @cached_property
    def _perturbed(self) -> list[tuple[Perturbation, Sequence[Any]]]:
        found = []
        for number in _PERTURBATIONS:
            # Some APIs refuse what lies beyond their inputs' range, such as a probability above 1.
            for perturbation in (Perturbation(number), Perturbation(number, is_clipped=True)):
                result = self._perturbed_result(perturbation)
                if result is not None:
                    found.append((perturbation, result))
                    break
        return found

    def _perturbed_result(self, perturbation: Perturbation) -> Sequence[Any] | None:
        call = perturbation.call(self._case.call)
        incoming = perturbation.incoming(self._case.call, self._incoming)
        return self._ask(self._bench.engine, call, incoming, str(perturbation))

    @cached_property
    def _second(self) -> Sequence[Any] | None:
        if self._bench.second is None:
            return None
        return self._ask(self._bench.second, self._case.call, self._incoming, "second")

    def _ask(self, engine: Engine, call: Call, incoming: Incoming, variant: str) -> Sequence[Any] | None:
        found = self._executions.ask(
            engine, call, self._case.wanted, lambda execution: self._results(execution, incoming), variant=variant
        )
        return None if isinstance(found, (Unsupported, Raised)) else found


def output_values(case: Case) -> Results:
    """What gives the forward outputs that are compared, in the order in which they are."""

    def results(execution: Execution, incoming: Incoming) -> Sequence[Any]:
        outputs = [output for output in execution.outputs if output.value is not None]
        return [output.value for output in in_one_order(case.call, outputs)]

    return results


def gradient_values(execution: Execution, incoming: Incoming) -> Sequence[Any]:
    """Gradients, one per argument that was differentiated."""
    return execution.gradients(incoming)
