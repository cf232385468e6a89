"""Outputs and gradients of both sides, paired and measured, as rows and as an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from msprobe_collector.dump_format import ApiName, Dtype, dtype_of_array
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.outputs import index_output
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.index_outputs import selection
from pytest_msprobe.cases.opinions import Opinions
from pytest_msprobe.cases.output_order import in_one_order
from pytest_msprobe.engines.precision import is_differentiable
from pytest_msprobe.engines.protocol import Array, Output, OutputValue
from pytest_msprobe.numerics import (
    NOTHING_MORE,
    CosineMaxAbs,
    Diagnosis,
    Judgement,
    Metrics,
    OutputPair,
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
from pytest_msprobe.suites.precheck.standards import for_dtype
from pytest_msprobe.verdicts import OutputRow, Verdict


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
        diagnosis: Diagnosis = NOTHING_MORE,
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
        self.found.add(label, names, shape, metrics, judgement, diagnosis=Diagnosis(pattern=pattern))
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
