"""The answer of a run from its rows alone: failed rows of one operation are one cause, over layers, calls and ranks.

A suite that knows more, such as where a difference comes from, changes what comes out here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Any

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.answer import About, Answer, Measure, Outcome
from pytest_msprobe.answers.finding import Confidence, Finding, Gap, NextStep, Place
from pytest_msprobe.numerics.expected import Share, Times
from pytest_msprobe.verdicts import (
    DEFAULT_OPERANDS,
    EXPECTED,
    EXPLAINED,
    MOOT,
    RANDOM,
    UNREADABLE,
    OutputRow,
    RowCounts,
    StepPosition,
    VerdictRow,
)

#: So many calls of one cause are told apart; more are counted.
_MOST_CALLS = 10_000
#: Properties of rows whose failure is known: of an xfail mark, and of --msprobe-baseline.
_EXPECTED = {EXPECTED, "baseline"}
#: Options of a run that a command which repeats a part of it leaves out: files that it writes, and how it runs.
_NOT_REPEATED = re.compile(
    r"-(q+|v+|n\d*|x|rN|k|pno:.*|-capture=no)$|--(tb|junit-?xml|html|lf|maxfail|durations|self-contained-html|numprocesses)\b"
    r"|--msprobe-(diagnosis|sarif|jsonl|page|out|resume|shard|table)\b"
)
_TAKES_VALUE = ("-k", "-n", "--junitxml", "--junit-xml", "--html", "--maxfail", "--durations", "--numprocesses")
#: Names of figures that are relative sizes of an error.
_SIZES = ("distance", "max_rel")
_COUNTED = ("passed", "failed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What is known of a run beside its rows.

    Attributes:
        suite: its name.
        item_noun: what its items are, in the plural.
        arguments: of pytest, as it was started.
        about: what is judged, and what it is held to.
        passing: what a pass shows, a kind of `Measure`.
        limits: of the standard, where a pass is within these.
        certainty: confidence in a failure of this suite.
        excuses: whether the suite itself expects failures (xfailed), of records that inherit what is wrong.
        answer: file that the answer is written to, for commands that read it; "" for none.
        keyword: of -k; "" without one.
        is_selected: whether only a part of the items was to run, by -k, a shard or the like.
    """

    suite: str = ""
    item_noun: str = "records"
    arguments: tuple[str, ...] = ()
    about: tuple[About, ...] = ()
    passing: str = "passed"
    limits: Mapping[str, float] = field(default_factory=dict)
    certainty: Confidence = "likely"
    excuses: bool = False
    answer: str = ""
    keyword: str = ""
    is_selected: bool = False

    def command(self, *more: str, keyword: str = "", keeps_selection: bool = True) -> tuple[str, ...]:
        """The command that repeats the run with `more` arguments, without the files that it wrote.

        Args:
            more: arguments behind those of the run; one that the run has already is not given twice.
            keyword: what -k selects besides what the run selected.
            keeps_selection: whether the selection of the run by -k stays.
        """
        kept: list[str] = []
        is_value = False
        replaced = {argument.partition("=")[0] for argument in more if argument.startswith("--")}
        following = (*self.arguments[1:], "")
        for argument, after in zip(self.arguments, following):
            if is_value:
                is_value = False
            elif argument == "-p" and after.startswith("no:"):
                is_value = True
            elif _NOT_REPEATED.match(argument):
                is_value = argument in _TAKES_VALUE
            elif argument.partition("=")[0] not in replaced:
                kept.append(argument)
        if self.keyword and keeps_selection:
            keyword = f"({self.keyword}) and ({keyword})" if keyword else self.keyword
        if keyword:
            kept += ["-k", keyword]
        return ("pytest", *kept, *more)


@dataclass(slots=True)
class _Cause:
    """Failed rows of one cause.

    Attributes:
        worst: the one that is most wrong.
        rows: the first ones that came.
    """

    worst: VerdictRow
    rows: list[VerdictRow] = field(default_factory=list)
    count: int = 0
    parts: dict[str, None] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    steps: set[int] = field(default_factory=set)

    def add(self, row: VerdictRow) -> None:
        self.count += 1
        if len(self.rows) < _MOST_CALLS:
            self.rows.append(row)
        if _badness(row) > _badness(self.worst):
            self.worst = row
        if row.direction:
            self.parts.setdefault(row.direction)
        place = row.place or StepPosition()
        if len(self.calls) < _MOST_CALLS:
            self.calls.setdefault(row.call, place.cell)
        if place.rank is not None:
            self.ranks.add(place.rank)
        if place.step is not None:
            self.steps.add(place.step)

    @property
    def row(self) -> VerdictRow:
        """The first one in the order of execution, of those that are about as wrong as the worst one."""
        least = Share.OF_WORST * _badness(self.worst)
        return min((row for row in self.rows if _badness(row) >= least), key=_order, default=self.worst)


@dataclass(slots=True)
class _Counted:
    """The first row of one reason, and how many rows have it."""

    first: VerdictRow
    count: int = 0

    def finding(self, kind: str, operation: str, **more: Any) -> Finding:
        """Return what the rows say as a finding of a kind, about an operation or a file."""
        row, place = self.first, Place(record=self.first.record, operation=operation)
        return Finding(id=row.node_id, kind=kind, confidence="proved", place=place, count=self.count, **more)


class RunRows:
    """The rows of one run, taken as they come, in any order: all are counted, and those that do not pass are kept.

    Attributes:
        facts: what is known of the run beside its rows.
        counts: of all rows.
        known: what a baseline knows of the run as a whole.
        following: node ids of what follows from the causes that the suite has named, or shows the same cause once more.
    """

    def __init__(self, facts: RowFacts, counts: RowCounts) -> None:
        self.facts = facts
        self.counts = counts
        self.known: frozenset[str] = frozenset()
        self.following: set[str] = set()
        self._causes: dict[tuple[str, str, bool], _Cause] = {}
        self._skipped: dict[str, _Counted] = {}
        self._unreadable: dict[str, _Counted] = {}
        self._explained: _Counted | None = None
        self._inherited: _Counted | None = None
        self._expected: set[str] = set()
        self._moot = 0
        self._known_of_run: dict[str, None] = {}
        self._by_default: dict[str, list[VerdictRow]] = {}

    def add(self, row: VerdictRow) -> None:
        """Take one row that is no plain pass; `counts` has counted it."""
        light = replace(row, attachment=None, explanation="", run=None)
        if row.outcome == "xfailed":
            if not self.facts.excuses or _EXPECTED & dict(row.properties).keys():
                self._expected.add(row.node_id)
            else:
                self._inherited = self._inherited or _Counted(light)
                self._inherited.count += 1
        if row.outcome == "failed" and row.rounding == EXPLAINED:
            self._explained = self._explained or _Counted(light)
            self._explained.count += 1
        elif row.outcome == "failed" and UNREADABLE in dict(row.properties):
            self._unreadable.setdefault(row.dump, _Counted(light)).count += 1
        elif row.outcome == "failed" and (format_name := dict(row.properties).get(DEFAULT_OPERANDS, "none")) != "none":
            self._by_default.setdefault(str(format_name), []).append(light)
        elif row.outcome == "failed":
            self._causes.setdefault(_cause(row), _Cause(light)).add(light)
        elif row.status == "skip" and MOOT in dict(row.properties):
            self._moot += 1
        elif row.status == "skip":
            self._skipped.setdefault(row.message, _Counted(light)).count += 1

    @property
    def unreadable(self) -> int:
        """Failed rows whose record could not be read."""
        return sum(map(attrgetter("count"), self._unreadable.values()))

    @property
    def judged(self) -> int:
        """Rows with a verdict."""
        return self.counts.total - self.counts.reasons.total()

    def is_expected(self, node_id: str) -> bool:
        """Whether the failure of an item was expected."""
        return node_id in self._expected

    def is_known(self, key: str) -> bool:
        """Whether the baseline knows `key` of the run as a whole; what is asked for is said to be known."""
        if key in self.known:
            self._known_of_run.setdefault(key)
        return key in self.known

    def file_id(self, dump: str) -> str:
        """The first part of node ids of the dump at a path."""
        return self.counts.files.get(dump, dump)

    def measure(self, kind: str = "", **more: Any) -> Measure:
        """What was counted, and what a pass shows: `kind`, by default what the suite says of its passes."""
        kind = kind or self.facts.passing
        limits = dict(self.facts.limits) if kind == "limits" else {}
        total, noun = self.counts.total - self._moot, self.facts.item_noun
        return Measure(kind=kind, judged=self.judged, total=total, noun=noun, limits=limits, **more)

    def answer(self) -> Answer:
        """What the rows amount to."""
        return self.made(self.findings())

    def made(
        self,
        findings: Sequence[Finding] = (),
        *,
        measure: Measure | None = None,
        next_steps: Sequence[NextStep] | None = None,
        gaps: Sequence[Gap] | None = None,
        are_new: bool = False,
        is_judged: bool = True,
    ) -> Answer:
        """An answer with what every suite says alike: counts, what was not judged, what to do next.

        It is wrong where there is a finding; where there is none, nothing was judged or all that was is right.

        Args:
            findings: causes, the most important first.
            measure: what was counted; None for the rows.
            next_steps: what tells more; None for a command that repeats the first cause.
            gaps: what was not judged; None for the rows that were skipped.
            are_new: whether `findings` has no expected failures; else those whose item is one are left out.
            is_judged: False where the verdicts say nothing of what was to be judged.
        """
        new = [finding for finding in findings if are_new or finding.id not in self._expected]
        new = (new or self.findings(by_order=True)) + self._of_rows()
        if not new and self._inherited is not None and self.facts.is_selected:
            # The record that makes what these inherit was left out of the run.
            row = self._inherited.first
            new.append(self._inherited.finding("cause not selected", row.call, detail=row.message))
        outcome: Outcome = "right" if self.judged and is_judged else "nothing judged"
        if new:
            outcome = "wrong"
        steps = self.next_steps(new) if next_steps is None else next_steps
        other_steps = [step for step in steps if step.arguments != ("pytest", *self.facts.arguments)]
        about = self.facts.about or tuple(About(path=dump) for dump in self.counts.files)
        return Answer(
            suite=self.facts.suite,
            outcome=outcome,
            findings=tuple(new),
            open=tuple(gaps if gaps is not None else self.gaps()),
            next=tuple(other_steps),
            about=about,
            measure=measure or self.measure(),
            counts={word: self.counts.outcomes[word] for word in _COUNTED if self.counts.outcomes[word]},
        )

    def by_default(self) -> Mapping[str, list[VerdictRow]]:
        """Failed rows of what a device does by default, and did everywhere, by format; else they have a cause."""
        if len(self._by_default) > 1 or self.counts.has_full_operands:
            for row in chain(*self._by_default.values()):
                self._causes.setdefault(_cause(row), _Cause(row)).add(row)
            self._by_default = {}
        return self._by_default

    def findings(self, *, by_order: bool = False) -> list[Finding]:
        """The failed rows by their causes, the worst first, or `by_order` of execution."""
        self.by_default()
        causes = sorted(self._causes.values(), key=lambda cause: _order(cause.row))
        if not by_order:
            # Wrong values go before records of which nothing was compared, the worst first.
            causes.sort(key=lambda cause: (_kind(cause.row) == "error", -_badness(cause.worst)))
        return list(map(self._finding, causes))

    def _of_rows(self) -> list[Finding]:
        """What fails for another reason than its numbers: records that cannot be read, limits that rounding passes."""
        findings, total = [], {"total": self.counts.total}
        for dump, entry in sorted(self._unreadable.items(), key=lambda entry: -entry[1].count):
            findings.append(entry.finding("unreadable", dump, figures=total, detail=entry.first.message))
        if self._explained is not None:
            findings.append(self._explained.finding("limits", self._explained.first.api))
        return findings

    def gaps(self) -> list[Gap]:
        """What the rows say was not judged, the most frequent reason first."""
        noun = self.facts.item_noun
        gaps = []
        for reason, entry in sorted(self._skipped.items(), key=lambda entry: (-entry[1].count, entry[0])):
            kind = "random" if RANDOM in dict(entry.first.properties) else "skipped"
            gaps.append(Gap(kind=kind, what=_name(entry.first), count=entry.count, noun=noun, reason=reason))
        if expected := len(self._expected):
            gaps.append(Gap(kind="expected", count=expected, noun=noun))
        gaps += [Gap(kind="by default", what=name, count=len(rows)) for name, rows in self.by_default().items()]
        gaps += [Gap(kind="known", what=key) for key in self._known_of_run]
        return gaps

    def next_steps(self, findings: Sequence[Finding]) -> list[NextStep]:
        """A command that repeats the first cause alone, or passes what rounding explains."""
        if not findings or not self.facts.arguments:
            return []
        first = findings[0]
        if first.kind == "cause not selected":
            return [NextStep("all", self.facts.command(keeps_selection=False))]
        if first.kind == "limits":
            return [NextStep("rounding", self.facts.command("--msprobe-standard=backward-error"))]
        call = call_of(first.place.record)
        if not call or call in self.facts.keyword:
            return []
        return [NextStep("figures", self.facts.command("-v", keyword=call))]

    def _finding(self, cause: _Cause) -> Finding:
        row, failure, pattern = cause.row, cause.worst.worst_failure, ""
        # Wrong elements that are everywhere and follow no rule have nothing in common.
        if failure is not None and failure.pattern_kind not in ("none", "noise"):
            pattern = failure.pattern
        place = row.place or StepPosition()
        kind = _kind(row)
        of_calls = place_of_calls(row.api if len(cause.calls) > 1 else row.call, list(cause.calls.items()))
        if _is_kind(row):
            of_calls["operation"] = f"{kind} of {of_calls['operation']}"
        return Finding(
            id=row.node_id,
            kind=kind,
            confidence=self.facts.certainty,
            place=Place(
                record=row.record,
                **of_calls,
                directions=tuple(cause.parts),
                value="" if failure is None else failure.label,
                source=short_source(place.source),
                cell=place.cell,
                ranks=tuple(sorted(cause.ranks)),
                steps=tuple(sorted(cause.steps)),
            ),
            figures=figures_of(cause.worst.worst),
            pattern=pattern,
            count=cause.count,
            detail=_detail(cause.worst),
        )


def place_of_calls(operation: str, calls: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Operation, number of calls, and of several calls the numbers of their layers or of themselves.

    Args:
        operation: the call, or of several calls their API.
        calls: (name, innermost Cell) of each.
    """
    if len(calls) < 2:
        return {"operation": operation}
    layers = [re.split(r"(\d+)", cell) for _, cell in calls]
    if len({tuple(parts[::2]) for parts in layers}) == 1:
        columns = [set(column) for column in list(zip(*layers))[1::2] if len(set(column)) > 1]
        if len(columns) == 1:
            return {"operation": operation, "calls": len(calls), "layers": tuple(sorted(set(map(int, columns[0]))))}
    ends = {name.rpartition(".")[2] for name, _ in calls}
    numbers = tuple(sorted(set(map(int, ends)))) if all(map(str.isdecimal, ends)) else ()
    return {"operation": operation, "calls": len(calls), "numbers": numbers}


def call_of(record: str) -> str:
    """The call that a record belongs to, as `-k` finds its items: `Mint.exp.0` of `Mint.exp.0.forward`."""
    return Operation.of(record, 0).call


def figures_of(output: OutputRow | None) -> dict[str, float | int | str]:
    """The figures of an output, its dtype, and whether rounding explains it."""
    if output is None:
        return {}
    texts = {"dtype": output.tested_dtype, "rounding": output.rounding, "difference": output.difference}
    return {**output.measured, **{name: text for name, text in texts.items() if text}}


def short_source(source: str) -> str:
    """`train.py:25` of `train.py:25, in forward: x = ...`."""
    return source.partition(", in ")[0]


def size_of(output: OutputRow | None) -> float | None:
    """The relative size of the error of an output; None where no figure says it."""
    if output is None:
        return None
    for name in _SIZES:
        value = output.figures.get(name)
        if value is not None and math.isfinite(value):
            return value
    return None


def _kind(row: VerdictRow) -> str:
    """The suite's own word, the part that is no direction, `error` where nothing was compared, else `wrong`."""
    if kind := dict(row.properties).get("kind"):
        return str(kind)
    if _is_kind(row):
        return row.part
    return "error" if row.worst_failure is None else "wrong"


def _cause(row: VerdictRow) -> tuple[str, str, bool]:
    """Equal for rows of one cause; what is hardly beyond its tolerance is another one than what is far beyond."""
    ratio = None if row.worst is None else row.worst.ratio
    return row.api, _kind(row), ratio is not None and ratio < Times.EXCESS


def _is_kind(row: VerdictRow) -> bool:
    """Whether the parts of a call are what it is asked, such as the laws of an optimizer, and no directions."""
    return row.direction is None and len(row.recorded) > 1


def _detail(row: VerdictRow) -> str:
    failure = row.worst_failure
    if failure is not None and failure.message:
        return f"{failure.label}: {failure.message}"
    return row.message or "failed"


def _name(row: VerdictRow) -> str:
    return f"{row.call} {row.label}".rstrip()


def _order(row: VerdictRow) -> tuple[int, int, int]:
    place = row.place or StepPosition()
    return place.step or 0, place.order if place.order >= 0 else 1 << 60, place.rank or 0


def _badness(row: VerdictRow) -> float:
    failure = row.worst_failure
    return math.inf if failure is None else failure.badness[1]
