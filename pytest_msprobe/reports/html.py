"""Our part of the page that pytest-html writes. Registered on the writing process, and only for `--html`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from importlib.resources import files
from typing import Any

import pytest

from pytest_msprobe.reports import html_cells
from pytest_msprobe.reports.html_summary import Summary
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.verdicts import Figure, VerdictRow

_NAME_AT = 1
_NO_LOG = "No log output captured."


class HtmlPage:
    """Adds columns, details and a summary; keeps the facts of an item from its verdict to its teardown."""

    def __init__(
        self,
        passes: str,
        header: Callable[[], list[str]],
        markup: Callable[[], str],
        names: CallNames,
        *,
        title: str,
        noun: str,
        kinds: str,
        figures: Sequence[Figure],
    ) -> None:
        """A page that shows, folds or omits `passes`.

        `header` gives the lines and `markup` the pictures above its table, when it is written; `noun` says what a row
        is about, `kinds` what rows are counted by, `figures` are the numbers of an output.
        """
        self._title = title
        self._names = names
        self._passes = passes
        self._header = header
        self._markup = markup
        self._figures = tuple(figures)
        self._summary = Summary(noun, kinds, self._figures)
        self._rows: dict[str, VerdictRow] = {}
        self._details: dict[str, dict[str, Any]] = {}
        self._page: Any = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Read the row before it is taken off; release it after pytest-html has counted the item."""
        self._take(report)
        result = yield
        if report.when == "teardown" and self._rows.pop(report.nodeid, None) is not None:
            self._details.pop(report.nodeid, None)
            self._lighten(report.nodeid)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_report_title(self, report: Any) -> None:
        """Title, and rows that open folded: the explanations of 500 failures would hide the overview."""
        report.title = self._title
        if report.config.getini("render_collapsed") == "passed":
            report.data["renderCollapsed"] = "all"
        self._page = report

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Put our columns after the name."""
        cells[_NAME_AT] = '<th class="sortable" data-column-type="testId">API</th>'
        cells[_NAME_AT + 1 : _NAME_AT + 1] = html_cells.headers(self._figures)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport | pytest.CollectReport, cells: list[str]) -> None:
        """Fill our cells; a report that is none of ours (another test, a collection error) gets empty ones."""
        if not cells:
            return
        row = self._rows.get(report.nodeid)
        name = self._names.of(row.dump, row.call) if row is not None else report.nodeid
        phase = "" if report.when in ("call", "collect") or row is not None else f"::{report.when}"
        cells[_NAME_AT] = html_cells.name_cell(f"{name}{phase}", report.nodeid)
        cells[_NAME_AT + 1 : _NAME_AT + 1] = html_cells.cells(row, self._figures)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: pytest.TestReport, data: list[str]) -> None:
        """What our items unfold to; captured output stays below."""
        row = self._rows.get(report.nodeid)
        if row is None:
            return
        explanation = data.pop(0) if report.longreprtext or data == [_NO_LOG] else ""
        if explanation == _NO_LOG:
            explanation = ""
        data.insert(0, html_cells.details(row, self._figures, explanation, self._details.get(report.nodeid, {})))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Style, and the summary above the table."""
        folder = files("pytest_msprobe.reports")
        style = (folder / "html_page.css").read_text(encoding="utf-8")
        script = (folder / "html_page.js").read_text(encoding="utf-8")
        prefix.append(f"<style>{style}</style>")
        prefix.append(self._summary.markup(self._header(), self._passes))
        prefix.append(self._markup())
        media = any(test["extras"] for tests in self._page.data["tests"].values() for test in tests)
        prefix.append(f'<script data-passes="{self._passes}" data-media="{media}">{script}</script>')

    def _take(self, report: pytest.TestReport) -> None:
        wire = getattr(report, "msprobe_row", None)
        if wire is not None and report.outcome != "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures
            row = VerdictRow.from_wire(wire)
            self._summary.add(row)
            self._rows[report.nodeid] = row
        found = report.__dict__.pop("msprobe_details", None)
        if found is not None:
            self._details[report.nodeid] = found

    def _lighten(self, node_id: str) -> None:
        """Take what need not be on the page off it, after it was counted: omitted passes, and cells one by one."""
        tests = self._page.data["tests"]
        shown = tests.pop(node_id, [])
        if self._passes == "omit":
            # Emptying the cells in the row hook would take the pass out of pytest-html's totals as well.
            shown = [test for test in shown if test.get("result") != "Passed"]
        for test in shown:
            # The page's script makes a fragment for each entry: of 60,000 it would take seconds.
            test["resultsTableRow"] = ["".join(test["resultsTableRow"])]
        if shown:
            tests[node_id] = shown
