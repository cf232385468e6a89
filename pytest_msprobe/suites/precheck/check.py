"""One API call from its records to its two verdicts: inputs once, forward once per engine, then compare.

- Several draws of random inputs for one API call: one finding, that of the worst draw.
- Outputs and gradients of both sides, paired and measured, as rows and as an explanation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import repeat
from operator import attrgetter, methodcaller
from typing import Any, TypeVar, cast

import numpy as np

from msprobe_collector.dump_format import ApiName, Direction, Dtype, Dump, dtype_of_array
from msprobe_collector.dump_format.manifest import Manifest
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.apis import facts
from pytest_msprobe.cases.call_run import (
    OUTPUTS,
    CallRun,
    CapturedError,
    Incoming,
    index_metrics,
    paired_gradients,
    paired_outputs,
)
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.edge_cases import constructed_incoming, refuse_lack_of_memory
from pytest_msprobe.cases.inputs import drawn_arguments
from pytest_msprobe.cases.second_runs import (
    BITS_OF_LOOKALIKES,
    FORMATS,
    Bench,
    ExtraRuns,
    has_rounded_operands,
    operand_roundoff,
)
from pytest_msprobe.engines.process import give_idle_memory_back
from pytest_msprobe.engines.protocol import (
    Array,
    Engine,
    Execution,
    NotJudged,
    Output,
    OutputValue,
    Unsupported,
    dtype_names,
    is_differentiable,
    leaves,
    output_label,
)
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.evidence import BothResults, FailureKeeper
from pytest_msprobe.evidence.pictures import ErrorPictures, illustrated
from pytest_msprobe.manifests.alone import default_manifest, narrow_sums, rounded_operands
from pytest_msprobe.numerics.diagnosis import (
    NOTHING_MORE,
    RoundingDiagnosis,
    diagnose,
    explain,
    summarise,
    without_direction,
)
from pytest_msprobe.numerics.indices import SelectedValues
from pytest_msprobe.numerics.judgement import (
    CosineMaxAbs,
    Judgement,
    OutputPair,
    Standard,
    compare_scalars,
    judge_output,
)
from pytest_msprobe.numerics.measurement import Metrics, measure
from pytest_msprobe.numerics.patterns import Pattern, find_pattern
from pytest_msprobe.suites.precheck.hooks import Hooks, reference_fault
from pytest_msprobe.suites.precheck.options import NumericSettings
from pytest_msprobe.suites.precheck.random_calls import random_call
from pytest_msprobe.suites.precheck.standards import ByDtype, Standards
from pytest_msprobe.verdicts import DEFAULT_OPERANDS, EXPLAINED, MOOT, Difference, OutputRow, Verdict

_Result = TypeVar("_Result")
_ARRAY = "__array_interface__"
_FIGURES = ("cosine", "max_abs", "max_rel", "max_ulp")


def worst_of_draws(
    check: Callable[[int, Direction], Verdict], direction: Direction, *, first: int, count: int
) -> Verdict:
    """The finding of the worst of `count` draws, with seeds from `first` on; it says how many failed, and its seed.

    The worst is an error before a pass before a skip, and the largest error over its bound among equals.
    """
    findings = [(seed, check(seed, direction)) for seed in range(first, first + count)]
    seed, worst = max(findings, key=lambda entry: _badness(entry[1]))
    failed = sum(finding.status == "error" for _, finding in findings)
    if not failed:
        return worst
    note = f"{failed} of {count} draws of random inputs fail, the worst with --msprobe-seed={seed}"
    message = "; ".join(filter(None, [worst.message, note]))
    return replace(worst, message=message, explanation="\n".join(filter(None, [worst.explanation, note])))


def _badness(finding: Verdict) -> tuple[int, float]:
    figures = (row.figures.get("ratio") for row in finding.outputs)
    ratios = (ratio for ratio in figures if ratio is not None and not math.isnan(ratio))
    return ("skip", "pass", "error").index(finding.status), max(ratios, default=0.0)


class Comparison:
    """Outputs or gradients of one call, compared one by one: a row for each, an explanation of each that failed.

    Attributes:
        problem: what is wrong beyond single outputs, such as their number; "" when nothing is.
    """

    def __init__(self, case: Case, standard: Standard, extra_runs: Callable[[], ExtraRuns]) -> None:
        """Nothing compared yet; `extra_runs` is asked where `standard` or a failure needs them."""
        self._case = case
        self._standard = standard
        self._extra_runs = extra_runs
        self._rows: list[OutputRow] = []
        self._explanations: list[str] = []
        self.problem = ""

    def add_outputs(self, tested: Sequence[Output], reference: Sequence[Output]) -> None:
        """Compare forward outputs in order."""
        actual, expected = paired_outputs(self._case.call, tested, reference)
        if len(actual) != len(expected):
            compared = min(len(actual), len(expected))
            self.problem = f"{len(actual)} outputs tested, but the benchmark has {len(expected)}"
            self.problem += f"; the first {compared} are compared"
        recorded = self._case.output_dtypes()
        for position, (output, other) in enumerate(zip(actual, expected)):
            label = output_label(output.path)
            if not (hasattr(output.value, _ARRAY) and hasattr(other.value, _ARRAY)):
                self._add_plain(label, output.value, other.value)
                continue
            arrays = cast("Array", output.value), cast("Array", other.value)
            indices = self._index_metrics(label, *arrays, actual)
            if indices is not None:
                self._add_indices(label, *arrays, indices)
            else:
                dtype = recorded[position] if len(recorded) == len(actual) else None
                self._add_arrays(position, label, *arrays, recorded=dtype)

    def add_gradients(self, tested: Incoming, reference: Incoming) -> None:
        """Compare gradients argument by argument; one that the dump does not hold is not compared.

        None in the benchmark is a gradient of zero, or one that it does not know: where the device has another value,
        the gradient is not judged.
        """
        for position, (path, actual, expected) in enumerate(zip(self._case.wanted, tested, reference)):
            label = self._case.gradient_label(path)
            if actual is not None and expected is not None:
                self._add_arrays(position, label, actual, expected)
            elif actual is not None and actual.any():
                message = f"{label}: the benchmark gave no gradient, the device one that is not zero"
                self._rows.append(OutputRow(label, "", dtype_names(actual)[0], tuple(actual.shape), "skip", message))

    def finding(self, device: str, bench: str) -> Verdict:
        """The verdict over all outputs: `pass` when every one passes and their number agrees; an error goes first."""
        failed = bool(self.problem) or "error" in map(attrgetter("status"), self._rows)
        if not self._rows and not failed:
            text, moot = "the call returned nothing that can be compared", ((MOOT, "no output"),)
            return Verdict("skip", text, device=device, bench=bench, properties=moot)
        rows = tuple(self._rows)
        text = "\n\n".join(filter(None, [self.problem, *self._explanations]))
        if failed:
            message = self.problem or "; ".join(self._case.notes)
            return Verdict("error", message, rows, text, device=device, bench=bench)
        unjudged = dict.fromkeys(row.message for row in rows if row.status == "skip")
        message = "; ".join([*unjudged, *self._case.notes])
        return Verdict("skip" if unjudged else "pass", message, rows, text, device=device, bench=bench)

    def _index_metrics(self, label: str, actual: Array, expected: Array, tested: Sequence[Output]) -> Metrics | None:
        """What the values that an output selects are off by; None where it is no indices. Own kernels override it."""
        return index_metrics(self._case.call, label, actual, expected, lambda: tested)

    def _add_arrays(
        self, position: int, label: str, actual: Array, expected: Array, *, recorded: Dtype | None = None
    ) -> None:
        """Compare the outputs, or gradients, number `position`; `recorded` is the dtype in the dump."""
        standard = self._standard.of(actual.dtype) if isinstance(self._standard, ByDtype) else self._standard
        tolerance = integer_tolerance(self._case.api, actual.dtype)
        metrics = measure(actual, expected, off_bound=standard.off_bound, integer_tolerance=tolerance)
        names = dtype_names(expected, actual)
        if metrics.structural is None and recorded is not None and dtype_of_array(actual.dtype) is not recorded:
            fault = f"Tested dtype {names[1]}, but the dump recorded {recorded.name}."
            metrics = Metrics(metrics.kind, metrics.size, structural=fault)

        @cache
        def pair() -> OutputPair:
            return self._extra_runs().pair(position, actual, expected, metrics)

        judgement = judge_output(standard, metrics, pair)
        diagnosis = NOTHING_MORE
        if judgement.status == "error":
            diagnosis = diagnose(standard, judgement, pair, lambda: self._extra_runs().lookalikes(position))
            judgement = without_direction(standard, metrics, diagnosis) or judgement
            is_allowed = diagnosis.rounding == EXPLAINED and actual.dtype == np.float32 and standard.name != "binary"
            if is_allowed and pair().operand_roundoff is not None:
                judgement = Judgement("pass", (), judgement.ratio)  # limits are meant for all digits of float32
        self._add(label, names, tuple(expected.shape), metrics, judgement, standard=standard.name, diagnosis=diagnosis)

    def _add_indices(self, label: str, actual: Array, expected: Array, metrics: Metrics) -> None:
        judgement = SelectedValues().judge(metrics)
        pattern = Pattern() if judgement.is_pass else find_pattern(actual, expected)
        names = dtype_names(expected, actual)
        diagnosis = RoundingDiagnosis(pattern=pattern)
        self._add(
            label, names, tuple(expected.shape), metrics, judgement, standard=SelectedValues.name, diagnosis=diagnosis
        )

    def _add_plain(self, label: str, actual: OutputValue, expected: OutputValue) -> None:
        first: Any = next(iter(self._case.call.arguments), None)
        # A Python float out of a float32 tensor is as coarse as that tensor.
        dtype = first.dtype if hasattr(first, _ARRAY) and is_differentiable(first) else None
        metrics, judgement = compare_scalars(actual, expected, self._standard, dtype=dtype)
        self._add(label, [_type(expected), _type(actual)], (), metrics, judgement, standard=self._standard.name)

    def _add(
        self,
        label: str,
        dtypes: Sequence[str],
        shape: tuple[int, ...],
        metrics: Metrics,
        judgement: Judgement,
        *,
        standard: str,
        diagnosis: RoundingDiagnosis = NOTHING_MORE,
    ) -> None:
        """Enter one compared output: (benchmark dtype, tested dtype), the benchmark's shape, figures and verdict."""
        figures = {name: getattr(metrics, name) for name in _FIGURES}
        row = OutputRow(
            label=label,
            bench_dtype=dtypes[0],
            tested_dtype=dtypes[1],
            shape=shape,
            status=judgement.status,
            standard="" if standard == CosineMaxAbs.name else standard,
            figures={**figures, "ratio": judgement.ratio, "excess": diagnosis.excess},
            rounding=diagnosis.rounding,
            pattern=str(diagnosis.pattern),
            pattern_kind=diagnosis.pattern.kind,
            pattern_figure=BITS_OF_LOOKALIKES.get(diagnosis.pattern.words, diagnosis.pattern.figure),
        )
        if judgement.status != "pass":
            message = summarise(metrics, judgement, diagnosis)
            row = replace(row, message=message, difference=_difference(metrics))
            self._explanations.append(
                explain(metrics, judgement, label=label, dtype=dtypes[1], shape=shape, diagnosis=diagnosis)
            )
        self._rows.append(row)


def _type(value: OutputValue) -> str:
    return dtype_names(value)[0] if hasattr(value, _ARRAY) else type(value).__name__


def _difference(metrics: Metrics) -> Difference:
    """Which kind of difference a failure is."""
    if metrics.nonfinite_mismatches:
        return "nonfinite"
    return "form" if metrics.structural else "size"


def lost_gradients(case: Case, tested: Incoming, reference: Incoming) -> str:
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
class CheckSettings:
    """What checking a call depends on besides the dump.

    Attributes:
        seed: of random inputs.
        max_memory_bytes: a call that may need more is skipped.
        standard: the rule for verdicts, or what chooses one for each API call.
        hooks: of conftest.py files, which may change the standard and more; None where nobody implements any.
        numeric: what the device does to numbers, and how many random inputs are drawn.
        pictures: draws what a failing output is off by; None when nobody will look.
        keeper: keeps what failing calls computed; None when that was not asked for.
        edge_case: name of the one to check in place of the recorded call; "" for that call.
    """

    seed: int
    max_memory_bytes: int
    standard: Standard | Standards
    hooks: Hooks | None = None
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
        self._hooks = settings.hooks
        self._directions = directions
        self._prepared: CallRun | Verdict | None = None
        self._own_benchmark: tuple[ReferenceEngine, ...] | None = None if settings.hooks is not None else ()
        self._findings: dict[Direction, Verdict] = {}

    def run(self, direction: Direction) -> Verdict:
        """The finding for one direction. Never raises for what the dump, an engine or the API does wrong."""
        settings = self._settings
        if self._prepared is None:
            try:
                self._prepared = CallRun(
                    self._dump,
                    self._name,
                    with_backward="backward" in self._directions,
                    max_memory_bytes=settings.max_memory_bytes,
                    seed=settings.seed,
                    edge_case=settings.edge_case,
                )
            except NotJudged as stop:
                self._prepared = Verdict(stop.status, stop.message, properties=stop.properties)
        run = self._prepared
        if isinstance(run, Verdict):
            return run
        if settings.numeric.draws > 1 and drawn_arguments(run.case.forward):
            return worst_of_draws(self._draw, direction, first=settings.seed, count=settings.numeric.draws)
        try:
            return self._forward(run) if direction == "forward" else self._backward(run)
        except NotJudged as stop:
            finding = Verdict(stop.status, stop.message, properties=stop.properties)
        return self._finished(run, direction, finding, partial(self._sides_so_far, run, direction))

    def close(self) -> None:
        """Release all arrays and graphs, and give their memory back."""
        if isinstance(self._prepared, CallRun):
            self._prepared.close()
        self._findings.clear()
        self._prepared = None
        give_idle_memory_back()

    def _draw(self, seed: int, direction: Direction) -> Verdict:
        """The finding for other random inputs."""
        settings = replace(self._settings, seed=seed, numeric=replace(self._settings.numeric, draws=1))
        check = CallCheck(self._dump, self._name, self._engines, settings, directions=self._directions)
        try:
            return check.run(direction)
        finally:
            check.close()

    def _forward(self, run: CallRun) -> Verdict:
        case, (device, tested) = run.case, self._tested(run, OUTPUTS)
        tested, note = (tested, "") if self._hooks is None else self._hooks.outputs(case.api, tested)
        if case.random is not None:
            random = random_call(case, is_recorded=device.name == "recorded")
            finding = random.judge_outputs(tested, device.label + note)
            return self._finished(run, "forward", finding, lambda: BothResults(tested))
        bench, reference = run.benchmark(self._engines, OUTPUTS, benches=self._benchmarks(case))
        standard = self._standard(case, "forward", [output.value for output in tested])
        compared = Comparison(case, standard, cache(lambda: ExtraRuns(run, self._bench(bench, run))))
        compared.add_outputs(tested, reference)
        if isinstance(bench, ReferenceEngine):
            compared.problem = reference_fault(bench, tested, reference) or compared.problem
        finding = compared.finding(device.label + note, bench.label)
        pairs = list(zip(_values(tested), _values(reference)))
        return self._finished(run, "forward", finding, lambda: BothResults(tested, reference), pairs)

    def _backward(self, run: CallRun) -> Verdict:
        case, incoming = run.case, self._incoming(run)
        gradients = methodcaller("gradients", incoming)
        device, tested = self._tested(run, gradients)
        if all(gradient is None for gradient in tested):
            raise _nothing_to_compare(case)
        tested, note = (tested, "") if self._hooks is None else self._hooks.gradients(case.api, tested)
        is_recorded = device.name == "recorded"
        outputs = partial(self._outputs_of, device, run)
        if case.random is not None:
            random = random_call(case, is_recorded=is_recorded)
            forward = outputs()
            finding = random.judge_gradients(forward, tested, incoming, device.label + note)
            return self._finished(run, "backward", finding, lambda: BothResults(forward, None, incoming, tested))
        bench, reference = run.benchmark(self._engines, gradients, benches=self._benchmarks(case))
        tested, reference = paired_gradients(case, tested, reference, incoming, outputs, are_recorded=is_recorded)
        standard = self._standard(case, "backward", tested)
        compared = Comparison(case, standard, cache(lambda: ExtraRuns(run, self._bench(bench, run), incoming)))
        compared.add_gradients(tested, reference)
        if not is_recorded:  # a dump need not hold all of them
            compared.problem = lost_gradients(case, tested, reference)
        finding = compared.finding(device.label + note, bench.label)

        def sides() -> BothResults:
            return BothResults(outputs(), self._outputs_of(bench, run), incoming, tested, reference)

        present = [pair for pair in zip(tested, reference) if pair[0] is not None and pair[1] is not None]
        return self._finished(run, "backward", finding, sides, present)

    def _finished(
        self,
        run: CallRun,
        direction: Direction,
        finding: Verdict,
        sides: Callable[[], BothResults],
        pairs: Sequence[tuple[Any, Any]] | None = None,
    ) -> Verdict:
        """`finding`; that of a failure has pictures of the compared `pairs`, and evidence on disk, where asked for.

        The property `operands` says with how few digits the device may have computed: `TF32`, `float16 sums`.
        """
        settings = self._settings
        dtypes = {value.dtype.name for _, value in leaves(run.case.call) if hasattr(value, _ARRAY)}
        digits = [self._operand_format(run), *(f"{dtype} sums" for dtype in self._narrow_sums(run) if dtype in dtypes)]
        properties = [*finding.properties, *zip(repeat("operands"), filter(None, digits))]
        if "float32" in dtypes and (format_name := self._default_format(run, finding)):
            properties.append((DEFAULT_OPERANDS, format_name))
        if why := self._engines.refused_by_accelerator.get(f"{run.case.api.type}.{run.case.api.api}"):
            properties.append(("bench_on_cpu", why))
        finding = replace(finding, properties=tuple(properties))
        if finding.status == "error" and pairs is not None:
            finding = illustrated(settings.pictures, finding, pairs)
        if settings.keeper is None:
            return finding
        self._findings[direction] = finding
        if finding.status != "error":
            return finding
        lines = settings.keeper.keep(self._dump, run.case, sides(), self._findings)
        texts = [finding.explanation or printable(finding.message), "\n".join(lines)]
        return replace(finding, explanation="\n\n".join(texts))

    def _sides_so_far(self, run: CallRun, direction: Direction) -> BothResults:
        """What there is of a check that ended before anything could be compared."""
        incoming = None
        if direction == "backward":
            with suppress(NotJudged):
                incoming = self._incoming(run)
        return BothResults(tested=self._outputs_of(self._device(run), run), incoming=incoming)

    def _incoming(self, run: CallRun) -> Incoming:
        """Incoming gradients. Raises NotJudged where there are none."""
        if not run.case.constructed:
            return run.incoming("backward")
        if not run.case.wanted:
            raise NotJudged("skip", "no argument of this call can be differentiated")
        return constructed_incoming(run.case, self._tested(run, OUTPUTS)[1], self._settings.seed)

    def _outputs_of(self, engine: Engine, run: CallRun) -> tuple[Output, ...] | None:
        """Forward outputs of an engine that has run; None when it raised."""
        try:
            outputs = run.ask(engine, OUTPUTS)
        except NotJudged:
            return None
        if isinstance(outputs, (Unsupported, CapturedError)):
            return None
        if self._hooks is None or engine.label != self._device(run).label:
            return outputs
        return self._hooks.outputs(run.case.api, outputs)[0]

    def _standard(self, case: Case, direction: Direction, tested: Sequence[object]) -> Standard:
        chosen = self._settings.standard
        default = chosen.of_call(case.api) if isinstance(chosen, Standards) else chosen
        if isinstance(default, ByDtype):
            default = default.of_all([cast("Array", value).dtype for value in tested if hasattr(value, _ARRAY)])
        return default if self._hooks is None else self._hooks.standard(case.api, direction, tested, default)

    def _bench(self, engine: Engine, run: CallRun) -> Bench:
        format_name = self._operand_format(run)
        roundoff = operand_roundoff(format_name) if format_name else None
        return Bench(engine, self._engines.second_opinion, roundoff, self._narrow_sums(run))

    def _operand_format(self, run: CallRun) -> str:
        """`HF32` or `TF32` where the device rounds the float32 operands of the call before it multiplies; else ""."""
        api, device = run.case.api, self._device(run)
        mode = self._settings.numeric.hf32.mode_of(api)
        if mode != "auto":
            if mode == "off" or not has_rounded_operands(api.short, mode):
                return ""
            return "TF32" if "CUDA" in device.label else "HF32"
        formats = rounded_operands(self._switches(device))
        return next((name for kind, name in formats.items() if has_rounded_operands(api.short, kind)), "")

    def _default_format(self, run: CallRun, finding: Verdict) -> str:
        """The format whose rounding is all that is wrong with a convolution, `none` for another one; "" where known.

        A dump without run.json does not say whether the run allowed what its device does by default.
        """
        is_known = self._device(run).name != "recorded" or self._dump.manifest is not None
        if is_known or self._settings.numeric.hf32.mode_of(run.case.api) != "auto" or finding.status == "skip":
            return ""
        if not has_rounded_operands(run.case.api.short, "conv"):
            return ""
        bits = {output.pattern_figure for output in finding.outputs if output.status == "error"}
        return next((name for name, figure in FORMATS.items() if bits == {figure}), "none")

    def _narrow_sums(self, run: CallRun) -> Mapping[str, float]:
        is_product = has_rounded_operands(run.case.api.short, "all")
        return narrow_sums(self._switches(self._device(run))) if is_product else {}

    def _switches(self, device: Engine) -> Manifest:
        """What is known of how `device` computes."""
        return (self._dump.manifest or Manifest()) if device.name == "recorded" else default_manifest(device.label)

    def _benchmarks(self, case: Case) -> tuple[Engine, ...]:
        """The user's own benchmark of this API, and then those that there are."""
        if self._own_benchmark is None:
            assert self._hooks is not None  # without any there is none
            reference = self._hooks.reference(case.api)
            self._own_benchmark = () if reference is None else (reference,)
        return (*self._own_benchmark, *self._engines.benchmarks)

    def _device(self, run: CallRun) -> Engine:
        specification = self._engines.device_for(self._dump, runs=bool(run.case.constructed))
        return run.recorded if specification.engine == "recorded" else self._engines.device(specification)

    def _tested(self, run: CallRun, result: Callable[[Execution], _Result]) -> tuple[Engine, _Result]:
        device = self._device(run)
        outcome = run.ask(device, result)
        if isinstance(outcome, Unsupported):
            raise NotJudged("skip", f"device: {outcome}")
        if isinstance(outcome, CapturedError):
            refuse_lack_of_memory(run.case, outcome.text)
            self._skip_refused_inputs(run, outcome, result)
            raise NotJudged("error", f"device ({device.label}): {outcome}")
        return device, outcome

    def _skip_refused_inputs(self, run: CallRun, raised: CapturedError, result: Callable[[Execution], Any]) -> None:
        """Raise NotJudged where the benchmark refuses the inputs as well, and nobody has recorded them."""
        case, drawn = run.case, drawn_arguments(run.case.forward)
        origin = f"drawn at random ({drawn})" if drawn else ""
        if case.constructed:
            origin = "; ".join(case.notes[-1:])
        outcomes = run.outcomes(self._benchmarks(case), result) if origin else ()
        if any(isinstance(outcome, CapturedError) for _, outcome in outcomes):
            raise NotJudged("skip", f"both sides refuse the inputs, which were {origin}: {raised}")


def _nothing_to_compare(case: Case) -> NotJudged:
    is_null = case.backward is not None and bool(case.backward.outgoing)
    reason = "no gradients of this call, as of tensors in lists or keywords"
    if is_null:
        reason = "null in place of every gradient of this call"
    return NotJudged("skip", f"the dump holds {reason}: nothing to compare")


def _values(outputs: Sequence[Output]) -> list[OutputValue]:
    return [output.value for output in outputs if output.value is not None]
