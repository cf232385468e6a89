"""What the terminal says after a run: verdicts, the worst records, why records were skipped."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_msprobe.verdicts import EXPLAINED, Figure, OutputRow, VerdictRow

_WORST = 10
_NEAREST = 3
_FIGURES = 3
_REASONS = 10
_REASON_WIDTH = 150
#: Outcomes in the words of the summary, in its order; the first three are always shown.
_WORDS = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "expected failures",
    "xpassed": "unexpected passes",
}


@dataclass(slots=True)
class VerdictCounts:
    """Running counts over verdict rows; its size does not grow with their number.

    Attributes:
        noun, kinds: plural words for rows, and for rows without their number.
        figures: of the suite.
        outcomes: rows by what pytest made of them.
        benches: rows by the benchmark that judged them.
        reasons: skipped rows by reason.
        failed: errors by API, or by the suite's own kind.
    """

    noun: str = "API calls by direction"
    kinds: str = "APIs"
    figures: Sequence[Figure] = ()
    outcomes: Counter[str] = field(default_factory=Counter)
    benches: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    _explained: int = 0
    _unexplained: list[str] = field(default_factory=list)
    _judged: int = 0
    _worst: list[tuple[tuple[bool, float], int, str, VerdictRow, OutputRow | None]] = field(default_factory=list)

    def add(self, name: str, row: VerdictRow) -> None:
        """Count one row; `name` is how reports call its group."""
        self.outcomes[row.outcome] += 1
        if row.bench:
            self.benches[_group(row.bench)] += 1
        if row.status == "skip":
            self.reasons[row.message] += 1
            return
        is_failed = row.outcome == "failed"
        if is_failed:
            self.failed[row.call.rpartition(".")[0] or row.call] += 1
            self._count_rounding(name, row)
        output = row.worst
        self._judged += 1
        entry = ((is_failed, output.badness[1] if output else math.inf), -self._judged, name, row, output)
        keep = heapq.heappush if len(self._worst) < _WORST else heapq.heappushpop
        keep(self._worst, entry)

    @property
    def total(self) -> int:
        """How many rows there were."""
        return self.outcomes.total()

    @property
    def judged(self) -> int:
        """How many of them have a verdict that is not a skip."""
        return self._judged

    def lines(self) -> Iterator[str]:
        """The summary, line by line."""
        counts = ((word, self.outcomes[outcome]) for outcome, word in _WORDS.items())
        shown = [f"{count} {word}" for place, (word, count) in enumerate(counts) if count or place < 3]
        yield f"{', '.join(shown)} ({self.noun})"
        yield from self._rounding_lines()
        for bench, count in self.benches.most_common():
            yield f"benchmark {bench}: {count} judged"
        yield from self._worst_lines()
        if self.reasons:
            yield ""
            yield "not judged:"
            for reason, count in self.reasons.most_common(_REASONS):
                first = reason.partition("\n")[0]
                yield f"  {count:>6}  {first if len(first) <= _REASON_WIDTH else f'{first[: _REASON_WIDTH - 3]}...'}"
            if len(self.reasons) > _REASONS:
                yield f"  and {len(self.reasons) - _REASONS} more reasons; pytest -rs shows all of them"

    def _count_rounding(self, name: str, row: VerdictRow) -> None:
        if row.rounding == EXPLAINED:
            self._explained += 1
        elif row.rounding:
            far = row.rounding.partition("(")[2].partition(" times")[0]
            self._unexplained.append(f"{name} {row.label}{f' ({far}x)' if far else ''}")

    def _rounding_lines(self) -> Iterator[str]:
        """How many failures rounding explains, where a standard with fixed limits judged."""
        if not self._explained:
            return
        failed = self.failed.total()
        shown = ", ".join(self._unexplained[:_NEAREST])
        more = f" and {len(self._unexplained) - _NEAREST} more" if len(self._unexplained) > _NEAREST else ""
        others = (
            f", {failed - self._explained} not{f': {shown}{more}' if shown else ''}" if failed > self._explained else ""
        )
        yield (
            f"{failed} failed: {self._explained} explained by rounding{others}; "
            "--msprobe-standard=backward-error passes those that rounding explains"
        )

    def _worst_lines(self) -> Iterator[str]:
        ranked = sorted(self._worst, key=lambda entry: entry[:2], reverse=True)
        has_failed = bool(self.failed)
        with_figures = [entry for entry in ranked if entry[4] is not None]
        shown = [entry for entry in ranked if entry[0][0]] if has_failed else with_figures[:_NEAREST]
        if not shown:
            return
        if has_failed:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in self.failed.most_common(_WORST))
            yield f"failing {self.kinds}: {kinds}"
        yield ""
        yield f"worst {self.noun}:" if has_failed else "nearest to the limit:"
        names = [f"{name} {row.label}".rstrip() for _, _, name, row, _ in shown]
        width = max(map(len, names))
        titles = "".join(f"{figure.title.lower():>12}  " for figure in self.figures[:_FIGURES])
        yield f"  {'':{width}}  verdict  {titles}output"
        for name, (_, _, _, row, output) in zip(names, shown):
            yield f"  {name:{width}}  {row.status:7}  {self._cells(row, output)}"

    def _cells(self, row: VerdictRow, output: OutputRow | None) -> str:
        if output is None:
            return row.message.partition("\n")[0][:_REASON_WIDTH]
        figures = ((figure, output.figures.get(figure.name)) for figure in self.figures[:_FIGURES])
        cells = [f"{'-' if value is None else f'{value:{figure.form}}':>12}  " for figure, value in figures]
        return f"{''.join(cells)}{output.label} {output.tested_dtype} {output.shape}"


def _group(bench: str) -> str:
    """Random calls have a law each: the summary counts them together."""
    return "of their laws" if bench.startswith("law: ") else bench
