"""The item of a cause fails: also where only the whole run shows that its record is the cause.

An item is judged alone, when the records that come after it, and perhaps those before it, are not known. What a suite
finds once all rows are in belongs to an item that has been reported as passed, skipped, or as inheriting a difference.
These reports become failures before pytest and other plugins write what they keep of them: the terminal's summary and
counts, --lf, JUnit, pytest-html.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_msprobe.answers import Answer, Finding

#: Lists of the terminal that may hold the report of an item which turns out to be a cause.
_BEFORE = ("xfailed", "passed", "skipped")


def causes_of(answer: Answer) -> list[Finding]:
    """The findings whose items fail: what a set-up explains is its consequence, and has no failure of its own."""
    findings = [finding for finding in answer.findings if finding.id]
    return findings[:1] if findings and findings[0].kind in ("setting", "model") else findings


def fail(session: pytest.Session, texts: dict[str, str]) -> dict[str, str]:
    """Have items fail that were reported otherwise; returns what they were reported as, by node id.

    Args:
        session: at its end, before others write what they keep of its reports.
        texts: why, by node id.
    """
    manager = session.config.pluginmanager
    terminal: Any = manager.get_plugin("terminalreporter")
    before: dict[str, str] = {}
    for category in _BEFORE if terminal is not None else ():
        reports = terminal.stats.get(category, [])
        for report in [report for report in reports if getattr(report, "nodeid", "") in texts]:
            reports.remove(report)
            before[report.nodeid] = category
            _become_failure(report, texts[report.nodeid])
            terminal.stats.setdefault("failed", []).append(report)
            session.testsfailed += 1
    last_failed: Any = manager.get_plugin("lfplugin")
    if last_failed is not None:
        last_failed.lastfailed.update(dict.fromkeys(before, True))
    return before


def _become_failure(report: pytest.TestReport, text: str) -> None:
    report.outcome = "failed"
    report.longrepr = text
    report.__dict__.pop("wasxfail", None)
