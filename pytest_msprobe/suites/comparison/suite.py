"""The comparison as a suite: every operation of the target dump against its partner in the golden dump.

The verdict on an operation is its values as rows of the reports, what its account makes of it, and the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DIRECTIONS, ApiName, Dump, DumpError, Frame
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers.words import readable
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.numerics.expected import Share
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.suites.comparison.accounting.account import (
    BORN_GOLDEN,
    BORN_TARGET,
    DEFINED,
    INHERITED,
    PARTS,
    Account,
    OutputAccount,
)
from pytest_msprobe.suites.comparison.cells import CELL, LEVEL, CellFacts, cell_facts
from pytest_msprobe.suites.comparison.content import RowContent
from pytest_msprobe.suites.comparison.exact import EXACT, ExactRun
from pytest_msprobe.suites.comparison.mapping import MappingError
from pytest_msprobe.suites.comparison.operations import EQUAL_AGAIN, DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.report import ComparisonReport, ComparisonSummary, RecordSummary
from pytest_msprobe.suites.comparison.run_setup import why_sharded
from pytest_msprobe.suites.comparison.sides import ComparedDump, find_files, pair_dumps, why_no_dump, why_not_exact
from pytest_msprobe.suites.comparison.table import rows
from pytest_msprobe.suites.comparison.values import ValueComparison
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    Suite,
    SuiteError,
    SuiteReport,
    cells_of,
    file_id,
    place_in,
    refuse_unused,
)
from pytest_msprobe.suites.grouping import Operations, api_of, estimate_cost, group_operations, operation_of
from pytest_msprobe.support import is_installed
from pytest_msprobe.verdicts import MOOT, UNREADABLE, Figure, HeldBy, OutputRow, Status, StepPosition, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.evidence.pictures import ErrorPictures
    from pytest_msprobe.suites.comparison.accounting.accountant import Accountant

#: Figures of accounts: shares of the difference that is born on either side, inherited, and defined differently.
SHARES = ("born", "inherited", "defined")
_STATUS: dict[str, Status] = {"pass": "pass", "warning": "pass", "error": "error", "unreadable": "error"}
_STATUS |= {"unmatched": "skip", "skip": "skip"}


def verdict_of(
    compared: OperationComparison, account: Account | None, comparison: DumpComparison, settings: ComparisonSettings
) -> Verdict:
    """The verdict on an operation: by how far its values are apart, changed by what its account shows."""
    frame, explanation = None, ""
    if compared.status == "error":
        frame = comparison.target.stacks.user_frame(f"{compared.operation.call}.forward")
        explanation = _explanation(compared, account, comparison.golden, frame)
    # The reason of an error stands with its value, where there is one.
    message = "" if compared.status == "error" and compared.wrong else compared.message
    outputs = account.outputs if account is not None else ()
    shares = {output.path: output for output in outputs if output.shares}
    cell = cell_facts(compared, account) if compared.operation.is_cell else None
    content = comparison.row_content(compared)
    verdict = Verdict(
        compared.status,
        message=message,
        outputs=tuple(_output(value, shares.get(value.path)) for value in compared.values if _is_shown(value)),
        explanation=explanation,
        bench=f"golden dump, {comparison.mode}" if compared.held_by == "both" else "",
        attachment=attachment_of(compared, account, cell, content, mode=comparison.mode, settings=settings),
        properties=tuple(_properties(compared, frame, cell, settings)),
    )
    if account is None or account.basis != "tensors":
        return verdict
    return _accounted(verdict, compared, account, settings)


def _properties(
    compared: OperationComparison, frame: Frame | None, cell: CellFacts | None, settings: ComparisonSettings
) -> Iterator[tuple[str, str]]:
    """The properties of the item of an operation; `frame` is that of its call in the script."""
    if frame is not None:
        yield "called_from", f"{frame.file}:{frame.line}"
    if compared.status == "error" and compared.is_unreadable:
        yield UNREADABLE, "dump"
    is_accepted = "unmatched" in settings.accept and not compared.is_skipped
    is_beside = compared.held_by != "both" and compared.content == "beside"
    if compared.status == "skip" and (is_accepted or is_beside):
        yield MOOT, "layer"
    if cell is not None and cell.level:
        yield LEVEL, cell.level


def attachment_of(
    compared: OperationComparison,
    account: Account | None = None,
    cell: CellFacts | None = None,
    content: RowContent | None = None,
    *,
    mode: str,
    settings: ComparisonSettings,
) -> Mapping[str, Any]:
    """What the writing process needs of an operation: what is known, and its rows in a table in `mode`."""
    attachment: dict[str, Any] = {"summary": RecordSummary.of(compared).to_wire()}
    if settings.table != "off":
        attachment["rows"] = rows(compared, mode, settings.result_column)
    if account is not None:
        attachment["account"] = account.to_wire()
    if cell is not None:
        attachment[CELL] = cell.to_wire()
    if content is not None:
        attachment["content"] = content.to_wire()
    return attachment


def _explanation(
    compared: OperationComparison, account: Account | None, golden: ComparedDump, frame: Frame | None
) -> str:
    """What is wrong with an operation, over several lines: values, partner, line of the script.

    Where a difference arises its account says, and distances only where nothing was computed again.
    """
    lines = [printable(compared.fault)] if compared.fault else []
    wrong = compared.wrong
    lines += (value.explanation or printable(f"{value.name} {value.status}: {value.message}") for value in wrong)
    partner = compared.partner.record if compared.partner is not None else "nothing"
    lines.append(printable(f"tested: {compared.operation.record}; benchmark: {partner} of {golden.path}"))
    if compared.is_origin and (account is None or account.basis != "tensors" or account.kind == "unaccounted"):
        lines.append("its inputs agree: the difference arises here, unless a backward took it from its forward")
    if frame is not None:
        lines.append(frame.told)
    return "\n\n".join(lines)


def pictured(
    verdict: Verdict, compared: OperationComparison, sides: tuple[ComparedDump, ComparedDump], pictures: ErrorPictures
) -> Verdict:
    """The verdict with a picture of where each failing output is off, as far as both `sides` hold its tensor."""
    from pytest_msprobe.suites.comparison.accounting.terms import load

    def arrays(value: ValueComparison) -> tuple[Any, Any]:
        if value.status != "error":
            return None, None
        return load(value.target, sides[0].tensors), load(value.golden, sides[1].tensors)

    pairs = map(arrays, filter(_is_shown, compared.values))
    return replace(verdict, outputs=pictures.added(verdict.outputs, pairs))


def _is_shown(value: ValueComparison) -> bool:
    return value.is_tensor or value.status in ("error", "warning")


def _output(value: ValueComparison, split: OutputAccount | None) -> OutputRow:
    metrics = value.figures.metrics if value.figures is not None else None
    return OutputRow(
        label=value.path,
        bench_dtype=_dtype(value.golden),
        tested_dtype=_dtype(value.target),
        shape=value.leaf.shape,
        status=_STATUS[value.status],
        message=value.message,
        figures={
            "distance": value.distance,
            "tolerance": getattr(value.tolerance, "limit", None),
            **{name: getattr(metrics, name, None) for name in ("cosine", "max_abs", "max_rel")},
            "ratio": _ratio(value),
            **_shares(split),
        },
        difference=value.difference,
    )


def _dtype(leaf: Leaf | None) -> str:
    return canonical_dtype(leaf.dtype) if leaf is not None else ""


def _ratio(value: ValueComparison) -> float | None:
    """How many times its limit the distance is; what must be equal and is not, infinitely many times."""
    if value.distance is None or value.status not in ("pass", "warning", "error"):
        return None
    return relative(value.distance, value.limit or 0.0)


_WORDS = dict(zip(PARTS, ("arises in the target", "inherited", "defined differently", "arises in the golden run")))


def _accounted(
    verdict: Verdict, compared: OperationComparison, account: Account, settings: ComparisonSettings
) -> Verdict:
    """The verdict by distances, changed by what the `account` shows.

    An operation at fault is an error, whatever its distance. One that is not keeps its error as an expected failure,
    where `settings` say so, and no value of it is in question beside those that the account splits. Where what both
    runs hold shows that its values are right, it may be defined differently, but not computed wrongly.
    """
    is_born = {part for _, part, _ in account.blamed} & {BORN_TARGET, BORN_GOLDEN}
    if compared.content in EQUAL_AGAIN and not is_born:
        return verdict
    if account.kind == "fault":
        sentences = [readable(f"{output.path}: {text}") for output, _, text in account.blamed]
        lines = [*sentences, *map(output_text, filter(attrgetter("shares"), account.outputs))]
        explanation = _joined("\n".join(lines), verdict.explanation)
        return replace(verdict, status="error", message=sentences[0], explanation=explanation)
    if verdict.status != "error" or not _is_excusable(compared, account.kind):
        return verdict
    words = _excuse(account)
    if account.kind == "unaccounted" and account.is_given:
        words = f"cannot be computed again: {account.reason}; its inputs differ already"
    elif account.kind in ("unmatched", "unaccounted"):
        why = f"judged by its distance alone: {account.reason}" if account.reason else ""
        return replace(verdict, explanation=_joined(verdict.explanation, why))
    return replace(verdict, message=words, excuse=words if settings.inherited == "pass" else "")


def _joined(*paragraphs: str) -> str:
    return "\n\n".join(filter(None, paragraphs))


def _is_excusable(compared: OperationComparison, kind: str) -> bool:
    """Whether an account of `kind` can explain the operation's errors: not a file that cannot be read, and not another
    plain argument (a number, a text) where all tensors are equal.
    """
    if compared.is_unreadable:
        return False
    leaves = (leaf for value in compared.wrong for leaf in (value.target, value.golden))
    return kind != "equal" or all(leaf is None or leaf.tensor is not None for leaf in leaves)


def _excuse(account: Account) -> str:
    """Why a difference is none of the operation's own, in one line."""
    if account.kind == "contained":
        return "contained: the difference of a layer is that of its calls, which are accounted for one by one"
    if account.kind == "equal":
        return "inherited: its inputs differ, its outputs do not"
    if account.kind not in ("rounding", "inherited"):
        return ""
    return f"{account.kind}: {output_text(max(account.outputs, key=attrgetter('size')))}"


def _shares(output: OutputAccount | None) -> dict[str, float | None]:
    if output is None:
        return dict.fromkeys(SHARES)
    parts = output.shares[BORN_TARGET] + output.shares[BORN_GOLDEN], output.shares[INHERITED], output.shares[DEFINED]
    return {name: round(share, 4) if math.isfinite(share) else None for name, share in zip(SHARES, parts)}


def output_text(output: OutputAccount) -> str:
    """`output.0 differs by 0.012: 98 % inherited (growth x 1.2), 2 % arises in the target`."""
    parts = []
    shown = [part for part in output.shares.items() if abs(part[1]) >= Share.SHOWN]
    for name, share in sorted(shown, key=lambda part: -abs(part[1])):
        growth = f" (growth x {output.growth:.3g})" if name == INHERITED and output.growth is not None else ""
        parts.append(f"{100 * share:.3g} % {_WORDS[name]}{growth}")
    return f"{output.path} differs by {output.size:.3g}: {', '.join(parts) or 'by NaN or infinity'}"


#: Before the names of operations that only the golden dump has, so that they are not taken for the target's.
GOLDEN = "golden"


class ComparisonSuite(Suite):
    """The dumps of a run and their partners.

    Attributes:
        settings: what the run was asked to do.
        pairs: which dump is compared with which.
        engines: who computes operations again.
    """

    name = "comparison"
    excuses = True
    title = "Comparison of dumps"
    item_noun = "operations"
    group_noun = "operations"
    figures = (
        Figure("distance", "Distance", ".3g"),
        Figure("cosine", "Cosine", ".9f", is_low_bad=True),
        Figure("max_abs", "Max abs", ".3g"),
        Figure("max_rel", "Max rel", ".3g"),
        Figure("tolerance", "Tolerance", ".3g"),
        Figure("ratio", "Distance/limit", ".3g"),
        Figure("born", "Arises here", ".3f"),
        Figure("inherited", "Inherited", ".3f"),
        Figure("defined", "Defined", ".3f"),
    )
    passing = "tolerance"
    summary = ComparisonSummary

    @classmethod
    def make(cls, context: Context) -> ComparisonSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: there is nothing to compare, or nothing to compare with.
        """
        settings = ComparisonSettings.of(context.values)
        golden = settings.golden
        if golden is None:
            raise SuiteError("--msprobe-suite=comparison needs --msprobe-golden=PATH, the dump to compare with")
        if not context.dumps:
            raise SuiteError(f"--msprobe-golden={golden}: name the dumps to compare with it by --msprobe-dump=PATH")
        if not golden.exists():
            raise SuiteError(f"--msprobe-golden={golden}: there is no such file or folder")
        if not find_files(golden):
            raise SuiteError(f"--msprobe-golden={golden}: {why_no_dump(golden)}")
        if settings.exact is not None and (why := why_not_exact(settings.exact)):
            raise SuiteError(f"--msprobe-exact={settings.exact}: {why}")
        if settings.accounting == "off":
            needless = ("inherited", "bench", "bench_python", "max_memory")
            refuse_unused(
                context, needless, "has no effect with --msprobe-accounting=off, which computes nothing again"
            )
        if settings.table == "off":
            refuse_unused(context, ("xlsx", "result_column"), "has no effect with --msprobe-table=off")
        suite = cls(context, settings, golden)
        if context.is_writer and (unusable := suite.engines.unusable_bench()):
            raise SuiteError(unusable)
        return suite

    def __init__(self, context: Context, settings: ComparisonSettings, golden: Path) -> None:
        super().__init__(context)
        self.settings = settings
        self.pairs = pair_dumps(context.dumps, golden)
        self._comparisons: dict[Path, DumpComparison] = {}
        self._accountants: dict[Path, Accountant] = {}
        self._exact_runs: dict[Path, ExactRun] = {}
        self._exact_files = pair_dumps(context.dumps, settings.exact).golden if settings.exact is not None else {}
        self.engines = Engines(EngineChoice(parse_device("recorded"), settings.bench, settings.bench_python))

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
                comparison = DumpComparison(target, golden, self.settings)
                if (exact := self._exact_files.get(target)) is not None:
                    self._exact_runs[target] = ExactRun(comparison, exact, self.settings)
                self._comparisons[target] = comparison
            except MappingError as error:
                raise SuiteError(str(error)) from None
        return self._comparisons[target]

    def groups(self, file: Path) -> Iterator[Group]:
        """Calls of the target dump, then those that only the golden dump has.

        Raises:
            SuiteError: both dumps hold no record, or the target is one rank of a sharded run.
        """
        comparison = self.comparison(file)
        if not comparison.operations:
            raise SuiteError(f"{file}: this dump and its golden dump hold no record; dump a step that runs")
        if is_part := why_sharded(*comparison.sides):
            raise SuiteError(is_part)
        yield from group_operations(comparison.target.operations)
        yield from group_operations(comparison.matching.golden_only, f"{GOLDEN}.")

    def judge(self, record: ItemRecord) -> Verdict:
        """The verdict on one operation."""
        comparison, accountant = self.comparison(record.file), self._accountant(record.file)
        operation = operation_of(record)
        if _payload(record).is_golden_only:
            compared = comparison.golden_only(operation)
        else:
            compared = comparison.verdict(operation, for_account=accountant is not None)
        account = accountant.account(compared) if accountant is not None else self._observed(comparison, compared)
        verdict = verdict_of(compared, account, comparison, self.settings)
        if record.file in self._exact_runs and not _payload(record).is_golden_only:
            errors = self._exact_runs[record.file].errors(operation)
            if errors is not None:
                verdict = replace(verdict, attachment={**(verdict.attachment or {}), EXACT: errors.to_wire()})
        if verdict.status != "error" or verdict.excuse or self._pictures is None:
            return verdict
        return pictured(verdict, compared, comparison.sides, self._pictures)

    @cached_property
    def _pictures(self) -> ErrorPictures | None:
        """Drawer of where outputs are off; None where nobody would see the pictures. Imports NumPy."""
        if not self._context.shows_pictures:
            return None
        from pytest_msprobe.evidence.pictures import ErrorPictures

        return ErrorPictures()

    def _observed(self, comparison: DumpComparison, compared: OperationComparison) -> Account | None:
        """What can be said without computing anything again, where that is asked for."""
        if self.settings.accounting != "auto" and self._context.values.get("diagnosis") is None:
            return None
        from pytest_msprobe.suites.comparison.accounting.observed import observed

        is_layer = compared.operation.is_cell and compared.operation.phase in DIRECTIONS
        is_alone = is_layer and compared.operation.call not in comparison.target.layers_of_calls
        return observed(compared, comparison.limits, is_alone=is_alone)

    def accounts(self, comparison: DumpComparison) -> bool:
        """Whether differences are accounted for: both dumps hold tensors, and there is a benchmark."""
        return self.settings.accounting == "auto" and comparison.mode == "real" and self._has_bench

    @cached_property
    def _has_bench(self) -> bool:
        return bool(self.engines.choice.bench_python) or is_installed("torch") or is_installed("mindspore")

    def _accountant(self, target: Path) -> Accountant | None:
        """Who splits the differences of the dump at `target`; None where they are not accounted for."""
        comparison = self.comparison(target)
        if target not in self._accountants and self.accounts(comparison):
            from pytest_msprobe.suites.comparison.accounting.accountant import Accountant

            memory = self.settings.max_memory_bytes // self._context.sharers
            self._accountants[target] = Accountant(comparison, self.engines, max_memory_bytes=memory)
        return self._accountants.get(target)

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
        self.engines.close()

    def attachment_of_unjudged(self, record: ItemRecord, status: Status, message: str) -> Mapping[str, Any]:
        """The rows of its tables all the same."""
        comparison = self.comparison(record.file)
        operation = operation_of(record)
        partner = comparison.matching.partners.get(operation.record)
        held_by: HeldBy = "both" if partner is not None else "target"
        order = operation.index
        if _payload(record).is_golden_only:
            held_by, order = "golden", order + len(comparison.target.operations)
        compared = OperationComparison(operation, partner, held_by, order, fault=message, is_skipped=status == "skip")
        return attachment_of(compared, mode=comparison.mode, settings=self.settings)

    def headline(self, record: ItemRecord) -> str:
        """`Mint.matmul.2, forward`."""
        return f"{operation_of(record).call}, {record.part}"

    def api(self, record: ItemRecord) -> ApiName:
        """The name that hooks get."""
        return api_of(operation_of(record))

    def place(self, record: ItemRecord) -> StepPosition:
        """Place of the record in both dumps; what only the golden one has stands at its place there."""
        comparison, operation = self.comparison(record.file), operation_of(record)
        forward = f"{operation.call}.forward"
        if _payload(record).is_golden_only:
            place = place_in(comparison.golden, operation.record, forward)
            target = place_in(comparison.target, "")
            place = replace(place, cells=comparison.cells_in_target(place.cells), partner_cells=place.cells)
            return replace(place, rank=target.rank, step=target.step, side="golden", partner=operation.record)
        if (partner := comparison.matching.partners.get(operation.record)) is None:
            return place_in(comparison.target, operation.record, forward, side="target")
        cells = cells_of(comparison.golden, partner.record, f"{partner.call}.forward")
        return place_in(comparison.target, operation.record, forward, partner=partner.record, partner_cells=cells)

    def marks(self, record: ItemRecord) -> tuple[str, ...]:
        """Direction and API type."""
        return record.part, _payload(record).call.partition(".")[0]

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        """Call stack of the forward in the target."""
        return self.comparison(record.file).target.stacks.frames(f"{_payload(record).call}.forward")

    def header(self) -> list[str]:
        """What is compared with what."""
        root, noise = self._context.config.rootpath, self.settings.noise
        lines = [f"{file_id(target, root)}: compared with {golden}" for target, golden in self.pairs.matched]
        lines += [f"tolerances from the noise run {noise}"] if noise else []
        lines += [f"not compared: {problem}" for problem in self.pairs.lone()]
        return [f"msprobe: {line}" for line in lines]

    def dumps(self) -> Iterator[Dump]:
        """Targets, golden dumps and noise runs that can be read."""
        for comparison in self._readable():
            yield from comparison.dumps()

    def _readable(self) -> Iterator[DumpComparison]:
        """The comparisons of all pairs that can be read."""
        for target, _ in self.pairs.matched:
            with suppress(DumpError, SuiteError):
                yield self.comparison(target)

    def warnings(self) -> Iterator[str]:
        """Entries of mapping files that fit nothing: most likely misspelt."""
        settings = self.settings
        if settings.layer_mapping is not None and settings.cell_mapping:
            yield "--msprobe-cell-mapping: has no effect with --msprobe-layer-mapping, which names Cells by their place"
        for comparison in self._readable():
            yield from comparison.mappings.unused(*comparison.sides)

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """Tables, advice and findings."""
        out, root = self._context.out, self._context.config.rootpath
        return ComparisonReport(self.settings, self.pairs, self.comparison, out, root)


def _payload(record: ItemRecord) -> Operations:
    payload: Operations = record.payload
    return payload
