"""What rows of a sharded run amount to: the first wrong place of each pass, a CSV file, and a picture of ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from math import isfinite
from pathlib import Path

from msgspec import structs

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.answers import Answer, Finding, Gap, Place, Reach, RunRows
from pytest_msprobe.answers.from_rows import place_of_calls, short_source
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.reports.csv_pair import TableReport
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.suites.sharded.alone import LawsSession
from pytest_msprobe.suites.sharded.judgement import PHASES, SETTINGS, WRONG, RecordFinding, ValueFinding, roundoff_of
from pytest_msprobe.suites.sharded.session import ShardedSession
from pytest_msprobe.verdicts import StepPosition, VerdictRow

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


COLUMNS = tuple(
    "step record phase role value dtype shape state placement distance tolerance tried ranks source message".split()
)
_SHOWN = 5


@dataclass(slots=True)
class _Step:
    """What is known of one step.

    Attributes:
        states: values by state.
        reasons: records that were not put together, by the reason.
        faults: (place in the execution, lines, whether it is the first one) of records at fault, by pass.
        inherited: records that follow from others, by pass.
        unjudged: values that were not judged, by the reason.
        places: of the records in the picture of ranks.
        beside: records that only ranks have, which are parts of nothing.
        ranks: most ranks that a record was put together from.
        begins: how far apart parameters are where the step begins; 0 for no more than rounding.
        has_optimizer: whether there are records of optimizers.
        by_laws: whether laws judged it, without a logical run.
    """

    states: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[tuple[int, bool, list[str]]]] = field(default_factory=dict)
    inherited: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    places: list[LaneRecord] = field(default_factory=list)
    beside: int = 0
    ranks: int = 0
    begins: float = 0.0
    has_optimizer: bool = False
    by_laws: bool = False

    @property
    def judged(self) -> int:
        """How many values are right or wrong."""
        return sum(self.states[state] for state in ("placed", *WRONG))

    def of_no_law(self) -> Iterator[str]:
        """How many values no law judges."""
        if self.by_laws and self.states["unjudged"]:
            yield f"{counted(self.states['unjudged'], 'values', 'are')} of no law and may be wrong"


@dataclass(frozen=True, slots=True)
class _WrongRecord:
    """A record at fault: its row without what is long, and what was found of it."""

    row: VerdictRow
    finding: RecordFinding
    is_first: bool


def _findings(wrongs: Iterable[_WrongRecord]) -> list[Finding]:
    """One entry for the same operation in several layers, in the order of passes and execution, first ones first."""
    groups: dict[tuple[str, str, str], list[_WrongRecord]] = defaultdict(list)
    in_order = sorted(wrongs, key=lambda it: (not it.is_first, PHASES.index(it.finding.phase), it.finding.order))
    for wrong in in_order:
        path = wrong.finding.wrong[0].path if wrong.finding.wrong else ""
        groups[wrong.row.api, wrong.finding.phase, path].append(wrong)
    return list(map(_entry, groups.values()))


def _entry(group: Sequence[_WrongRecord]) -> Finding:
    first = group[0]
    row, place = first.row, first.row.place or StepPosition()
    cells = [(wrong.row.call, (wrong.row.place or StepPosition()).cell) for wrong in group]
    figures: dict[str, float | int | str] = {}
    if size := max((_size(value) for wrong in group for value in wrong.finding.wrong), default=0.0):
        figures["size"] = size
    steps = () if place.step is None else (place.step,)
    answer_place = Place(
        record=first.finding.record,
        **place_of_calls(row.api if len(group) > 1 else row.call, cells),
        directions=(first.finding.phase,),
        cell=place.cell,
        ranks=first.finding.ranks,
        source=short_source(place.source),
        steps=steps,
    )
    finding = Finding(
        id=row.node_id,
        kind="error",
        confidence="likely" if first.is_first or first.finding.has_good_inputs else "first difference only",
        place=answer_place,
        figures=figures,
        count=len(group),
        detail=row.message,
    )
    if not first.finding.wrong:
        return finding
    value = first.finding.wrong[0]
    figures |= {"state": value.state, "tried": "; ".join(value.tried[:3])}
    for name in ("tolerance", "distance"):
        if (number := getattr(value, name)) is not None:
            figures[name] = number
    return structs.replace(
        finding,
        kind=value.state,
        place=structs.replace(answer_place, value=value.path),
        pattern=value.message if value.path.startswith(SETTINGS) else "",
        detail=f"{value.path}: {value.message}",
    )


def _size(value: ValueFinding) -> float:
    """How far off a value is; 0 where it fits a placement, which it may not have, and where no number says it."""
    distance = value.distance or 0.0
    return distance if isfinite(distance) and distance > (value.tolerance or 0.0) else 0.0


class ShardedSummary(RowSummary):
    """The steps of a run.

    Attributes:
        steps: what is known of each, by the path of the dump that has its items.
    """

    def __init__(self) -> None:
        self.steps: dict[str, _Step] = {}
        self._wrong: list[_WrongRecord] = []

    def add(self, row: VerdictRow) -> None:
        if row.attachment is None or "finding" not in row.attachment:
            return
        of_step = Path(row.dump).parents[1] / "ranks" / "dump.json" if row.attachment.get("by_laws") else row.dump
        step = self.steps.setdefault(str(of_step), _Step())
        finding = RecordFinding.from_wire(row.attachment["finding"])
        role = row.attachment["role"]
        step.places.append(LaneRecord.of(finding, is_first=role == "first"))
        step.states.update(value.state for value in finding.values)
        step.unjudged.update(value.reason or value.message for value in finding.values if value.state == "unjudged")
        for value in finding.values:
            is_begin = value.path.startswith("input.parameters.") and value.state == "placed"
            if is_begin and (value.apart or 0.0) > Roundoffs.SAME_VALUE * roundoff_of(value.dtype):
                step.begins = max(step.begins, value.apart or 0.0)
        step.beside = max(step.beside, row.attachment.get("beside", 0))
        step.ranks = max(step.ranks, len(row.attachment["ranks"]))
        step.by_laws |= bool(row.attachment.get("by_laws"))
        step.has_optimizer |= finding.record.startswith("Optimizer.")
        if finding.reason:
            step.reasons[finding.reason] += 1
        if role in ("first", "own"):
            lines = [finding.record, *map(str, row.attachment.get("told", ()))]
            step.faults.setdefault(finding.phase, []).append((finding.order, role == "first", lines))
            light = replace(row, attachment=None, explanation="")
            self._wrong.append(_WrongRecord(light, finding, is_first=role == "first"))
        elif role == "inherited":
            step.inherited[finding.phase] += 1

    @property
    def is_bad(self) -> bool:
        return any(step.faults or step.inherited for step in self.steps.values())

    def answer(self, rows: RunRows) -> Answer:
        """The first wrong place of each pass; what follows from it is no fault of its own."""
        states = sum((step.states for step in self.steps.values()), Counter[str]())
        by_laws = any(step.by_laws for step in self.steps.values())
        measure = rows.measure("placed by laws" if by_laws else "placed")
        measure = structs.replace(measure, judged=states["placed"], total=states.total(), noun="values of the ranks")
        findings = _findings(self._wrong) or rows.findings(by_order=True)
        answer = rows.made(findings, measure=measure, gaps=[*rows.gaps(), *self._gaps()])
        spread = sum(count for step in self.steps.values() for count in step.inherited.values())
        return structs.replace(answer, reach=Reach(spread))

    def _gaps(self) -> Iterator[Gap]:
        for step in self.steps.values():
            for reason, count in step.unjudged.most_common(_SHOWN):
                yield Gap(kind="no law", count=count, noun="values", reason=reason or "they are of no law")
            for state, kind in (("missing", "not on every rank"), ("unreadable", "unreadable")):
                if step.states[state]:
                    yield Gap(kind=kind, count=step.states[state], noun="values")
            if step.beside:
                yield Gap(kind="ranks alone", count=step.beside, noun="records of ranks")

    def lines(self) -> Iterator[str]:
        for dump, step in self.steps.items():
            yield from map(printable, _lines(step, self._prefix(dump)))

    def _prefix(self, dump: str) -> str:
        """What the first line on a step begins with: its name, where there are several."""
        return f"{Path(dump).parent.parent.name}: " if len(self.steps) > 1 else ""

    def facts(self) -> Iterator[str]:
        """How many values were judged in each step, and by what."""
        for dump, step in self.steps.items():
            yield printable(next(_lines(step, self._prefix(dump))))
            yield from _of_begin(step)
            yield from step.of_no_law()
            yield from _of_optimizer(step)

    def markup(self) -> str:
        return "".join(picture(step.places) for step in self.steps.values())


def _lines(step: _Step, prefix: str) -> Iterator[str]:
    judged, total = step.judged, step.states.total()
    wrong = judged - step.states["placed"]
    if not judged:
        yield f"{prefix}no value was judged"
    elif step.by_laws:
        law = "break a law" if wrong else "obey the laws that they are judged by; there was no logical run"
        yield f"{prefix}{wrong or judged} of {judged} values of the {step.ranks} ranks {law}"
    elif not wrong:
        yield f"{prefix}the {step.ranks} ranks hold what the logical run holds: {judged} of {total} values are placed"
    else:
        yield f"{prefix}{wrong} of {judged} values are not what the logical run holds"
    yield from _of_begin(step)
    for phase in PHASES:
        yield from _of_phase(step, phase)
    yield from step.of_no_law()
    if step.states["unjudged"] and not step.by_laws:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in step.unjudged.most_common(_SHOWN))
        yield f"{counted(step.states['unjudged'], 'values', 'were')} not judged ({reasons})"
    for state, words in (("missing", "not every rank has"), ("unreadable", "cannot be read")):
        if step.states[state]:
            yield f"{counted(step.states[state], 'values')} {words}"
    for reason, count in step.reasons.most_common(_SHOWN):
        yield f"{counted(count, 'records', 'were')} not judged: {reason}"
    if step.beside:
        beside = counted(step.beside, "records of ranks", "were")
        yield f"{beside} not judged: the logical run has no such call or layer"
    yield from _of_optimizer(step)


def _of_begin(step: _Step) -> Iterator[str]:
    if step.begins:
        yield f"the step begins with other parameters ({step.begins:.2g}): what follows was judged with that as given"


def _of_optimizer(step: _Step) -> Iterator[str]:
    if step.judged and not step.has_optimizer:
        where = "of the ranks" if step.by_laws else "of the logical run"
        yield f"what the optimizer got and left is not in the dump {where}, so it was not judged"


def _of_phase(step: _Step, phase: str) -> Iterator[str]:
    faults = sorted(step.faults.get(phase, ()))
    for _, is_first, (record, *lines) in faults[:_SHOWN]:
        yield f"At fault in the {phase}: {record}{'' if is_first else ', whose inputs are right'}"
        yield from map("  {}".format, lines)
    if len(faults) > _SHOWN:
        yield f"and {len(faults) - _SHOWN} more in the {phase}"
    if step.inherited[phase]:
        yield f"{counted(step.inherited[phase], f'records of the {phase}', 'follow')} from that"


class ShardedReport(TableReport):
    """`sharded_result_{time}.csv`, a row per value, and findings."""

    stem = "sharded_result"
    columns = COLUMNS
    summary: ShardedSummary

    def __init__(self, session: ShardedSession | LawsSession, out: Path) -> None:
        """A report with a file in the folder `out`, made when the first row comes."""
        super().__init__(out)
        self._session = session
        self.summary = ShardedSummary()

    def receive(self, name: str, row: VerdictRow) -> None:
        super().receive(name, row)
        if row.attachment is not None and "finding" in row.attachment:
            self.write(_cells(row))

    def facts(self) -> Iterator[str]:
        return self.summary.facts()

    def fault(self) -> str:
        problems = self._session.problems()
        if problems:
            return f"the step is not whole, so this run is not a success: {problems[0]}"
        return ""

    def untested(self) -> str:
        steps = self.summary.steps.values()
        is_judged = any(step.states["placed"] or step.faults or step.inherited for step in steps)
        return "" if is_judged else "no value of the ranks was put together"


def _cells(row: VerdictRow) -> Iterator[list[object]]:
    assert row.attachment is not None
    finding = RecordFinding.from_wire(row.attachment["finding"])
    place = row.place or StepPosition()
    step = "" if place.step is None else place.step
    start = [step, finding.record, finding.phase, row.attachment["role"]]
    ranks = " ".join(map(str, finding.ranks))
    for value in finding.values:
        yield [
            *start,
            value.path,
            value.dtype,
            str(list(value.shape)),
            value.state,
            "any" if value.is_ambiguous else value.placement,
            _number(value.distance),
            _number(value.tolerance),
            "; ".join(value.tried),
            ranks,
            place.source,
            value.message,
        ]
    if not finding.values:
        yield [*start, "", "", "", "unjudged", "", "", "", "", ranks, place.source, finding.reason or row.message]


def _number(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.6g}"
