"""The diagnosis of a run from its rows alone: failed rows of one operation are one cause, over layers, calls and ranks.

A suite that knows more, such as where a difference comes from, changes what comes out here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.diagnosis.value import (
    AtFault,
    CannotSay,
    Confidence,
    Diagnosis,
    NextStep,
    Outcome,
    abridged,
    figure,
    headline,
    listed_numbers,
    of_ranks,
    readable,
)
from pytest_msprobe.verdicts import EXPECTED, EXPLAINED, MOOT, OutputRow, RowCounts, VerdictRow

#: So many calls of one cause are told apart; more are counted.
_MOST_CALLS = 10_000
#: Above so many times its tolerance an error is no mistake of the tolerance (docs/figures.md).
HARDLY = 2.0
#: Rows of one cause that are so much less wrong than the worst one do not stand for it.
_ALIKE = 0.1
#: What differs between texts on records that cannot be read for one reason.
_TELLING = re.compile(r"'[^']*'|\S*[./\[]\S*|\d+")
#: Properties of rows whose failure is known: of an xfail mark, and of --msprobe-baseline.
_EXPECTED = {EXPECTED, "baseline"}
#: Options of a run that a command which repeats a part of it leaves out: files that it writes, and how it runs.
_NOT_REPEATED = re.compile(
    r"-(q+|v+|n\d*|x|rN|k|pno:(cacheprovider|unraisableexception|threadexception)|-capture=no)$|--(tb|junit-?xml|html|lf|maxfail|durations|self-contained-html|numprocesses)\b"
    r"|--msprobe-(diagnosis|jsonl|page|out|resume|shard|table)\b"
)
_TAKES_VALUE = ("-k", "-n", "--junitxml", "--junit-xml", "--html", "--maxfail", "--durations", "--numprocesses", "-m")
#: Figures that say how wrong an output is, and how a reader is told.
_HOW = (
    ("ratio", "{} x its tolerance"),
    ("distance", "off by {} of its size"),
    ("max_abs", "off by {}"),
    ("similarity", "similarity {}"),
    ("nan", "{} NaN"),
    ("inf", "{} Inf"),
)
#: Names of figures that are relative sizes of an error.
_SIZES = ("distance", "max_rel")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run beside its rows.

    Attributes:
        suite: its name.
        item_noun: what its items are, in the plural.
        arguments: of pytest, as it was started.
        dumps: paths of what is judged.
        passing: what a run amounts to in which everything was judged and passed.
        certainty: confidence in a failure of this suite.
        excuses: whether the suite itself expects failures (xfailed), of records that inherit what is wrong.
        answer: file that the diagnosis is written to, for commands that read it; "" for none.
        is_selected: whether only a part of the items was to run, by -k, a shard or the like.
    """

    suite: str = ""
    item_noun: str = "records"
    arguments: tuple[str, ...] = ()
    dumps: tuple[str, ...] = ()
    passing: Outcome = "unaccounted"
    certainty: Confidence = "likely"
    excuses: bool = False
    answer: str = ""
    is_selected: bool = False

    def command(self, *more: str) -> tuple[str, ...]:
        """The command that repeats the run with `more` arguments, without the files that it wrote."""
        kept: list[str] = []
        is_value = False
        for argument in self.arguments:
            if is_value:
                is_value = False
            elif _NOT_REPEATED.match(argument):
                is_value = argument in _TAKES_VALUE
            else:
                kept.append(argument)
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
        place = row.place
        if len(self.calls) < _MOST_CALLS:
            self.calls.setdefault(row.call, place.cells[-1] if place is not None and place.cells else "")
        if place is not None:
            self.ranks.update(() if place.rank is None else (place.rank,))
            self.steps.update(() if place.step is None else (place.step,))

    @property
    def row(self) -> VerdictRow:
        """The first one in the order of execution, of those that are about as wrong as the worst one."""
        least = _ALIKE * _badness(self.worst)
        return min((row for row in self.rows if _badness(row) >= least), key=_order, default=self.worst)


class RunRows:
    """The rows of one run, taken as they come, in any order: all are counted, and those that do not pass are kept.

    Attributes:
        facts: what is known of the run beside its rows.
        counts: of all rows.
        gaps: what was not judged for another reason than a row says, which adds to it.
        known: what a baseline knows of the run as a whole.
    """

    def __init__(self, facts: RunFacts, counts: RowCounts) -> None:
        self.facts = facts
        self.counts = counts
        self.gaps: list[CannotSay] = []
        self.known: frozenset[str] = frozenset()
        self._causes: dict[tuple[str, str, bool], _Cause] = {}
        self._skipped: dict[str, tuple[str, int]] = {}
        self._unreadable: dict[str, tuple[str, str, int]] = {}
        self._expected: set[str] = set()
        self._known_of_run: dict[str, None] = {}

    def add(self, row: VerdictRow) -> None:
        """Take one row that is no plain pass; `counts` has counted it."""
        if row.outcome == "xfailed" and (not self.facts.excuses or _EXPECTED & {name for name, _ in row.properties}):
            self._expected.add(row.node_id)
        if row.outcome == "failed" and row.rounding == EXPLAINED:
            return
        if row.outcome == "failed" and _is_unreadable(row):
            reason = _TELLING.sub("...", row.message)
            name, message, count = self._unreadable.get(reason, (_name(row), row.message, 0))
            self._unreadable[reason] = name, message, count + 1
        elif row.outcome == "failed":
            light = replace(row, attachment=None, explanation="", run=None)
            self._causes.setdefault(_cause(row), _Cause(light)).add(light)
        elif row.status == "skip" and not any(name == MOOT for name, _ in row.properties):
            name, count = self._skipped.get(row.message, (_name(row), 0))
            self._skipped[row.message] = name, count + 1

    @property
    def unreadable(self) -> int:
        """Failed rows whose record could not be read."""
        return sum(count for _, _, count in self._unreadable.values())

    @property
    def has_gaps(self) -> bool:
        """Whether a part was not judged, or its failures were expected."""
        return bool(
            self.counts.explained
            or self._unreadable
            or self._skipped
            or self.gaps
            or self._expected
            or self._known_of_run
            or self.counts.outcomes["xpassed"]
        )

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

    @property
    def _left(self) -> int:
        """Rows that were to be judged and were not."""
        return sum(count for _, count in self._skipped.values())

    def file_id(self, dump: str) -> str:
        """The first part of node ids of the dump at a path."""
        return self.counts.files.get(dump, dump)

    def diagnosis(self) -> Diagnosis:
        """What the rows amount to."""
        at_fault = self.at_fault()
        outcome = self.outcome(is_fault=bool(at_fault))
        return self.made(outcome, at_fault)

    def made(
        self,
        outcome: Outcome,
        at_fault: Sequence[AtFault] = (),
        told: str = "",
        next_steps: Sequence[NextStep] | None = None,
        unjudged: Sequence[CannotSay] | None = None,
        *,
        are_new: bool = False,
    ) -> Diagnosis:
        """A diagnosis with what every suite says alike: counts, what was not judged, the headline, what to do next.

        Args:
            outcome: of the run.
            at_fault: causes, the most important first.
            told: the headline without its first word, where nothing is at fault; "" for the default one.
            next_steps: what tells more; None for a command that repeats the first cause.
            unjudged: what was not judged; None for the rows that were skipped.
            are_new: whether `at_fault` has no expected failures; else those whose item is one are left out.
        """
        at_fault = [each for each in at_fault if are_new or each.id not in self._expected]
        if outcome == "fault" and not at_fault:
            outcome = "unaccounted"
        gaps = [*self.gaps, *(self.unjudged() if unjudged is None else unjudged)]
        line = headline_of(outcome, at_fault) if at_fault else headline(outcome, told or self._told(outcome, gaps))
        steps = self.next_steps(at_fault) if next_steps is None else next_steps
        return Diagnosis(
            suite=self.facts.suite,
            outcome=outcome,
            headline=line,
            at_fault=tuple(at_fault),
            cannot_say=tuple(gaps),
            next=tuple(step for step in steps if step.arguments != ("pytest", *self.facts.arguments)),
            dumps=self.facts.dumps or tuple(self.counts.files),
            counts={word: count for word in _COUNTED if (count := self.counts.outcomes[word])},
        )

    def outcome(self, *, is_fault: bool, passing: Outcome | None = None) -> Outcome:
        """What the rows amount to: passes are worth no more than what they cover, at most `passing`."""
        if is_fault:
            return "fault"
        if not self.judged:
            return "not_judged"
        if self.has_gaps:
            return "unaccounted"
        return passing or self.facts.passing

    def at_fault(self, *, by_order: bool = False) -> list[AtFault]:
        """The failed rows by their causes, the worst first, or `by_order` of execution."""
        causes = sorted(
            self._causes.values(),
            key=lambda cause: (*(() if by_order else _rank_of(cause)), _order(cause.row)),
        )
        return [self._fault(cause) for cause in causes]

    def unjudged(self) -> list[CannotSay]:
        """What the rows say was not judged, the most frequent reason first."""
        found = [
            CannotSay(name if count == 1 else f"{count} {self.facts.item_noun}, the first {name}", reason, count)
            for reason, (name, count) in sorted(self._skipped.items(), key=lambda entry: (-entry[1][1], entry[0]))
        ]
        found = [
            *(
                CannotSay(name if count == 1 else f"{count} {self.facts.item_noun}, the first {name}", message, count)
                for name, message, count in sorted(self._unreadable.values(), key=lambda entry: -entry[2])
            ),
            *found,
        ]
        if explained := self.counts.explained:
            why = "beyond the fixed limits of the standard, and rounding explains it"
            hint = "--msprobe-standard=backward-error passes them"
            found.insert(0, CannotSay(counted(explained, self.facts.item_noun), f"{why}: {hint}", explained))
        if expected := len(self._expected):
            found.append(CannotSay(counted(expected, self.facts.item_noun), "their failures were expected", expected))
        found += [CannotSay(key, "the baseline knows it") for key in self._known_of_run]
        return found

    def next_steps(self, at_fault: Sequence[AtFault]) -> list[NextStep]:
        """A command that repeats the first cause alone."""
        if not at_fault or not self.facts.arguments:
            return []
        return [NextStep(self.facts.command("-k", call_of(at_fault[0].record), "-v"), "all figures of this call")]

    def _fault(self, cause: _Cause) -> AtFault:
        row, worst = cause.row, cause.worst.worst
        place = row.place
        sentence = _sentence(cause.worst)
        if cause.count > 1 and cause.worst is not row:
            sentence = f"worst in {_name(cause.worst)}: {sentence}"
        kind = _kind(row)
        name = named(row.api if len(cause.calls) > 1 else row.call, list(cause.calls.items()), tuple(cause.parts))
        return AtFault(
            id=row.node_id,
            record=_record(row),
            kind=kind,
            confidence=self.facts.certainty,
            name=f"{kind} of {name}" if _is_kind(row) else name,
            sentence=sentence,
            how=how_wrong(worst) or abridged(cause.worst.message, 40),
            value=worst.label if worst is not None and worst.status == "error" else "",
            size=_size(worst),
            source=short_source(place.source) if place is not None else "",
            cell=place.cells[-1] if place is not None and place.cells else "",
            ranks=tuple(sorted(cause.ranks)),
            steps=tuple(sorted(cause.steps)),
            count=cause.count,
            evidence=evidence_of(worst),
        )

    def _told(self, outcome: Outcome, gaps: Sequence[CannotSay]) -> str:
        noun = self.facts.item_noun
        judged = counted(self.judged, noun)
        if outcome == "not_judged":
            return gaps[0].why if gaps else f"there are no {noun}"
        if outcome == "unaccounted":
            left = self._left
            if self.unreadable:
                return f"{self.unreadable} of {counted(self.counts.total, noun)} cannot be read, nothing else is wrong"
            if expected := len(self._expected) + len(self._known_of_run):
                more = f"; {counted(left, '', 'were')} not judged" if left else ""
                failures = counted(expected, "expected failures")
                return f"{failures}, nothing else is wrong in {judged}{more}"
            if left:
                return f"nothing is wrong in {judged}; {counted(left, '', 'were')} not judged"
            if self.counts.explained:
                return f"{counted(self.counts.explained, noun, 'are')} beyond fixed limits, by rounding"
            if gaps:
                return f"nothing is wrong in {judged}; not judged: {gaps[0].what}"
            every = "" if self.judged == 1 else "all "
            return f"{every}{counted(self.judged, noun, 'are')} within fixed limits, which rounding need not explain"
        return f"all {judged}{' that were selected' if self.facts.is_selected else ''}"


_COUNTED = ("passed", "failed", "skipped", "xfailed", "xpassed")


def headline_of(outcome: Outcome, at_fault: Sequence[AtFault]) -> str:
    """The headline of a run in which something is at fault, or differs first."""
    first = at_fault[0]
    name = re.sub(r",? forward(?: and backward)?$", "", first.name)
    where = f" in {first.cell}" if first.cell and " layers " not in first.name and first.cell not in first.name else ""
    rank = of_ranks(first.ranks) if first.ranks and first.ranks != (0,) else ""
    start = "first difference in " if first.confidence == "first difference only" else ""
    return headline(outcome, f"{start}{name}{where}", first.how, rank, source=first.source, others=len(at_fault) - 1)


def named(operation: str, calls: Sequence[tuple[str, str]], directions: Sequence[str]) -> str:
    """`Functional.gelu in 12 layers (0 to 11), forward and backward`.

    Args:
        operation: the call, or of several calls their API.
        calls: (name, innermost Cell) of each.
        directions: that are meant.
    """
    both = [word for word in ("forward", "backward") if word in directions]
    ending = f", {' and '.join(both)}" if len(calls) > 1 and both else f" {' and '.join(both)}" if both else ""
    if len(calls) < 2:
        return f"{operation}{ending}"
    return f"{operation} in {_calls_or_layers(calls)}{ending}"


def _calls_or_layers(calls: Sequence[tuple[str, str]]) -> str:
    layers = [re.split(r"(\d+)", cell) for _, cell in calls]
    if len({tuple(parts[::2]) for parts in layers}) == 1:
        columns = [column for column in list(zip(*layers))[1::2] if len(set(column)) > 1]
        if len(columns) == 1:
            numbers = {int(number) for number in columns[0]}
            return f"{len(numbers)} layers ({listed_numbers(numbers)})"
    ends = [name.rpartition(".")[2] for name, _ in calls]
    known = f" ({listed_numbers({int(end) for end in ends})})" if all(end.isdecimal() for end in ends) else ""
    return f"{len(calls)} calls{known if len(known) < 40 else ''}"


def call_of(record: str) -> str:
    """The call that a record belongs to, as `-k` finds its items: `Mint.exp.0` of `Mint.exp.0.forward`."""
    return Operation.of(record, 0).call


def how_wrong(output: OutputRow | None) -> str:
    """How wrong an output is, in a few words; "" where no figure says it."""
    if output is None or output.status != "error":
        return ""
    distance, tolerance = output.figures.get("distance"), output.figures.get("tolerance")
    if distance is not None and tolerance is not None and 0 < distance <= tolerance:
        return ""  # it is wrong in another way than by its size
    for name, words in _HOW:
        value = output.figures.get(name)
        # Of a value that must be equal the distance says how wrong it is, not how many times no tolerance.
        is_exact = name == "ratio" and tolerance == 0 and distance is not None
        if value and not is_exact:
            return words.format(figure(value)) if math.isfinite(value) else "not finite on one side"
    return ""


def evidence_of(output: OutputRow | None) -> dict[str, float | int | str]:
    """The figures of an output, and what its wrong elements have in common."""
    if output is None:
        return {}
    found: dict[str, float | int | str] = {name: value for name, value in output.figures.items() if value is not None}
    texts = {"dtype": output.tested_dtype, "pattern": output.pattern, "rounding": output.rounding}
    texts["pattern_kind"] = output.pattern_kind
    if output.pattern_figure is not None:
        found["pattern_figure"] = output.pattern_figure
    return found | {name: text for name, text in texts.items() if text}


def short_source(source: str) -> str:
    """`train.py:25` of `train.py:25, in forward: x = ...`."""
    return source.partition(", in ")[0]


def _size(output: OutputRow | None) -> float | None:
    if output is None:
        return None
    found = (output.figures.get(name) for name in _SIZES)
    return next((value for value in found if value is not None and math.isfinite(value)), None)


def _kind(row: VerdictRow) -> str:
    """The suite's own word, the part that is no direction, `error` where nothing was compared, else `wrong`."""
    known: Mapping[str, object] = dict(row.properties)
    if kind := known.get("kind"):
        return str(kind)
    if _is_kind(row):
        return row.part
    output = row.worst
    return "wrong" if output is not None and output.status == "error" else "error"


def _cause(row: VerdictRow) -> tuple[str, str, bool]:
    """Equal for rows of one cause; what is hardly beyond its tolerance is another one than what is far beyond."""
    output = row.worst
    ratio = output.ratio if output is not None else None
    return row.api, _kind(row), ratio is not None and ratio < HARDLY


def _is_kind(row: VerdictRow) -> bool:
    """Whether the parts of a call are what it is asked, such as the laws of an optimizer, and no directions."""
    return row.direction is None and len(row.recorded) > 1


def _is_unreadable(row: VerdictRow) -> bool:
    """Whether the record failed since its dump cannot be read: such a text begins with the path of the dump."""
    return not row.outputs and row.message.startswith(f"{row.dump}: ")


def _sentence(row: VerdictRow) -> str:
    output = row.worst
    if output is not None and output.status == "error" and output.message:
        return readable(f"{output.label}: {output.message}")
    return readable(row.message) or "failed"


def _record(row: VerdictRow) -> str:
    return f"{row.call}.{row.part}" if row.direction else row.call


def _name(row: VerdictRow) -> str:
    return f"{row.call} {row.label}".rstrip()


def _order(row: VerdictRow) -> tuple[int, int, int]:
    place = row.place
    if place is None:
        return 0, 1 << 60, 0
    return place.step or 0, place.order if place.order >= 0 else 1 << 60, place.rank or 0


def _badness(row: VerdictRow) -> float:
    output = row.worst
    return output.badness[1] if output is not None and output.status == "error" else math.inf


def _rank_of(cause: _Cause) -> tuple[bool, float]:
    """Sort key: values that are wrong before records of which nothing was compared, the worst first."""
    return _kind(cause.row) == "error", -_badness(cause.worst)


def with_setup(found: Diagnosis, manifest: tuple[str, ...], explains: Sequence[str]) -> Diagnosis:
    """`found`, of two runs that are set up differently: what `explains` values that no operation made comes first."""
    if not explains or not all(fault.kind in _BEFORE for fault in found.at_fault):
        return structs.replace(found, manifest=manifest)
    at_fault = tuple(structs.replace(fault, confidence="first difference only") for fault in found.at_fault)
    line = headline(found.outcome, explains[0], f"then {at_fault[0].name}") if at_fault else found.headline
    return structs.replace(found, manifest=manifest, at_fault=at_fault, headline=line)


#: Kinds of values that no operation of the run has made.
_BEFORE = ("parameter", "batch", "unknown")


def with_gaps(found: Diagnosis, gaps: Iterable[CannotSay]) -> Diagnosis:
    """`found`, of which more was not judged: what passed then shows less."""
    left = tuple(gaps)
    if not left:
        return found
    outcome: Outcome = "unaccounted" if found.outcome in ("rounding", "equal") else found.outcome
    line = found.headline
    if outcome != found.outcome:
        line = headline(outcome, f"nothing is found wrong; not judged: {left[0].what}: {left[0].why}")
    return structs.replace(found, outcome=outcome, headline=line, cannot_say=(*left, *found.cannot_say))
