"""One API call from its records to its two verdicts: inputs once, forward once per engine, then compare.

Several draws of random inputs for one API call: one finding, that of the worst draw.

Outputs and gradients of both sides, paired and measured, as rows and as an explanation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, methodcaller
from typing import Any, TypeVar, cast

import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dtype, Dump, dtype_of_array
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.topics import index_output
from pytest_msprobe.cases.call_run import CapturedError, Executions, benchmark_result
from pytest_msprobe.cases.case import Case, NotJudged, read_case, read_incoming
from pytest_msprobe.cases.edge_cases import constructed_incoming, edge_case, refuse_lack_of_memory
from pytest_msprobe.cases.inputs import InputSource, drawn_arguments
from pytest_msprobe.cases.outputs import follow_tested_indices, in_best_order, in_one_order, selection
from pytest_msprobe.cases.second_runs import (
    Bench,
    Opinions,
    gradient_values,
    has_rounded_operands,
    operand_roundoff,
    output_values,
)
from pytest_msprobe.engines.protocol import (
    Array,
    Engine,
    Execution,
    Output,
    OutputValue,
    Unsupported,
    is_differentiable,
)
from pytest_msprobe.engines.recorded import RecordedEngine
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.evidence.evidence import BothResults, FailureKeeper
from pytest_msprobe.evidence.pictures import ErrorPictures, illustrated
from pytest_msprobe.numerics import (
    NOTHING_MORE,
    CosineMaxAbs,
    Judgement,
    Metrics,
    OutputPair,
    RoundingDiagnosis,
    Standard,
    check_indices,
    compare_scalars,
    diagnose,
    explain,
    judge_output,
    measure,
    name_pattern,
    summarise,
)
from pytest_msprobe.suites.precheck.hooks import Hooks, reference_fault
from pytest_msprobe.suites.precheck.options import NumericSettings
from pytest_msprobe.suites.precheck.random_calls import random_call
from pytest_msprobe.suites.precheck.standards import Standards, for_dtype, for_outputs
from pytest_msprobe.verdicts import OutputRow, Verdict


def worst_of_draws(
    check: Callable[[int, Direction], Verdict], direction: Direction, *, first: int, count: int
) -> Verdict:
    """The finding of the worst of `count` draws, with seeds from `first` on; it says how many failed, and its seed.

    The worst is an error before a pass before a skip, and the largest error over its bound among equals.
    """
    found = [(seed, check(seed, direction)) for seed in range(first, first + count)]
    seed, worst = max(found, key=lambda one: _badness(one[1]))
    failed = sum(finding.status == "error" for _, finding in found)
    if not failed:
        return worst
    note = f"{failed} of {count} draws of random inputs fail, the worst with --msprobe-seed={seed}"
    message = "; ".join(filter(None, [worst.message, note]))
    return replace(worst, message=message, explanation="\n".join(filter(None, [worst.explanation, note])))


def _badness(finding: Verdict) -> tuple[int, float]:
    found = (row.figures.get("ratio") for row in finding.outputs)
    ratios = [ratio for ratio in found if ratio is not None and not math.isnan(ratio)]
    return {"skip": 0, "pass": 1, "error": 2}[finding.status], max(ratios, default=0.0)


@dataclass(slots=True)
class Comparison:
    """Rows and explanations of one direction, as they are found.

    Attributes:
        rows: one per compared output.
        explanations: for the rows that failed.
        problem: what is wrong beyond single outputs, such as their number; "" when nothing is.
    """

    rows: list[OutputRow] = field(default_factory=list)
    explanations: list[str] = field(default_factory=list)
    problem: str = ""

    def add(
        self,
        label: str,
        dtypes: tuple[str, str],
        shape: tuple[int, ...],
        metrics: Metrics,
        judgement: Judgement,
        *,
        standard: Standard | None = None,
        diagnosis: RoundingDiagnosis = NOTHING_MORE,
    ) -> None:
        """Enter one compared output: (benchmark dtype, tested dtype), the benchmark's shape, figures and verdict.

        `standard` is the one that judged it, where it had something to judge; `diagnosis` that of a failed one.
        """
        self.rows.append(
            OutputRow(
                label=label,
                bench_dtype=dtypes[0],
                tested_dtype=dtypes[1],
                shape=shape,
                status=judgement.status,
                message=summarise(metrics, judgement, diagnosis),
                standard=standard.name if standard is not None and standard.name != CosineMaxAbs.name else "",
                figures={
                    **{name: getattr(metrics, name) for name in ("cosine", "max_abs", "max_rel", "max_ulp")},
                    "ratio": judgement.ratio,
                },
                rounding=diagnosis.rounding,
                pattern=diagnosis.pattern,
            )
        )
        if not judgement.is_pass:
            self.explanations.append(
                explain(metrics, judgement, label=label, dtype=dtypes[1], shape=shape, diagnosis=diagnosis)
            )

    def leave(self, label: str, tested: Array) -> None:
        """Enter a gradient that only the device has."""
        message = f"{label}: the benchmark gave no gradient, the device one that is not zero"
        self.rows.append(OutputRow(label, "", _dtype_name(tested), tuple(tested.shape), "skip", message))

    def finding(self, device: str, bench: str, notes: tuple[str, ...]) -> Verdict:
        """The verdict over all outputs: `pass` when every one passes and their number agrees; an error goes first."""
        failed = bool(self.problem) or any(row.status == "error" for row in self.rows)
        if not self.rows and not failed:
            return Verdict("skip", "the call returned nothing that can be compared", device=device, bench=bench)
        unjudged = dict.fromkeys(row.message for row in self.rows if row.status == "skip")
        return Verdict(
            status="error" if failed else "skip" if unjudged else "pass",
            message=self.problem or ("; ".join(notes) if failed else "; ".join((*unjudged, *notes))),
            outputs=tuple(self.rows),
            explanation="\n\n".join(filter(None, [self.problem, *self.explanations])),
            device=device,
            bench=bench,
        )


def compare_outputs(
    case: Case, tested: Sequence[Output], reference: Sequence[Output], standard: Standard, opinions: Opinions
) -> Comparison:
    """Forward outputs compared one by one, in order.

    None on the tested side is not an output. None in the benchmark is one that it leaves open, such as the softmax
    statistics of a fused attention: it is not judged.
    """
    left_open = {output.path for output in reference if output.value is None}
    judged = [output for output in tested if output.value is not None and output.path not in left_open]
    left = in_one_order(case.call, judged)
    right = in_one_order(case.call, [output for output in reference if output.value is not None])
    comparer = _Comparer(case, standard, opinions, Comparison(), left)
    if len(left) != len(right):
        compared = min(len(left), len(right))
        comparer.found.problem = (
            f"{len(left)} outputs tested, but the benchmark has {len(right)}; the first {compared} are compared"
        )
    recorded = case.output_dtypes()
    for position, (actual, expected) in enumerate(zip(left, right)):
        comparer.compare_output(position, actual, expected, recorded[position] if len(recorded) == len(left) else None)
    return comparer.found


def compare_gradients(
    case: Case,
    tested: Sequence[Array | None],
    reference: Sequence[Array | None],
    standard: Standard,
    opinions: Opinions,
) -> Comparison:
    """Gradients compared argument by argument; one that the dump does not hold is not compared.

    None in the benchmark is a gradient of zero, or one that it does not know: where the device has another value, the
    gradient is not judged.
    """
    comparer = _Comparer(case, standard, opinions, Comparison(), ())
    for position, (path, actual, expected) in enumerate(zip(case.wanted, tested, reference)):
        if actual is not None and expected is not None:
            comparer.compare_arrays(position, case.gradient_label(path), actual, expected)
        elif actual is not None and actual.any():
            comparer.found.leave(case.gradient_label(path), actual)
    return comparer.found


def lost_gradients(case: Case, tested: Sequence[Array | None], reference: Sequence[Array | None]) -> str:
    """What is wrong when the device gives no gradient where the benchmark has one that is not zero; "" when nothing."""
    pairs = zip(case.wanted, tested, reference)
    lost = [path for path, actual, expected in pairs if actual is None and expected is not None and expected.any()]
    if not lost:
        return ""
    return (
        f"{', '.join(case.gradient_label(path) for path in lost)}: the device gave no gradient, the benchmark has one"
    )


def integer_tolerance(api: ApiName, dtype: np.dtype[Any]) -> int:
    """How far an integer output of `api` may be from the benchmark: 1 for int8 results of quantising, else 0."""
    return int(dtype == np.int8 and facts("quantising").of(api) is not None)


@dataclass(frozen=True, slots=True)
class _Comparer:
    """Compares the outputs of one direction one by one and enters them in `found`."""

    case: Case
    standard: Standard
    opinions: Opinions
    found: Comparison
    tested: Sequence[Output]

    def compare_output(self, position: int, actual: Output, expected: Output, recorded: Dtype | None) -> None:
        """Compare a forward output: an array, indices, or a plain Python value; `recorded` is the dtype in the dump."""
        label = ".".join(("output", *map(str, actual.path)))
        if not (_is_array(actual.value) and _is_array(expected.value)):
            self._compare_plain(label, actual.value, expected.value)
            return
        described = index_output(self.case.api)
        is_index = described is not None and actual.path == (described.position,)
        if not (is_index and self._compare_indices(label, actual, expected)):
            self.compare_arrays(position, label, _array(actual.value), _array(expected.value), recorded=recorded)

    def compare_arrays(
        self, position: int, label: str, actual: Array, expected: Array, *, recorded: Dtype | None = None
    ) -> None:
        """Two arrays, the outputs (or gradients) number `position`."""
        standard = for_dtype(self.standard, actual.dtype)
        tolerance = integer_tolerance(self.case.api, actual.dtype)
        metrics = measure(actual, expected, off_bound=standard.off_bound, integer_tolerance=tolerance)
        dtype = dtype_of_array(actual.dtype)
        if metrics.structural is None and recorded is not None and dtype is not recorded:
            metrics = Metrics(
                metrics.kind,
                metrics.size,
                structural=f"Tested dtype {_dtype_name(actual)}, but the dump recorded {recorded.name}.",
            )

        def pair() -> OutputPair:
            return self.opinions.pair(position, actual, expected, metrics)

        judgement = judge_output(standard, metrics, pair)
        diagnosis = diagnose(standard, judgement, pair, lambda: self.opinions.confusable(position))
        dtypes = (_dtype_name(expected), _dtype_name(actual))
        shape = tuple(expected.shape)
        self.found.add(label, dtypes, shape, metrics, judgement, standard=standard, diagnosis=diagnosis)

    def _compare_indices(self, label: str, actual: Output, expected: Output) -> bool:
        """Whether the output could be judged by the values that its indices select; then it was."""
        chosen = selection(self.case.call, self.tested)
        if chosen is None:
            return False
        actual_indices, expected_indices = _array(actual.value), _array(expected.value)
        if actual_indices.dtype.kind not in "iu" or expected_indices.dtype.kind not in "iu":
            return False
        metrics = check_indices(
            chosen.source,
            chosen.flattened(actual_indices),
            chosen.flattened(expected_indices),
            chosen.axis,
            unique_along_axis=chosen.described.is_selection,
            values=chosen.values,
            is_stable=chosen.is_stable,
        )
        names = (_dtype_name(expected_indices), _dtype_name(actual_indices))
        judgement = self.standard.judge(metrics)
        pattern = "" if judgement.is_pass else name_pattern(actual_indices, expected_indices)
        shape = tuple(expected_indices.shape)
        self.found.add(label, names, shape, metrics, judgement, diagnosis=RoundingDiagnosis(pattern=pattern))
        return True

    def _compare_plain(self, label: str, actual: OutputValue, expected: OutputValue) -> None:
        first = self.case.call.arguments[0] if self.case.call.arguments else None
        # A Python float out of a float32 tensor is as coarse as that tensor.
        dtype = _array(first).dtype if _is_array(first) and is_differentiable(_array(first)) else None
        metrics, judgement = compare_scalars(actual, expected, self.standard, dtype=dtype)
        names = (_type_name(expected), _type_name(actual))
        self.found.add(label, names, (), metrics, judgement, standard=self.standard)


def _is_array(value: object) -> bool:
    return hasattr(value, "__array_interface__")


def _array(value: object) -> Array:
    return cast("Array", value)


def _type_name(value: OutputValue) -> str:
    return _dtype_name(value) if _is_array(value) else type(value).__name__


def _dtype_name(array: Any) -> str:
    dtype = dtype_of_array(array.dtype)
    return dtype.name if dtype is not None else str(array.dtype)


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
        pictures: draws what a failing output is off by; None when nobody will look.
        keeper: keeps what failing calls computed; None when that was not asked for.
        edge_case: name of the one to check in place of the recorded call; "" for that call.
    """

    seed: int
    max_memory_bytes: int
    standard: Standard | Standards
    hooks: Hooks
    numeric: NumericSettings = field(default_factory=NumericSettings)
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
            return self._kept(case, "forward", finding, lambda: BothResults(tested))
        bench, reference = self._reference(case, _OUTPUTS)
        standard = self._standard(case, "forward", [output.value for output in tested])
        opinions = Opinions(case, self._executions, self._bench(bench, case), output_values(case))
        compared = compare_outputs(case, tested, reference, standard, opinions)
        compared.problem = reference_fault(bench, tested, reference) or compared.problem
        finding = compared.finding(device.label + note, bench.label, case.notes)
        finding = illustrated(self._settings.pictures, finding, list(zip(_values(tested), _values(reference))))
        return self._kept(case, "forward", finding, lambda: BothResults(tested, reference))

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
            return self._kept(case, "backward", finding, lambda: BothResults(forward, None, incoming, tested))
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
        finding = illustrated(self._settings.pictures, finding, present)

        def sides() -> BothResults:
            outputs = self._outputs_of(device, case), self._outputs_of(bench, case)
            return BothResults(*outputs, incoming, tested, reference)

        return self._kept(case, "backward", finding, sides)

    def _incoming(self, case: Case) -> tuple[Array | None, ...]:
        """Incoming gradients. Raises NotJudged where there are none."""
        if not case.constructed:
            return read_incoming(case, self._source)
        if not case.wanted:
            raise NotJudged("skip", "no argument of this call can be differentiated")
        outputs = self._tested(case, lambda execution: execution.outputs)[1]
        return constructed_incoming(case, outputs, self._settings.seed)

    def _kept(self, case: Case, direction: Direction, finding: Verdict, sides: Callable[[], BothResults]) -> Verdict:
        """`finding`, with its evidence on disk when it failed and that was asked for."""
        if self._settings.keeper is None:
            return finding
        self._findings[direction] = finding
        if finding.status != "error":
            return finding
        return _with_lines(finding, self._settings.keeper.keep(self._dump, case, sides(), self._findings))

    def _sides_so_far(self, case: Case, direction: Direction) -> BothResults:
        """What there is of a check that ended before anything could be compared."""
        incoming = None
        if direction == "backward":
            try:
                incoming = self._incoming(case)
            except NotJudged:
                incoming = None
        return BothResults(tested=self._outputs_of(self._device(case), case), incoming=incoming)

    def _outputs_of(self, engine: Engine, case: Case) -> tuple[Output, ...] | None:
        """Forward outputs of an engine that has run; None when it raised."""
        try:
            found = self._ask(engine, case, _OUTPUTS)
        except NotJudged:
            return None
        if isinstance(found, (Unsupported, CapturedError)):
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
        if isinstance(outcome, CapturedError):
            refuse_lack_of_memory(case, outcome.text)
            self._skip_refused_inputs(case, outcome, result)
            raise NotJudged("error", f"device ({device.label}): {outcome.text}")
        return device, outcome

    def _skip_refused_inputs(self, case: Case, raised: CapturedError, result: Callable[[Execution], _Result]) -> None:
        """Raise NotJudged where the benchmark refuses the inputs as well, and nobody has recorded them."""
        drawn = drawn_arguments(case.forward)
        origin = "; ".join(case.notes[-1:]) if case.constructed else f"drawn at random ({drawn})" if drawn else ""
        benches = (*self._own_benchmarks(case), *self._engines.benchmarks) if origin else ()
        if any(isinstance(self._ask(bench, case, result), CapturedError) for bench in benches):
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
    ) -> _Result | Unsupported | CapturedError:
        return self._executions.ask(engine, case.call, case.wanted, result)


def _values(outputs: Sequence[Output]) -> list[OutputValue]:
    return [output.value for output in outputs if output.value is not None]


def _with_lines(verdict: Verdict, lines: Sequence[str]) -> Verdict:
    """`verdict` with `lines` below its explanation."""
    return replace(
        verdict, explanation="\n\n".join([verdict.explanation or printable(verdict.message), "\n".join(lines)])
    )
