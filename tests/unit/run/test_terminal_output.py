"""Progress lines, and which failures pytest prints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_msprobe.run.terminal import MOST_FAILURES, Progress, duration, limited_failures
from pytest_msprobe.verdicts import EXPLAINED


class Terminal:
    """What is written to a terminal."""

    def __init__(self, verbosity: int = 0, failed: list[Any] | None = None) -> None:
        self.verbosity = verbosity
        self.lines: list[str] = []
        self.stats = {"failed": failed or []}
        self._tw = SimpleNamespace(width_of_current_line=0)

    def ensure_newline(self) -> None:
        pass

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def run(items: int, seconds: float, *, verbosity: int = 0, failing: int = 0) -> list[str]:
    """The lines of a run of `items` items that take `seconds` each."""
    now = 100.0
    terminal = Terminal(verbosity)
    progress = Progress(lambda: now)
    manager = SimpleNamespace(get_plugin=lambda name: terminal)
    session: Any = SimpleNamespace(testscollected=items, config=SimpleNamespace(pluginmanager=manager))
    progress.pytest_sessionstart(session)
    for number in range(items):
        for when in ("setup", "call", "teardown"):
            took = seconds if when == "call" else 0.0
            now += took
            report: Any = SimpleNamespace(when=when, duration=took, failed=when == "call" and number < failing)
            progress.pytest_runtest_logreport(report)
    return terminal.lines


def test_a_short_run_prints_no_progress() -> None:
    assert run(1000, 0.02) == []


def test_a_long_run_says_how_far_it_is() -> None:
    assert run(10, 20.0, failing=3) == [
        "msprobe: 2 of 10 done, 2 failed; about 3 min left",
        "msprobe: 4 of 10 done, 3 failed; about 2 min left",
        "msprobe: 6 of 10 done, 3 failed; about 80 s left",
        "msprobe: 8 of 10 done, 3 failed; about 40 s left",
    ]


def test_a_run_of_a_day_prints_a_few_lines() -> None:
    assert len(run(8640, 10.0)) < 100


def test_a_quiet_run_prints_no_progress() -> None:
    assert run(10, 20.0, verbosity=-1) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 s"), (89, "89 s"), (90, "2 min"), (7100, "118 min"), (12_000, "3 h 20 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def failures(*roundings: str) -> list[Any]:
    return [SimpleNamespace(number=number, msprobe_rounding=text) for number, text in enumerate(roundings)]


def test_failures_that_rounding_does_not_explain_are_printed_first() -> None:
    failed = failures(*[EXPLAINED] * MOST_FAILURES, "not explained", "not explained")
    other: Any = SimpleNamespace(number=-1)
    terminal: Any = Terminal(failed=[*failed, other])
    with limited_failures(terminal) as hidden:
        numbers = [report.number for report in terminal.stats["failed"]]
    assert hidden == 2
    assert numbers == [*range(MOST_FAILURES - 2), MOST_FAILURES, MOST_FAILURES + 1, -1]
    assert terminal.stats["failed"] == [*failed, other]


@pytest.mark.parametrize(("count", "verbosity"), [(MOST_FAILURES, 0), (MOST_FAILURES + 1, 1)])
def test_few_failures_and_verbose_runs_are_printed_whole(count: int, verbosity: int) -> None:
    failed = failures(*[""] * count)
    terminal: Any = Terminal(verbosity, failed)
    with limited_failures(terminal) as hidden:
        assert terminal.stats["failed"] is failed
    assert hidden == 0
