"""Tables, advice and findings of a comparison, on the one process that writes.

- What finished rows of a comparison amount to.
- What one pair of dumps leaves behind: table and advice. The same for a pytest run and for a script.
- Figures of a comparison, and the first operation that differs.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec import structs

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import abbreviated, counted, printable_lines
from pytest_msprobe.answers import (
    Answer,
    ArgumentDifference,
    Exact,
    ExactKind,
    Finding,
    Gap,
    Measure,
    NextStep,
    Place,
    RunRows,
    with_findings,
    with_open,
)
from pytest_msprobe.answers.finding import together
from pytest_msprobe.answers.words import content_in_words, headline, readable
from pytest_msprobe.suites.comparison.cells import CellDifferences
from pytest_msprobe.suites.comparison.content import ContentRows, RowContent
from pytest_msprobe.suites.comparison.exact import EXACT, RecordErrors, exact_of
from pytest_msprobe.suites.comparison.noise import BASES
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.run_setup import setup_of, why_unmatched
from pytest_msprobe.suites.comparison.sides import ComparedDump, DumpPairs, table_stem
from pytest_msprobe.suites.comparison.table import (
    NO_XLSXWRITER,
    MergeError,
    RowStore,
    TableFiles,
    advice,
    merge_steps,
    value_of,
)
from pytest_msprobe.suites.comparison.values import ValueComparison
from pytest_msprobe.suites.contract import RowSummary, SuiteError, SuiteReport, file_id
from pytest_msprobe.support import without_numbers
from pytest_msprobe.verdicts import FigureWire, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.manifests.value import ManifestDifference
    from pytest_msprobe.suites.comparison.accounting.account import AccountStep
    from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis

_MOST_NAMED = 10
#: What the exact run may say, what says most first.
_EXACT_KINDS = get_args(ExactKind)
_NONE: dict[str, int] = {}
#: What to look at where the first difference is of that kind.
_NEXT = {"arguments": "lines", "unknown": "maker", "first": "scope"}
_STATES = ("pass", "warning", "error", "unmatched", "unreadable", "skip")


@dataclass(frozen=True, slots=True)
class RecordSummary(FigureWire):
    """What the report needs of one operation; small, because one is kept for each that differs.

    Attributes:
        record: name in the dump that holds it.
        order: place in the order of execution.
        held_by: `both`, `target` or `golden`; `compiled` where one run computes it in compiled code, `again` where it
            is computed in other steps and equal again, `beside` of layers and of calls whose result nothing uses, of
            two runs with different calls.
        status: verdict on the operation.
        values: number of its values by state.
        first: name of the first value that differs, "" when none does.
        reason: what differs there.
        is_input: whether that value went into the operation.
        argument: the value, where it is no tensor, so that the two runs call the operation otherwise.
        is_origin: whether its inputs agree and its outputs do not.
        first_bits: name of the first value whose checksum or fingerprint differs, "" when none does.
        distance, growth: of its outputs, see `growth`.
        tolerances: number of its values by the basis of their tolerance, where a noise run was given.
    """

    record: str
    order: int
    held_by: str
    status: str
    values: dict[str, int]
    first: str = ""
    reason: str = ""
    is_input: bool = False
    is_origin: bool = False
    first_bits: str = ""
    distance: float = 0.0
    growth: float = 0.0
    tolerances: dict[str, int] = field(default_factory=dict)
    argument: ArgumentDifference | None = None

    @classmethod
    def of(cls, verdict: OperationComparison) -> RecordSummary:
        """The summary of a verdict."""
        held_by, values, tolerances, first_bits = "", Counter[str](), Counter[str](), ""
        for value in verdict.values:
            if value.status != "unmatched" or value.is_tensor:
                values[value.status] += 1
            if value.tolerance is not None:
                tolerances[value.tolerance.basis] += 1
            if not first_bits and value.distance != 0 and value.differs_in_bits:
                first_bits = value.name
        if verdict.is_equal_again:
            held_by = "again"
        elif verdict.held_by != "both" and verdict.content in ("beside", "unused"):
            held_by = "beside"
        elif verdict.compiled is not None:
            held_by = "compiled"
        if held_by:
            values = Counter({"skip": len(verdict.values)})
        if verdict.fault:
            values["skip" if verdict.is_skipped else "unreadable"] += 1
        record, held_by, (distance, growth) = verdict.operation.record, held_by or verdict.held_by, verdict.growth
        summary = cls(record, verdict.order, held_by, verdict.status, dict(values), tolerances=dict(tolerances))
        summary = replace(summary, is_origin=verdict.is_origin, first_bits=first_bits)
        summary = replace(summary, distance=distance, growth=growth)
        if (first := verdict.first_error) is None:
            return summary
        argument = None if first.is_output or first.is_tensor else _argument(first)
        is_input = not first.is_output
        return replace(summary, first=first.name, reason=first.message, is_input=is_input, argument=argument)

    @property
    def kind(self) -> str:
        """Which kind of finding it is that this operation is the first which differs."""
        if self.argument is not None:
            return "arguments"
        return "unknown" if self.is_input else "first"


def _argument(value: ValueComparison) -> ArgumentDifference:
    """The argument that the two runs have otherwise; "" on a side that does not have it."""
    name = value.path.rpartition(".")[2]
    name = value.path if name.isdecimal() else name
    return ArgumentDifference(name, *map(_short, (value.target, value.golden)))


def _short(leaf: Leaf | None) -> str:
    value = leaf.statistics[0] if leaf is not None else ""
    return value if isinstance(value, str) and len(value) <= 40 else abbreviated(value)


#: Parts of the step for which the largest distance is said.
_PARTS = 4


class Growth:
    """Distances of operations, taken in any order: two numbers for each, however many there are."""

    def __init__(self) -> None:
        self._orders = array("q")
        self._distances = array("d")
        self._largest = (0.0, 0, "")

    def add(self, order: int, record: str, distance: float, growth: float) -> None:
        """Take the operation `record` at the place `order`, whose outputs are `distance` apart."""
        self._orders.append(order)
        self._distances.append(distance)
        # Of equal ones the first in the step, in whatever order they come.
        self._largest = max(self._largest, (growth, -order, record))

    @property
    def differing(self) -> int:
        """How many distances are above 0."""
        return sum(map(bool, self._distances))

    def lines(self) -> Iterator[str]:
        """The largest distance in each part of the step, and where it grows most; nothing where all is equal."""
        if not any(self._distances):
            return
        last, parts = max(self._orders), [0.0] * _PARTS
        for order, distance in zip(self._orders, self._distances):
            part = min(_PARTS - 1, _PARTS * order // (last + 1))
            parts[part] = max(parts[part], distance)
        growth, _, record = self._largest
        grows = f"; it grows most in {record}: x {growth:.3g}" if growth > 1 else ""
        yield f"largest distance by quarter of the step: {', '.join(f'{part:.3g}' for part in parts)}{grows}"


@dataclass(slots=True)
class Divergence:
    """Counts over the operations of one dump, taken in any order, and the first of them that differs.

    Attributes:
        values: values by state.
        operations: operations by who holds them.
        verdicts: operations by verdict.
        why_unmatched: the likely reason when no operation matched.
    """

    values: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    why_unmatched: str = "no operation matched"
    _differing: list[RecordSummary] = field(default_factory=list)
    _golden_only: list[str] = field(default_factory=list)
    _growth: Growth = field(default_factory=Growth)
    _tolerances: Counter[str] = field(default_factory=Counter)
    _first_bits: tuple[int, str] | None = None

    def add(self, summary: RecordSummary) -> None:
        """Count one operation."""
        self.values.update(summary.values)
        self.operations[summary.held_by] += 1
        self.verdicts[summary.status] += 1
        self._growth.add(summary.order, summary.record, summary.distance, summary.growth)
        self._tolerances.update(summary.tolerances)
        if summary.first_bits:
            bits = (summary.order, summary.first_bits)
            self._first_bits = min(self._first_bits or bits, bits)
        if summary.first:
            # One is kept for each operation that differs: without what has been added up.
            self._differing.append(replace(summary, distance=0.0, growth=0.0, first_bits="", tolerances=_NONE))
        if summary.held_by == "golden":
            self._golden_only.append(summary.record)

    @property
    def differing(self) -> int:
        """How many operations differ, within their limits or not; at least 1 where bits do."""
        return max(len(self._differing), self._growth.differing, int(self._first_bits is not None))

    @property
    def is_complete(self) -> bool:
        """Whether everything that either dump holds was compared."""
        lone = self.operations["target"] or self.operations["golden"]
        return not (lone or self.values["unmatched"] or self.values["unreadable"])

    @property
    def is_unmatched(self) -> bool:
        """Whether there were operations, and none had a partner, or is equal again."""
        return bool(self.verdicts) and not self.judged

    @property
    def judged(self) -> int:
        """How many operations have a partner, or are computed in other steps and equal again."""
        return self.operations["both"] + self.operations["again"]

    @property
    def first(self) -> RecordSummary | None:
        """The first operation in the order of execution that has a value that differs."""
        return min(self._differing, key=lambda summary: summary.order, default=None)

    def answer(self) -> Answer:
        """What the distances of values alone say, where nothing was accounted for."""
        first, total, differing = self.first, self.operations.total(), self.differing
        kind = "tolerance" if differing else "equal"
        measure = Measure(kind=kind, judged=self.judged, total=total, noun="operations", differing=differing)
        answer = Answer(suite="comparison", outcome="right", measure=measure)
        if first is not None:
            step = NextStep(_NEXT[first.kind], subject=Operation.of(first.record, first.order).call)
            return with_findings(structs.replace(answer, next=(step,)), [_finding(first)])
        if reason := self._why_nothing():
            return structs.replace(answer, outcome="nothing judged", open=(Gap(kind="not compared", reason=reason),))
        return answer if self.is_complete else with_findings(answer, [self.uncompared])

    def _why_nothing(self) -> str:
        """Why nothing was compared; "" where something was."""
        if not self.verdicts:
            return "no operation was compared"
        if not self.judged:
            return self.why_unmatched
        has_values = self.values["pass"] or self.values["warning"] or self.operations["again"]
        return "" if has_values else "no value was compared"

    @property
    def uncompared(self) -> Finding:
        """That not all of it was compared, with figures."""
        operations, values = self.operations, self.values
        counts = Counter({"target only": operations["target"], "golden only": operations["golden"]})
        counts += Counter({"values": values["unmatched"], "unreadable": values["unreadable"]})
        return _incomplete("", counts)

    def lines(self) -> Iterator[str]:
        """The answer in one line, then the figures."""
        yield headline(self.answer())
        yield from self.facts()

    def facts(self) -> Iterator[str]:
        """What was compared, and how far the difference goes."""
        if self._first_bits is not None and (self.first is None or self._first_bits[1] != self.first.first):
            yield f"first differing bits: {self._first_bits[1]}"
        yield from self._growth.lines()
        counts, more = self.operations, len(self._golden_only) - _MOST_NAMED
        again = f", {counts['again']} in other steps and equal again" if counts["again"] else ""
        yield (
            f"{counted(counts['both'], 'operations')} matched, {counts['target']} only in the target, "
            f"{counts['golden']} only in the golden dump{again}"
        )
        if self._golden_only:
            others = f" and {more} more" if more > 0 else ""
            yield f"only in the golden dump: {', '.join(self._golden_only[:_MOST_NAMED])}{others}"
        states = ", ".join(f"{self.values[state]} {state}" for state in _STATES if self.values[state])
        yield f"values: {states or 'none'}"
        if self._tolerances:
            bases = (f"{self._tolerances[basis]} {words}" for basis, words in BASES.items() if self._tolerances[basis])
            yield f"tolerances: {', '.join(bases)}"


def _finding(first: RecordSummary) -> Finding:
    """The first operation that differs: nothing shows that it is wrong."""
    operation, value = Operation.of(first.record, first.order), first.first.removeprefix(f"{first.record}.")
    return Finding(
        kind=first.kind,
        confidence="first difference only",
        place=Place(record=first.record, operation=operation.call, directions=(operation.phase,), value=value),
        arguments=(first.argument,) if first.argument else (),
        detail=readable(first.reason),
    )


def _incomplete(detail: str, figures: Mapping[str, float | int | str] = _NONE) -> Finding:
    place = Place(record="", operation="")
    return Finding(kind="incomplete", confidence="proved", place=place, figures=dict(figures), detail=detail)


@dataclass(slots=True)
class _PairCounts:
    """What the rows of one target dump amount to."""

    divergence: Divergence = field(default_factory=Divergence)
    cells: CellDifferences = field(default_factory=CellDifferences)
    steps: list[AccountStep] = field(default_factory=list)
    errors: list[RecordErrors] = field(default_factory=list)
    diagnosis: RunDiagnosis | None = None
    content: ContentRows = field(default_factory=ContentRows)


class ComparisonSummary(RowSummary):
    """The figures of each target dump; where differences were accounted for, what is at fault."""

    def __init__(self) -> None:
        self._pairs: dict[str, _PairCounts] = {}

    def add(self, row: VerdictRow) -> None:
        """Count one operation."""
        if row.attachment is None:
            return
        pair = self._pairs.setdefault(row.dump, _PairCounts())
        pair.divergence.add(RecordSummary.from_wire(row.attachment["summary"]))
        if row.place is not None and row.place.cells:
            pair.cells.add(row)
        if EXACT in row.attachment:
            pair.errors.append(RecordErrors.from_wire(row.attachment[EXACT]))
        if "content" in row.attachment:
            pair.content.add(RowContent.from_wire(row.attachment["content"]))
        if "account" in row.attachment:
            from pytest_msprobe.suites.comparison.accounting.account import AccountStep

            step = AccountStep.of(row)
            assert step is not None
            pair.steps.append(step)

    def diagnoses(
        self, sides: Callable[[str], tuple[ComparedDump, ComparedDump]] | None = None
    ) -> Mapping[str, RunDiagnosis]:
        """What is known of each dump whose differences were accounted for; `sides` are its dumps, where at hand.

        They are made once.
        """
        for dump, pair in self._pairs.items():
            if pair.steps and pair.diagnosis is None:
                from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis

                pair.steps.sort(key=lambda step: step.operation.index)
                pair.diagnosis = RunDiagnosis.of(pair.steps, sides(dump) if sides is not None else None)
        return {dump: pair.diagnosis for dump, pair in self._pairs.items() if pair.diagnosis is not None}

    def answer(self, rows: RunRows, setup: Sequence[ManifestDifference] = (), accept: Collection[str] = ()) -> Answer:
        """What is at fault, or differs first, in all dumps together."""
        contents = (pair.content.content() for pair in self._pairs.values())
        content = together(filter(None, contents))
        return structs.replace(self._answer(rows, setup, accept), content=content)

    def _answer(self, rows: RunRows, setup: Sequence[ManifestDifference], accept: Collection[str]) -> Answer:
        if diagnoses := self.diagnoses():
            from pytest_msprobe.suites.comparison.accounting.run_answer import run_answer

            return run_answer(rows, diagnoses, setup, accept)
        # Of values that nothing was computed from it stays open whether they are wrong.
        rated = rows.findings(by_order=True)
        findings = [structs.replace(finding, confidence="first difference only") for finding in rated]
        differing = sum(pair.divergence.differing for pair in self._pairs.values())
        return rows.made(findings, measure=rows.measure("tolerance" if differing else "equal", differing=differing))

    def exact(self) -> tuple[str, Exact]:
        """What the exact run says, and of which dump: of several the first of which it says most."""
        judged = [(dump, exact_of(pair.errors)) for dump, pair in self._pairs.items()]
        return min(judged, key=lambda entry: _EXACT_KINDS.index(entry[1].kind), default=("", Exact(kind="nothing")))

    def lines(self) -> Iterator[str]:
        """What was compared in each dump."""
        return self.facts({dump: dump for dump in self._pairs})

    def facts(self, names: Mapping[str, str]) -> Iterator[str]:
        """The same, with dumps called by their `names`."""
        indent = "  " if len(self._pairs) > 1 else ""
        for dump, pair in self._pairs.items():
            if indent:
                yield f"{names[dump]}:"
            if (content := pair.content.content()) is not None:
                yield indent + content_in_words(content)
            yield from map(indent.__add__, pair.divergence.facts())

    def divergence(self, dump: str) -> Divergence:
        """Counts of one dump so far."""
        return self._pairs[dump].divergence

    def run_pairs(self) -> Mapping[str, Any]:
        """What both runs hold of each other, by target dump."""
        return {dump: pair.content.columns() for dump, pair in self._pairs.items() if pair.content.content()}

    def levels(self, *, only_born: bool = True) -> Mapping[tuple[str, str, str], str]:
        """What the calls of other shards say of the Cells around them."""
        levels = {}
        for dump, pair in self._pairs.items():
            origins = pair.diagnosis.origins if pair.diagnosis is not None else ()
            for (call, part), level in pair.cells.changed(origins, only_born=only_born).items():
                levels[dump, call, part] = level
        return levels


class ComparisonOutput:
    """Collects rows of the tables of one target dump, and writes them with advice.

    Attributes:
        divergence: counts, which whoever adds rows adds to.
    """

    def __init__(self, target: Path, divergence: Divergence) -> None:
        self._target = target
        self._rows = RowStore()
        self._advice: Path | None = None
        self.divergence = divergence

    def add(self, order: int, record: str, rows: list[list[Any]]) -> None:
        """Take the rows of the operation `record` at the place `order`."""
        self._rows.add(order, record, rows)

    def write(
        self, folder: Path, comparison: DumpComparison, settings: ComparisonSettings, *, targets: Sequence[Path]
    ) -> list[Path]:
        """Write the table into `folder`, if `settings` ask for it; its paths. `targets` are all of the run.

        Raises:
            OSError: a file cannot be written.
            ImportError: a workbook was asked for and cannot be made; all else is written.
        """
        if self.divergence.is_unmatched:
            self.divergence.why_unmatched = why_unmatched(comparison)
        if settings.table == "off":
            return []
        steps = {Slot.of(target).step for target in targets}
        stem = table_stem(self._target, several_steps=len(steps) > 1)
        table = TableFiles(folder, stem, comparison.mode, settings.result_column)

        def stack_of(record: str) -> str:
            frames = comparison.target.stacks.frames(record)
            return json.dumps([str(frame) for frame in frames], ensure_ascii=False) if frames else ""

        paths = table.write_csv(self._rows, stack_of)
        suffix = stem.partition("compare_result")[2]
        self._advice = paths[0].with_name(f"advisor{suffix}_{paths[0].stem.rpartition('_')[2]}.txt")
        if settings.xlsx:
            try:
                paths.append(table.write_xlsx(self._rows, stack_of, beside=paths[0]))
            except ImportError:
                raise ImportError(NO_XLSXWRITER) from None
        return paths

    def close(self) -> None:
        """Let go of the temporary file."""
        self._rows.close()

    def write_advice(self, answer: Answer) -> list[Path]:
        """Write the advice beside the table, where there is one: its path. Raises OSError."""
        if self._advice is None:
            return []
        slot, line = Slot.of(self._target), 0
        suspects = (it for it in answer.findings if it.place.record and _is_of(it.place, slot))
        if (suspect := next(suspects, None)) is not None:
            line = self._rows.line_of_value(suspect.place.record, value_of(suspect))
        descriptor = os.open(self._advice, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(printable_lines(advice(answer, suspect, line)))
        return [self._advice]


def _is_of(place: Place, slot: Slot) -> bool:
    """Whether a dump of that rank and step shows a finding, as far as numbers are known."""
    is_of_rank = slot.rank is None or not place.ranks or slot.rank in place.ranks
    return is_of_rank and (slot.step is None or not place.steps or slot.step in place.steps)


class ComparisonReport(SuiteReport):
    """Collects table rows, and writes and says at the end what they amount to."""

    def __init__(
        self,
        settings: ComparisonSettings,
        pairs: DumpPairs,
        comparison_of: Callable[[Path], DumpComparison],
        out: Path,
        root: Path,
    ) -> None:
        """Report on `pairs` into `out`; `comparison_of` reads one by its target, `root` is rootdir."""
        self._settings, self._pairs, self._comparison_of = settings, pairs, comparison_of
        self._out, self._root = out, root
        self._summary = ComparisonSummary()
        self._outputs: dict[Path, ComparisonOutput] = {}
        self._files: list[Path] = []
        self._lacks_rows = False

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take the table rows."""
        if row.attachment is None:
            return
        self._summary.add(row)
        target, summary = Path(row.dump), row.attachment["summary"]
        if target not in self._outputs:
            self._outputs[target] = ComparisonOutput(target, self._summary.divergence(row.dump))
        if "rows" in row.attachment and self._settings.table != "off":
            self._outputs[target].add(summary["order"], summary["record"], row.attachment["rows"])
        self._lacks_rows |= "rows" not in row.attachment and self._settings.table != "off"

    def finish(self) -> None:
        """Write the tables.

        Raises:
            SuiteError: the tables of ranks cannot be merged, a package that a table needs is missing, or rows are.
        """
        tables: list[Path] = []
        try:
            self._summary.diagnoses(lambda dump: self._comparison_of(Path(dump)).sides)
            if self._lacks_rows:
                raise SuiteError("no table: the run that is continued had --msprobe-table=off; give it here as well")
            for target, output in self._outputs.items():
                comparison = self._comparison_of(target)
                written = output.write(self._out, comparison, self._settings, targets=list(self._pairs.golden))
                tables += written[:1]
                self._files += written
            self._files += merge_steps(tables, self._out)
        except (ImportError, MergeError) as error:
            raise SuiteError(str(error)) from None

    def conclude(self, answer: Answer) -> None:
        """Write the advice; the rows of the tables are let go of in any case."""
        try:
            for output in self._outputs.values():
                self._files += output.write_advice(answer)
        finally:
            for output in self._outputs.values():
                output.close()

    def findings(self) -> Iterator[str]:
        """What was compared, and what was not."""
        yield from self._summary.facts({str(target): file_id(target, self._root) for target in self._outputs})
        yield from (f"not compared: {problem}" for problem in self._pairs.lone())

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """What the calls say of the Cells around them."""
        return self._summary.levels(only_born=False)

    def answer(self, rows: RunRows) -> Answer:
        """What is at fault in all pairs together; a run that did not compare everything is not a success."""
        sentences, differences = setup_of(self._pairs.matched)
        answer = self._summary.answer(rows, differences, self._settings.accept)
        if self._settings.inherited == "fail":
            rows.following.clear()
        if not answer.findings:
            incomplete = [finding for key, finding in self._uncompared().items() if not rows.is_known(key)]
            step = [NextStep("accept unmatched")] if incomplete and incomplete[0].figures else []
            answer = structs.replace(with_findings(answer, incomplete[:1]), next=(*answer.next, *step))
        if self._settings.exact is not None:
            answer = self._with_exact(answer)
        return structs.replace(answer, setup=tuple(sentences))

    def _with_exact(self, answer: Answer) -> Answer:
        """`answer` with which run is nearer to the exact one."""
        dump, exact = self._summary.exact()
        call = exact.record.rpartition(".")[0]
        source = self._comparison_of(Path(dump)).target.stacks.user_line(call) if call else ""
        is_proved = any(
            finding.confidence == "proved" and finding.place.record.rpartition(".")[0] == call
            for finding in answer.findings
        )
        answer = structs.replace(answer, exact=structs.replace(exact, source=source, is_proved=is_proved))
        if answer.outcome == "right" and exact.kind in ("left", "together"):
            return with_open(answer, [Gap(kind="exact", what=exact.record, reason="far off the exact run")])
        return answer

    def _uncompared(self) -> dict[str, Finding]:
        """What was not compared, the most important first, by names that stay while it is the same."""
        divergences = [output.divergence for output in self._outputs.values()]
        reasons = [divergence.why_unmatched for divergence in divergences if divergence.is_unmatched]
        incomplete = {without_numbers(reason): _incomplete(reason) for reason in (*reasons, *self._pairs.lone())}
        some = next((it for it in divergences if not (it.is_complete or it.is_unmatched)), None)
        if some is not None and "unmatched" not in self._settings.accept:
            incomplete["not everything could be compared"] = some.uncompared
        return incomplete

    def files(self) -> Iterator[tuple[str, Path]]:
        """Tables and advice."""
        for path in self._files:
            yield "advice" if path.suffix == ".txt" else "table", path

    def fault_keys(self) -> Iterator[str]:
        """What was not compared, and what is at fault or open although no item fails by it."""
        yield from self._uncompared()
        for diagnosis in self._summary.diagnoses().values():
            from pytest_msprobe.suites.comparison.accounting.run_answer import open_keys

            yield from open_keys(diagnosis, self._settings.accept)
