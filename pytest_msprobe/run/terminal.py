"""pytest's own part of a run with thousands of records: no log capture, a limit for failures, progress."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from msprobe_collector.dump_format.values import optional
from pytest_msprobe.answers.answer import abridged
from pytest_msprobe.answers.words import how_far
from pytest_msprobe.verdicts import EXPLAINED, VerdictRow

_PLUGIN = "logging-plugin"
_LOG_KEYS = ("log_cli", "log_file", "log_level")
_LOG_OPTIONS = ("log_level", "log_cli_level", "log_file", "log_file_level")


@contextmanager
def without_log_capture(session: pytest.Session, item_type: type[pytest.Item]) -> Iterator[None]:
    """Run the items of `session` without log capture, if they are all of `item_type` and no option asks for logs.

    pytest attaches handlers to every logger that does not propagate, in each phase of each item, and importing PyTorch
    makes 43 of those: 0.4 ms per item. Our items log nothing of their own; what MindSpore logs goes to stderr anyway.
    """
    config = session.config
    plugin = config.pluginmanager.get_plugin(_PLUGIN)
    if plugin is None or _wants_logs(config) or not all(isinstance(item, item_type) for item in session.items):
        yield
        return
    config.pluginmanager.unregister(plugin)
    try:
        yield
    finally:
        # Back in its place for the hooks that end the session, which close what it has open.
        config.pluginmanager.register(plugin, _PLUGIN)


def _wants_logs(config: pytest.Config) -> bool:
    return any(config.getoption(name, None) for name in _LOG_OPTIONS) or any(map(config.getini, _LOG_KEYS))


#: Failures that pytest prints whole; `-v` prints all.
MOST_FAILURES = 20
#: Longest text that a line on a failure begins with where no figure says how wrong it is.
_SHORT = 60
#: First line of progress, and the shortest time between two, in seconds.
PROGRESS_SECONDS = 30.0
#: Later ones come after this part of the time that has passed: a run of a day need not print 3,000 lines.
_PROGRESS_SHARE = 0.1


@contextmanager
def limited_failures(terminal: pytest.TerminalReporter) -> Iterator[int]:
    """Have pytest print the first failures only, those that rounding does not explain before others.

    Nothing changes with `-v`, for the other tests of a run, and for reports other than the terminal's.

    Yields:
        How many failures it does not print.
    """
    failed: list[Any] = terminal.stats.get("failed", [])
    ours = [report for report in failed if hasattr(report, "msprobe_rounding")]
    if terminal.verbosity > 0 or len(ours) <= MOST_FAILURES:
        yield 0
        return
    ours.sort(key=lambda report: bool(report.msprobe_rounding == EXPLAINED))
    left_out = set(map(id, ours[MOST_FAILURES:]))
    terminal.stats["failed"] = [report for report in failed if id(report) not in left_out]
    try:
        yield len(left_out)
    finally:
        terminal.stats["failed"] = failed


def width_of(terminal: pytest.TerminalReporter) -> int:
    """How wide lines may be; 0 for a file, in which a text stays on one line, so that one can search in it."""
    is_known = terminal.isatty or "COLUMNS" in os.environ
    return max(40, shutil.get_terminal_size().columns) if is_known else 0


def in_short(row: VerdictRow) -> str:
    """How wrong a failed record is, in a few words."""
    worst = row.worst_failure
    if worst is None:
        return abridged(row.message.partition("\n")[0], _SHORT)
    return worst.pattern or how_far(worst.figures, worst.difference) or abridged(worst.message, _SHORT)


class Progress:
    """Prints how far a long run is and how long the rest will take, also under xdist."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Show the progress of the session that starts next; `clock` gives seconds."""
        self._clock = clock
        self._began = 0.0
        self._next = 0.0
        self._done = 0
        self._failed = 0
        self._session: Any = None
        self._terminal: Any = None

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the terminal."""
        self._session = session
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an item when it has ended; print a line when one is due."""
        now = self._clock()
        if not self._began:
            self._began, self._next = now - report.duration, now - report.duration + PROGRESS_SECONDS
        self._failed += report.failed
        if report.when != "teardown":
            return
        self._done += 1
        total = self._session.testscollected
        if now < self._next or self._done >= total or self._terminal is None or self._terminal.verbosity < 0:
            return
        passed = now - self._began
        self._next = now + max(PROGRESS_SECONDS, _PROGRESS_SHARE * passed)
        rest = passed * (total - self._done) / self._done
        failed = optional(", {} failed", self._failed)
        self._terminal.ensure_newline()
        if self._terminal._tw.width_of_current_line:  # under xdist it does not know of the dots that it has printed
            self._terminal._tw.line()
        self._terminal.write_line(f"msprobe: {self._done} of {total} done{failed}; about {duration(rest)} left")


def duration(seconds: float) -> str:
    """A time for people: `40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
