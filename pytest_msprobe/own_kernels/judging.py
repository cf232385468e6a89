"""The judgement of a kernel: outputs and gradients against a reference in float64, and a second call."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from inspect import signature
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any, Literal, cast

import numpy as np

from msprobe_collector.dump_format import ForwardRecord, TensorValue, dtype_of_array
from msprobe_collector.dump_format.values import optional
from pytest_msprobe.cases.call_run import OUTPUTS, CallRun, CapturedError, Incoming, paired_gradients
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.inputs import GradientPairing
from pytest_msprobe.cases.second_runs import Bench, ExtraRuns, operand_roundoff
from pytest_msprobe.engines import protocol
from pytest_msprobe.engines.protocol import CHANGED, Array, Engine, Output, Unsupported, leaves, output_label
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, unit_roundoff
from pytest_msprobe.numerics.expected import Absolute, Roundoffs, Times
from pytest_msprobe.numerics.indices import check_indices
from pytest_msprobe.numerics.judgement import Judgement, OutputPair
from pytest_msprobe.numerics.measurement import Metrics, measure, widened
from pytest_msprobe.numerics.patterns import describe_region
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.numerics.standards.elementwise import AgainstSecondOpinion
from pytest_msprobe.own_kernels import sides
from pytest_msprobe.own_kernels.arguments import Arguments, api_of, array_of, runs_in
from pytest_msprobe.suites.precheck.check import Comparison
from pytest_msprobe.suites.repeat.results import content_of, describe_bits, is_reordering
from pytest_msprobe.support import place_of, text_of
from pytest_msprobe.verdicts import OutputRow, Verdict

#: Dtypes that a kernel may be allowed to add in.
_ACCUMULATORS = ("float32", "float16", "bfloat16")
#: How the labels of gradients begin.
_GRADIENT = "gradient."
#: Patterns that narrower sums may leave as well.
_VAGUE = ("", "noise", "none", "one side", "narrower", "lookalike")
_ORDER = ("pass", "skip", "error")


class UnusableReference(ValueError):
    """A reference that says nothing of what is right: it fails in float64, or rounds inside."""


@dataclass(frozen=True)
class Allowed:
    """What a kernel is allowed, as the arguments of `rounding_of` of the same names."""

    gradients: bool | None
    accumulates: str
    reduced: str | None
    no_worse_than: Callable[..., Any] | None
    device: str
    seed: int

    def __post_init__(self) -> None:
        for name, choices in (("accumulates", (*_ACCUMULATORS, "same")), ("reduced", (None, "tf32", "hf32"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(filter(None, choices))}")
        if not isinstance(self.seed, int):
            raise TypeError(f"seed={self.seed!r}: must be an integer")
        if not (self.no_worse_than is None or callable(self.no_worse_than)):
            raise TypeError(f"no_worse_than={self.no_worse_than!r}: must be a function")


@dataclass(frozen=True)
class Rounding:
    """How far a kernel is off, and whether that is rounding.

    Attributes:
        kernel: its name.
        inputs: dtypes, shapes and other arguments.
        seed: of the incoming gradient and of random kernels.
        outputs: one row for each output and gradient, with its figures. The status of a row is "skip" where rounding of
            the inputs makes it so uncertain that right and wrong cannot be told apart.
        status: "pass", "error", or "skip" where that holds for an output; a gradient may be left open.
        ratio: the largest error over what rounding explains; None where nothing has a tolerance.
        text: what is wrong; "" for a pass.
    """

    kernel: str
    inputs: str
    seed: int
    outputs: tuple[OutputRow, ...]
    status: str
    ratio: float | None
    text: str

    def __bool__(self) -> bool:
        """Whether the kernel is off by rounding only."""
        return self.status == "pass"

    @property
    def row(self) -> dict[str, Any]:
        """The figures of the worst output, in types of JSON."""
        worst = max(self.outputs, key=lambda row: (_ORDER.index(row.status), row.figures.get("ratio") or 0.0))
        ratio = worst.figures.get("ratio")
        rounded = float(f"{ratio:.3g}") if ratio is not None and math.isfinite(ratio) else None
        row = {"kernel": self.kernel, "inputs": self.inputs, "seed": self.seed, "status": self.status}
        return {"of its tolerance": rounded, **row, "output": worst.label, "pattern": worst.pattern}


@dataclass(frozen=True, slots=True)
class _OnlyRounding(BackwardError):
    """`backward-error`; where rounding of the inputs makes an output uncertain, a small error is still a pass.

    So is any that is within tolerance in an output of few elements, which may cancel by chance, and of narrow sums,
    which are known to be coarse.

    Attributes:
        has_narrow_sums: whether sums narrower than float32 are allowed.
    """

    has_narrow_sums: bool = False

    def judge_pair(self, pair: OutputPair) -> Judgement:
        if self.has_narrow_sums and pair.tested.dtype == np.float16:  # what is kept inside is in its subnormals, too
            with np.errstate(all="ignore"):
                is_near = np.abs(pair.tested - pair.reference) <= Absolute.SUBNORMALS_OF_FLOAT16
                nearest = np.where(is_near, pair.reference, pair.tested).astype(np.float16)
            pair = replace(pair, tested=nearest, metrics=measure(nearest, pair.reference, off_bound=self.off_bound))
        judgement = BackwardError.judge_pair(self, pair)
        if judgement.status != "skip":
            return judgement
        tested, reference = (widened(side.reshape(-1)) for side in (pair.tested, pair.reference))
        is_finite = np.isfinite(tested) & np.isfinite(reference)
        error, size = (float(np.linalg.norm(part[is_finite])) for part in (tested - reference, reference))
        is_small = error <= Roundoffs.RIGHT_OUTPUT * unit_roundoff(pair.tested.dtype) * size
        return Judgement("pass") if is_small or self.has_narrow_sums or pair.tested.size < 8 else judgement


class _OwnCase(Case):
    """A call of a kernel, whose gradients are named by its arguments."""

    __slots__ = ()

    def gradient_label(self, path: protocol.LeafPath) -> str:
        return _GRADIENT + ".".join(map(str, path[1:]))


class _OwnRuns(ExtraRuns):
    """Moved runs of a reference of which nothing may be known but what its first run has shown."""

    trace: sides.Trace | None = None
    opinion: Callable[[], Sequence[Any] | None] = staticmethod(lambda: None)

    def is_known_as(self, topic: Literal["elementary", "elementwise", "multilinear"]) -> bool:
        """See `ExtraRuns`; what NumPy and MindSpore call is not seen: elementary functions may be among it."""
        is_seen = topic == "elementary" if self.trace is None else self.trace.is_known_as(topic)
        return is_seen or super().is_known_as(topic)

    @property
    def _rounds_each_result(self) -> bool:
        return False

    @cached_property
    def _held(self) -> frozenset[int]:
        roundoffs = enumerate(_roundoffs(self.call))
        return frozenset(place for place, roundoff in roundoffs if roundoff > sides.NARROWEST_COMPUTED)

    @cached_property
    def second(self) -> Sequence[Any] | None:
        """See `ExtraRuns`: what another kernel gives."""
        return self.opinion()


class _OwnComparison(Comparison):
    """A comparison whose indices are judged by what the first run of the reference selected from."""

    indices: Mapping[str, Any] = {}

    def _index_metrics(self, label: str, actual: Array, expected: Array, tested: Sequence[Output]) -> Metrics | None:
        if label not in self.indices:
            return super()._index_metrics(label, actual, expected, tested)
        source, axis = self.indices[label]
        return check_indices(source, actual, expected, axis, unique_along_axis=True)


@dataclass(frozen=True)
class _Results:
    """What a kernel gave: outputs in the order of comparison, and gradients; None where these are not wanted.

    With `is_turned` for incoming gradients that are not contiguous.
    """

    outputs: list[Output]
    gradients: Incoming | None
    is_turned: bool = False

    @property
    def values(self) -> list[Any]:
        """All of both, in the order of their rows."""
        gradients = [gradient for gradient in self.gradients or () if gradient is not None]
        return [*map(attrgetter("value"), self.outputs), *gradients]


@dataclass(frozen=True)
class _Reference:
    """A reference that has run in float64, and what it gave further: for a second judgement it does not run again."""

    run: CallRun
    engine: Engine
    outputs: tuple[Output, ...]
    kept: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, judge: _Judge) -> _Reference:
        """Run the reference of `judge`.

        Raises:
            UnusableReference: it fails, or rounds to a narrower dtype.
        """
        engine, run = judge.engine(), CallRun.of_case(judge.case)
        reference = cls(run, engine, _usable(run.ask(engine, OUTPUTS), engine))
        if reference.trace is not None and reference.trace.narrow:
            raise UnusableReference(
                f"the reference rounds to {reference.trace.narrow}: leave the cast out, its inputs are float64"
            )
        return reference

    @property
    def trace(self) -> sides.Trace | None:
        """What its first run has shown; None of what is not seen."""
        return getattr(self.engine, "trace", None)

    def gradients(self, incoming: Incoming) -> Incoming:
        """Its gradients.

        Raises:
            UnusableReference: it has none.
        """
        if "gradients" not in self.kept:
            outcome = self.run.ask(self.engine, methodcaller("gradients", incoming))
            if isinstance(outcome, Unsupported):
                raise UnusableReference(f"the reference has no gradient: {outcome}; gradients=False leaves them out")
            self.kept["gradients"] = _usable(outcome, self.engine)
        return cast("Incoming", self.kept["gradients"])

    def indices(self, expected: Sequence[Output], tested: Sequence[Output]) -> dict[str, Any]:
        """What outputs that are indices select from, and the axis, by their labels."""
        floats = [output.value.dtype for output in tested if _is_float(output.value)]  # type: ignore[union-attr]
        contents = {output_label(output.path): content_of(output.value) for output in expected}
        selections: dict[str, Any] = {}
        for tensor, source, axis in self.trace.indices if self.trace is not None else ():
            indices, array = content_of(array_of(tensor)), array_of(source)
            if _is_float(array) and floats:  # values that the dtype of the kernel cannot tell apart are ties
                array = array.astype(floats[0])
            selections |= {label: (array, axis) for label, content in contents.items() if content == indices}
        return selections


@dataclass(frozen=True)
class _Judge:
    """A kernel, its reference, and what it is allowed."""

    kernel: sides.Kernel
    reference: Callable[..., Any]
    arguments: Arguments
    case: Case
    allowed: Allowed

    def engine(self) -> Engine:
        """The engine of the reference."""
        function, allowed, framework = self.reference, self.allowed, runs_in(self.reference, self.arguments)
        if framework == "numpy":
            return sides.NumpyReference(function, allowed.seed)
        if framework == "mindspore":
            return sides.MindSporeSide(function, self.arguments, allowed.seed, is_raised=True)
        if hasattr(function, "double") and hasattr(function, "parameters"):  # a module, with weights of its own
            function = copy.deepcopy(function).double()
        is_of_inputs = allowed.accumulates == "same"
        roundoffs = _roundoffs(self.case.call) if is_of_inputs else [unit_roundoff(allowed.accumulates)]
        roundoff = max(roundoffs, default=0.0)
        return sides.TorchReference(
            function, self.arguments, allowed.device, allowed.seed, roundoff if roundoff > FLOAT32_ROUNDOFF else None
        )

    def judged(self) -> Rounding:
        """Everything judged.

        Raises:
            AssertionError: the kernel raises.
            ValueError: there is nothing to judge.
        """
        reference = _Reference.of(self)
        try:
            execution = self.kernel.run()
        except Exception as error:
            raise AssertionError(f"{self.kernel.name} raised {text_of(error)} ({place_of(error)})") from error
        outputs, expected = _paired(self.case, execution.outputs, reference.outputs)
        if not outputs and not expected:
            raise ValueError(f"{self.kernel.name} and its reference return nothing, and change no argument")
        incoming = self._incoming(execution.outputs, reference.outputs)
        results = _Results(outputs, self._gradients(execution, incoming))
        verdict = self._compared(reference, results, expected, incoming)
        rows, notes = list(verdict.outputs), list[str]()
        for place, output in enumerate(expected[: len(rows)]):
            if _is_float(output.value) and np.size(output.value) and np.isnan(output.value).all():  # type: ignore[arg-type]
                rows[place] = replace(rows[place], status="skip", message="both sides are NaN everywhere")
        if callable(self.kernel.function):
            again = self._again(results, incoming, reference.outputs)
            pairs = zip(map(content_of, results.values), map(content_of, again.values))
            is_same = all(before == after for before, after in pairs)
            rows, notes = _repeated(rows, results, again)
            if not (is_same or notes) and verdict.status != "error":  # added in another order: it may be a wrong one
                verdict = self._compared(reference, again, expected, incoming)
                rows = list(verdict.outputs)
        failed = [row for row in rows if row.status == "error"]
        if failed and not notes:
            notes += self._hints(results, expected, incoming, failed)
        return self._rounding(verdict, rows, notes)

    def _compared(
        self, reference: _Reference, results: _Results, expected: Sequence[Output], incoming: Incoming
    ) -> Verdict:
        """The verdict on outputs and gradients together."""
        case = replace(self.case, forward=ForwardRecord((), {}, tuple(map(_recorded, results.outputs))))
        reference.run.case = case
        allowed, other = self.allowed, cache(replace(self.kernel, function=self.allowed.no_worse_than).run)
        standard: Any = _OnlyRounding(has_narrow_sums=allowed.accumulates != "float32")
        standard = standard if allowed.no_worse_than is None else AgainstSecondOpinion()
        operands = None if allowed.reduced is None else operand_roundoff(allowed.reduced.upper())

        def comparison(incoming: Incoming) -> _OwnComparison:
            def opinion() -> Sequence[Any] | None:
                if allowed.no_worse_than is None:
                    return None
                if incoming:
                    return cast("Sequence[Any]", other().gradients(incoming))
                return list(map(attrgetter("value"), _paired(case, other().outputs, reference.outputs)[0]))

            kind, bench = "backward" if incoming else "forward", Bench(reference.engine, None, operands)
            runs = reference.kept.setdefault(kind, _OwnRuns(reference.run, bench, incoming))
            runs.trace, runs.opinion = reference.trace, opinion
            return _OwnComparison(case, standard, lambda: runs)

        forward = comparison(())
        forward.indices = reference.indices(expected, results.outputs)
        forward.add_outputs(results.outputs, expected)
        parts = [forward]
        if results.gradients is not None:
            both = results.gradients, reference.gradients(incoming)
            both = paired_gradients(case, *both, incoming, lambda: results.outputs, are_recorded=False)
            parts.append(comparison(incoming))
            parts[-1].add_gradients(*both)
        verdicts = [part.finding(self.kernel.name, reference.engine.label) for part in parts]
        worst = max(verdicts, key=lambda verdict: _ORDER.index(verdict.status))
        rows = tuple(chain.from_iterable(map(attrgetter("outputs"), verdicts)))
        explanation = "\n\n".join(filter(None, map(attrgetter("explanation"), verdicts)))
        return replace(worst, outputs=rows, explanation=explanation)

    def _incoming(self, returned: Sequence[Output], expected: Sequence[Output]) -> Incoming:
        """A gradient for every float output, the same for both sides; () where no gradient is wanted."""
        arrays = _arrays_returned(returned)
        if not self.case.wanted or list(map(np.shape, arrays)) != list(map(np.shape, _arrays_returned(expected))):
            return ()  # where shapes differ, that is an error by itself
        random = np.random.default_rng(self.allowed.seed)
        if not any(map(_is_float, arrays)):
            return ()
        drawn = [random.standard_normal(array.shape).astype(array.dtype) for array in arrays]
        return tuple(array if _is_float(array) else None for array in drawn)

    def _gradients(self, execution: Any, incoming: Incoming) -> Incoming | None:
        """Gradients of the kernel; None where they are not wanted."""
        if not incoming:
            return None
        name = self.kernel.name
        try:
            return cast("Incoming", execution.gradients(incoming))
        except Unsupported:
            problem = f"{name} gives no gradient, and its inputs require one; gradients=False leaves them out"
        except Exception as error:
            raise AssertionError(f"the gradient of {name} raised {text_of(error)} ({place_of(error)})") from error
        raise AssertionError(problem)

    def _again(self, results: _Results, incoming: Incoming, expected: Sequence[Output]) -> _Results:
        """The results of a second call, in memory that was filled, for incoming gradients that are not contiguous."""
        arrays = [*results.values, *dict(leaves(self.case.call)).values()]
        execution = self.kernel.run([value.nbytes for value in arrays if isinstance(value, np.ndarray)])
        outputs = _paired(self.case, execution.outputs, expected)[0]
        try:
            return _Results(outputs, self._gradients(execution, incoming), getattr(execution, "is_turned", False))
        except AssertionError:  # it takes contiguous ones alone, and says so
            return _Results(outputs, self._gradients(self.kernel.run(), incoming))

    def _hints(
        self, results: _Results, expected: Sequence[Output], incoming: Incoming, failed: Sequence[OutputRow]
    ) -> list[str]:
        """Which narrower sums or operands would explain the error, if any."""
        is_near = all(row.measured.get("ratio", math.inf) < Times.HOPELESS for row in failed)
        if self.allowed.no_worse_than is not None or any(row.pattern_kind not in _VAGUE for row in failed):
            return []
        wider = {f"accumulates={name!r}": replace(self.allowed, accumulates=name) for name in ("float16", "bfloat16")}
        if "float32" in self.arguments.described():
            wider = {"reduced='tf32'": replace(self.allowed, reduced="tf32"), **wider}
        for text, allowed in wider.items() if is_near else ():
            judge = replace(self, allowed=allowed)
            if judge._compared(_Reference.of(judge), results, expected, incoming).status == "pass":
                return [f"as {text} explains, with which it passes"]
        return []

    def _rounding(self, verdict: Verdict, rows: Sequence[OutputRow], notes: Sequence[str]) -> Rounding:
        statuses = {row.status for row in rows if row.status == "error" or not row.label.startswith(_GRADIENT)}
        status = max({*statuses, "error" if verdict.status == "error" else "pass"}, key=_ORDER.index)
        ratio = max((row.measured["ratio"] for row in rows if "ratio" in row.measured), default=None)
        name, inputs, seed, text = self.kernel.name, self.arguments.described(), self.allowed.seed, ""
        if status != "pass":
            failed = [row for row in rows if row.status == status]
            reason = next(filter(None, map(attrgetter("pattern"), failed)), verdict.message)
            first = f"{name} is off by more than rounding: {reason or failed[0].message}"
            if status == "skip":
                first = f"{name} cannot be judged: {failed[0].message}; smaller values or wider sums would tell more"
            lines = [first, *notes, verdict.explanation]
            if ratio is not None and 0 < ratio < math.inf:
                lines.append(f"least tolerance that passes: {ratio:.3g} times what rounding explains")
            text = "\n".join(filter(None, [*lines, f"inputs: ({inputs}), seed={seed}"]))
        return Rounding(name, inputs, seed, outputs=tuple(rows), status=status, ratio=ratio, text=text)


def _usable(outcome: Any, engine: Engine) -> Any:
    if isinstance(outcome, (Unsupported, CapturedError)):
        outcome = getattr(engine, "failure", None) or outcome
        place = optional(" at {}", getattr(outcome, "place", ""))
        raise UnusableReference(
            f"the reference cannot run in float64 ({engine.label}){place}: {outcome}; write it with operations that "
            "take float64 tensors, and convert there what it brings along, such as weights"
        )
    return outcome


def _roundoffs(call: protocol.Call) -> list[float]:
    """Those of the float tensors that a call is given, in order."""
    return [unit_roundoff(value.dtype) for _, value in leaves(call) if _is_float(value)]


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and protocol.is_differentiable(value)


def _recorded(output: Output) -> TensorValue | None:
    if not isinstance(output.value, np.ndarray):
        return None
    dtype, shape = dtype_of_array(output.value.dtype), output.value.shape
    return TensorValue(dtype, shape, maximum=None, minimum=None, mean=None, norm=None, data_name=None)


def _paired(case: Case, tested: Sequence[Output], reference: Sequence[Output]) -> tuple[list[Output], list[Output]]:
    """What is compared with what, in order: what both return, and the arguments that one of them has changed.

    Where one returns what the other writes into an argument, these are compared in their order.
    """
    tested = [output for output in tested if output.value is not None]
    reference = [output for output in reference if output.value is not None]
    returned, changed = _by_origin(tested)
    expected, exact_changed = _by_origin(reference)
    if len(returned) != len(expected):
        return tested, reference
    for place, value in leaves(case.call):
        path = (CHANGED, *place[1:])
        if path in changed or path in exact_changed:
            exact = value.astype(np.float64) if _is_float(value) else value
            returned.append(changed.get(path, Output(path, value)))
            expected.append(exact_changed.get(path, Output(path, exact)))
    return returned, expected


def _by_origin(outputs: Sequence[Output]) -> tuple[list[Output], dict[protocol.LeafPath, Output]]:
    """(what a call returned, the arguments that it changed, by their paths)."""
    changed = {output.path: output for output in outputs if output.path[0] == CHANGED}
    return [output for output in outputs if output.path not in changed], changed


def _arrays_returned(outputs: Sequence[Output]) -> list[Array]:
    returned = _by_origin(outputs)[0]
    return [output.value for output in returned if isinstance(output.value, np.ndarray)]


def _repeated(rows: Sequence[OutputRow], first: _Results, again: _Results) -> tuple[list[OutputRow], list[str]]:
    """(`rows` with what a second call with the same inputs shows, the same as notes)."""
    repeated, notes = list(rows), list[str]()
    for place, (before, after, row) in enumerate(zip(first.values, again.values, rows)):
        is_turned = again.is_turned and row.label.startswith(_GRADIENT)
        text = _difference(before, after, is_wrong=row.status == "error", is_turned=is_turned)
        if text:
            repeated[place] = replace(row, status="error", message=text, pattern=text, pattern_kind="repeat")
            notes.append(f"{row.label}: {text}")
    return repeated, notes


def _difference(first: Any, second: Any, *, is_wrong: bool, is_turned: bool) -> str:
    """What two calls with the same inputs show; "" where they agree, or differ as another order of adding does."""
    are_arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    is_alike = are_arrays and first.dtype == second.dtype and first.shape == second.shape
    if is_alike:
        unwritten = sides.is_filling(second) & (~sides.is_filling(first) | (is_wrong and second.itemsize > 1))
        if unwritten.any():
            return f"{describe_region(unwritten) or 'elements everywhere'}: not written"
    if content_of(first) == content_of(second):
        return ""
    difference = describe_bits(second, first) if is_alike else None
    if difference is not None and is_reordering(difference, first.dtype):
        return ""
    second_one = ", the second with an incoming gradient that is not contiguous" * is_turned
    pattern = difference.pattern if difference is not None else "in form"
    return f"two calls with the same inputs differ{second_one}: {pattern}"


def judged(actual: Any, reference: Callable[..., Any], arguments: Arguments, allowed: Allowed) -> Rounding:
    """The judgement of `actual`, a kernel or its result; see `rounding_of`.

    Raises:
        TypeError: the reference is no function, or does not take these arguments.
    """
    if not callable(reference):
        raise TypeError(f"the reference must be a function, not {type(reference).__name__}")
    with suppress(ValueError):  # functions of C have no signature
        parameters = signature(reference)
        try:
            parameters.bind(*arguments.positional, **arguments.keywords)
        except TypeError as error:
            raise TypeError(f"the reference does not take these arguments: {error}") from None
    call = arguments.call(api_of(reference))
    wanted = () if allowed.gradients is False else arguments.differentiated(of_all=allowed.gradients is True)
    forward, pairing = ForwardRecord((), {}, ()), GradientPairing({}, (), ())
    case = _OwnCase(call.api, forward, None, call, pairing, wanted=wanted, notes=())
    kernel = sides.Kernel(actual, arguments, call, wanted, allowed.seed)
    return _Judge(kernel, reference, arguments, case, allowed).judged()
