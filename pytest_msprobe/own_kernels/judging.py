"""`assert_rounding_only` and `rounding_of`: is a kernel off by rounding only?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import methodcaller
from typing import Any, Literal, cast

import numpy as np

from msprobe_collector.dump_format import ForwardRecord, TensorValue, dtype_of_array
from pytest_msprobe.cases.call_run import OUTPUTS, CallRun, CapturedError, Incoming
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.outputs import paired_gradients
from pytest_msprobe.cases.second_runs import Bench, ExtraRuns, operand_roundoff
from pytest_msprobe.engines.protocol import (
    CHANGED,
    Array,
    Engine,
    LeafPath,
    Output,
    Unsupported,
    is_differentiable,
    leaves,
    output_label,
)
from pytest_msprobe.engines.recorded import GradientPairing
from pytest_msprobe.numerics import AgainstSecondOpinion, BackwardError, Judgement, Metrics, OutputPair, check_indices
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.measurement import widened
from pytest_msprobe.numerics.patterns import describe_region
from pytest_msprobe.own_kernels import sides
from pytest_msprobe.own_kernels.arguments import Arguments, api_of, runs_in
from pytest_msprobe.suites.precheck.check import Comparison
from pytest_msprobe.suites.repeat.results import content_of, describe_bits, is_reordering
from pytest_msprobe.support import place_of, text_of
from pytest_msprobe.verdicts import OutputRow, Verdict

#: Unit roundoffs of the dtypes that a kernel may be allowed to add in.
_ROUNDOFFS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
Accumulates = Literal["float32", "float16", "bfloat16", "same"]


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


#: How the labels of gradients begin.
_GRADIENT = "gradient."


class UnusableReference(ValueError):
    """A reference that says nothing of what is right: it fails in float64, or rounds inside."""


@dataclass(frozen=True, slots=True)
class _OnlyRounding(BackwardError):
    """`backward-error`; where rounding of the inputs makes all of the output uncertain, a small error is still a pass.

    An error below `_SMALL` roundings of the output as a whole is what a right kernel leaves, and no accident of inputs
    that may be off.
    """

    def judge_pair(self, pair: OutputPair) -> Judgement:
        found = BackwardError.judge_pair(self, pair)
        if found.status != "skip":
            return found
        tested, reference = (widened(side.reshape(-1)) for side in (pair.tested, pair.reference))
        is_finite = np.isfinite(tested) & np.isfinite(reference)
        size = float(np.linalg.norm(reference[is_finite]))
        error = float(np.linalg.norm((tested - reference)[is_finite]))
        ratio = error / (_SMALL * unit_roundoff(pair.tested.dtype) * size) if size else 0.0
        return Judgement("pass", ratio=ratio) if ratio <= 1 else found


#: In unit roundoffs of the output, of its norm.
_SMALL = 8.0


class _OwnCase(Case):
    """A call of a kernel, whose gradients are named by its arguments."""

    __slots__ = ()

    def gradient_label(self, path: LeafPath) -> str:
        return _GRADIENT + ".".join(map(str, path[1:]))


class _OwnRuns(ExtraRuns):
    """Moved runs of a reference of which no facts may be known but what its first run has shown."""

    def __init__(
        self,
        run: CallRun,
        bench: Bench,
        incoming: Incoming,
        trace: sides.Trace | None,
        opinion: Callable[[], Sequence[Any] | None],
    ) -> None:
        super().__init__(run, bench, incoming)
        self._trace, self._opinion = trace, opinion

    def _is_known_as(self, topic: Literal["elementary", "elementwise", "multilinear"]) -> bool:
        is_seen = self._trace is not None and self._trace.is_known_as(topic)
        return is_seen or super()._is_known_as(topic)

    @property
    def _rounds_each_result(self) -> bool:
        return False

    @cached_property
    def _held(self) -> frozenset[int]:
        """Storage formats that nothing is computed in are exact: float8 and narrower."""
        arrays = [value for _, value in leaves(self._call) if hasattr(value, "__array_interface__")]
        floats = [array for array in arrays if is_differentiable(array)]
        return frozenset(n for n, array in enumerate(floats) if unit_roundoff(array.dtype) > sides.NARROWEST_COMPUTED)

    @cached_property
    def _second(self) -> Sequence[Any] | None:
        return self._opinion()


class _OwnComparison(Comparison):
    """A comparison whose indices are judged by what the first run of the reference selected from."""

    def __init__(self, case: Case, standard: Any, runs: Callable[[], ExtraRuns], indices: Mapping[str, Any]) -> None:
        super().__init__(case, standard, runs)
        self._indices = indices

    def _index_metrics(self, label: str, actual: Array, expected: Array, tested: Sequence[Output]) -> Metrics | None:
        if label not in self._indices:
            return super()._index_metrics(label, actual, expected, tested)
        source, axis = self._indices[label]
        return check_indices(source, actual, expected, axis, unique_along_axis=True)


@dataclass(frozen=True)
class _Judge:
    """A kernel, its reference, and what it is allowed.

    Attributes:
        kernel, reference, arguments: both sides, and what they are called with.
        case: the call.
        roundoff: of what the kernel adds in; None for float32.
        operands: roundoff of float32 operands that are rounded before they are multiplied; None where they are not.
        other: another kernel whose error is the measure; None without one.
        device: where the reference runs.
        seed: of the incoming gradient and of random kernels.
    """

    kernel: sides.Kernel
    reference: Callable[..., Any]
    arguments: Arguments
    case: Case
    roundoff: float | None
    operands: float | None
    other: sides.Kernel | None
    device: str
    seed: int

    def judged(self) -> Rounding:
        """All outputs and gradients judged."""
        reference = _Reference.of(self)
        try:
            execution = self.kernel.run()
        except Exception as error:
            raise AssertionError(f"{self.kernel.name} raised {text_of(error)} ({place_of(error)})") from error
        tested, expected = _paired(self.case, execution.outputs, reference.outputs)
        if not tested and not expected:
            raise ValueError(f"{self.kernel.name} and its reference return nothing, and change no argument")
        incoming = self._incoming(execution.outputs, reference.outputs)
        results = _Results(tested, self._gradients(execution, incoming))
        verdict = self._compared(reference, results, expected, incoming)
        rows, notes = [_unless_nan(row, expected) for row in verdict.outputs], []
        if self.kernel.is_callable:
            rows, notes = self._repeated(rows, results, incoming, reference.outputs)
        failed = [row for row in rows if row.status == "error"]
        if failed and not notes and (hint := self._hint(results, expected, incoming, failed)):
            notes.append(hint)
        return self._rounding(verdict, rows, notes)

    def _compared(
        self, reference: _Reference, results: _Results, expected: Sequence[Output], incoming: Incoming
    ) -> Verdict:
        """The verdict on outputs and gradients together."""
        run, case = reference.run, self.case
        case = replace(case, forward=ForwardRecord((), {}, tuple(map(_recorded, results.outputs))))
        run.case = case
        standard: Any = _OnlyRounding() if self.other is None else AgainstSecondOpinion()
        other = None if self.other is None else cache(self.other.run)
        indices = reference.indices(expected, results.outputs)

        def runs(incoming: Incoming) -> Callable[[], ExtraRuns]:
            def opinion() -> Sequence[Any] | None:
                if other is None:
                    return None
                if incoming:
                    return cast("Sequence[Any]", other().gradients(incoming))
                return [output.value for output in _paired(case, other().outputs, reference.outputs)[0]]

            bench = Bench(reference.engine, None, self.operands)
            return cache(lambda: _OwnRuns(run, bench, incoming, reference.trace, opinion))

        forward = _OwnComparison(case, standard, runs(()), indices)
        forward.add_outputs(results.outputs, expected)
        verdict = forward.finding(self.kernel.name, reference.engine.label)
        if results.gradients is None:
            return verdict
        exact = reference.gradients(incoming)
        if exact is None:
            return verdict
        backward = _OwnComparison(case, standard, runs(incoming), {})
        backward.add_gradients(
            *paired_gradients(case, results.gradients, exact, incoming, lambda: results.outputs, are_recorded=False)
        )
        other_verdict = backward.finding(self.kernel.name, reference.engine.label)
        worst = max(verdict, other_verdict, key=lambda each: ("pass", "skip", "error").index(each.status))
        texts = filter(None, [verdict.explanation, other_verdict.explanation])
        return replace(worst, outputs=(*verdict.outputs, *other_verdict.outputs), explanation="\n\n".join(texts))

    def _incoming(self, returned: Sequence[Output], expected: Sequence[Output]) -> Incoming:
        """A gradient for every float output, the same for both sides; () where no gradient is wanted."""
        if not self.case.wanted:
            return ()
        random = np.random.default_rng(self.seed)
        arrays, exact = (
            [output.value for output in side if output.path[0] != CHANGED and isinstance(output.value, np.ndarray)]
            for side in (returned, expected)
        )
        if [array.shape for array in arrays] != [array.shape for array in exact]:
            return ()  # which is an error by itself
        drawn = [random.standard_normal(array.shape).astype(array.dtype) for array in arrays]
        found = [array if is_differentiable(array) else None for array in drawn]
        return tuple(found) if any(array is not None for array in found) else ()

    def _gradients(self, execution: Any, incoming: Incoming) -> Incoming | None:
        """Gradients of the kernel; None where they are not wanted."""
        if not incoming:
            return None
        try:
            return cast("Incoming", execution.gradients(incoming))
        except Unsupported:
            remedy = "gradients=False leaves them out"
            raise AssertionError(
                f"{self.kernel.name} gives no gradient, and its inputs require one; {remedy}"
            ) from None
        except Exception as error:
            raise AssertionError(f"the gradient of {self.kernel.name} raised {text_of(error)}") from error

    def _repeated(
        self, rows: list[OutputRow], results: _Results, incoming: Incoming, expected: Sequence[Output]
    ) -> tuple[list[OutputRow], list[str]]:
        """`rows` with what a second call in filled memory has shown, and what to say of it."""
        first = results.values
        sizes = [value.nbytes for value in first if isinstance(value, np.ndarray)]
        sizes += [value.nbytes for _, value in leaves(self.case.call) if isinstance(value, np.ndarray)]
        self.kernel.fill_memory(sizes)
        execution = self.kernel.run()
        again = _Results(
            _paired(self.case, execution.outputs, expected)[0], self._gradients(execution, incoming)
        ).values
        changed, notes = list(rows), []
        for place, (row, value, other) in enumerate(zip(rows, first, again)):
            text = _difference_of_calls(value, other, is_wrong=row.status == "error")
            if text:
                changed[place] = replace(row, status="error", message=text, pattern=text, pattern_kind="repeat")
                notes.append(f"{row.label}: {text}")
        return changed, notes

    def _hint(
        self, results: _Results, expected: Sequence[Output], incoming: Incoming, failed: Sequence[OutputRow]
    ) -> str:
        """Which narrower sums would explain the error; "" where none would."""
        ratios = [row.figures.get("ratio") for row in failed]
        is_near = all(ratio is not None and ratio < _HOPELESS for ratio in ratios)
        if self.other is not None or not is_near or any(row.pattern_kind not in _VAGUE for row in failed):
            return ""
        allowed = self.roundoff or _ROUNDOFFS["float32"]
        hints = {f"accumulates={name!r}": ("roundoff", _ROUNDOFFS[name]) for name in ("float16", "bfloat16")}
        wider = {text: change for text, change in hints.items() if change[1] > allowed}
        if self.operands is None and "float32" in self.arguments.described():
            wider = {"reduced='tf32'": ("operands", operand_roundoff("TF32")), **wider}
        for text, (name, value) in wider.items():
            judge = replace(self, **{name: value})
            if judge._compared(_Reference.of(judge), results, expected, incoming).status == "pass":
                return f"as {text} explains, with which it passes"
        return ""

    def _rounding(self, verdict: Verdict, rows: Sequence[OutputRow], notes: Sequence[str]) -> Rounding:
        statuses = {row.status for row in rows if row.status == "error" or not row.label.startswith(_GRADIENT)}
        statuses |= {verdict.status} - {"skip"}
        status = next(each for each in ("error", "skip", "pass") if each in statuses)
        known = [row.figures.get("ratio") for row in rows]
        ratio = max((each for each in known if each is not None), default=None)
        inputs = self.arguments.described()
        text = ""
        if status != "pass":
            text = failure_text(self.kernel.name, status, verdict, rows, notes, ratio, f"({inputs}), seed={self.seed}")
        return Rounding(self.kernel.name, inputs, self.seed, tuple(rows), status, ratio, text)


#: Patterns that narrower sums may leave as well.
_VAGUE = ("", "noise", "none", "one side", "narrower", "lookalike")
#: An error of so many tolerances is none that narrower sums explain.
_HOPELESS = 2.0**18


@dataclass(frozen=True)
class _Results:
    """What a kernel gave: outputs in the order of comparison, and gradients; None where these are not wanted."""

    outputs: list[Output]
    gradients: Incoming | None

    @property
    def values(self) -> list[Any]:
        """All of both, in the order of their rows."""
        present = [value for value in self.gradients or () if value is not None]
        return [*(output.value for output in self.outputs), *present]


@dataclass(frozen=True)
class _Reference:
    """A reference that has run in float64."""

    run: CallRun
    engine: Engine
    outputs: tuple[Output, ...]
    trace: sides.Trace | None

    @classmethod
    def of(cls, judge: _Judge) -> _Reference:
        """Run the reference of `judge`.

        Raises:
            UnusableReference: it fails, or rounds to a narrower dtype.
        """
        function, framework = judge.reference, runs_in(judge.reference, judge.arguments)
        engine: Engine
        if framework == "numpy":
            engine = sides.NumpyReference(function, judge.seed)
        elif framework == "mindspore":
            engine = sides.MindSporeSide(function, judge.arguments, judge.seed, is_raised=True)
        else:
            if hasattr(function, "double") and hasattr(function, "parameters"):  # a module, with weights of its own
                function = copy.deepcopy(function).double()
            engine = sides.TorchReference(
                function, judge.arguments, device=judge.device, seed=judge.seed, roundoff=judge.roundoff
            )
        run = CallRun.of_case(judge.case)
        outputs = _usable(run.ask(engine, OUTPUTS), engine)
        trace = getattr(engine, "trace", None)
        if trace is not None and trace.narrow:
            raise UnusableReference(
                f"the reference rounds to {trace.narrow}: leave the cast out, its inputs are float64"
            )
        return cls(run, engine, outputs, trace)

    def gradients(self, incoming: Incoming) -> Incoming | None:
        """Its gradients; None where it has none."""
        found = self.run.ask(self.engine, methodcaller("gradients", incoming))
        if isinstance(found, Unsupported):
            return None
        return cast("Incoming", _usable(found, self.engine))

    def indices(self, expected: Sequence[Output], tested: Sequence[Output]) -> dict[str, Any]:
        """What outputs that are indices select from, and the axis, by their labels."""
        if self.trace is None:
            return {}
        floats = [output.value.dtype for output in tested if _is_float_array(output.value)]
        found = {}
        for output in expected:
            for indices, source, axis in self.trace.indices.values():
                if isinstance(output.value, np.ndarray) and output.value.dtype.kind == "i":
                    if sides.is_array_of(indices, output.value):
                        # Values that the dtype of the kernel cannot tell apart are ties.
                        array = sides.array_of(source)
                        is_exact = array.dtype.kind != "f" or not floats
                        found[output_label(output.path)] = array if is_exact else array.astype(floats[0]), axis
        return found


def _usable(found: Any, engine: Engine) -> Any:
    if isinstance(found, (Unsupported, CapturedError)):
        found = getattr(engine, "failure", None) or found
        place = f" at {found.place}" if isinstance(found, CapturedError) and found.place else ""
        raise UnusableReference(
            f"the reference cannot run in float64 ({engine.label}){place}: {found}; write it with operations that take "
            "float64 tensors, and convert there what it brings along, such as weights"
        )
    return found


def _unless_nan(row: OutputRow, expected: Sequence[Output]) -> OutputRow:
    """`row`, which is no pass where both sides have nothing but NaN."""
    values = [output.value for output in expected if output_label(output.path) == row.label]
    is_nothing = any(_is_float_array(value) and value.size and np.isnan(value).all() for value in values)
    return replace(row, status="skip", message=_NOTHING) if is_nothing and row.status == "pass" else row


_NOTHING = "both sides are NaN everywhere"


def _is_float_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_differentiable(value)


def _recorded(output: Output) -> TensorValue | None:
    if not isinstance(output.value, np.ndarray):
        return None
    return TensorValue(dtype_of_array(output.value.dtype), output.value.shape, None, None, None, None, None)


def _paired(case: Case, tested: Sequence[Output], reference: Sequence[Output]) -> tuple[list[Output], list[Output]]:
    """What is compared with what, in order: what both return, and the arguments that one of them has changed.

    Where one returns what the other writes into an argument, these are compared in their order.
    """
    sides_ = [[output for output in side if output.value is not None] for side in (tested, reference)]
    returned = [[output for output in side if output.path[0] != CHANGED] for side in sides_]
    changed = [{output.path: output for output in side if output.path[0] == CHANGED} for side in sides_]
    if len(returned[0]) != len(returned[1]):
        return sides_[0], sides_[1]
    given = {(CHANGED, *path[1:]): value for path, value in leaves(case.call)}
    for path, value in given.items():
        if path in changed[0] or path in changed[1]:
            for side, others, is_reference in zip(returned, changed, (False, True)):
                as_given = value.astype(np.float64) if is_reference and is_differentiable(value) else value
                side.append(others.get(path, Output(path, as_given)))
    return returned[0], returned[1]


def _difference_of_calls(first: Any, second: Any, *, is_wrong: bool) -> str:
    """What two calls with the same inputs show; "" where they agree, or differ as another order of adding does."""
    arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    if arrays and first.dtype == second.dtype and first.shape == second.shape:
        is_filling = sides.is_filling(second)
        unwritten = is_filling & (~sides.is_filling(first) | (is_wrong and second.dtype.itemsize > 1))
        if unwritten.any():
            return f"{describe_region(unwritten) or 'elements everywhere'}: not written"
    if content_of(first) == content_of(second):
        return ""
    if not (arrays and first.dtype == second.dtype and first.shape == second.shape):
        return "two calls with the same inputs differ in form"
    difference = describe_bits(second, first)
    if is_reordering(difference, first.dtype):
        return ""
    return f"two calls with the same inputs differ: {difference.pattern}"


def failure_text(
    kernel: str,
    status: str,
    verdict: Verdict,
    rows: Sequence[OutputRow],
    notes: Sequence[str],
    ratio: float | None,
    how: str,
) -> str:
    """What is wrong, in several lines: the pattern first."""
    failed = [row for row in rows if row.status == status]
    pattern = next((row.pattern for row in failed if row.pattern), "")
    if status == "skip":
        remedy = "smaller values, or a wider dtype in `accumulates`, would tell more"
        first = f"{kernel} cannot be judged: {failed[0].message if failed else verdict.message}; {remedy}"
    else:
        first = f"{kernel} is off by more than rounding: {pattern or verdict.message or failed[0].message}"
    lines = [first, *notes, verdict.explanation]
    if ratio is not None and ratio < np.inf:
        lines.append(f"least tolerance that passes: {ratio:.3g} times what rounding explains")
    return "\n".join(filter(None, [*lines, f"inputs: {how}"]))


def rounding_of(
    actual: Any,
    reference: Callable[..., Any],
    /,
    *inputs: Any,
    gradients: bool | None = None,
    accumulates: Accumulates = "float32",
    reduced: Literal["tf32", "hf32"] | None = None,
    no_worse_than: Callable[..., Any] | None = None,
    reference_device: str = "cpu",
    seed: int = 0,
    **keywords: Any,
) -> Rounding:
    """Judge a kernel: is what it returns, and its gradients, the right result but for rounding?

    Args:
        actual: the kernel, or what it has returned.
        reference: computes the same from float64 tensors; it gets the same arguments.
        *inputs: arguments of both: tensors of any dtype and device, and whatever else they take.
        gradients: None judges those of the inputs that require one, True of all, False of none.
        accumulates: the narrowest dtype that the kernel may add and keep results inside in; "same" is that of the inputs.
        reduced: the format that float32 operands of products are rounded to.
        no_worse_than: another kernel; at most twice its error is allowed, in place of rounding.
        reference_device: where the reference runs.
        seed: of the incoming gradient; random kernels draw with it.
        **keywords: further arguments of both.

    Raises:
        UnusableReference: the reference cannot run in float64, or rounds to a narrower dtype.
        AssertionError: the kernel raises, or has no gradient where an input requires one.
    """
    if not callable(reference):
        raise TypeError(f"the reference must be a function, not {type(reference).__name__}")
    if accumulates not in (*_ROUNDOFFS, "same") or accumulates == "float64":
        raise ValueError(f"accumulates is one of float32, float16, bfloat16, same, not {accumulates!r}")
    if reduced not in (None, "tf32", "hf32"):
        raise ValueError(f"reduced is tf32 or hf32, not {reduced!r}")
    arguments = Arguments(inputs, keywords)
    call = arguments.call(api_of(reference))
    wanted = () if gradients is False else arguments.differentiated(of_all=gradients is True)
    case = _OwnCase(call.api, ForwardRecord((), {}, ()), None, call, GradientPairing({}, (), ()), wanted, ())
    kernel, other = (
        None if function is None else sides.Kernel(function, arguments, call, wanted, seed)
        for function in (actual, no_worse_than)
    )
    assert kernel is not None
    own = [unit_roundoff(value.dtype) for _, value in leaves(call) if _is_float_array(value)]
    narrow = max(own, default=0.0) if accumulates == "same" else _ROUNDOFFS[accumulates]
    roundoff = narrow if narrow > _ROUNDOFFS["float32"] else None
    operands = None if reduced is None else operand_roundoff(reduced.upper())
    return _Judge(kernel, reference, arguments, case, roundoff, operands, other, reference_device, seed).judged()


def assert_rounding_only(actual: Any, reference: Callable[..., Any], /, *inputs: Any, **options: Any) -> None:
    """Raise AssertionError where a kernel is off by more than rounding; arguments are those of `rounding_of`."""
    __tracebackhide__ = True
    found = rounding_of(actual, reference, *inputs, **options)
    if not found:
        raise AssertionError(found.text)
