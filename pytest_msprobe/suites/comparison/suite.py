"""The comparison as a suite: every operation of the target dump against its partner in the golden dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import ApiName, Frame
from msprobe_collector.dump_format.kernel_dumps import NOT_READ, holds_kernel_dump
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.comparison.cells import cell_facts, with_cell
from pytest_msprobe.suites.comparison.mapping import MappingError
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import OPTIONS, ComparisonSettings
from pytest_msprobe.suites.comparison.report import ComparisonReport, ComparisonSummary, RecordSummary
from pytest_msprobe.suites.comparison.sides import find_files, pair_dumps
from pytest_msprobe.suites.comparison.table import rows
from pytest_msprobe.suites.comparison.verdict_row import SHARES, explanation, output_rows, pictured
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    Record,
    Suite,
    SuiteError,
    SuiteReport,
    cells_of,
    file_id,
    place_in,
)
from pytest_msprobe.suites.grouping import Operations, api_of, estimate_cost, group_operations
from pytest_msprobe.support import is_installed
from pytest_msprobe.verdicts import Figure, HeldBy, Status, StepPosition, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.evidence.pictures import ErrorPictures
    from pytest_msprobe.suites.comparison.accounting.accountant import Accountant

#: Before the names of operations that only the golden dump has, so that they are not taken for the target's.
GOLDEN = "golden"


class ComparisonSuite(Suite):
    """The dumps of a run and their partners.

    Attributes:
        settings: what the run was asked to do.
        pairs: which dump is compared with which.
    """

    name = "comparison"
    title = "Comparison of dumps"
    item_noun = "operations"
    group_noun = "operations"
    options = OPTIONS
    figures = (
        Figure("distance", "Distance", ".3g"),
        Figure("cosine", "Cosine", ".9f", is_low_bad=True),
        Figure("max_abs", "Max abs", ".3g"),
        Figure("max_rel", "Max rel", ".3g"),
        Figure("tolerance", "Tolerance", ".3g"),
        Figure("ratio", "Distance/limit", ".3g"),
        *(Figure(name, name.capitalize(), ".3f") for name in SHARES),
    )

    @classmethod
    def summary(cls) -> ComparisonSummary:
        """Where the dumps part."""
        return ComparisonSummary()

    def __init__(self, context: Context, golden: Path) -> None:
        self._context = context
        self.settings = ComparisonSettings.of(context.values)
        self.pairs = pair_dumps(context.dumps, golden)
        self._comparisons: dict[Path, DumpComparison] = {}
        self._accountants: dict[Path, Accountant] = {}
        bench, python = context.values["bench"], context.values["bench_python"]
        self._engines = Engines(EngineChoice(parse_device("recorded"), bench, python))

    @property
    def files(self) -> tuple[Path, ...]:
        """The target dumps."""
        return tuple(self.pairs.golden)

    def comparison(self, target: Path) -> DumpComparison:
        """The comparison of the dump at `target`, read once.

        Raises:
            DumpError: a dump cannot be read.
            SuiteError: it has no partner, or a mapping file is not what it should be.
        """
        if target not in self._comparisons:
            golden = self.pairs.golden.get(target)
            if golden is None:
                raise SuiteError(self.pairs.problems.get(target, f"{target}: is not a dump of this run"))
            try:
                self._comparisons[target] = DumpComparison(
                    target, golden, self.settings, self._context.values["data_dir"]
                )
            except MappingError as error:
                raise SuiteError(str(error)) from None
        return self._comparisons[target]

    def groups(self, file: Path) -> Iterator[Group]:
        """Calls of the target dump, then those that only the golden dump has.

        Raises:
            SuiteError: both dumps hold no record.
        """
        comparison = self.comparison(file)
        if not comparison.operations:
            raise SuiteError(f"{file}: this dump and its golden dump hold no record; dump a step that runs")
        yield from group_operations(comparison.target.operations)
        yield from group_operations(comparison.matching.golden_only, f"{GOLDEN}.")

    def judge(self, record: Record) -> Verdict:
        """The verdict on one operation."""
        comparison = self.comparison(record.file)
        found = _found(comparison, record)
        verdict = self._judged(comparison, found, record)
        sides = comparison.target, comparison.golden
        return verdict if self._pictures is None else pictured(verdict, found, sides, self._pictures)

    @cached_property
    def _pictures(self) -> ErrorPictures | None:
        """Drawer of where outputs are off; None where nobody would see the pictures. Imports NumPy."""
        if not self._context.shows_pictures:
            return None
        from pytest_msprobe.evidence.pictures import ErrorPictures

        return ErrorPictures()

    def _judged(self, comparison: DumpComparison, found: OperationComparison, record: Record) -> Verdict:
        verdict = self._by_distance(comparison, found)
        if not self.accounts(comparison):
            return with_cell(self._observed(comparison, found, verdict), cell_facts(found))
        from pytest_msprobe.suites.comparison.verdict_row import accounted

        account, passes = self._accountant(record.file).account(found), self.settings.inherited == "pass"
        verdict = accounted(verdict, account, inherited_passes=passes, is_excusable=_is_excusable(found, account.kind))
        verdict = _with_account(verdict, account.to_wire())
        beyond = {key.path: key.is_beyond for key in account.keys}
        return with_cell(verdict, cell_facts(found, beyond, is_accounted=account.kind == "contained"))

    def _observed(self, comparison: DumpComparison, found: OperationComparison, verdict: Verdict) -> Verdict:
        from pytest_msprobe.suites.comparison.accounting.observed import observed

        is_wanted = self.settings.accounting == "auto" or self.settings.diagnosis is not None
        return _with_account(verdict, observed(found, comparison.limits).to_wire()) if is_wanted else verdict

    def accounts(self, comparison: DumpComparison) -> bool:
        """Whether differences are accounted for: both dumps hold tensors, and there is a benchmark."""
        has_bench = self._engines.choice.bench_python or is_installed("torch") or is_installed("mindspore")
        return self.settings.accounting == "auto" and comparison.mode == "real" and bool(has_bench)

    def _accountant(self, target: Path) -> Accountant:
        if target not in self._accountants:
            from pytest_msprobe.suites.comparison.accounting.accountant import Accountant

            comparison = self.comparison(target)
            memory = self._context.values["max_memory"] // self._context.sharers
            self._accountants[target] = Accountant(
                comparison.target, comparison.golden, self._engines, comparison.limits, max_memory_bytes=memory
            )
        return self._accountants[target]

    def release(self, group: Group) -> None:
        """Free the tensors of an API call."""
        for accountant in self._accountants.values():
            accountant.close()

    def cost(self, file: Path, group: Group) -> float:
        """Estimated from the shapes of its records where it is computed again."""
        comparison = self.comparison(file)
        return estimate_cost(comparison.target, group.call) if self.accounts(comparison) else 1.0

    def close(self) -> None:
        """End child processes."""
        self._engines.close()

    def _by_distance(self, comparison: DumpComparison, found: OperationComparison) -> Verdict:
        """The verdict by how far the values are apart."""
        # The reason of an error stands with its value, where there is one.
        has_value = any(value.status in ("error", "unreadable") for value in found.values)
        frame = (
            comparison.target.stacks.user_frame(f"{found.operation.call}.forward") if found.status == "error" else None
        )
        return Verdict(
            found.status,
            message=found.message if found.status != "error" or not has_value else "",
            outputs=output_rows(found, comparison.limits),
            explanation=explanation(found, comparison.golden, frame) if found.status == "error" else "",
            bench=f"golden dump, {comparison.mode}" if found.held_by == "both" else "",
            attachment=self._attachment(comparison, found),
            properties=(("called_from", f"{frame.file}:{frame.line}"),) if frame is not None else (),
        )

    def attachment_of_unjudged(self, record: Record, status: Status, message: str) -> Mapping[str, Any]:
        """The rows of its tables all the same."""
        comparison = self.comparison(record.file)
        operation = _operation(record)
        partner = comparison.matching.partners.get(operation.record)
        held_by: HeldBy = "golden" if _payload(record).is_golden_only else "both" if partner is not None else "target"
        order = operation.index + (len(comparison.target.operations) if held_by == "golden" else 0)
        found = OperationComparison(operation, partner, held_by, order, fault=message, is_skipped=status == "skip")
        return self._attachment(comparison, found)

    def headline(self, record: Record) -> str:
        """`Mint.matmul.2, forward`."""
        return f"{_payload(record).call}, {record.part}"

    def api(self, record: Record) -> ApiName:
        """The name that hooks get."""
        return api_of(_operation(record))

    def place(self, record: Record) -> StepPosition:
        """Place of the record in both dumps; what only the golden one has stands at its place there."""
        comparison, operation = self.comparison(record.file), _operation(record)
        forward = f"{operation.call}.forward"
        if _payload(record).is_golden_only:
            place = place_in(comparison.golden, operation.record, forward)
            target = place_in(comparison.target, "")
            place = replace(place, cells=comparison.cells_in_target(place.cells), partner_cells=place.cells)
            return replace(place, rank=target.rank, step=target.step, side="golden", partner=operation.record)
        place = place_in(comparison.target, operation.record, forward)
        if (partner := comparison.matching.partners.get(operation.record)) is None:
            return replace(place, side="target")
        cells = cells_of(comparison.golden, partner.record, f"{partner.call}.forward")
        return replace(place, partner=partner.record, partner_cells=cells)

    def marks(self, record: Record) -> tuple[str, ...]:
        """Direction and API type."""
        return record.part, _payload(record).call.partition(".")[0]

    def frames(self, record: Record) -> Sequence[Frame]:
        """Call stack of the forward in the target."""
        return self.comparison(record.file).target.stacks.frames(f"{_payload(record).call}.forward")

    def header(self) -> list[str]:
        """What is compared with what."""
        root = self._context.config.rootpath
        pairs = ((target, golden) for target, golden in self.pairs.golden.items() if golden is not None)
        lines = [f"msprobe: {file_id(target, root)}: compared with {golden}" for target, golden in pairs]
        lines += [f"msprobe: tolerances from the noise run {self.settings.noise}"] if self.settings.noise else []
        return [*lines, *(f"msprobe: not compared: {problem}" for problem in self.pairs.lone())]

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """Tables, advice and findings."""
        return ComparisonReport(self, self._context.out, self._context.config.rootpath)

    def _attachment(self, comparison: DumpComparison, found: OperationComparison) -> Mapping[str, Any]:
        table = rows(found, comparison.mode, self.settings.result_column)
        return {"summary": RecordSummary.of(found).to_wire(), "rows": table}


SUITE = ComparisonSuite


def make(context: Context) -> ComparisonSuite:
    """The suite for one process of a run.

    Raises:
        SuiteError: there is nothing to compare, or nothing to compare with.
    """
    golden = context.values["golden"]
    if golden is None:
        raise SuiteError("--msprobe-suite=comparison needs --msprobe-golden=PATH, the dump to compare with")
    if not context.dumps:
        raise SuiteError(f"--msprobe-golden={golden}: name the dumps to compare with it by --msprobe-dump=PATH")
    if not golden.exists():
        raise SuiteError(f"--msprobe-golden={golden}: there is no such file or folder")
    if not find_files(golden):
        why = NOT_READ if holds_kernel_dump(golden) else "holds no dump.json; give a dump, step or rank folder"
        raise SuiteError(f"--msprobe-golden={golden}: {why}")
    return ComparisonSuite(context, golden)


def _with_account(verdict: Verdict, account: dict[str, Any]) -> Verdict:
    return replace(verdict, attachment={**(verdict.attachment or {}), "account": account})


def _payload(record: Record) -> Operations:
    payload: Operations = record.payload
    return payload


def _operation(record: Record) -> Operation:
    return _payload(record).by_part[record.part]


def _found(comparison: DumpComparison, record: Record) -> OperationComparison:
    operation = _operation(record)
    return comparison.golden_only(operation) if _payload(record).is_golden_only else comparison.verdict(operation)


def _is_excusable(found: OperationComparison, kind: str) -> bool:
    """Whether an account of `kind` can explain the operation's errors: not a file that cannot be read, and not another
    plain argument (a number, a text) where all tensors are equal.
    """
    if found.fault or any(value.status == "unreadable" for value in found.values):
        return False
    wrong = [value for value in found.values if value.status == "error"]
    leaves = [leaf for value in wrong for leaf in (value.target, value.golden) if leaf is not None]
    return kind != "equal" or all(leaf.tensor is not None for leaf in leaves)
