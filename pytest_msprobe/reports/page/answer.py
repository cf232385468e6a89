"""The sentence at the top of the page, and the few that follow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pytest_msprobe.verdicts import EXPLAINED, Place, VerdictRow

_NAMED = 3
_REASONS = 3
_RANKS = 8


@dataclass(slots=True)
class _Fault:
    """Failures of one API that rounding does not explain.

    Attributes:
        count: of them.
        worst: the largest error over tolerance.
        cells: outer Cells that all of them ran in.
        ranks: on which they are.
    """

    count: int = 0
    worst: float = 0.0
    cells: tuple[str, ...] | None = None
    ranks: set[int | None] = field(default_factory=set)

    def add(self, place: Place, heat: float | None) -> None:
        """Count one failure, and keep what its place has in common with the others'."""
        self.count += 1
        self.worst = max(self.worst, heat or 0.0)
        self.ranks.add(place.rank)
        common = place.cells if self.cells is None else self.cells
        pairs = zip(common, place.cells)
        self.cells = tuple(cell for cell, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class Answer:
    """Counts over rows, taken in any order, and what they say.

    Attributes:
        noun: as in `Suite`.
    """

    noun: str
    _outcomes: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _faults: dict[str, _Fault] = field(default_factory=dict)
    _totals: Counter[str] = field(default_factory=Counter)
    _ranks: set[int | None] = field(default_factory=set)
    _explained: int = 0
    _first: tuple[tuple[Any, ...], VerdictRow, Place] | None = None

    def add(self, row: VerdictRow, place: Place, heat: float | None) -> None:
        """Count one row."""
        self._outcomes[row.outcome] += 1
        api = api_of(row.call)
        self._ranks.add(place.rank)
        self._totals[api] += 1
        if row.status == "skip":
            self._reasons[row.message.partition("\n")[0]] += 1
        if row.outcome != "failed":
            return
        if row.rounding == EXPLAINED:
            self._explained += 1
            return
        self._faults.setdefault(api, _Fault()).add(place, heat)
        order = (place.step or 0, place.order if place.order >= 0 else 1 << 60, place.rank or 0)
        if self._first is None or order < self._first[0]:
            self._first = order, row, place

    def content(self, findings: Sequence[str]) -> dict[str, Any]:
        """The sentences, in types of JSON. `findings` are the suite's own words, which then lead."""
        sentences = [*(findings or [self._sentence()]), *self._more(has_own=bool(findings))]
        headline, _, rest = sentences[0].strip().partition(". ")
        return {
            "headline": headline[:1].upper() + headline[1:],
            "points": [*([rest] if rest else []), *sentences[1:]],
            "is_bad": bool(self._faults) or headline.lower().startswith("at fault"),
            "outcomes": dict(self._outcomes),
            "explained": self._explained,
            "faults": [[api, found.count, self._totals[api]] for api, found in self._ranked()],
            "reasons": [[count, reason] for reason, count in self._reasons.most_common()],
        }

    def _ranked(self) -> list[tuple[str, _Fault]]:
        return sorted(self._faults.items(), key=lambda entry: (-entry[1].count, -entry[1].worst))

    def _sentence(self) -> str:
        total, failed = self._outcomes.total(), self._outcomes["failed"]
        judged = total - self._outcomes["skipped"]
        if not judged:
            return "Nothing was judged."
        if not failed:
            return f"No failure: all {judged} {self.noun} that were judged are within their tolerances."
        if not self._faults:
            which = "The only failure is" if failed == 1 else f"All {failed} failures are"
            return f"{which} explained by rounding: no operation is at fault."
        named = [f"{api} ({fault.count} of {self._totals[api]})" for api, fault in self._ranked()]
        if len(named) == 1:
            ((api, fault),) = self._faults.items()
            return f"{api} is at fault: {fault.count} of its {self._totals[api]} records fail{self._where(fault)}."
        more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
        *front, last = [*named[:_NAMED], *more]
        return f"{len(named)} operations are at fault: {', '.join(front)} and {last}."

    def _where(self, fault: _Fault) -> str:
        """What the failures have in common: a Cell, and some ranks of several."""
        every = "all " if fault.count > 1 else ""
        inside = f", {every}in {fault.cells[-1]}" if fault.cells else ""
        ranks = sorted(rank for rank in fault.ranks if rank is not None)
        if not ranks or fault.ranks == self._ranks:
            return inside
        listed = ", ".join(map(str, ranks[:_RANKS])) + (" and others" if len(ranks) > _RANKS else "")
        return f"{inside}, only on {'rank' if len(ranks) == 1 else 'ranks'} {listed}"

    def _more(self, *, has_own: bool) -> Iterator[str]:
        if self._first is not None and not has_own:
            _, row, place = self._first
            where = f", in {place.cells[-1]}" if place.cells else ""
            rank = f", rank {place.rank}" if place.rank else ""
            yield f"First in execution order: {row.call} {row.label}".rstrip() + f"{where}{rank}."
        if self._explained and self._faults:
            yield (
                f"{self._explained} of the {self._outcomes['failed']} failures are explained by rounding; "
                "--msprobe-standard=backward-error passes those."
            )
        if self._reasons:
            listed = [f"{reason} ({count})" for reason, count in self._reasons.most_common(_REASONS)]
            more = f"; and {len(self._reasons) - _REASONS} more reasons" if len(self._reasons) > _REASONS else ""
            yield f"{self._reasons.total()} not judged: {'; '.join(listed)}{more}"


def api_of(call: str) -> str:
    """What ran, without the number of the call."""
    return call.rpartition(".")[0] or call
