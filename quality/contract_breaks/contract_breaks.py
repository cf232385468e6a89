"""A pytest plugin that breaks the frame of the runs under test, in one way that CONTRACT_BREAK names.

`python quality/contract_breaks/broken_frames.py` shows that the contract notices each. The breaks work on what pytest
and the plugin promise each other (hooks, options, reports, the JSONL writer): they outlive a change of the frame.
"""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Callable, Generator
from typing import Any

import pytest

BREAK = os.environ["CONTRACT_BREAK"]


def _forget_row(report: pytest.TestReport) -> None:
    for name in [name for name in vars(report) if name.startswith("msprobe")]:
        delattr(report, name)


def _text(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


#: Reports whose row the broken frame loses.
LOSES: dict[str, Callable[[pytest.TestReport], bool]] = {
    "an exception has no row": lambda report: "RuntimeError" in _text(report),
    "a skip mark has no row": lambda report: report.when == "setup" and report.skipped,
    "a dead worker has no row": lambda report: "died in this check" in _text(report),
    "a hanging worker has no row": lambda report: "did not end within" in _text(report),
    "a broken setup has no row": lambda report: report.when == "setup" and report.failed,
    "an expected failure has no row": lambda report: hasattr(report, "wasxfail") and report.skipped,
    "a failure has no row": lambda report: report.when == "call" and report.failed,
}
#: Options that the broken frame takes and ignores.
IGNORES = {
    "-k is ignored": ("keyword", ""),
    "-m is ignored": ("markexpr", ""),
    "--deselect is ignored": ("deselect", None),
    "--lf is ignored": ("lf", False),
    "-x is ignored": ("maxfail", 0),
    "shard is ignored": ("msprobe_shard", None),
    "every shard is the first": ("msprobe_shard", "1/3"),
    "resume is ignored": ("msprobe_resume", None),
    "timeout is ignored": ("msprobe_timeout", "0"),
    "allow-empty is ignored": ("msprobe_allow_empty", None),
}
#: Options that every run of the contract needs.
NEEDED = ("dump", "golden", "gradients", "suite", "out", "jsonl")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take options back before anybody reads them; import a framework."""
    if BREAK in IGNORES and not _is_plain(config):
        setattr(config.option, *IGNORES[BREAK])
    if BREAK == "options without effect are taken":
        for name in [name for name in vars(config.option) if name.startswith("msprobe_")]:
            if name.removeprefix("msprobe_") not in NEEDED:
                setattr(config.option, name, None)
    if BREAK == "a framework is imported":
        sys.modules["torch"] = types.ModuleType("torch")
    if BREAK.startswith("jsonl"):
        _break_jsonl()


def _is_plain(config: pytest.Config) -> bool:
    """Whether nothing but an input is named: breaking "every shard is the first" spares the run that it is held to."""
    return BREAK == "every shard is the first" and not config.getoption("msprobe_shard")


def _break_jsonl() -> None:
    from pytest_msprobe.reports import jsonl

    write = jsonl.JsonLines.write
    waiting: list[tuple[Any, ...]] = []

    def broken(self: Any, *arguments: Any) -> None:
        if BREAK == "jsonl rows are doubled":
            write(self, *arguments)
            write(self, *arguments)
        elif BREAK == "jsonl rows wait for the end":
            waiting.append(arguments)

    jsonl.JsonLines.write = broken  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Take our own plugins and hooks away."""
    plugins = session.config.pluginmanager
    if BREAK == "junit says only the direction" and plugins.has_plugin("msprobe-junit-names"):
        plugins.unregister(name="msprobe-junit-names")
    if BREAK == "the verdict hook is not called":
        hook = session.config.hook.pytest_msprobe_verdict
        for found in hook.get_hookimpls():
            hook._remove_plugin(found.plugin)
    if BREAK == "the page loses a record" and plugins.has_plugin("html"):
        from pytest_html.report_data import ReportData

        ReportData.add_test = _without_the_first(ReportData.add_test)


def _without_the_first(add_test: Callable[..., Any]) -> Callable[..., Any]:
    seen: list[object] = []

    def add(self: Any, test_data: Any, report: Any, *rest: Any, **keywords: Any) -> Any:
        if report.when == "call" and not seen:
            seen.append(report)
            return None
        return add_test(self, test_data, report, *rest, **keywords)

    return add


if BREAK == "the select hook is not asked":

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_msprobe_select() -> bool:
        """Answer before any conftest.py."""
        return True


@pytest.hookimpl
def pytest_itemcollected(item: pytest.Item) -> None:
    """Other node ids."""
    if BREAK == "node ids change":
        item._nodeid = item._nodeid.replace("rank", "card").replace("grad", "g")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fewer items, or items without markers."""
    if BREAK == "a record vanishes":
        del items[-1]
    if BREAK == "items have no markers":
        for item in items:
            item.own_markers.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Lose or change what a report carries, before anybody reads it."""
    if BREAK in LOSES and LOSES[BREAK](report):
        _forget_row(report)
    if BREAK == "the row does not know xfail" and hasattr(report, "wasxfail") and hasattr(report, "msprobe_row"):
        report.msprobe_row["outcome"] = "failed" if report.skipped else "passed"
    if BREAK == "junit has no properties":
        report.user_properties.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """End green whatever happened, after all others have said what they think of the run."""
    yield
    if BREAK == "the run ends green" or (BREAK == "an empty run is green" and session.exitstatus == 5):
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Miscount in the summary line."""
    write_line = terminalreporter.write_line

    def miscount(line: str, **markup: bool) -> None:
        write_line(re.sub(r"^\d+(?= passed, )", "0", line), **markup)

    if BREAK == "the summary miscounts":
        terminalreporter.write_line = miscount  # type: ignore[method-assign]
    yield
