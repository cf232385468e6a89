"""The diagnosis of a pre-check: which passes show that rounding explains all, and which do not."""

from __future__ import annotations

from msgspec import structs

from pytest_msprobe.diagnosis import AtFault, CannotSay, Diagnosis, NextStep, RunRows
from pytest_msprobe.diagnosis.from_rows import call_of, with_gaps
from pytest_msprobe.suites.contract import RowSummary

#: The standard that passes what rounding explains, and nothing else.
_SHOWS_ROUNDING = "backward-error"
_RECORDED = "recorded values"
#: Above so many times its tolerance an error is no mistake of the tolerance (docs/verdict_quality_at_size.md).
_CERTAIN = 2.0


def precheck_diagnosis(rows: RunRows) -> Diagnosis:
    """What the rows of a pre-check amount to."""
    is_shown = all(standard.startswith((_SHOWS_ROUNDING, "law")) for standard in rows.standards)
    at_fault = [_with_confidence(each) for each in rows.at_fault()]
    outcome = rows.outcome(is_fault=bool(at_fault), passing="rounding" if is_shown else "unaccounted")
    steps = _next(rows, at_fault, is_shown=is_shown)
    found = rows.made(outcome, at_fault, next_steps=steps)
    if rows.devices and not any(_RECORDED in device for device in rows.devices):
        where = " and ".join(sorted(rows.devices))
        return with_gaps(
            found, [CannotSay("what the training computed", f"the dump holds no tensors of it; tested was {where}")]
        )
    return found


def _with_confidence(fault: AtFault) -> AtFault:
    """Proved where the error is beyond what rounding can make by a margin, or an exact result is another one."""
    if fault.kind == "error":
        return fault
    ratio, rounding = fault.evidence.get("ratio"), str(fault.evidence.get("rounding", ""))
    is_exact = "max_abs" in fault.evidence and not rounding and ratio is None
    is_beyond = rounding.startswith("not explained") and isinstance(ratio, float) and ratio >= _CERTAIN
    return structs.replace(fault, confidence="proved" if is_exact or is_beyond else "likely")


def _next(rows: RunRows, at_fault: list[AtFault], *, is_shown: bool) -> list[NextStep]:
    if not rows.facts.arguments:
        return []
    if at_fault:
        call = call_of(at_fault[0].record)
        return [
            NextStep(
                rows.facts.command("-k", call, "--msprobe-reproducers=reproducers"),
                "a script that repeats this call alone",
            ),
            NextStep(rows.facts.command("-k", call, "-v"), "all figures of this call"),
        ]
    if rows.judged and not is_shown:
        command = rows.facts.command(f"--msprobe-standard={_SHOWS_ROUNDING}")
        return [NextStep(command, "whether rounding explains what differs")]
    return []


class PrecheckSummary(RowSummary):
    """The answer of finished rows of a pre-check."""

    def diagnosis(self, rows: RunRows) -> Diagnosis:
        """See `precheck_diagnosis`."""
        return precheck_diagnosis(rows)
