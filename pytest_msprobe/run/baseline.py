"""A run that is held to a baseline: known failures are expected ones, and one line says what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from msprobe_collector.dump_format.values import counted, optional, printable
from pytest_msprobe.reports.baseline import Baseline, BaselineCounts, BaselineError, KnownFailures, read_baseline
from pytest_msprobe.run.settings import RUN, Settings
from pytest_msprobe.suites.contract import Suite, SuiteReport
from pytest_msprobe.verdicts import VerdictRow

_INPUT = "msprobe_baseline"


def known_failures(config: pytest.Config, settings: Settings, suite: Suite) -> KnownFailures | None:
    """What the baseline says of the run of this process; None without one. A worker gets it from the controller.

    Raises:
        pytest.UsageError: the file cannot be read, or is no baseline.
    """
    of_controller = getattr(config, "workerinput", {}).get(_INPUT)
    if of_controller is not None:
        baseline = msgspec.convert(of_controller, Baseline)
    elif settings.baseline is not None:
        baseline = _read(settings.baseline)
    else:
        return None
    return KnownFailures(baseline, suite.name, map(str, suite.files))


def _read(path: Path) -> Baseline:
    try:
        return read_baseline(path)
    except BaselineError as error:
        raise pytest.UsageError(f"--msprobe-baseline={path}: {error}") from None


def baseline_header(settings: Settings, failures: KnownFailures | None) -> Iterator[str]:
    """The line above a run that is held to a baseline."""
    if failures is not None:
        others = optional(", and {} of other dumps", failures.elsewhere)
        yield f"msprobe: baseline: {settings.baseline}: {counted(len(failures.known), 'known failures')}{others}"


def fault_keys(report: SuiteReport) -> list[str]:
    """What makes the run no success although no item failed."""
    return list(dict.fromkeys(map(printable, report.fault_keys())))


class BaselineForWorkers:
    """Gives workers what the baseline says of their suite. Other hosts do not have the file."""

    def __init__(self, path: Path, suite: str) -> None:
        """Of the file at `path`, what is known of `suite`.

        Raises:
            pytest.UsageError: it cannot be read, or is no baseline.
        """
        self._content: dict[str, Any] = msgspec.to_builtins(_read(path).of_suite(suite))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker, also one that replaces another."""
        node.workerinput[_INPUT] = self._content


class BaselineReport:
    """What became of known failures, on the process that writes."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """For the run of `config`; without a baseline nothing is known."""
        self._config = config
        self._settings = settings
        self._counts = BaselineCounts()
        self._absent = 0

    def add(self, name: str, row: VerdictRow) -> None:
        """Count one row; `name` is how reports call its group."""
        if self._settings.baseline is not None:
            self._counts.add(name, row, has_baseline=True)

    def finish(self, session: pytest.Session, report: SuiteReport) -> None:
        """Count the known failures that had no row, and what is known of the run as a whole, where every item ran."""
        failures = self._failures
        terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        # A resumed run leaves out what has a row already.
        left_out = terminal is not None and terminal.stats.get("deselected") and self._settings.resume is None
        if failures is not None and not (left_out or session.shouldstop or session.shouldfail):
            met = sum(count for state, count in self._counts.states.items() if state != "new")
            self._absent = max(0, len(failures.known) - met)
            self._counts.add_run(fault_keys(report), failures.run)

    def lines(self) -> Iterator[str]:
        """The line on all of them."""
        if self._settings.baseline is not None:
            yield from self._counts.lines(absent=self._absent)

    def unknown_fault(self, report: SuiteReport) -> str:
        """Why the run is no success although no item failed; "" where there is no such reason, or it is known."""
        keys = fault_keys(report)
        return "" if keys and self.known_of_run.issuperset(keys) else report.fault()

    @property
    def known_of_run(self) -> frozenset[str]:
        """What the baseline knows of such runs as wholes."""
        return frozenset() if self._failures is None else self._failures.run

    @property
    def _failures(self) -> KnownFailures | None:
        run = self._config.stash.get(RUN, None)
        return None if run is None else run.known_failures
