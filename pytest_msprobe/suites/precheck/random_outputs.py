"""Random and uninitialised outputs: judged by the law that their call names instead of by a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from msprobe_collector.dump_format import TensorValue, dtype_of_array
from pytest_msprobe.apis.random import random_api
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.engines.protocol import Array, Output
from pytest_msprobe.numerics.random.chance import SampleResult
from pytest_msprobe.numerics.random.dropout import judge_dropout_gradient, judge_dropout_mask
from pytest_msprobe.numerics.wording import count_of
from pytest_msprobe.suites.precheck.expected_form import FORMS, ExpectedForm
from pytest_msprobe.suites.precheck.random_laws import LAWS, OutputLaw
from pytest_msprobe.verdicts import OutputRow, Verdict

_SWITCHED_OFF = (
    "the recorded dropout returned its input, as it does while a collector has dropout switched off: "
    "its law cannot be tested"
)
_NO_GRADIENT_LAW = "random by nature: the gradient depends on what the forward drew"


@dataclass(frozen=True, slots=True)
class RandomCall:
    """A call whose outputs follow a law instead of equalling a benchmark's.

    Attributes:
        case: the call.
        law: of its first output.
        form: the dtype and shape that its arguments ask for.
        is_recorded: whether recorded values are tested, whose recorded dtype and shape then prove nothing.
    """

    case: Case
    law: OutputLaw
    form: ExpectedForm
    is_recorded: bool

    def judge_outputs(self, tested: Sequence[Output], device: str) -> Verdict:
        """The verdict on the forward outputs.

        Raises:
            NotJudged: there is no law to test them by, after all.
        """
        present = [output for output in tested if output.value is not None]
        arrays = _arrays(present)
        if not arrays or len(arrays) < len(present):
            raise NotJudged("skip", "random by nature, and its outputs are not all tensors")
        try:
            verdicts = self._verdicts(arrays)
        except ValueError as error:
            raise _untestable(error) from None
        labels = [".".join(("output", *map(str, output.path))) for output in present]
        return self._finding(labels, arrays, verdicts, device)

    def judge_gradients(
        self,
        outputs: Sequence[Output] | None,
        gradients: Sequence[Array | None],
        incoming: Sequence[Array | None],
        device: str,
    ) -> Verdict:
        """The verdict on the gradient of a dropout's input, by what the tested `outputs` show to be dropped.

        Gradients of a law that is a step, such as Bernoulli's, must be 0.

        Raises:
            NotJudged: the law says nothing of gradients, or what was dropped is not known.
        """
        if self.law.has_zero_gradient:
            return self._zero_gradients(gradients, device)
        if self.law.dropout is None:
            raise NotJudged("skip", _NO_GRADIENT_LAW)
        forward = _arrays(outputs or ())
        found = [(path, gradient) for path, gradient in zip(self.case.wanted, gradients) if gradient is not None]
        if not forward or incoming[0] is None or len(found) != 1:
            raise NotJudged("skip", f"{_NO_GRADIENT_LAW}, and the tested forward output is not known")
        try:
            verdict = judge_dropout_gradient(found[0][1], incoming[0], self.law.dropout(forward[0]))
        except ValueError as error:
            raise _untestable(error) from None
        return self._finding(
            [f"output.{self.case.pairing.entries.get(found[0][0], 0)}"], [found[0][1]], [verdict], device
        )

    def _zero_gradients(self, gradients: Sequence[Array | None], device: str) -> Verdict:
        found = [(path, gradient) for path, gradient in zip(self.case.wanted, gradients) if gradient is not None]
        labels = [f"output.{self.case.pairing.entries.get(path, 0)}" for path, _ in found]
        arrays = [gradient for _, gradient in found]
        return self._finding(labels, arrays, [_zero_verdict(array) for array in arrays], device)

    def _verdicts(self, arrays: Sequence[Array]) -> list[SampleResult]:
        faults = self._form_faults(arrays)
        if faults:
            return faults
        others: list[SampleResult] = [SampleResult() for _ in arrays[1:]]
        if self.law.dropout is None:
            return [self.law.judge(arrays[0]), *others]
        shown = self.law.dropout(arrays[0])
        if shown.is_identity and self.is_recorded:
            raise NotJudged("skip", _SWITCHED_OFF)
        return [shown.verdict, *(judge_dropout_mask(mask, shown) for mask in arrays[1:])]

    def _form_faults(self, arrays: Sequence[Array]) -> list[SampleResult]:
        """Verdicts on dtypes and shapes, or nothing when all are as they should be."""
        faults = [self.form.fault(arrays[0], "the arguments ask for"), *(None for _ in arrays[1:])]
        recorded = self.case.output_values()
        if not self.is_recorded and len(recorded) == len(arrays):
            for place, (value, array) in enumerate(zip(recorded, arrays)):
                form = ExpectedForm(value.dtype, value.shape) if isinstance(value, TensorValue) else ExpectedForm()
                faults[place] = faults[place] or form.fault(array, "the dump recorded")
        return [SampleResult((fault,) if fault else ()) for fault in faults] if any(faults) else []

    def _finding(
        self, labels: Sequence[str], arrays: Sequence[Array], verdicts: Sequence[SampleResult], device: str
    ) -> Verdict:
        rows = tuple(_row(*parts) for parts in zip(labels, arrays, verdicts))
        failed = [(row, verdict) for row, verdict in zip(rows, verdicts) if verdict.reasons]
        notes = dict.fromkeys([*self.case.notes, *(note for verdict in verdicts for note in verdict.notes)])
        return Verdict(
            status="error" if failed else "pass",
            message="" if failed else "; ".join(notes),
            outputs=rows,
            explanation="\n\n".join(_explained(row, verdict) for row, verdict in failed),
            device=device,
            bench=f"law: {self.law.text}",
        )


def random_call(case: Case, *, is_recorded: bool) -> RandomCall | None:
    """`case` as a call that is judged by a law; None when a benchmark can foretell its outputs.

    Raises:
        NotJudged: its arguments do not tell the law.
    """
    entry = random_api(case.api, case.call.framework)
    if entry is None or entry.law is None:
        return None
    try:
        bound = entry.bind(case.call.arguments, case.call.keywords)
        law = LAWS[entry.law.name](*entry.law.values(bound))
        form = FORMS[entry.form.name](*entry.form.values(bound)) if entry.form else ExpectedForm()
    except (TypeError, ValueError, AttributeError) as error:
        raise _untestable(error) from None
    return RandomCall(case, law, form, is_recorded)


def _zero_verdict(gradient: Array) -> SampleResult:
    count = int(np.count_nonzero(gradient))
    verb = "is" if count == 1 else "are"
    return SampleResult((f"{count_of(count, gradient.size)} {verb} not 0, the gradient of a draw.",) if count else ())


def _untestable(error: Exception) -> NotJudged:
    return NotJudged("skip", f"random by nature, and its arguments do not tell a law that can be tested: {error}")


def _arrays(outputs: Sequence[Output]) -> list[Array]:
    return [cast("Array", output.value) for output in outputs if hasattr(output.value, "__array_interface__")]


def _row(label: str, array: Array, verdict: SampleResult) -> OutputRow:
    dtype = dtype_of_array(array.dtype)
    name = dtype.name if dtype else str(array.dtype)
    return OutputRow(
        label=label,
        bench_dtype=name,
        tested_dtype=name,
        shape=tuple(array.shape),
        status="error" if verdict.reasons else "pass",
        message=" ".join(verdict.reasons) or "; ".join(verdict.notes),
    )


def _explained(row: OutputRow, verdict: SampleResult) -> str:
    return "\n  ".join([f"{row.label} {row.tested_dtype} {row.shape}: {verdict.reasons[0]}", *verdict.reasons[1:]])
