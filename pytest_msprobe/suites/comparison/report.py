"""Tables, advice and findings of a comparison, on the one process that writes.

- What finished rows of a comparison amount to.
- What one pair of dumps leaves behind: table, advice, findings. The same for a pytest run and for a script.
- Where two runs diverge: the first operation that differs, and those that introduce a difference.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from msprobe_collector.dump_format.dump import STEP, Slot
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from msprobe_collector.dump_format.values import abbreviated, counted, printable_lines
from pytest_msprobe.answers import Answer as RunAnswer, RunRows
from pytest_msprobe.suites.comparison.advice import advice
from pytest_msprobe.suites.comparison.cells import CellDifferences
from pytest_msprobe.suites.comparison.noise import BASES
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.run_faults import RunFaults
from pytest_msprobe.suites.comparison.sides import ComparedDump, table_stem
from pytest_msprobe.suites.comparison.table import NO_XLSXWRITER, MergeError, RowStore, TableFiles, merge_steps
from pytest_msprobe.suites.comparison.unmatched import why_unmatched
from pytest_msprobe.suites.comparison.values import ValueComparison
from pytest_msprobe.suites.contract import ANSWERS, RowSummary, SuiteError, SuiteReport, file_id
from pytest_msprobe.verdicts import FigureWire, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.manifests.value import ManifestDifference
    from pytest_msprobe.suites.comparison.accounting.account import Step
    from pytest_msprobe.suites.comparison.accounting.answer import Answer, First, PairDiagnosis
    from pytest_msprobe.suites.comparison.accounting.diagnosis import Outcome, RunDiagnosis
    from pytest_msprobe.suites.comparison.suite import ComparisonSuite

_MOST_NAMED = 10
_NONE: dict[str, int] = {}
_STATES = ("pass", "warning", "error", "unmatched", "unreadable", "skip")


@dataclass(frozen=True, slots=True)
class RecordSummary(FigureWire):
    """What the report needs of one operation; small, because one is kept for each that differs.

    Attributes:
        record: name in the dump that holds it.
        order: place in the order of execution.
        held_by: `both`, `target` or `golden`, or `compiled` where one run computes it in compiled code.
        status: verdict on the operation.
        values: number of its values by state.
        first: name of the first value that differs, "" when none does.
        reason: what differs there.
        is_input: whether that value went into the operation.
        is_plain: whether it is no tensor: another argument, so that the two runs call the operation otherwise.
        row: which of its values that is.
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
    row: int = 0
    is_origin: bool = False
    first_bits: str = ""
    distance: float = 0.0
    growth: float = 0.0
    tolerances: dict[str, int] = field(default_factory=dict)
    is_plain: bool = False

    @classmethod
    def of(cls, verdict: OperationComparison) -> RecordSummary:
        """The summary of a verdict."""
        first = verdict.first_error
        is_plain = first is not None and not first.is_output and not first.is_tensor
        values: Counter[str] = Counter(
            value.status for value in verdict.values if value.status != "unmatched" or value.is_tensor
        )
        if verdict.compiled is not None:
            values = Counter({"skip": len(verdict.values)})
        if verdict.fault:
            values["skip" if verdict.is_skipped else "unreadable"] += 1
        distance, growth = verdict.growth
        tolerances: dict[str, int] = {}
        for value in verdict.values:
            if value.tolerance is not None:
                tolerances[value.tolerance.basis] = tolerances.get(value.tolerance.basis, 0) + 1
        return cls(
            record=verdict.operation.record,
            order=verdict.order,
            held_by=verdict.held_by if verdict.compiled is None else "compiled",
            status=verdict.status,
            values=dict(values),
            first=first.name if first is not None else "",
            reason="" if first is None else _called_otherwise(first) if is_plain else first.message,
            is_input=first is not None and not first.is_output,
            row=verdict.values.index(first) if first is not None else 0,
            is_origin=verdict.is_origin,
            first_bits=next(
                (value.name for value in verdict.values if value.distance != 0 and value.differs_in_bits), ""
            ),
            distance=distance,
            growth=growth,
            tolerances=tolerances,
            is_plain=is_plain,
        )


#: Plain values up to this length are shown as the dump has them.
_SHORT = 40


def _called_otherwise(value: ValueComparison) -> str:
    """`called otherwise: dropout_p 0.1 against 0.0`."""
    sides = (leaf.statistics[0] if leaf is not None else "absent" for leaf in (value.target, value.golden))
    target, golden = (side if isinstance(side, str) and len(side) <= _SHORT else abbreviated(side) for side in sides)
    name = value.path.rpartition(".")[2]
    return f"called otherwise: {value.path if name.isdecimal() else name} {target} against {golden}"


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
        return sum(distance > 0 for distance in self._distances)

    def lines(self) -> Iterator[str]:
        """The largest distance in each part of the step, and where it grows most; nothing where all is equal."""
        last = max(self._orders, default=0)
        if not any(self._distances):
            return
        parts = [0.0] * _PARTS
        for order, distance in zip(self._orders, self._distances):
            part = min(_PARTS - 1, _PARTS * order // (last + 1))
            parts[part] = max(parts[part], distance)
        growth, _, record = self._largest
        grows = f"; it grows most in {record}: x {growth:.3g}" if growth > 1 else ""
        yield f"largest distance by quarter of the step: {', '.join(f'{part:.3g}' for part in parts)}{grows}"


@dataclass(slots=True)
class Divergence:
    """Counts and findings over the operations of one dump, taken in any order.

    Attributes:
        values: values by state.
        operations: operations by who holds them.
        verdicts: operations by verdict.
        why_unmatched: what is said when no operation matched.
        answer: what the accounts say of the dump; None where there are none.
    """

    values: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    why_unmatched: str = "no operation matched"
    answer: Answer | None = None
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
        return not (
            self.operations["target"] or self.operations["golden"] or self.values["unmatched"] or self.unreadable
        )

    @property
    def is_unmatched(self) -> bool:
        """Whether there were operations, and none had a partner."""
        return bool(self.verdicts) and not self.operations["both"]

    @property
    def unreadable(self) -> int:
        """How many values or operations could not be read."""
        return self.values["unreadable"]

    @property
    def first(self) -> RecordSummary | None:
        """The first operation in the order of execution that has a value that differs."""
        return min(self._differing, key=lambda summary: summary.order, default=None)

    @property
    def origins(self) -> list[RecordSummary]:
        """Operations that introduce a difference, in order.

        A backward also takes what its forward kept, so it is none when its forward differs; gradients of parameters
        have no recorded inputs; a Cell is none when an operation inside it differs, or was recorded at all beside it.
        """
        differing = sorted(self._differing, key=lambda summary: summary.order)
        operations = [Operation.of(summary.record, summary.order) for summary in differing]
        forwards = {operation.call for operation in operations if operation.phase == "forward"}
        has_calls = any(not operation.is_cell for operation in operations)
        cells = [operation.name.rpartition(".")[0] for operation in operations if operation.is_cell]
        found = []
        for summary, operation in zip(differing, operations):
            if not summary.is_origin or operation.phase == GRADIENTS:
                continue
            if operation.phase == "backward" and operation.call in forwards:
                continue
            path = operation.name.rpartition(".")[0]
            if operation.is_cell and (has_calls or any(cell.startswith(f"{path}.") for cell in cells)):
                continue
            found.append(summary)
        return found

    def lines(self) -> Iterator[str]:
        """The findings, most important first."""
        yield from self._first_lines()
        yield from self.facts()

    def facts(self) -> Iterator[str]:
        """What was compared, and how far the difference goes."""
        if self._first_bits is not None and (self.first is None or self._first_bits[1] != self.first.first):
            yield f"first differing bits: {self._first_bits[1]}"
        yield from self._growth.lines()
        counts = self.operations
        yield (
            f"{counted(counts['both'], 'operations')} matched, {counts['target']} only in the target, "
            f"{counts['golden']} only in the golden dump"
        )
        if self._golden_only:
            shown = ", ".join(self._golden_only[:_MOST_NAMED])
            more = len(self._golden_only) - _MOST_NAMED
            yield f"only in the golden dump: {shown}{f' and {more} more' if more > 0 else ''}"
        found = ", ".join(f"{self.values[state]} {state}" for state in _STATES if self.values[state])
        yield f"values: {found or 'none'}"
        if self._tolerances:
            bases = (f"{self._tolerances[basis]} {words}" for basis, words in BASES.items() if self._tolerances[basis])
            yield f"tolerances: {', '.join(bases)}"

    def _first_lines(self) -> Iterator[str]:
        first = self.first
        if self.named is not None:
            yield f"first divergence: {self.named.record}.{self.named.value}: {self.named.sentence}"
        elif first is None:
            if not self.verdicts:
                yield "no operation was compared"
            elif not self.operations["both"]:
                yield self.why_unmatched
            elif not self.values["pass"] + self.values["warning"]:
                yield "no value was compared"
            elif self.unreadable:
                yield f"no divergence among the values that were compared; {self.unreadable} could not be"
            else:
                yield "no divergence: every value that was compared agrees"
        elif (
            self.answer is not None
            and self.answer.outcome == "rounding"
            and self.answer.is_known
            and not first.is_plain
        ):
            from pytest_msprobe.answers.words import readable

            yield f"first beyond its limit, by rounding: {first.first}: {readable(first.reason)}"
        else:
            yield f"first divergence: {first.first}: {first.reason}"
            if self.answer is None or not self.answer.is_known:
                yield from self._by_distances(first)

    @property
    def named(self) -> First | None:
        """Where the accounts say that the runs part; None where they name nothing, or there are none."""
        return self.answer.first if self.answer is not None else None

    def _by_distances(self, first: RecordSummary) -> Iterator[str]:
        """What the distances alone say of where the runs part."""
        origins = self.origins
        if first.is_input and not first.is_plain:
            yield "  no operation before it differs: a parameter, the batch, or made by what the dump does not hold"
        elif any(origin.record == first.record for origin in origins):
            yield "  its inputs agree: the difference arises in this operation"
        if origins:
            names = ", ".join(origin.record for origin in origins[:_MOST_NAMED])
            more = f" and {len(origins) - _MOST_NAMED} more" if len(origins) > _MOST_NAMED else ""
            yield f"inputs agree, outputs do not: {names}{more}"


@dataclass(slots=True)
class _Findings:
    """What the rows of one target dump amount to."""

    divergence: Divergence = field(default_factory=Divergence)
    cells: CellDifferences = field(default_factory=CellDifferences)
    steps: list[Step] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    diagnosis: RunDiagnosis | None = None

    def travelled(self) -> Answer | None:
        """The answer that came with the rows, where it is made from these rows and no others."""
        from pytest_msprobe.suites.comparison.accounting.answer import covers

        own = covers(self.steps) if self.answers else 0
        return next((answer for answer in reversed(self.answers) if answer.covers == own), None)


class ComparisonSummary(RowSummary):
    """The divergence of each target dump; where differences were accounted for, what is at fault."""

    def __init__(self) -> None:
        self._found: dict[str, _Findings] = {}

    def add(self, row: VerdictRow) -> None:
        """Count one operation."""
        if row.attachment is None:
            return
        found = self._found.setdefault(row.dump, _Findings())
        found.divergence.add(RecordSummary.from_wire(row.attachment["summary"]))
        if row.place is not None and row.place.cells:
            found.cells.add(row)
        if "account" in row.attachment:
            from pytest_msprobe.suites.comparison.accounting.account import Step

            step = Step.of(row)
            assert step is not None
            found.steps.append(step)
        for dump, answer in row.attachment.get(ANSWERS, {}).items():
            from pytest_msprobe.suites.comparison.accounting.answer import Answer

            self._found.setdefault(dump, _Findings()).answers.append(Answer.from_wire(answer))

    def lines(self) -> Iterator[str]:
        """What is at fault, and the first divergence of each dump."""
        self.diagnose()
        yield from self.findings({dump: dump for dump in self._found})

    def diagnose(
        self, sides: Callable[[str], tuple[ComparedDump, ComparedDump]] | None = None
    ) -> dict[str, PairDiagnosis]:
        """What is known of each dump whose differences were accounted for.

        `sides` are its dumps, where at hand; without them the answer that came with the rows counts.
        """
        diagnoses: dict[str, PairDiagnosis] = {}
        for dump, diagnosis, answer in self._answered(sides):
            from pytest_msprobe.suites.comparison.accounting.answer import PairDiagnosis

            found = self._found[dump]
            found.divergence.answer = answer
            if diagnosis is not None:
                found.diagnosis = diagnosis
                diagnoses[dump] = PairDiagnosis(diagnosis, answer, found.cells.of(diagnosis.origins))
        return {dump: diagnoses[dump] for dump in self._found if dump in diagnoses}

    def _answered(
        self, sides: Callable[[str], tuple[ComparedDump, ComparedDump]] | None
    ) -> Iterator[tuple[str, RunDiagnosis | None, Answer]]:
        """(dump, its diagnosis, its answer), earlier steps first; no diagnosis where the answer came with the rows."""
        before: dict[tuple[str, ...], dict[int, Outcome]] = {}
        for dump in sorted((dump for dump, found in self._found.items() if found.steps), key=_step_of):
            from pytest_msprobe.suites.comparison.accounting.answer import Answer
            from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis

            found = self._found[dump]
            earlier = before.setdefault(tuple(part for part in Path(dump).parts if not STEP.fullmatch(part)), {})
            diagnosis, answer = None, found.travelled() if sides is None else None
            if answer is None:
                found.steps.sort(key=lambda step: step.operation.index)
                diagnosis = RunDiagnosis.of(found.steps, sides(dump) if sides is not None else None)
                answer = Answer.of(diagnosis, earlier)
            earlier[_step_of(dump)] = answer.outcome
            yield dump, diagnosis, answer

    def told_by_rows(self) -> dict[str, Answer]:
        """What the rows alone, without the dumps, say of each dump."""
        return {dump: answer for dump, _, answer in self._answered(None)}

    def marks(self) -> Mapping[tuple[str, str, str], str]:
        """What is wrong with values that no item shows, by the item that has them."""
        return {
            (dump, *item.rpartition(".")[::2]): f"At fault: {sentence}"
            for dump, answer in self.answers().items()
            for item, sentence in answer.sentences.items()
        }

    def answer(
        self, rows: RunRows, setup: Sequence[ManifestDifference] = (), accept: Collection[str] = ()
    ) -> RunAnswer:
        """What is at fault, or differs first, in all dumps together; asked after `diagnose`."""
        known = {dump: found.diagnosis for dump, found in self._found.items() if found.diagnosis is not None}
        if known:
            from pytest_msprobe.suites.comparison.accounting.run_answer import run_answer

            return run_answer(rows, known, setup, accept)
        return self._by_distances(rows)

    def _by_distances(self, rows: RunRows) -> RunAnswer:
        """Where the runs part, of values that nothing was computed from: whether it is wrong stays open."""
        findings = [structs.replace(one, confidence="first difference only") for one in rows.findings(by_order=True)]
        differing = sum(found.divergence.differing for found in self._found.values())
        return rows.made(findings, measure=rows.measure("tolerance" if differing else "equal", differing=differing))

    @property
    def is_bad(self) -> bool:
        """Whether something is at fault, item or not."""
        return any(answer.is_bad for answer in self.answers().values())

    def answers(self) -> dict[str, Answer]:
        """What was said of each dump whose differences were accounted for."""
        return {dump: answer for dump, found in self._found.items() if (answer := found.divergence.answer) is not None}

    def findings(self, names: Mapping[str, str], *, with_answer: bool = True) -> Iterator[str]:
        """What was compared in each dump, called by its name in `names`; `with_answer` what is at fault, first."""
        if with_answer and (answers := self.answers()):
            from pytest_msprobe.suites.comparison.accounting.answer import answers_in_words

            yield from answers_in_words(answers)
        several = len(self._found) > 1
        for dump, found in self._found.items():
            if several:
                yield f"{names[dump]}:"
            own = found.divergence
            lines = [*(own.lines() if with_answer else own.facts()), found.cells.line()]
            yield from (f"  {line}" if several else line for line in lines if line)

    def divergence(self, dump: str) -> Divergence:
        """Counts and findings of one dump so far."""
        return self._found[dump].divergence

    def levels(self, *, only_born: bool = True) -> Mapping[tuple[str, str, str], str]:
        """What the calls of other shards say of the Cells around them; rows that have their answer say it already."""
        return {
            (dump, *key): level
            for dump, found in self._found.items()
            if found.diagnosis is not None or found.divergence.answer is None
            for key, level in found.cells.changed(
                found.diagnosis.origins if found.diagnosis is not None else (), only_born=only_born
            ).items()
        }


def _step_of(dump: str) -> int:
    step = Slot.of(Path(dump)).step
    return -1 if step is None else step


class ComparisonOutput:
    """Collects rows of the tables of one target dump, and writes them with advice.

    Attributes:
        divergence: counts and findings, which whoever adds rows adds to.
    """

    def __init__(self, target: Path, divergence: Divergence) -> None:
        self._target = target
        self._rows = RowStore()
        self.divergence = divergence

    def add(self, order: int, record: str, rows: list[list[Any]]) -> None:
        """Take the rows of the operation `record` at the place `order`."""
        self._rows.add(order, record, rows)

    def write(
        self,
        folder: Path,
        comparison: DumpComparison,
        settings: ComparisonSettings,
        *,
        targets: Sequence[Path],
        with_advice: bool = True,
    ) -> list[Path]:
        """Write table and advice into `folder`, if `settings` ask for them; their paths.

        `targets` are all target dumps of the run.

        Raises:
            OSError: a file cannot be written.
            ImportError: a workbook was asked for and cannot be made; all else is written.
        """
        if self.divergence.is_unmatched:
            self.divergence.why_unmatched = why_unmatched(comparison)
        if settings.table == "off":
            return []
        several_steps = len({Slot.of(target).step for target in targets}) > 1
        stem = table_stem(self._target, several_steps=several_steps)
        table = TableFiles(folder, stem, comparison.mode, settings.result_column)

        def stack_of(record: str) -> str:
            frames = comparison.target.stacks.frames(record)
            return json.dumps([str(frame) for frame in frames], ensure_ascii=False) if frames else ""

        paths = table.write_csv(self._rows, stack_of)
        if with_advice:
            paths.append(self._write_advice(paths[0], stem))
        if settings.xlsx:
            try:
                paths.append(table.write_xlsx(self._rows, stack_of, beside=paths[0]))
            except ImportError:
                raise ImportError(NO_XLSXWRITER) from None
        return paths

    def close(self) -> None:
        """Let go of the temporary file."""
        self._rows.close()

    def _write_advice(self, table: Path, stem: str) -> Path:
        first, named = self.divergence.first, self.divergence.named
        if named is not None:
            line = self._rows.line_of_value(named.record, f"{named.record}.{named.value}")
        else:
            line = self._rows.line_of(first.order, first.row) if first is not None else 0
        suffix = stem.partition("compare_result")[2]
        path = table.with_name(f"advisor{suffix}_{table.stem.rpartition('_')[2]}.txt")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(printable_lines(advice(self.divergence, line)))
        return path


class ComparisonReport(SuiteReport):
    """Collects table rows, and writes and says at the end what they amount to."""

    def __init__(self, suite: ComparisonSuite, out: Path, root: Path) -> None:
        """A report into the folder `out`; `root` is pytest's rootdir."""
        self._suite, self._out, self._root = suite, out, root
        self._summary = ComparisonSummary()
        self._outputs: dict[Path, ComparisonOutput] = {}
        self._files: list[Path] = []
        self._lacks_rows = False
        self._diagnoses: dict[str, PairDiagnosis] = {}

    def receive(self, name: str, row: VerdictRow) -> None:
        """Take the table rows."""
        if row.attachment is None:
            return
        self._summary.add(row)
        target, summary = Path(row.dump), row.attachment["summary"]
        if target not in self._outputs:
            self._outputs[target] = ComparisonOutput(target, self._summary.divergence(row.dump))
        if self._suite.settings.table == "off":
            return
        if "rows" in row.attachment:
            self._outputs[target].add(summary["order"], summary["record"], row.attachment["rows"])
        else:
            self._lacks_rows = True

    def finish(self) -> None:
        """Write the files; those that rows were added to are closed in any case.

        Raises:
            SuiteError: the tables of ranks cannot be merged, a package that a table needs is missing, or rows are.
        """
        settings, tables = self._suite.settings, []
        try:
            self._diagnoses = self._summary.diagnose(self._sides)
            if self._lacks_rows:
                raise SuiteError("no table: the run that is continued had --msprobe-table=off; give it here as well")
            for target, output in self._outputs.items():
                comparison = self._suite.comparison(target)
                written = output.write(self._out, comparison, settings, targets=self._suite.files)
                tables += written[:1]
                self._files += written
            self._files += merge_steps(tables, self._out)
        except (ImportError, MergeError) as error:
            raise SuiteError(str(error)) from None
        finally:
            for output in self._outputs.values():
                output.close()

    def facts(self) -> Iterator[str]:
        """What was compared, and what was not."""
        return self.findings(with_answer=False)

    def findings(self, *, with_answer: bool = True) -> Iterator[str]:
        """The same, `with_answer` what is at fault above it."""
        yield from [f"runs differ: {sentence}" for sentence in self._suite.setup if with_answer]
        names = {str(target): file_id(target, self._root) for target in self._outputs}
        yield from self._summary.findings(names, with_answer=with_answer)
        yield from (f"not compared: {problem}" for problem in self._suite.pairs.lone())

    def _sides(self, dump: str) -> tuple[ComparedDump, ComparedDump]:
        comparison = self._suite.comparison(Path(dump))
        return comparison.target, comparison.golden

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """What the calls say of the Cells around them."""
        return self._summary.levels(only_born=False)

    def answer(self, rows: RunRows) -> RunAnswer:
        """What is at fault in all pairs together."""
        answer = self._summary.answer(rows, self._suite.setup_differences, self._suite.settings.accept)
        if self._suite.settings.inherited == "fail":
            rows.following.clear()
        return structs.replace(answer, setup=tuple(self._suite.setup))

    def answers(self) -> Mapping[str, Mapping[str, Any]]:
        """What is at fault in each dump, where its rows alone, without the dumps, would tell another story."""
        answers = self._summary.answers()
        alone = self._summary.told_by_rows() if answers else {}
        return {dump: answer.to_wire() for dump, answer in answers.items() if not answer.says_what(alone[dump])}

    def files(self) -> Iterator[tuple[str, Path]]:
        """Tables and advice."""
        yield from (("advice" if path.suffix == ".txt" else "table", path) for path in self._files)

    def fault(self) -> str:
        """A run that did not compare everything is not a success."""
        return self._faults.text()

    def fault_keys(self) -> Iterator[str]:
        """All of it: `fault` names the first reason only."""
        return self._faults.keys()

    @property
    def _faults(self) -> RunFaults:
        return RunFaults(
            [output.divergence for output in self._outputs.values()],
            [pair.diagnosis for pair in self._diagnoses.values()],
            list(self._suite.pairs.lone()),
            self._suite.settings.accept,
        )
