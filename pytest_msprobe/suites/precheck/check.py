"""One API call from its records to its two verdicts: inputs once, forward once per engine, then compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, methodcaller
from typing import TypeVar, cast

from msprobe_collector.dump_format import Direction, Dump
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.cases.benchmarking import benchmark_result
from pytest_msprobe.cases.case import Case, read_case, read_incoming
from pytest_msprobe.cases.edge_cases import constructed_incoming, edge_case, refuse_lack_of_memory
from pytest_msprobe.cases.executions import Executions, Raised
from pytest_msprobe.cases.inputs import InputSource, drawn_arguments
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.cases.operand_rounding import has_rounded_operands, operand_roundoff
from pytest_msprobe.cases.opinions import Bench, Opinions, gradient_values, output_values
from pytest_msprobe.cases.tied_gradients import follow_tested_indices, in_best_order
from pytest_msprobe.engines.protocol import Array, Engine, Execution, Output, OutputValue, Unsupported
from pytest_msprobe.engines.recorded import RecordedEngine
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.evidence.error_picture import ErrorPictures, illustrated
from pytest_msprobe.evidence.error_plot import ErrorPlotter
from pytest_msprobe.evidence.failure_evidence import FailureKeeper, Sides
from pytest_msprobe.numerics import Standard
from pytest_msprobe.suites.precheck.comparison import compare_gradients, compare_outputs, lost_gradients
from pytest_msprobe.suites.precheck.draws import worst_of_draws
from pytest_msprobe.suites.precheck.hooks import Hooks, reference_fault
from pytest_msprobe.suites.precheck.numeric_options import NumericSettings
from pytest_msprobe.suites.precheck.random_outputs import random_call
from pytest_msprobe.suites.precheck.standards import Standards, for_outputs
from pytest_msprobe.verdicts import Verdict

_Result = TypeVar("_Result")
_OUTPUTS: Callable[[Execution], tuple[Output, ...]] = attrgetter("outputs")


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What checking a call depends on besides the dump.

    Attributes:
        seed: of random inputs.
        max_memory_bytes: a call that may need more is skipped.
        standard: the rule for verdicts, or what chooses one for each API call.
        hooks: of conftest.py files, which may change the standard and more.
        numeric: what the device does to numbers, and how many random inputs are drawn.
        plotter, pictures: draw what a failing output is off by, for either page; None when nobody will look.
        keeper: keeps what failing calls computed; None when that was not asked for.
        edge_case: name of the one to check in place of the recorded call; "" for that call.
    """

    seed: int
    max_memory_bytes: int
    standard: Standard | Standards
    hooks: Hooks
    numeric: NumericSettings = field(default_factory=NumericSettings)
    plotter: ErrorPlotter | None = None
    pictures: ErrorPictures | None = None
    keeper: FailureKeeper | None = None
    edge_case: str = ""


class CallCheck:
    """The check of one API call. Holds its inputs and both forwards until `close`."""

    def __init__(
        self, dump: Dump, name: str, engines: Engines, settings: CheckSettings, *, directions: Sequence[Direction]
    ) -> None:
        """A check of the call `name` of `dump`; a graph is kept only if `directions` holds backward."""
        self._dump = dump
        self._name = name
        self._engines = engines
        self._settings = settings
        self._directions = directions
        self._source = InputSource(str(dump.path), dump.tensors, settings.seed)
        self._prepared: Case | Verdict | None = None
        self._executions = Executions()
        self._own_benchmark: tuple[ReferenceEngine, ...] | None = None
        self._findings: dict[Direction, Verdict] = {}

    def run(self, direction: Direction) -> Verdict:
        """The finding for one direction. Never raises for what the dump, an engine or the API does wrong."""
        case = self._case()
        if isinstance(case, Verdict):
            return case
        if self._settings.numeric.seeds > 1 and drawn_arguments(case.forward):
            return worst_of_draws(self._draw, direction, first=self._settings.seed, count=self._settings.numeric.seeds)
        return self._run(case, direction)

    def _draw(self, seed: int, direction: Direction) -> Verdict:
        """The finding for other random inputs."""
        settings = replace(self._settings, seed=seed, numeric=replace(self._settings.numeric, seeds=1))
        check = CallCheck(self._dump, self._name, self._engines, settings, directions=self._directions)
        try:
            return check.run(direction)
        finally:
            check.close()

    def _run(self, case: Case, direction: Direction) -> Verdict:
        try:
            return self._forward(case) if direction == "forward" else self._backward(case)
        except NotJudged as stop:
            finding = Verdict(stop.status, stop.message)
        return self._kept(case, direction, finding, lambda: self._sides_so_far(case, direction))

    def close(self) -> None:
        """Release all arrays and graphs."""
        self._executions.clear()
        self._findings.clear()
        self._prepared = None

    def _case(self) -> Case | Verdict:
        if self._prepared is None:
            limit = self._settings.max_memory_bytes
            has_backward = "backward" in self._directions
            try:
                case = read_case(
                    self._dump, self._name, self._source, with_backward=has_backward, max_memory_bytes=limit
                )
                self._prepared = edge_case(case, self._settings.edge_case, limit) if self._settings.edge_case else case
            except NotJudged as stop:
                self._prepared = Verdict(stop.status, stop.message)
        return self._prepared

    def _forward(self, case: Case) -> Verdict:
        device, tested = self._tested(case, _OUTPUTS)
        tested, note = self._settings.hooks.outputs(case.api, tested)
        random = random_call(case, is_recorded=device.name == "recorded")
        if random is not None:
            finding = random.judge_outputs(tested, device.label + note)
            return self._kept(case, "forward", finding, lambda: Sides(tested))
        bench, reference = self._reference(case, _OUTPUTS)
        standard = self._standard(case, "forward", [output.value for output in tested])
        opinions = Opinions(case, self._executions, self._bench(bench, case), output_values(case))
        compared = compare_outputs(case, tested, reference, standard, opinions)
        compared.problem = reference_fault(bench, tested, reference) or compared.problem
        finding = compared.finding(device.label + note, bench.label, case.notes)
        finding = illustrated(
            self._settings.pictures, self._settings.plotter, finding, list(zip(_values(tested), _values(reference)))
        )
        return self._kept(case, "forward", finding, lambda: Sides(tested, reference))

    def _backward(self, case: Case) -> Verdict:
        incoming = self._incoming(case)
        device, tested = self._tested(case, methodcaller("gradients", incoming))
        if all(gradient is None for gradient in tested):
            is_null = case.backward is not None and bool(case.backward.outgoing)
            reason = "null in place of every gradient" if is_null else "no gradients"
            why = "" if is_null else ", as of tensors in lists or keywords"
            raise NotJudged("skip", f"the dump holds {reason} of this call{why}: nothing to compare")
        tested, note = self._settings.hooks.gradients(case.api, tested)
        random = random_call(case, is_recorded=device.name == "recorded")
        if random is not None:
            forward = self._outputs_of(device, case)
            finding = random.judge_gradients(forward, tested, incoming, device.label + note)
            return self._kept(case, "backward", finding, lambda: Sides(forward, None, incoming, tested))
        bench, reference = self._reference(case, methodcaller("gradients", incoming))
        reference = follow_tested_indices(case, reference, incoming, lambda: self._outputs_of(device, case))
        if device.name == "recorded":
            tested = in_best_order(case, tested, reference)
        opinions = Opinions(case, self._executions, self._bench(bench, case), gradient_values, incoming=incoming)
        compared = compare_gradients(case, tested, reference, self._standard(case, "backward", tested), opinions)
        if device.name != "recorded":  # a dump need not hold all of them
            compared.problem = compared.problem or lost_gradients(case, tested, reference)
        finding = compared.finding(device.label + note, bench.label, case.notes)
        present = [pair for pair in zip(tested, reference) if pair[0] is not None and pair[1] is not None]
        finding = illustrated(self._settings.pictures, self._settings.plotter, finding, present)

        def sides() -> Sides:
            outputs = self._outputs_of(device, case), self._outputs_of(bench, case)
            return Sides(*outputs, incoming, tested, reference)

        return self._kept(case, "backward", finding, sides)

    def _incoming(self, case: Case) -> tuple[Array | None, ...]:
        """Incoming gradients. Raises NotJudged where there are none."""
        if not case.constructed:
            return read_incoming(case, self._source)
        if not case.wanted:
            raise NotJudged("skip", "no argument of this call can be differentiated")
        outputs = self._tested(case, lambda execution: execution.outputs)[1]
        return constructed_incoming(case, outputs, self._settings.seed)

    def _kept(self, case: Case, direction: Direction, finding: Verdict, sides: Callable[[], Sides]) -> Verdict:
        """`finding`, with its evidence on disk when it failed and that was asked for."""
        if self._settings.keeper is None:
            return finding
        self._findings[direction] = finding
        if finding.status != "error":
            return finding
        return _with_lines(finding, self._settings.keeper.keep(self._dump, case, sides(), self._findings))

    def _sides_so_far(self, case: Case, direction: Direction) -> Sides:
        """What there is of a check that ended before anything could be compared."""
        incoming = None
        if direction == "backward":
            try:
                incoming = self._incoming(case)
            except NotJudged:
                incoming = None
        return Sides(tested=self._outputs_of(self._device(case), case), incoming=incoming)

    def _outputs_of(self, engine: Engine, case: Case) -> tuple[Output, ...] | None:
        """Forward outputs of an engine that has run; None when it raised."""
        try:
            found = self._ask(engine, case, _OUTPUTS)
        except NotJudged:
            return None
        if isinstance(found, (Unsupported, Raised)):
            return None
        return self._settings.hooks.outputs(case.api, found)[0] if engine.label == self._device(case).label else found

    def _standard(self, case: Case, direction: Direction, tested: Sequence[object]) -> Standard:
        chosen = self._settings.standard
        default = chosen.of_call(case.api) if isinstance(chosen, Standards) else chosen
        dtypes = [cast("Array", value).dtype for value in tested if hasattr(value, "__array_interface__")]
        return self._settings.hooks.standard(case.api, direction, tested, for_outputs(default, dtypes))

    def _bench(self, engine: Engine, case: Case) -> Bench:
        applies_to = self._settings.numeric.hf32.mode_of(case.api)
        if applies_to == "off" or not has_rounded_operands(case.api.short, applies_to):
            return Bench(engine, self._engines.second_opinion)
        mode = "TF32" if "CUDA" in self._device(case).label else "HF32"
        return Bench(engine, self._engines.second_opinion, operand_roundoff(mode))

    def _device(self, case: Case) -> Engine:
        specification = self._engines.device_for(self._dump, runs=bool(case.constructed))
        if specification.engine == "recorded":
            return RecordedEngine(case.forward, case.backward, case.pairing, self._dump.tensors, str(self._dump.path))
        return self._engines.device(specification)

    def _tested(self, case: Case, result: Callable[[Execution], _Result]) -> tuple[Engine, _Result]:
        device = self._device(case)
        outcome = self._ask(device, case, result)
        if isinstance(outcome, Unsupported):
            raise NotJudged("skip", f"device: {outcome}")
        if isinstance(outcome, Raised):
            refuse_lack_of_memory(case, outcome.text)
            self._skip_refused_inputs(case, outcome, result)
            raise NotJudged("error", f"device ({device.label}): {outcome.text}")
        return device, outcome

    def _skip_refused_inputs(self, case: Case, raised: Raised, result: Callable[[Execution], _Result]) -> None:
        """Raise NotJudged where the benchmark refuses the inputs as well, and nobody has recorded them."""
        drawn = drawn_arguments(case.forward)
        origin = "; ".join(case.notes[-1:]) if case.constructed else f"drawn at random ({drawn})" if drawn else ""
        benches = (*self._own_benchmarks(case), *self._engines.benchmarks) if origin else ()
        if any(isinstance(self._ask(bench, case, result), Raised) for bench in benches):
            raise NotJudged("skip", f"both sides refuse the inputs, which were {origin}: {raised.text}")

    def _reference(self, case: Case, result: Callable[[Execution], _Result]) -> tuple[Engine, _Result]:
        benches = (*self._own_benchmarks(case), *self._engines.benchmarks)
        return benchmark_result(benches, case, self._executions, result, choice=self._engines.choice)

    def _own_benchmarks(self, case: Case) -> tuple[ReferenceEngine, ...]:
        if self._own_benchmark is None:
            found = self._settings.hooks.reference(case.api)
            self._own_benchmark = () if found is None else (found,)
        return self._own_benchmark

    def _ask(
        self, engine: Engine, case: Case, result: Callable[[Execution], _Result]
    ) -> _Result | Unsupported | Raised:
        return self._executions.ask(engine, case.call, case.wanted, result)


def _values(outputs: Sequence[Output]) -> list[OutputValue]:
    return [output.value for output in outputs if output.value is not None]


def _with_lines(verdict: Verdict, lines: Sequence[str]) -> Verdict:
    """`verdict` with `lines` below its explanation."""
    return replace(verdict, explanation="\n\n".join([verdict.explanation or shown(verdict.message), "\n".join(lines)]))
