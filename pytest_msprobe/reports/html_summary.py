"""The top of the HTML page: what was tested against what, verdict totals, and one line per API."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_msprobe.reports.html_cells import number_text, text
from pytest_msprobe.verdicts import Figure, VerdictRow

_REASONS = 10
_APIS = 1000
_FIGURES = 2
#: (outcome, style, word) of the boxes; those of marks are shown where there are any.
_BOXES = (
    ("passed", "pass", "passed"),
    ("failed", "error", "failed"),
    ("skipped", "skip", "skipped"),
    ("xfailed", "skip", "expected failures"),
    ("xpassed", "skip", "unexpected passes"),
)


@dataclass(slots=True)
class ApiCounts:
    """Counts of one API over all its calls and both directions.

    Attributes:
        outcomes: rows by what pytest made of them.
        worst: the worst figure of all outputs by its name, inf or -inf for NaN; of those that were measured.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)

    def add(self, row: VerdictRow, figures: Sequence[Figure]) -> None:
        """Count one row."""
        self.outcomes[row.outcome] += 1
        for output in row.outputs:
            for figure in figures:
                value = output.figures.get(figure.name)
                if value is not None:
                    self.worst[figure.name] = figure.worse_of(value, self.worst.get(figure.name))


@dataclass(slots=True)
class Summary:
    """Running counts over verdict rows; grows with the number of APIs, not of rows.

    Attributes:
        noun: what a row is about.
        kinds: what the rows are counted by, in the plural.
        figures: numbers of an output.
        apis: counts by API, or by the suite's own kind.
        outcomes: rows by what pytest made of them.
        reasons: skipped rows by reason.
    """

    noun: str = "API calls by direction"
    kinds: str = "APIs"
    figures: Sequence[Figure] = ()
    apis: dict[str, ApiCounts] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: VerdictRow) -> None:
        """Count one row."""
        self.outcomes[row.outcome] += 1
        name = row.call.rpartition(".")[0] or row.call
        self.apis.setdefault(name, ApiCounts()).add(row, self.figures[:_FIGURES])
        if row.status == "skip":
            self.reasons[row.message] += 1

    def markup(self, header: Sequence[str], passes: str) -> str:
        """The summary as one block; `header` says what was tested against what, `passes` what became of passes."""
        return f'<div class="msprobe-summary">{"".join(self._parts(header, passes))}</div>'

    def _parts(self, header: Sequence[str], passes: str) -> Iterator[str]:
        counts = self.outcomes
        yield '<div class="msprobe-totals">'
        for outcome, style, word in _BOXES:
            if counts[outcome] or outcome in ("passed", "failed", "skipped"):
                yield f'<span class="{style}"><b>{counts[outcome]:,}</b> {word}</span>'
        yield f"</div><p>{self.noun}. "
        if counts["passed"] and passes != "show":
            yield {
                "fold": "Passes are folded: tick <i>Passed</i> below to see them.",
                "omit": "Passes are counted, but left out of the table (--msprobe-html-passes=omit).",
            }[passes]
        yield "</p><ul>"
        yield from (f"<li>{text(line.removeprefix('msprobe: '), 1000)}</li>" for line in header)
        yield "</ul>"
        yield from self._api_table()
        yield from self._skip_reasons()

    def _api_table(self) -> Iterator[str]:
        # Failing APIs first, the worst of them on top; then those nearest to the limit.
        shown = self.figures[:_FIGURES]
        ranked = sorted(self.apis.items(), key=lambda entry: _rank(entry[1], shown), reverse=True)
        yield f"<details open><summary>{len(ranked)} {self.kinds}</summary><div><table><tr>"
        yield f"<th>{self.kinds}<th>Failed<th>Passed<th>Skipped"
        yield "".join(f"<th>Worst {figure.title.lower()}" for figure in shown)
        for name, tally in ranked[:_APIS]:
            counts = tally.outcomes
            state = "error" if counts["failed"] else "pass" if counts["passed"] else "skip"
            numbers = [counts[outcome] or "" for outcome in ("failed", "passed", "skipped")]
            worst = [_worst_text(tally.worst.get(figure.name), figure) for figure in shown]
            yield f'<tr class="{state}"><td>{text(name)}{"".join(f"<td>{cell}" for cell in (*numbers, *worst))}'
        if len(ranked) > _APIS:
            yield f"<tr><td colspan={4 + len(shown)}>and {len(ranked) - _APIS} more"
        yield "</table></div></details>"

    def _skip_reasons(self) -> Iterator[str]:
        if not self.reasons:
            return
        yield f"<details><summary>{self.outcomes['skipped']:,} not judged, and why</summary><div><table>"
        for reason, count in self.reasons.most_common(_REASONS):
            yield f"<tr><td>{count}<td>{text(reason)}"
        if len(self.reasons) > _REASONS:
            yield f"<tr><td><td>and {len(self.reasons) - _REASONS} more reasons"
        yield "</table></div></details>"


def _rank(tally: ApiCounts, figures: Sequence[Figure]) -> tuple[bool, float]:
    highest = (tally.worst[figure.name] for figure in figures if figure.name in tally.worst and not figure.is_low_bad)
    return bool(tally.outcomes["failed"]), next(highest, -1.0)


def _worst_text(value: float | None, figure: Figure) -> str:
    return "nan" if value is not None and math.isinf(value) and figure.is_low_bad else number_text(value, figure.form)
