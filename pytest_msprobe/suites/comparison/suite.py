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
from pytest_msprobe.suites.comparison.mapping import MappingError
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import OPTIONS, ComparisonSettings
from pytest_msprobe.suites.comparison.report import ComparisonReport, ComparisonSummary
from pytest_msprobe.suites.comparison.sides import find_files, pair_dumps
from pytest_msprobe.suites.comparison.verdict_row import SHARES, attachment_of, pictured, verdict_of
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
    from pytest_msprobe.suites.comparison.accounting.account import Account
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
        self._accountants: dict[Path, Accountant | None] = {}
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
        comparison, accountant = self.comparison(record.file), self._accountant(record.file)
        operation = _operation(record)
        if _payload(record).is_golden_only:
            found = comparison.golden_only(operation)
        else:
            found = comparison.verdict(operation, for_account=accountant is not None)
        account = accountant.account(found) if accountant is not None else self._observed(comparison, found)
        verdict = verdict_of(found, account, comparison, self.settings)
        if verdict.status != "error" or verdict.excuse or self._pictures is None:
            return verdict
        return pictured(verdict, found, (comparison.target, comparison.golden), self._pictures)

    @cached_property
    def _pictures(self) -> ErrorPictures | None:
        """Drawer of where outputs are off; None where nobody would see the pictures. Imports NumPy."""
        if not self._context.shows_pictures:
            return None
        from pytest_msprobe.evidence.pictures import ErrorPictures

        return ErrorPictures()

    def _observed(self, comparison: DumpComparison, found: OperationComparison) -> Account | None:
        """What can be said without computing anything again, where that is asked for."""
        if self.settings.accounting != "auto" and self.settings.diagnosis is None:
            return None
        from pytest_msprobe.suites.comparison.accounting.observed import observed

        return observed(found, comparison.limits)

    def accounts(self, comparison: DumpComparison) -> bool:
        """Whether differences are accounted for: both dumps hold tensors, and there is a benchmark."""
        has_bench = self._engines.choice.bench_python or is_installed("torch") or is_installed("mindspore")
        return self.settings.accounting == "auto" and comparison.mode == "real" and bool(has_bench)

    def _accountant(self, target: Path) -> Accountant | None:
        """Who splits the differences of the dump at `target`; None where they are not accounted for."""
        if target not in self._accountants:
            comparison, accountant = self.comparison(target), None
            if self.accounts(comparison):
                from pytest_msprobe.suites.comparison.accounting.accountant import Accountant

                memory = self._context.values["max_memory"] // self._context.sharers
                accountant = Accountant(comparison, self._engines, max_memory_bytes=memory)
            self._accountants[target] = accountant
        return self._accountants[target]

    def release(self, group: Group) -> None:
        """Free the tensors of an API call."""
        for accountant in self._accountants.values():
            if accountant is not None:
                accountant.close()

    def cost(self, file: Path, group: Group) -> float:
        """Estimated from the shapes of its records where it is computed again."""
        comparison = self.comparison(file)
        return estimate_cost(comparison.target, group.call) if self.accounts(comparison) else 1.0

    def close(self) -> None:
        """End child processes."""
        self._engines.close()

    def attachment_of_unjudged(self, record: Record, status: Status, message: str) -> Mapping[str, Any]:
        """The rows of its tables all the same."""
        comparison = self.comparison(record.file)
        operation = _operation(record)
        partner = comparison.matching.partners.get(operation.record)
        held_by: HeldBy = "golden" if _payload(record).is_golden_only else "both" if partner is not None else "target"
        order = operation.index + (len(comparison.target.operations) if held_by == "golden" else 0)
        found = OperationComparison(operation, partner, held_by, order, fault=message, is_skipped=status == "skip")
        return attachment_of(found, mode=comparison.mode, style=self.settings.result_column)

    def headline(self, record: Record) -> str:
        """`Mint.matmul.2, forward`."""
        return f"{_operation(record).call}, {record.part}"

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


def _payload(record: Record) -> Operations:
    payload: Operations = record.payload
    return payload


def _operation(record: Record) -> Operation:
    return _payload(record).by_part[record.part]
