"""The diagnosis of a pre-check: which passes show that rounding explains all, and which do not."""

from __future__ import annotations

from msgspec import structs

from pytest_msprobe.diagnosis import AtFault, CannotSay, Diagnosis, NextStep, RunRows
from pytest_msprobe.diagnosis.from_rows import HARDLY, call_of, with_gaps
from pytest_msprobe.diagnosis.value import CONFIDENCES
from pytest_msprobe.suites.contract import RowSummary

#: The standard that passes what rounding explains, and nothing else; and that of indices, which have no rounding.
SHOWING_ROUNDING = ("backward-error", "selected-values")
_RECORDED = "recorded values"
_COLLECT = 'collect the step again with "task": "tensor", or compare it with the dump of a run that is right'


def _with_confidence(fault: AtFault, *, is_recorded: bool) -> AtFault:
    """Proved where the error is beyond what rounding can make by a margin, or an exact result is another one.

    Gradients are no more than possible where the dump has recorded some in the places of others (`is_recorded` False).
    """
    if fault.kind == "error":
        return fault
    ratio, rounding = fault.evidence.get("ratio"), str(fault.evidence.get("rounding", ""))
    if (isinstance(ratio, float) and ratio < HARDLY) or (not is_recorded and "backward" in fault.record):
        return structs.replace(fault, confidence="possible")
    is_exact = "max_abs" in fault.evidence and not rounding and ratio is None
    is_beyond = rounding.startswith("not explained") and isinstance(ratio, float)
    return structs.replace(fault, confidence="proved" if is_exact or is_beyond else "likely")


def _next(rows: RunRows, at_fault: list[AtFault], *, is_shown: bool) -> list[NextStep]:
    if not rows.facts.arguments:
        return []
    if at_fault:
        call = call_of(at_fault[0].record)
        return [
            NextStep(
                rows.facts.command("-k", call, "--msprobe-error-data=error_data"),
                "the inputs of this call and both results, as files",
            ),
            NextStep(rows.facts.command("-k", call, "-v"), "all figures of this call"),
        ]
    if rows.judged and not is_shown:
        command = rows.facts.command(f"--msprobe-standard={SHOWING_ROUNDING[0]}")
        return [NextStep(command, "whether rounding explains what differs")]
    return []


class PrecheckSummary(RowSummary):
    """The answer of finished rows of a pre-check."""

    def diagnosis(self, rows: RunRows) -> Diagnosis:
        """What the rows of a pre-check amount to.

        Alarms of which right runs have the like are named, and no fault is claimed.
        """
        is_shown = all(standard.startswith(SHOWING_ROUNDING) for standard in rows.counts.standards)
        causes = rows.at_fault()
        # Else the dump holds gradients of other places than those of the call.
        is_recorded = not any("backward" in each.record and "Shapes differ" in each.sentence for each in causes)
        at_fault = [_with_confidence(each, is_recorded=is_recorded) for each in causes]
        at_fault.sort(key=lambda each: CONFIDENCES.index(each.confidence))
        outcome = rows.outcome(is_fault=bool(at_fault), passing="rounding" if is_shown else "unaccounted")
        if at_fault and all(each.confidence == "possible" for each in at_fault):
            outcome = "unaccounted"
        found = rows.made(outcome, at_fault, next_steps=_next(rows, at_fault, is_shown=is_shown))
        if found.is_judged and not any(_RECORDED in device for device in rows.counts.devices) and not at_fault:
            why = f"the dump holds no tensors of it; tested was {' and '.join(sorted(rows.counts.devices))}"
            found = structs.replace(found, next=(*found.next, NextStep((), _COLLECT)))
            return with_gaps(found, [CannotSay("what the training computed", why)])
        return found
