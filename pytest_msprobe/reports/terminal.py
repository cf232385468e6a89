"""Counts over rows, and what the terminal says of them: verdicts, the worst records, why records were skipped."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.verdicts import EXPLAINED, OutputRow, VerdictRow

_WORST = 10
_WORST_VERBOSE = 50
_NEAREST = 3
_FIGURES = 3
_REASONS = 10
#: With -q, of a run that judged nothing.
_REASONS_QUIET = 3
_REASON_WIDTH = 150
#: Outcomes in the words of the summary, in its order; the first three are always shown.
_WORDS = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "expected failures",
    "xpassed": "unexpected passes",
}


class Line(NamedTuple):
    """One line of the summary.

    Attributes:
        text: without control characters of its own; what it quotes from a dump may have some.
        colour: as pytest colours the same: `red`, `yellow`, `green`; "" for none.
    """

    text: str
    colour: str = ""

    @property
    def markup(self) -> dict[str, bool]:
        """Arguments of pytest's `write_line`."""
        return {self.colour: True} if self.colour else {}


@dataclass(slots=True)
class RowCounts:
    """Running counts over the rows of one suite, in any order; their size does not grow with the number of rows.

    Attributes:
        suite: of the rows, or its class: how it calls them and their figures.
        outcomes: rows by what pytest made of them.
        by_api: the same by API, or by the suite's own kind.
        reasons: skipped rows by reason.
        explained: how many failures rounding explains.
    """

    suite: Suite | type[Suite] = Suite
    outcomes: Counter[str] = field(default_factory=Counter)
    by_api: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    explained: int = 0

    def count(self, row: VerdictRow) -> None:
        """Count one row."""
        self.outcomes[row.outcome] += 1
        self.by_api.setdefault(row.api, Counter())[row.outcome] += 1
        if row.status == "skip":
            self.reasons[row.message] += 1
        self.explained += row.outcome == "failed" and row.rounding == EXPLAINED


@dataclass(slots=True)
class VerdictCounts(RowCounts):
    """The summary of a run; its size does not grow with the number of rows.

    Attributes:
        benches: rows by the benchmark that judged them.
        failed: errors by API, or by the suite's own kind, in the order of their first.
        judged: how many rows have a verdict that is not a skip.
    """

    benches: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    _unexplained: list[str] = field(default_factory=list)
    _first: tuple[tuple[bool, int, int], str] | None = None
    _worst: list[tuple[tuple[bool, bool, float], int, str, VerdictRow, OutputRow | None]] = field(default_factory=list)

    def add(self, name: str, row: VerdictRow) -> None:
        """Count one row; `name` is how reports call its group."""
        self.count(row)
        if row.bench:  # random calls have a law each, and are counted together
            self.benches["of their laws" if row.bench.startswith("law: ") else row.bench] += 1
        if row.status == "skip":
            return
        self.judged += 1
        is_failed = row.outcome == "failed"
        is_wrong = is_failed and row.rounding != EXPLAINED
        if is_failed:
            self.failed[row.api] += 1
            self._note_first(name, row, is_wrong=is_wrong)
        if is_wrong and row.rounding:
            far = row.rounding.partition("(")[2].partition(" times")[0]
            self._unexplained.append(f"{name} {row.label}{f' ({far}x)' if far else ''}")
        output = row.worst
        badness = output.badness[1] if output else math.inf
        entry = ((is_failed, is_wrong, badness), -self.judged, name, row, output)
        keep = heapq.heappush if len(self._worst) < _WORST_VERBOSE else heapq.heappushpop
        keep(self._worst, entry)

    @property
    def total(self) -> int:
        """How many rows there were."""
        return self.outcomes.total()

    def lines(self, verbosity: int = 0) -> Iterator[Line]:
        """The summary, line by line: with `-q` (-1) counts and what failed, with `-v` (1) more records and reasons."""
        counts = ((word, self.outcomes[outcome]) for outcome, word in _WORDS.items())
        shown = [f"{count} {word}" for place, (word, count) in enumerate(counts) if count or place < 3]
        yield Line(f"{', '.join(shown)} ({self.suite.item_noun})", self._colour)
        yield from (Line(text, "red") for text in self._rounding_lines())
        if verbosity >= 0:
            for bench, count in self.benches.most_common():
                yield Line(f"benchmark {bench}: {count} judged")
        if self.failed:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in self.failed.most_common(_WORST))
            more = f" and {len(self.failed) - _WORST} more" if len(self.failed) > _WORST else ""
            yield Line(f"failing {self.suite.group_noun}: {kinds}{more}", "red")
        if verbosity >= 0:
            if self._first is not None and self.failed.total() > 1:
                yield Line(f"first in execution order: {self._first[1]}"[:_REASON_WIDTH], "red")
            yield from self._worst_lines(_WORST_VERBOSE if verbosity > 0 else _WORST)
            yield from self._reason_lines(len(self.reasons) if verbosity > 0 else _REASONS)
        elif not self.judged:
            yield from self._reason_lines(_REASONS_QUIET)

    @property
    def _colour(self) -> str:
        """Colour of the line, by pytest's rules for its own last line."""
        if self.failed:
            return "red"
        return "green" if self.outcomes["passed"] else "yellow"

    def _reason_lines(self, most: int) -> Iterator[Line]:
        if not self.reasons:
            return
        yield Line("")
        yield Line("not judged:", "yellow")
        for reason, count in self.reasons.most_common(most):
            first = reason.partition("\n")[0]
            yield Line(f"  {count:>6}  {first if len(first) <= _REASON_WIDTH else f'{first[: _REASON_WIDTH - 3]}...'}")
        if len(self.reasons) > most:
            yield Line(f"  and {len(self.reasons) - most} more reasons; pytest -v shows all of them")

    def _note_first(self, name: str, row: VerdictRow, *, is_wrong: bool) -> None:
        """Keep the failure that comes first in the training; those that rounding explains come after all others."""
        place = row.place
        if place is None or place.order < 0:
            return
        key = not is_wrong, place.step or 0, place.order
        if self._first is None or key < self._first[0]:
            self._first = key, ", ".join(filter(None, (f"{name} {row.label}".rstrip(), place.source)))

    def _rounding_lines(self) -> Iterator[str]:
        """How many failures rounding explains, where a standard with fixed limits judged."""
        if not self.explained:
            return
        failed = self.failed.total()
        shown = ", ".join(self._unexplained[:_NEAREST])
        more = f" and {len(self._unexplained) - _NEAREST} more" if len(self._unexplained) > _NEAREST else ""
        others = (
            f", {failed - self.explained} not{f': {shown}{more}' if shown else ''}" if failed > self.explained else ""
        )
        yield (
            f"{failed} failed: {self.explained} explained by rounding{others}; "
            "--msprobe-standard=backward-error passes those that rounding explains"
        )

    def _worst_lines(self, most: int) -> Iterator[Line]:
        ranked = sorted(self._worst, key=lambda entry: entry[:2], reverse=True)
        has_failed = bool(self.failed)
        with_figures = [entry for entry in ranked if entry[4] is not None]
        shown = [entry for entry in ranked if entry[0][0]][:most] if has_failed else with_figures[:_NEAREST]
        if not shown:
            return
        yield Line("")
        yield Line(f"worst {self.suite.item_noun}:" if has_failed else "nearest to the limit:")
        names = [f"{name} {row.label}".rstrip() for _, _, name, row, _ in shown]
        width = max(map(len, names))
        titles = "".join(f"{figure.title.lower():>12}  " for figure in self.suite.figures[:_FIGURES])
        yield Line(f"  {'':{width}}  verdict  {titles}output")
        for name, (_, _, _, row, output) in zip(names, shown):
            yield Line(f"  {name:{width}}  {row.status:7}  {self._cells(row, output)}")

    def _cells(self, row: VerdictRow, output: OutputRow | None) -> str:
        if output is None:
            return row.message.partition("\n")[0][:_REASON_WIDTH]
        figures = ((figure, output.figures.get(figure.name)) for figure in self.suite.figures[:_FIGURES])
        cells = [f"{'-' if value is None else f'{value:{figure.form}}':>12}  " for figure, value in figures]
        return f"{''.join(cells)}{output.label} {output.tested_dtype} {output.shape}"
