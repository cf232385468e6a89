"""A picture for the HTML page: each rank a lane, each logical record a place in it, coloured by how it is held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from pytest_msprobe.suites.sharded.judgement import PHASES, RecordFinding

#: What a rank holds of the first output of a record, with its colour.
KINDS = {
    "R": ("#7aa6d8", "all of it"),
    "S": ("#7fc08a", "a shard"),
    "P": ("#e6b35a", "terms of a sum"),
    "unjudged": ("#dddddd", "not judged"),
    "wrong": ("#c0392b", "not what the logical run holds"),
}
_WIDTH, _LEFT, _HEIGHT, _SMALL = 900, 64, 14, 5


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """A logical record in the lanes.

    Attributes:
        key: place among the records: pass, then execution order.
        record: its name.
        kind: see `KINDS`.
        ranks: that hold it.
        is_first: whether it is the first wrong place.
    """

    key: tuple[int, int]
    record: str
    kind: str
    ranks: frozenset[int]
    is_first: bool

    @classmethod
    def of(cls, finding: RecordFinding, *, is_first: bool) -> LaneRecord:
        """The place of a record; ranks hold it as the first value that it made."""
        placed = [value for value in finding.values if value.state == "placed"]
        first = min(placed, key=lambda value: not value.is_output, default=None)
        kind = "unjudged" if first is None else first.held_as
        key = PHASES.index(finding.phase), finding.order
        return cls(key, finding.record, "wrong" if finding.wrong else kind, frozenset(finding.ranks), is_first)


def picture(places: Sequence[LaneRecord]) -> str:
    """The lanes as SVG, with a legend; "" where no record was put together."""
    ordered = sorted(places, key=lambda place: place.key)
    ranks = sorted({rank for place in ordered for rank in place.ranks})
    if not ranks:
        return ""
    # More lanes than this are drawn small.
    step, height = _WIDTH / len(ordered), _HEIGHT if len(ranks) <= 24 else _SMALL
    body = [line for lane, rank in enumerate(ranks) for line in _lane(ordered, rank, lane * height, step, height)]
    for at, place in enumerate(ordered):
        if place.is_first:
            x, bottom = _LEFT + at * step, len(ranks) * height
            title = f"<title>first wrong place: {escape(place.record)}</title>"
            body.append(f'<path d="M{x:.1f} 0V{bottom}" stroke="currentColor" stroke-width="2">{title}</path>')
    legend = "".join(f'<span style="background:{colour}">&nbsp;</span> {words} ' for colour, words in KINDS.values())
    size = f'viewBox="0 0 {_LEFT + _WIDTH} {len(ranks) * height}" style="width: 100%; max-width: {_LEFT + _WIDTH}px"'
    first = next((f"; first wrong place: {escape(place.record)}" for place in ordered if place.is_first), "")
    title = f"<p>Ranks over the {len(ordered)} records of the logical run{first}</p>"
    return f'<div class="msprobe-summary msprobe-lanes">{title}<svg {size}>{"".join(body)}</svg><p>{legend}</p></div>'


def _lane(ordered: Sequence[LaneRecord], rank: int, top: int, step: float, height: int) -> Iterator[str]:
    """The rectangles of a rank, one for records in a row that it holds alike."""
    if height == _HEIGHT:
        yield f'<text x="0" y="{top + height - 4}" font-size="10" fill="currentColor">rank {rank}</text>'
    at = 0
    for kind, group in groupby(ordered, key=lambda place: place.kind if rank in place.ranks else ""):
        run = list(group)
        if kind:
            names = run[0].record if len(run) == 1 else f"{run[0].record} to {run[-1].record}"
            place = f'x="{_LEFT + at * step:.1f}" y="{top}" width="{len(run) * step:.1f}" height="{height - 1}"'
            title = f"<title>rank {rank}: {KINDS[kind][1]}: {escape(names)}</title>"
            yield f'<rect {place} fill="{KINDS[kind][0]}">{title}</rect>'
        at += len(run)
