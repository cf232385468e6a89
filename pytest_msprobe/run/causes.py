"""The item of a cause fails, alone: also where only the whole run shows which record is the cause.

An item is judged alone, when the records that come after it, and perhaps those before it, are not known. Once all rows
are in, the item of a cause may have been reported as passed, skipped, or as inheriting a difference, and what follows
from it as failed. The reports become what they are before pytest and other plugins write what they keep of them: the
terminal's summary and counts, --lf, JUnit, pytest-html.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any

import pytest

from pytest_msprobe.answers import Answer, Finding
from pytest_msprobe.answers.words import follows_from, sentence_of
from pytest_msprobe.verdicts import Change, Outcome


def causes_of(answer: Answer) -> list[Finding]:
    """The findings whose items fail: what a set-up explains is its consequence, and has no failure of its own."""
    findings = list(filter(attrgetter("id"), answer.findings))
    return findings[:1] if findings and findings[0].kind in ("setting", "model") else findings


def outcomes_of(
    answer: Answer, following: Collection[str], excused: Mapping[str, str]
) -> dict[str, tuple[Outcome, str]]:
    """What items are, and why, by node id: those of causes fail, and those of `following` are expected to.

    So are those of `excused`, with their reasons.
    """
    causes = causes_of(answer)
    reasons = dict(excused)
    if causes:
        reasons |= dict.fromkeys(following, follows_from(causes[0]))
    outcomes: dict[str, tuple[Outcome, str]] = {node_id: ("xfailed", why) for node_id, why in reasons.items()}
    return outcomes | {finding.id: ("failed", sentence_of(finding)) for finding in causes}


def settle(session: pytest.Session, outcomes: Mapping[str, tuple[Outcome, str]]) -> dict[str, Change]:
    """Make the reports of a session at its end what the whole run shows; the changes, by node id.

    Args:
        session: before others write what they keep of its reports.
        outcomes: what items are, and why, by node id.
    """
    manager = session.config.pluginmanager
    terminal: Any = manager.get_plugin("terminalreporter")
    last_failed: Any = manager.get_plugin("lfplugin")
    changes: dict[str, Change] = {}
    for before in _BEFORE if terminal is not None else ():
        reports = terminal.stats.get(before, [])
        for report in [report for report in reports if getattr(report, "nodeid", "") in outcomes]:
            after, text = outcomes[report.nodeid]
            # What passes or is skipped inherits nothing that fails.
            if after == before or report.nodeid in changes or (after == "xfailed" and before != "failed"):
                continue
            reports.remove(report)
            terminal.stats.setdefault(after, []).append(report)
            _become(report, after, text)
            session.testsfailed += 1 if after == "failed" else -1
            changes[report.nodeid] = Change(before, after, text)
            if last_failed is not None:
                last_failed.lastfailed.pop(report.nodeid, None)
                if after == "failed":
                    last_failed.lastfailed[report.nodeid] = True
    return changes


#: Lists of the terminal whose reports may become others.
_BEFORE: tuple[Outcome, ...] = ("xfailed", "passed", "skipped", "failed")


def _become(report: pytest.TestReport, outcome: Outcome, text: str) -> None:
    report.longrepr = text
    if outcome == "failed":
        report.outcome = "failed"
        report.__dict__.pop("wasxfail", None)
    else:
        report.outcome = "skipped"
        report.wasxfail = text
