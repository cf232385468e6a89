"""The top of the HTML page: what was tested against what, verdict totals, and one line per API."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_msprobe.reports.html_cells import number_text, text
from pytest_msprobe.reports.row import VerdictRow

_REASONS = 10
_APIS = 1000


@dataclass(slots=True)
class ApiTally:
    """Counts of one API over all its calls and both directions.

    Attributes:
        verdicts: rows by verdict.
        max_abs: largest error, inf for NaN; None when none was measured.
        cosine: lowest cosine; -inf for NaN, so that it counts as the worst.
    """

    verdicts: Counter[str] = field(default_factory=Counter)
    max_abs: float | None = None
    cosine: float | None = None

    def add(self, row: VerdictRow) -> None:
        """Count one row."""
        self.verdicts[row.status] += 1
        for output in row.outputs:
            if output.max_abs is not None:
                error = math.inf if math.isnan(output.max_abs) else output.max_abs
                self.max_abs = error if self.max_abs is None else max(self.max_abs, error)
            if output.cosine is not None:
                cosine = -math.inf if math.isnan(output.cosine) else output.cosine
                self.cosine = cosine if self.cosine is None else min(self.cosine, cosine)


@dataclass(slots=True)
class Summary:
    """Running counts over verdict rows; grows with the number of APIs, not of rows.

    Attributes:
        noun: what a row is about.
        apis: counts by API, or by what stands for it.
        verdicts: rows by verdict.
        reasons: skipped rows by reason.
    """

    noun: str = "API calls by direction"
    apis: dict[str, ApiTally] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: VerdictRow) -> None:
        """Count one row."""
        self.verdicts[row.status] += 1
        name = row.call.rpartition(".")[0] if row.direction else row.call
        self.apis.setdefault(name, ApiTally()).add(row)
        if row.status == "skip":
            self.reasons[row.message] += 1

    def markup(self, header: Sequence[str], passes: str) -> str:
        """The summary as one block; `header` says what was tested against what, `passes` what became of passes."""
        return f'<div class="msprobe-summary">{"".join(self._parts(header, passes))}</div>'

    def _parts(self, header: Sequence[str], passes: str) -> Iterator[str]:
        counts = self.verdicts
        boxes = (("pass", "passed"), ("error", "failed"), ("skip", "skipped"))
        yield '<div class="msprobe-totals">'
        yield from (f'<span class="{status}"><b>{counts[status]:,}</b> {word}</span>' for status, word in boxes)
        yield f"</div><p>{self.noun}. "
        if counts["pass"] and passes != "show":
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
        # Failing APIs first, the worst of them on top; then those nearest to the bound.
        ranked = sorted(self.apis.items(), key=lambda entry: _rank(entry[1]), reverse=True)
        yield f"<details open><summary>{len(ranked)} APIs</summary><div><table><tr>"
        yield "<th>API<th>Failed<th>Passed<th>Skipped<th>Largest max abs<th>Lowest cosine"
        for name, tally in ranked[:_APIS]:
            counts = tally.verdicts
            state = "error" if counts["error"] else "pass" if counts["pass"] else "skip"
            numbers = (counts["error"], counts["pass"], counts["skip"])
            worst = (number_text(tally.max_abs, ".3g"), _cosine_text(tally.cosine))
            cells = "".join(f"<td>{number}" for number in (*(number or "" for number in numbers), *worst))
            yield f'<tr class="{state}"><td>{text(name)}{cells}'
        if len(ranked) > _APIS:
            yield f"<tr><td colspan=6>and {len(ranked) - _APIS} more"
        yield "</table></div></details>"

    def _skip_reasons(self) -> Iterator[str]:
        if not self.reasons:
            return
        yield f"<details><summary>{self.verdicts['skip']:,} not judged, and why</summary><div><table>"
        for reason, count in self.reasons.most_common(_REASONS):
            yield f"<tr><td>{count}<td>{text(reason)}"
        if len(self.reasons) > _REASONS:
            yield f"<tr><td><td>and {len(self.reasons) - _REASONS} more reasons, in the result CSV"
        yield "</table></div></details>"


def _rank(tally: ApiTally) -> tuple[bool, float]:
    return bool(tally.verdicts["error"]), -1.0 if tally.max_abs is None else tally.max_abs


def _cosine_text(cosine: float | None) -> str:
    return "nan" if cosine == -math.inf else number_text(cosine, ".9f")
