"""Verdicts on gradients as the row that all reports take."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_collector.dump_format.text import shown
from pytest_msprobe.suites.gradients.result import GradientResult
from pytest_msprobe.verdicts import OutputRow, Status, Verdict


def verdict_of(found: Sequence[GradientResult], *, bench: str, text: str) -> Verdict:
    """The verdict on one item: each gradient is an output. `bench` is what they were compared with, `text` explains."""
    status = _status(found)
    return Verdict(
        status,
        _message(found),
        outputs=tuple(_output(verdict, is_alone=len(found) == 1) for verdict in found),
        explanation=text if status == "error" else "",
        bench=bench if any(verdict.agreement is not None for verdict in found) else "",
        attachment={"verdicts": [verdict.to_wire() for verdict in found]},
    )


def explanation(found: Sequence[GradientResult], tested: str, benchmark: str) -> str:
    """What is wrong with each gradient that fails, and which files say so."""
    lines = []
    for verdict in found:
        if verdict.status == "error":
            lines.append(f"{verdict.parameter} {list(verdict.shape)}: {verdict.message}")
            lines += [f"  {line}" for line in verdict.details]
    against = f"; benchmark: {benchmark}" if benchmark else ""
    return "\n".join(map(shown, [*lines, "", f"tested: {tested}{against}"]))


def _status(found: Sequence[GradientResult]) -> Status:
    states = {verdict.status for verdict in found}
    return "error" if "error" in states else "pass" if "pass" in states else "skip"


def _message(found: Sequence[GradientResult]) -> str:
    if len(found) == 1:
        return found[0].message
    worst = [verdict for verdict in found if verdict.status == _status(found)]
    named = "; ".join(f"{verdict.parameter}: {verdict.message}" for verdict in worst[:3])
    count = f"{len(worst)} of {len(found)} gradients"
    return f"{count} passed" if _status(found) == "pass" else f"{count}: {named}{'; ...' if len(worst) > 3 else ''}"


def _output(verdict: GradientResult, *, is_alone: bool) -> OutputRow:
    return OutputRow(
        label=verdict.parameter,
        bench_dtype="",
        tested_dtype="",
        shape=verdict.shape,
        status=verdict.status,
        message="" if is_alone else verdict.message,  # of one, it is that of the item
        figures={
            "similarity": verdict.agreement.similarity if verdict.agreement is not None else None,
            "norm": verdict.norm,
        },
    )
