"""Our part of the page that pytest-html writes. Registered on the writing process, and only for `--html`.

Every text that comes from a dump passes `text` on its way.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby, product, repeat
from operator import attrgetter
from typing import Any

import pytest

from msprobe_collector.dump_format.values import counted, optional, printable, shortened
from pytest_msprobe.answers import Answer
from pytest_msprobe.answers.words import said, sentence_of, text_of
from pytest_msprobe.reports.terminal import OUTCOME_WORDS
from pytest_msprobe.suites.contract import CallNames, Suite
from pytest_msprobe.verdicts import Change, Figure, OutputRow, RowCounts, VerdictRow

#: Figures that have a column; the others stand with the outputs that a row unfolds to.
_FIGURES = 3
_LONGEST = 300
_OUTPUTS = 50


def text(value: object, longest: int = _LONGEST) -> str:
    """`value` as harmless markup on one line, cut to `longest` characters."""
    return escape(shortened(printable(" ".join(str(value).split())), longest))


def _columns(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """Name and headline of our columns."""
    named = [(figure.name, figure.title) for figure in figures[:_FIGURES]]
    return [("direction", "Direction"), ("dtype", "Dtype"), ("shape", "Shape"), *named, ("device", "Device")]


def name_cell(name: str, hint: str) -> str:
    """The cell that says what was checked; call 2 sorts before call 10."""
    key = re.sub(r"\d+", lambda number: number.group().zfill(6), name)
    return f'<td class="col-testId" title="{text(hint)}"><!--{text(key)}-->{text(name)}</td>'


def row_cells(row: VerdictRow | None, figures: Sequence[Figure]) -> list[str]:
    """The cells of our columns for the output that is furthest off; without a row, empty ones."""
    cells = {name: _cell(name, "") for name, _ in _columns(figures)}
    if row is None:
        return list(cells.values())
    values: Mapping[str, float | None] = {}
    if (output := row.worst) is not None:
        more = f"{output.label}, the worst of {len(row.outputs)}" if len(row.outputs) > 1 else output.label
        cells["dtype"] = _cell("dtype", output.tested_dtype)
        cells["shape"] = _cell("shape", output.shape, key=f"{math.prod(output.shape):016d}", hint=more)
        values = output.figures
    cells |= {figure.name: _figure_cell(figure, values.get(figure.name)) for figure in figures[:_FIGURES]}
    cells |= {"direction": _cell("direction", row.label), "device": _cell("device", row.device)}
    return list(cells.values())


def number_text(value: float | None, form: str) -> str:
    """A figure, or a dash where it has no meaning."""
    return "-" if value is None else f"{value:{form}}"


def sort_key(value: float | None, *, nan: str = "g", missing: str = "") -> str:
    """A text that sorts as `value` does: pytest-html compares the content of cells as text."""
    if value is None:
        return missing
    if math.isnan(value):
        return nan
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    return f"{bits ^ 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63:016x}"


def details(row: VerdictRow, figures: Sequence[Figure], explanation: str, frames: Sequence[tuple[str, str]]) -> str:
    """What an item unfolds to: explanation (already escaped), picture, outputs and call stack.

    `frames` are (place, source line), innermost first.
    """
    if row.status == "pass":
        lines = [text(row.message), *map(_output_line, row.outputs[:_OUTPUTS], repeat(figures))]
        return "\n".join(filter(None, lines)) or "passed"
    parts = [f"<pre>{explanation.strip()}</pre>"]
    drawn = max(filter(attrgetter("picture"), row.outputs), key=attrgetter("badness"), default=None)
    if drawn is not None and drawn.picture is not None:
        parts += _picture(drawn.label, drawn.picture)
    parts.append("".join(_outputs(row.outputs, figures)))
    if frames:
        listed = "".join(f"<li>{text(place)}<code>{text(source)}</code></li>" for place, source in frames)
        parts.append(f"<h4>Call stack, innermost first</h4><ol>{listed}</ol>")
    # One line: the page's script treats lines that begin with E as those of a traceback.
    return f'<div class="msprobe">{"".join(parts)}</div>'


def _picture(label: str, picture: Mapping[str, Any]) -> Iterator[str]:
    """Where and how much an output is off; see `evidence.pictures.error_picture`."""
    rows, columns = picture["rows"], picture["columns"]
    size = max(3, min(22, 560 // columns, 300 // rows))
    paths: dict[str, str] = {}
    for place in range(rows):
        line, column = picture["cells"][place * columns : (place + 1) * columns], 0
        for mark, group in groupby(line):
            run = len(list(group))
            paths[mark] = f"{paths.get(mark, '')}M{column} {place}h{run}"
            column += run
    nonfinite = "; black: NaN or Inf on one side" if "N" in paths else ""
    of = " x ".join(map("{:,}".format, picture["of"]))
    legend = f"the darker the more; grey is equal{nonfinite}"
    yield f"<figure><figcaption>Where {text(label)} is off: {of} elements, {legend}</figcaption>"
    yield f'<svg role="img" width="{columns * size}" height="{rows * size}" viewBox="0 -.5 {columns} {rows}">'
    for mark, path in sorted(paths.items()):
        yield f'<path class="mark-{mark}" d="{path}"/>'
    yield "</svg><figcaption>Elements by the size of their error</figcaption><table>"
    counts = {"equal": picture["exact"], **{f"from 1e{decade}": count for decade, count in picture["decades"]}}
    most = math.log1p(max(1, *counts.values()))
    for title, count in counts.items():
        width = max(1 if count else 0, round(220 * math.log1p(count) / most))
        yield f'<tr><td>{title}<td><i style="width:{width}px"></i>{count:,}'
    yield "</table></figure>"


def _outputs(outputs: Sequence[OutputRow], figures: Sequence[Figure]) -> Iterator[str]:
    if not outputs:
        return
    titles = "".join(f"<th>{figure.title}" for figure in figures)
    yield f"<table><tr><th>Output<th>Tested<th>Benchmark<th>Shape{titles}<th>Verdict"
    for output in outputs[:_OUTPUTS]:
        words = (output.label, output.tested_dtype, output.bench_dtype, output.shape)
        numbers = [number_text(output.figures.get(figure.name), figure.form) for figure in figures]
        verdict = f"{output.status}{optional(' by {}', output.standard)}"
        verdict = "; ".join(filter(None, (verdict, output.rounding, output.pattern)))
        line = "".join(f"<td>{text(word)}" for word in (*words, *numbers, verdict))
        yield f'<tr class="{text(output.status)}">{line}'
    if len(outputs) > _OUTPUTS:
        yield f"<tr><td colspan={5 + len(figures)}>and {len(outputs) - _OUTPUTS} more"
    yield "</table>"


def _output_line(output: OutputRow, figures: Sequence[Figure]) -> str:
    """A pass in plain text: a table for each of 5,000 would make the page slow."""
    values, standard = output.measured, optional(", by {}", output.standard)
    with_value = [figure for figure in figures[:_FIGURES] if figure.name in values]
    shown = [f"{figure.title.lower()} {values[figure.name]:.9g}" for figure in with_value]
    return text(f"{output.label} {output.tested_dtype} {output.shape}: {', '.join(shown) or 'equal'}{standard}")


def _figure_cell(figure: Figure, value: float | None) -> str:
    # The worst is the lowest or the highest; what has no figure comes after it either way.
    key = sort_key(value, nan="", missing="h") if figure.is_low_bad else sort_key(value)
    return _cell(figure.name, number_text(value, figure.form), key=key)


def _cell(column: str, value: object, *, key: str | None = None, hint: str = "") -> str:
    # pytest-html sorts by what stands between the tags, a comment included.
    comment = "" if key is None else f"<!--{key}-->"
    title = optional(' title="{}"', text(hint))
    return f'<td class="col-{column}"{title}>{comment}{text(value)}</td>'


_REASONS = 10
_CAUSES = 3
_APIS = 1000
#: Styles of the boxes; those of marks are shown where there are any.
_STYLES = {"passed": "pass", "failed": "error"}


@dataclass(slots=True)
class Summary(RowCounts):
    """The block at the top of the page.

    Attributes:
        suite: of the rows.
        worst: by API the worst figure of all outputs by its name, inf or -inf for NaN; of those that were measured.
    """

    suite: Suite | type[Suite] = Suite
    worst: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def figures(self) -> Sequence[Figure]:
        """Numbers that have a column in the table of APIs."""
        return self.suite.figures[:2]

    def add(self, row: VerdictRow) -> None:
        """Count one row."""
        self.count(row)
        worst = self.worst.setdefault(row.api, {})
        for output, figure in product(row.outputs, self.figures):
            value = output.figures.get(figure.name)
            if value is not None:
                worst[figure.name] = figure.worse_of(value, worst.get(figure.name))

    def markup(self, header: Sequence[str], passes: str, answer: Answer | None = None) -> str:
        """The summary as one block.

        Args:
            header: what was tested against what.
            passes: what became of passes.
            answer: of the run; None where there is none.
        """
        parts = [*_answer_parts(answer), *self._parts(header, passes)]
        return f'<div class="msprobe-summary">{"".join(parts)}</div>'

    def _parts(self, header: Sequence[str], passes: str) -> Iterator[str]:
        counts = self.outcomes
        yield '<div class="msprobe-totals">'
        for outcome, word in OUTCOME_WORDS.items():
            if counts[outcome] or outcome in ("passed", "failed", "skipped"):
                yield f'<span class="{_STYLES.get(outcome, "skip")}"><b>{counts[outcome]:,}</b> {word}</span>'
        yield f"</div><p>{self.suite.item_noun}. "
        if counts["passed"] and passes != "show":
            yield {
                "fold": "Passes are folded: tick <i>Passed</i> below to see them.",
                "omit": "Passes are counted, but left out of the table (--msprobe-html-passes=omit).",
            }[passes]
        yield "</p><ul>"
        for line in header:
            yield f"<li>{text(line.removeprefix('msprobe: '), 1000)}</li>"
        yield "</ul>"
        yield from self._api_table()
        yield from self._skip_reasons()

    def _api_table(self) -> Iterator[str]:
        # Failing APIs first, the worst of them on top; then those nearest to the limit.
        ranked = sorted(self.by_api.items(), key=self._rank, reverse=True)
        yield f"<details open><summary>{len(ranked)} {self.suite.group_noun}</summary><div><table><tr>"
        yield f"<th>{self.suite.group_noun}<th>Failed<th>Passed<th>Skipped"
        yield "".join(f"<th>Worst {figure.title.lower()}" for figure in self.figures)
        for name, counts in ranked[:_APIS]:
            state = "pass" if counts["passed"] else "skip"
            if counts["failed"]:
                state = "error"
            numbers = [counts[outcome] or "" for outcome in ("failed", "passed", "skipped")]
            numbers += [_worst_text(self.worst[name].get(figure.name), figure) for figure in self.figures]
            yield f'<tr class="{state}"><td>{"<td>".join(map(str, (text(name), *numbers)))}'
        if len(ranked) > _APIS:
            yield f"<tr><td colspan={4 + len(self.figures)}>and {len(ranked) - _APIS} more"
        yield "</table></div></details>"

    def _rank(self, entry: tuple[str, Counter[str]]) -> tuple[bool, float]:
        name, counts = entry
        worst = self.worst[name]
        values = (worst[figure.name] for figure in self.figures if figure.name in worst and not figure.is_low_bad)
        return bool(counts["failed"]), next(values, -1.0)

    def _skip_reasons(self) -> Iterator[str]:
        if not self.reasons:
            return
        yield f"<details><summary>{self.outcomes['skipped']:,} not judged, and why</summary><div><table>"
        for reason, count in self.reasons.most_common(_REASONS):
            yield f"<tr><td>{count}<td>{text(reason)}"
        if len(self.reasons) > _REASONS:
            yield f"<tr><td><td>and {counted(len(self.reasons) - _REASONS, 'more reasons')}"
        yield "</table></div></details>"


def _answer_parts(answer: Answer | None) -> Iterator[str]:
    """The headline, the first causes, what was not judged and the first command; nothing without an answer."""
    if answer is None:
        return
    answer = said(answer)
    # pytest-html's own headlines are not shown, so that this is none by its tag.
    style = answer.outcome.partition(" ")[0]
    yield f'<p class="msprobe-answer msprobe-{style}" role="heading" aria-level="2">{text(answer.headline)}</p><ul>'
    for finding in answer.findings[:_CAUSES]:
        yield f"<li>{text(sentence_of(finding))}"
    if len(answer.findings) > _CAUSES:
        yield f"<li>and {counted(len(answer.findings) - _CAUSES, 'more causes')}"
    for gap in answer.open[:1]:
        yield f"<li>not judged: {text(text_of(gap))}"
    if command := next(filter(attrgetter("arguments"), answer.next), None):
        yield f"<li>next: <code>{text(command)}</code>"
    yield "</ul>"


def _worst_text(value: float | None, figure: Figure) -> str:
    return "nan" if value is not None and math.isinf(value) and figure.is_low_bad else number_text(value, figure.form)


#: The cell of a result in a row of pytest-html's table.
_RESULT = re.compile(r'(<td class="col-result">)\w+(</td>)')
_NAME_AT = 1
_NO_LOG = "No log output captured."


class HtmlPage:
    """Adds columns, details and a summary; keeps the facts of an item from its verdict to its teardown."""

    def __init__(
        self,
        suite: Suite,
        passes: str,
        header: Callable[[], list[str]],
        markup: Callable[[], str],
        names: CallNames,
        answer: Callable[[], Answer | None] = lambda: None,
    ) -> None:
        """A page that shows, folds or omits `passes` of `suite`, whose groups are called by `names`.

        `answer` gives the answer of the run, `header` the lines and `markup` the pictures above its table, when it is
        written.
        """
        self._answer = answer
        self._title = suite.title
        self._names = names
        self._passes = passes
        self._header = header
        self._markup = markup
        self._figures = suite.figures
        self._summary = Summary(suite=suite)
        self._rows: dict[str, VerdictRow] = {}
        self._stacks: dict[str, Sequence[tuple[str, str]]] = {}
        self._page: Any = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Read the row before it is taken off; release it after pytest-html has counted the item."""
        self._take(report)
        result = yield
        if report.when == "teardown" and self._rows.pop(report.nodeid, None) is not None:
            self._stacks.pop(report.nodeid, None)
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
        cells[_NAME_AT + 1 : _NAME_AT + 1] = [
            f'<th class="sortable" data-column-type="{name}">{title}</th>' for name, title in _columns(self._figures)
        ]

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport | pytest.CollectReport, cells: list[str]) -> None:
        """Fill our cells; a report that is none of ours (another test, a collection error) gets empty ones."""
        if not cells:
            return
        row = self._rows.get(report.nodeid)
        name = self._names.of(row.dump, row.call) if row is not None else report.nodeid
        phase = "" if report.when in ("call", "collect") or row is not None else f"::{report.when}"
        cells[_NAME_AT] = name_cell(f"{name}{phase}", report.nodeid)
        cells[_NAME_AT + 1 : _NAME_AT + 1] = row_cells(row, self._figures)

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: pytest.TestReport, data: list[str]) -> None:
        """What our items unfold to; captured output stays below."""
        row = self._rows.get(report.nodeid)
        if row is None:
            return
        explanation = data.pop(0) if report.longreprtext or data == [_NO_LOG] else ""
        if explanation == _NO_LOG:
            explanation = ""
        data.insert(0, details(row, self._figures, explanation, self._stacks.get(report.nodeid, ())))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Style, and the summary above the table."""
        folder = files("pytest_msprobe.reports")
        style = (folder / "html_page.css").read_text(encoding="utf-8")
        script = (folder / "html_page.js").read_text(encoding="utf-8")
        prefix.append(f"<style>{style}</style>")
        prefix.append(self._summary.markup(self._header(), self._passes, self._answer()))
        prefix.append(self._markup())
        media = any(test["extras"] for tests in self._page.data["tests"].values() for test in tests)
        prefix.append(f'<script data-passes="{self._passes}" data-media="{media}">{script}</script>')

    def change(self, changes: Mapping[str, Change]) -> None:
        """Change what the tests of items are, by their node ids, before the page is written."""
        for node_id, change in changes.items():
            word = "Failed" if change.after == "failed" else "XFailed"
            for test in self._page.data["tests"].get(node_id, []):
                test["result"] = word
                test["log"] = f"<p>{text(change.text, 1000)}</p>{test.get('log', '')}"
                test["resultsTableRow"] = [_RESULT.sub(rf"\g<1>{word}\g<2>", cell) for cell in test["resultsTableRow"]]
            self._page.outcomes[change.before]["value"] -= 1
            self._page.outcomes[change.after]["value"] += 1
            self._summary.outcomes[change.before] -= 1
            self._summary.outcomes[change.after] += 1

    def _take(self, report: pytest.TestReport) -> None:
        wire = getattr(report, "msprobe_row", None)
        if wire is not None and report.outcome != "rerun":  # type: ignore[comparison-overlap]  # pytest-rerunfailures
            row = VerdictRow.from_wire(wire)
            self._summary.add(row)
            self._rows[report.nodeid] = row
        stack = report.__dict__.pop("msprobe_stack", None)
        if stack is not None:
            self._stacks[report.nodeid] = stack

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
