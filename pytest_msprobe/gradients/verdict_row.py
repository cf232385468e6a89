"""Verdicts on gradients as the row that all reports take."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_msprobe.gradients.verdict import GradientVerdict
from pytest_msprobe.reports.row import OutputRow, Status, VerdictRow


def verdict_row(
    found: Sequence[GradientVerdict],
    *,
    place: tuple[str, str, str],
    bench: str,
    seconds: float,
    host: str,
    instead: tuple[Status, str] | None,
) -> VerdictRow:
    """The row of one item. `place` is (node id, path of the summary file, name in reports).

    Of several gradients, each is an output. `instead` are status and message of an item that did not run.
    """
    status, message = instead or (_status(found), _message(found))
    return VerdictRow(
        node_id=place[0],
        dump=place[1],
        call=place[2],
        direction="backward",
        recorded=("backward",),
        selected=("backward",),
        status=status,
        message=message,
        bench=bench if any(verdict.agreement is not None for verdict in found) else "",
        outputs=tuple(map(_output, found)) if len(found) > 1 else (),
        seconds=seconds,
        host=host,
    )


def _status(found: Sequence[GradientVerdict]) -> Status:
    states = {verdict.status for verdict in found}
    return "error" if "error" in states else "pass" if "pass" in states else "skip"


def _message(found: Sequence[GradientVerdict]) -> str:
    if len(found) == 1:
        return found[0].message
    worst = [verdict for verdict in found if verdict.status == _status(found)]
    named = "; ".join(f"{verdict.parameter}: {verdict.message}" for verdict in worst[:3])
    count = f"{len(worst)} of {len(found)} gradients"
    return f"{count} passed" if _status(found) == "pass" else f"{count}: {named}{'; ...' if len(worst) > 3 else ''}"


def _output(verdict: GradientVerdict) -> OutputRow:
    return OutputRow(
        label=verdict.parameter,
        bench_dtype="",
        tested_dtype="",
        shape=verdict.shape,
        cosine=None,
        max_abs=None,
        max_rel=None,
        max_ulp=None,
        status=verdict.status,
        message=verdict.message,
    )
