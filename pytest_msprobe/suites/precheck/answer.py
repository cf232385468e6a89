"""The answer of a pre-check: how sure each failure is, and what a pass shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import structs

from pytest_msprobe.answers import CONFIDENCES, Answer, Finding, Gap, NextStep, RunRows, with_open
from pytest_msprobe.answers.from_rows import call_of
from pytest_msprobe.numerics.expected import Times
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.verdicts import EXPLAINED, VerdictRow

#: The standard that passes what rounding explains, and nothing else; and that of indices, which have no rounding.
OF_INDICES = "selected-values"
SHOWING_ROUNDING = ("backward-error", OF_INDICES)
_RECORDED = "recorded values"
#: Without any of these a value was not compared element by element: its shape or its kind is another one.
_MEASURED = ("cosine", "max_abs", "max_rel", "max_ulp", "ratio")


def _with_confidence(finding: Finding, *, is_recorded: bool) -> Finding:
    """Proved where the error is beyond what rounding can make by a margin, or an exact result is another one.

    Gradients are no more than possible where the dump has recorded some in the places of others (`is_recorded` False).
    """
    if finding.kind == "error":
        return finding
    ratio, rounding = finding.figures.get("ratio"), finding.figures.get("rounding")
    excess = finding.figures.get("excess", ratio)
    is_gradient = "backward" in finding.place.directions
    if (isinstance(excess, float) and excess < Times.EXCESS) or (not is_recorded and is_gradient):
        return structs.replace(finding, confidence="possible")
    is_exact = "max_abs" in finding.figures and not rounding and ratio is None
    is_beyond = rounding not in (None, EXPLAINED) and isinstance(ratio, float)
    return structs.replace(finding, confidence="proved" if is_exact or is_beyond else "likely")


def _next(rows: RunRows, findings: list[Finding]) -> list[NextStep]:
    call = call_of(findings[0].place.record)
    if not call or not rows.facts.arguments:
        return []
    steps = [NextStep("error data", rows.facts.command("--msprobe-error-data=error_data", keyword=call))]
    return [*steps, *rows.next_steps(findings)]


class PrecheckSummary(RowSummary):
    """The answer of finished rows of a pre-check."""

    def __init__(self, holds_tensors: Callable[[], bool] = bool) -> None:
        """Sum up rows; `holds_tensors` says whether a dump has the values of the training, where that is known."""
        self._holds_tensors = holds_tensors
        self._on_cpu: dict[str, str] = {}

    def add(self, row: VerdictRow) -> None:
        """Note the APIs on which an accelerator and the CPU do not agree."""
        if why := dict(row.properties).get("bench_on_cpu"):
            self._on_cpu[row.api] = str(why)

    def lines(self) -> Iterable[str]:
        """Say which APIs have the CPU as benchmark in place of the accelerator, and why."""
        return [f"benchmark: {api} is computed on the CPU: {why}" for api, why in sorted(self._on_cpu.items())]

    def answer(self, rows: RunRows) -> Answer:
        """What the rows of a pre-check amount to, the surest failure first."""
        causes = rows.findings()
        # Else the dump holds gradients of other places than those of the call.
        is_recorded = not any(
            "backward" in cause.place.directions and cause.kind == "wrong" and not cause.figures.keys() & set(_MEASURED)
            for cause in causes
        )
        findings = [_with_confidence(cause, is_recorded=is_recorded) for cause in causes]
        findings.sort(key=lambda finding: CONFIDENCES.index(finding.confidence))
        # What must be equal is judged by no standard's bounds, and has none.
        standards = {name.partition(" ")[0] for name in rows.counts.standards} - {"", OF_INDICES}
        kind = "standard" if standards else "limits"
        if standards == {SHOWING_ROUNDING[0]}:
            kind = "rounding"
        measure = rows.measure(kind, names=tuple(sorted(standards)), operands=tuple(sorted(rows.counts.operands)))
        answer = rows.made(findings, measure=measure, next_steps=_next(rows, findings) if findings else None)
        if answer.outcome == "right" and not any(_RECORDED in device for device in rows.counts.devices):
            tested = " and ".join(sorted(rows.counts.devices))
            answer = with_open(answer, [Gap(kind="not recorded", reason=tested)])
            recorded = NextStep("recorded", rows.facts.command("--msprobe-device=recorded"))
            way = recorded if self._holds_tensors() and rows.facts.arguments else NextStep("tensors")
            return structs.replace(answer, next=(*answer.next, way))
        return answer
