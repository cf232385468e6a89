"""What the rows of a sharded run amount to: the first wrong place of each pass, and a CSV file with a row per value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

from msgspec import structs

from msprobe_collector.dump_format.values import counted, printable
from pytest_msprobe.answers import Answer, Finding, Gap, Place, Reach, RunRows
from pytest_msprobe.answers.from_rows import place_of_calls, short_source
from pytest_msprobe.numerics.expected import Roundoffs
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.suites.sharded.alone import LawsSession
from pytest_msprobe.suites.sharded.judgement import PHASES, SETTINGS, WRONG, RecordFinding, ValueFinding, roundoff_of
from pytest_msprobe.suites.sharded.lanes import Place as LanePlace, picture
from pytest_msprobe.suites.sharded.session import ShardedSession
from pytest_msprobe.suites.table_report import TableReport
from pytest_msprobe.verdicts import VerdictRow

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
    places: list[LanePlace] = field(default_factory=list)
    beside: int = 0
    ranks: int = 0
    begins: float = 0.0
    has_optimizer: bool = False
    by_laws: bool = False


@dataclass(frozen=True, slots=True)
class _Wrong:
    """A record at fault: its row without what is long, and what was found of it."""

    row: VerdictRow
    finding: RecordFinding
    is_first: bool


def _findings(wrongs: Iterable[_Wrong]) -> list[Finding]:
    """One entry for the same operation in several layers, in the order of passes and execution, first ones first."""
    groups: dict[tuple[str, str, str], list[_Wrong]] = {}
    for wrong in sorted(wrongs, key=lambda one: (not one.is_first, PHASES.index(one.finding.phase), one.finding.order)):
        key = wrong.row.api, wrong.finding.phase, wrong.finding.wrong[0].path if wrong.finding.wrong else ""
        groups.setdefault(key, []).append(wrong)
    return [_entry(group) for group in groups.values()]


def _entry(group: Sequence[_Wrong]) -> Finding:
    first = group[0]
    row, place = first.row, first.row.place
    values = first.finding.wrong
    value = values[0] if values else None
    cells = [(one.row.call, one.row.place.cells[-1] if one.row.place and one.row.place.cells else "") for one in group]
    sizes = [size for one in group for wrong in one.finding.wrong if (size := _size(wrong)) is not None]
    figures: dict[str, float | int | str] = {"size": max(sizes)} if sizes else {}
    if value is not None:
        figures |= {"state": value.state, "tried": "; ".join(value.tried[:3])}
        figures |= {} if value.tolerance is None else {"tolerance": value.tolerance}
        figures |= {} if value.distance is None else {"distance": value.distance}
    return Finding(
        id=row.node_id,
        kind=value.state if value is not None else "error",
        confidence="likely" if first.is_first or first.finding.has_good_inputs else "first difference only",
        place=Place(
            record=first.finding.record,
            **place_of_calls(row.api if len(group) > 1 else row.call, cells),
            directions=(first.finding.phase,),
            value=value.path if value is not None else "",
            source=short_source(place.source) if place is not None else "",
            cell=place.cells[-1] if place is not None and place.cells else "",
            ranks=first.finding.ranks,
            steps=() if place is None or place.step is None else (place.step,),
        ),
        figures=figures,
        count=len(group),
        pattern=value.message if value is not None and value.path.startswith(SETTINGS) else "",
        detail=f"{value.path}: {value.message}" if value is not None else row.message,
    )


def _size(value: ValueFinding) -> float | None:
    """How far off a value is; None where it fits a placement, which it may not have, and where no number says it."""
    if value.distance is None or not isfinite(value.distance) or value.distance <= (value.tolerance or 0.0):
        return None
    return value.distance


class ShardedSummary(RowSummary):
    """The steps of a run.

    Attributes:
        steps: what is known of each, by the path of the dump that has its items.
    """

    def __init__(self) -> None:
        self.steps: dict[str, _Step] = {}
        self._wrong: list[_Wrong] = []

    def add(self, row: VerdictRow) -> None:
        if row.attachment is None or "finding" not in row.attachment:
            return
        of_step = Path(row.dump).parents[1] / "ranks" / "dump.json" if row.attachment.get("by_laws") else row.dump
        step = self.steps.setdefault(str(of_step), _Step())
        finding = RecordFinding.from_wire(row.attachment["finding"])
        role = row.attachment["role"]
        step.places.append(LanePlace.of(finding, is_first=role == "first"))
        step.states.update(value.state for value in finding.values)
        step.unjudged.update(value.reason or value.message for value in finding.values if value.state == "unjudged")
        begins = [one for one in finding.values if one.path.startswith("input.parameters.") and one.state == "placed"]
        far = (one.apart for one in begins if (one.apart or 0.0) > Roundoffs.SAME_VALUE * roundoff_of(one.dtype))
        step.begins = max(step.begins, *(one or 0.0 for one in far), 0.0)
        step.beside = max(step.beside, row.attachment.get("beside", 0))
        step.ranks = max(step.ranks, len(row.attachment["ranks"]))
        step.by_laws |= bool(row.attachment.get("by_laws"))
        step.has_optimizer |= finding.record.startswith("Optimizer.")
        if finding.reason:
            step.reasons[finding.reason] += 1
        if role in ("first", "own"):
            told = [str(line) for line in row.attachment.get("told", ())]
            entry = finding.order, role == "first", [finding.record, *told]
            step.faults.setdefault(finding.phase, []).append(entry)
            light = replace(row, attachment=None, explanation="")
            self._wrong.append(_Wrong(light, finding, is_first=role == "first"))
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
            prefix = f"{Path(dump).parent.parent.name}: " if len(self.steps) > 1 else ""
            yield from (printable(line) for line in _lines(step, prefix))

    def facts(self) -> Iterator[str]:
        """How many values were judged in each step, and by what."""
        for dump, step in self.steps.items():
            prefix = f"{Path(dump).parent.parent.name}: " if len(self.steps) > 1 else ""
            yield printable(next(_lines(step, prefix)))
            yield from _of_begin(step)
            if step.by_laws and step.states["unjudged"]:
                yield f"{counted(step.states['unjudged'], 'values', 'are')} of no law and may be wrong"
            yield from _of_optimizer(step)

    def markup(self) -> str:
        return "".join(picture(step.places) for step in self.steps.values())


def _lines(step: _Step, prefix: str) -> Iterator[str]:
    judged, total = sum(step.states[state] for state in ("placed", *WRONG)), step.states.total()
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
    if step.by_laws and step.states["unjudged"]:
        yield f"{counted(step.states['unjudged'], 'values', 'are')} of no law and may be wrong"
    elif step.states["unjudged"]:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in step.unjudged.most_common(_SHOWN))
        yield f"{counted(step.states['unjudged'], 'values', 'were')} not judged ({reasons})"
    for state, words in (("missing", "not every rank has"), ("unreadable", "cannot be read")):
        if step.states[state]:
            yield f"{counted(step.states[state], 'values')} {words}"
    yield from (
        f"{counted(count, 'records', 'were')} not judged: {reason}"
        for reason, count in step.reasons.most_common(_SHOWN)
    )
    if step.beside:
        beside = counted(step.beside, "records of ranks", "were")
        yield f"{beside} not judged: the logical run has no such call or layer"
    yield from _of_optimizer(step)


def _of_begin(step: _Step) -> Iterator[str]:
    if step.begins:
        yield f"the step begins with other parameters ({step.begins:.2g}): what follows was judged with that as given"


def _of_optimizer(step: _Step) -> Iterator[str]:
    if any(step.states[state] for state in ("placed", *WRONG)) and not step.has_optimizer:
        where = "of the ranks" if step.by_laws else "of the logical run"
        yield f"what the optimizer got and left is not in the dump {where}, so it was not judged"


def _of_phase(step: _Step, phase: str) -> Iterator[str]:
    faults = sorted(step.faults.get(phase, ()))
    for _, is_first, (record, *told) in faults[:_SHOWN]:
        yield f"At fault in the {phase}: {record}{'' if is_first else ', whose inputs are right'}"
        yield from (f"  {line}" for line in told)
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
    step, source = (row.place.step, row.place.source) if row.place is not None else (None, "")
    start = ["" if step is None else step, finding.record, finding.phase, row.attachment["role"]]
    ranks = " ".join(map(str, finding.ranks))
    for value in finding.values:
        figures = ["" if one is None else f"{one:.6g}" for one in (value.distance, value.tolerance)]
        where = "any" if value.is_ambiguous else value.placement
        shape, tried = str(list(value.shape)), "; ".join(value.tried)
        yield [
            *start,
            value.path,
            value.dtype,
            shape,
            value.state,
            where,
            *figures,
            tried,
            ranks,
            source,
            value.message,
        ]
    if not finding.values:
        yield [*start, "", "", "", "unjudged", "", "", "", "", ranks, source, finding.reason or row.message]
