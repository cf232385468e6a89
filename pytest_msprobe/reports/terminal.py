"""What the terminal says after a run: verdicts, the worst calls, why calls were skipped, and where the reports are."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_msprobe.reports.row import OutputRow, VerdictRow

_WORST = 10
_REASONS = 10
_REASON_WIDTH = 150


@dataclass(slots=True)
class Tally:
    """Running counts over verdict rows; its size does not grow with their number.

    Attributes:
        noun: what a row is about.
        verdicts: rows by verdict.
        benches: rows by the benchmark that judged them.
        reasons: skipped rows by reason.
        failed_calls: errors by API without call number.
    """

    noun: str = "API calls by direction"
    verdicts: Counter[str] = field(default_factory=Counter)
    benches: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failed_calls: Counter[str] = field(default_factory=Counter)
    _worst: list[tuple[tuple[bool, float], int, str, VerdictRow, OutputRow | None]] = field(default_factory=list)
    _seen: int = 0

    def add(self, name: str, row: VerdictRow) -> None:
        """Count one row; `name` is how reports call the API call."""
        self.verdicts[row.status] += 1
        if row.bench:
            self.benches[_group(row.bench)] += 1
        if row.status == "skip":
            self.reasons[row.message] += 1
            return
        if row.status == "error":
            self.failed_calls[row.call.rpartition(".")[0] or row.call] += 1
        output = row.worst
        self._seen += 1
        entry = ((row.status == "error", output.badness[1] if output else math.inf), -self._seen, name, row, output)
        keep = heapq.heappush if len(self._worst) < _WORST else heapq.heappushpop
        keep(self._worst, entry)

    def lines(self) -> Iterator[str]:
        """The summary, line by line."""
        counts = self.verdicts
        yield f"{counts['pass']} passed, {counts['error']} failed, {counts['skip']} skipped ({self.noun})"
        for bench, count in self.benches.most_common():
            yield f"benchmark {bench}: {count} judged"
        yield from self._worst_lines()
        if self.reasons:
            yield ""
            yield "not judged:"
            for reason, count in self.reasons.most_common(_REASONS):
                shown = reason if len(reason) <= _REASON_WIDTH else f"{reason[: _REASON_WIDTH - 3]}..."
                yield f"  {count:>6}  {shown}"
            if len(self.reasons) > _REASONS:
                yield f"  and {len(self.reasons) - _REASONS} more reasons, in the Message column of the result file"

    def _worst_lines(self) -> Iterator[str]:
        ranked = sorted(self._worst, reverse=True)
        has_errors = bool(self.verdicts["error"])
        ranked_outputs = [entry for entry in ranked if entry[4] is not None]
        shown = [entry for entry in ranked if entry[3].status == "error"] if has_errors else ranked_outputs[:3]
        if not shown:
            return
        if has_errors:
            apis = ", ".join(f"{api} ({count})" for api, count in self.failed_calls.most_common(_WORST))
            yield f"failing APIs: {apis}"
        yield ""
        yield "worst API calls:" if has_errors else "nearest to the bound:"
        names = [f"{name} {row.direction or 'record'}" for _, _, name, row, _ in shown]
        width = max(map(len, names))
        yield f"  {'':{width}}  verdict  {'cosine':>12}  {'max abs':>10}  {'max rel':>10}  output"
        for name, (_, _, _, row, output) in zip(names, shown):
            yield f"  {name:{width}}  {row.status:7}  {_figures(row, output)}"


def _figures(row: VerdictRow, output: OutputRow | None) -> str:
    if output is None:
        return row.message[:_REASON_WIDTH]
    cells = (_figure(output.cosine, "12.9f"), _figure(output.max_abs, "10.2e"), _figure(output.max_rel, "10.2e"))
    return f"{'  '.join(cells)}  {output.label} {output.tested_dtype} {output.shape}"


def _figure(value: float | None, form: str) -> str:
    return f"{'-':>{form.partition('.')[0]}}" if value is None else f"{value:{form}}"


def _group(bench: str) -> str:
    """Random calls have a law each: the summary counts them together."""
    return "of their laws" if bench.startswith("law: ") else bench
