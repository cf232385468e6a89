"""The row of an item, whatever ended it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.items import config_of, items_of
from fakes.suite import FakeSuite, group, row

from pytest_msprobe.run.nodes import RecordItem, attach_row
from pytest_msprobe.run.settings import ROW
from pytest_msprobe.verdicts import VerdictRow


@pytest.fixture
def item() -> RecordItem:
    suite = FakeSuite({Path("/d/dump.json"): [group("Mint.add.0")]})
    return items_of(suite, config_of(suite))[0]


def report(when: Any, outcome: Any, longrepr: Any = None, **more: Any) -> pytest.TestReport:
    return pytest.TestReport("id", ("dump.json", 0, "x"), {}, outcome, longrepr, when, **more)


def attached(item: pytest.Item, given: pytest.TestReport) -> VerdictRow | None:
    attach_row(item, given)
    wire = getattr(given, "msprobe_row", None)
    return None if wire is None else VerdictRow.from_wire(wire)


@pytest.mark.parametrize(("status", "outcome"), [("pass", "passed"), ("error", "failed"), ("skip", "skipped")])
def test_a_verdict_travels_with_the_report_of_the_call(item: RecordItem, status: Any, outcome: Any) -> None:
    item.stash[ROW] = row(status=status, message="m")
    assert attached(item, report("setup", "passed")) is None
    assert attached(item, report("call", outcome)) == row(status=status, message="m")
    assert attached(item, report("teardown", "passed")) is None


def test_a_skip_mark_has_a_row_with_its_reason(item: RecordItem) -> None:
    found = attached(item, report("setup", "skipped", ("conftest.py", 3, "Skipped: not today")))
    assert found is not None
    assert (found.status, found.outcome, found.message) == ("skip", "skipped", "Skipped: not today")
    assert found.attachment == {"unrun": "Skipped: not today"}


@pytest.mark.parametrize("when", ["setup", "call"])
def test_what_failed_before_there_was_a_verdict_is_an_error(item: RecordItem, when: str) -> None:
    found = attached(item, report(when, "failed", "a fixture raised"))
    assert found is not None
    assert (found.status, found.outcome, found.message) == ("error", "failed", "a fixture raised")


def test_a_hook_that_raised_beside_a_pass_makes_it_an_error(item: RecordItem) -> None:
    item.stash[ROW] = row(status="pass")
    found = attached(item, report("call", "failed", "Traceback\nOSError: no room"))
    assert found is not None
    assert (found.status, found.outcome) == ("error", "failed")
    assert found.message == "a hook raised after the verdict 'pass': OSError: no room"


@pytest.mark.parametrize(
    ("status", "outcome", "counted"), [("error", "skipped", "xfailed"), ("pass", "passed", "xpassed")]
)
def test_an_expected_failure_counts_as_pytest_counts_it(
    item: RecordItem, status: Any, outcome: Any, counted: str
) -> None:
    item.stash[ROW] = row(status=status)
    found = attached(item, report("call", outcome, wasxfail="known"))
    assert found is not None
    assert (found.status, found.outcome) == (status, counted)


def test_a_strict_xfail_mark_on_a_pass_fails_and_keeps_the_verdict(item: RecordItem) -> None:
    item.stash[ROW] = row(status="pass")
    found = attached(item, report("call", "failed", "[XPASS(strict)] known"))
    assert found is not None
    assert (found.status, found.outcome) == ("pass", "failed")


def test_an_item_that_is_not_to_run_by_its_xfail_mark_is_expected(item: RecordItem) -> None:
    found = attached(item, report("setup", "skipped", ("c.py", 1, "x"), wasxfail="[NOTRUN] hangs"))
    assert found is not None
    assert (found.status, found.outcome) == ("skip", "xfailed")
    assert found.message == "expected failure, not run: [NOTRUN] hangs"


def test_attachments_travel_once_and_are_not_kept(item: RecordItem) -> None:
    item.stash[ROW] = row()
    attached(item, report("call", "passed"))
    assert ROW not in item.stash


def test_the_place_of_a_skip_is_the_dump(item: RecordItem) -> None:
    item.stash[ROW] = row(status="skip", message="random")
    given = report("call", "skipped", ("nodes.py", 170, "Skipped: random"))
    attach_row(item, given)
    assert given.longrepr == ("/d/dump.json", 0, "Skipped: random")
