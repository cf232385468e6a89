"""What becomes of an item: its row, onto pytest's report, whatever ended it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_msprobe.run import keys
from pytest_msprobe.run.nodes import RecordItem
from pytest_msprobe.verdicts import Outcome, VerdictRow

#: How pytest begins the text of an item that passed although its strict xfail mark says that it must not.
_STRICT = "[XPASS(strict)]"


def attach_row(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put the row of `item`, in builtin types, on the report that every process can read.

    An item that was skipped or broken before it ran (a skip mark, a failing fixture of a conftest) gets its row here.
    """
    if not isinstance(item, RecordItem) or (report.passed and report.when != "call"):
        return
    if report.skipped and report.when == "call" and isinstance(report.longrepr, tuple):
        # The place of a skip is what was judged, not the line of our code that raised it.
        report.longrepr = (str(item.path), 0, report.longrepr[2])
    row = _row(item, report)
    if row is not None:
        row = replace(row, outcome=_outcome(report))
        report.msprobe_row = row.to_wire()  # type: ignore[attr-defined]  # reports carry extra attributes


def _row(item: RecordItem, report: pytest.TestReport) -> VerdictRow | None:
    if report.when == "call":
        row = item.stash.get(keys.ROW, None)
        # Kept for the failure details of the page only; pytest keeps its items to the end.
        if row is not None:
            item.stash[keys.ROW] = replace(row, attachment=None)
            return _overruled(row, report)
        # A hook of a conftest.py that wraps the test ended it before or in place of ours.
        return item.unrun("skip" if report.skipped else "error", _reason(report)) if not report.passed else None
    if report.when == "setup" and not report.passed:
        return item.unrun("skip" if report.skipped else "error", _reason(report))
    return None


def _overruled(row: VerdictRow, report: pytest.TestReport) -> VerdictRow:
    """`row`, or an error where a hook of a conftest.py raised beside a verdict that is none."""
    if not report.failed or row.status == "error" or report.longreprtext.startswith(_STRICT):
        return row
    reason = report.longreprtext.strip().splitlines()[-1:] or ["no reason"]
    return replace(row, status="error", message=f"a hook raised after the verdict {row.status!r}: {reason[0]}")


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected failure, not run: {report.wasxfail}".removesuffix(": ")
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


def _outcome(report: pytest.TestReport) -> Outcome:
    """What pytest counts the item as."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome
