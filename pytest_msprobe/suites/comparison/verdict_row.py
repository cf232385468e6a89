"""The verdict on an operation: its values as rows of the reports, what its account makes of it, and the words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from msprobe_collector.dump_format import Frame
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.values import printable
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
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.report import RecordSummary
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.suites.comparison.table import rows
from pytest_msprobe.suites.comparison.values import ValueComparison
from pytest_msprobe.verdicts import OutputRow, Status, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.evidence.pictures import ErrorPictures

#: Figures of accounts: shares of the difference that is born on either side, inherited, and defined differently.
SHARES = ("born", "inherited", "defined")
_STATUS: dict[str, Status] = {
    "pass": "pass",
    "warning": "pass",
    "error": "error",
    "unreadable": "error",
    "unmatched": "skip",
    "skip": "skip",
}


def verdict_of(
    found: OperationComparison, account: Account | None, comparison: DumpComparison, settings: ComparisonSettings
) -> Verdict:
    """The verdict on an operation: by how far its values are apart, changed by what its account shows."""
    frame = None
    if found.status == "error":
        frame = comparison.target.stacks.user_frame(f"{found.operation.call}.forward")
    # The reason of an error stands with its value, where there is one.
    has_value = any(value.status in ("error", "unreadable") for value in found.values)
    shares = {output.path: output for output in account.outputs if output.shares} if account is not None else {}
    shown = filter(_is_shown, found.values)
    cell = cell_facts(found, account) if found.operation.is_cell else None
    properties = (("called_from", f"{frame.file}:{frame.line}"),) if frame is not None else ()
    if cell is not None and cell.level:
        properties = (*properties, (LEVEL, cell.level))
    verdict = Verdict(
        found.status,
        message=found.message if found.status != "error" or not has_value else "",
        outputs=tuple(_output(value, shares.get(value.path)) for value in shown),
        explanation=_explanation(found, comparison.golden, frame) if found.status == "error" else "",
        bench=f"golden dump, {comparison.mode}" if found.held_by == "both" else "",
        attachment=attachment_of(found, account, cell, mode=comparison.mode, style=settings.result_column),
        properties=properties,
    )
    if account is None or account.basis != "tensors":
        return verdict
    return _accounted(verdict, found, account, settings)


def attachment_of(
    found: OperationComparison, account: Account | None = None, cell: CellFacts | None = None, *, mode: str, style: str
) -> Mapping[str, Any]:
    """What the writing process needs of an operation: rows of the table in `mode` and `style`, and what is known."""
    attachment = {"summary": RecordSummary.of(found).to_wire(), "rows": rows(found, mode, style)}
    if account is not None:
        attachment["account"] = account.to_wire()
    if cell is not None:
        attachment[CELL] = msgspec.to_builtins(cell)
    return attachment


def _explanation(found: OperationComparison, golden: ComparedDump, frame: Frame | None) -> str:
    """What is wrong with an operation, over several lines: values, partner, line of the script."""
    wrong = [value for value in found.values if value.status in ("error", "unreadable")]
    lines = [printable(found.fault)] if found.fault else []
    lines += [value.explanation or printable(f"{value.name} {value.status}: {value.message}") for value in wrong]
    partner = found.partner.record if found.partner is not None else "nothing"
    lines.append(printable(f"tested: {found.operation.record}; benchmark: {partner} of {golden.path}"))
    if found.is_origin:
        lines.append("its inputs agree: the difference arises here, unless a backward took it from its forward")
    if frame is not None:
        lines.append(f"called from {frame.file}:{frame.line}, in {frame.function}:\n    {frame.source}")
    return "\n\n".join(lines)


def pictured(
    verdict: Verdict, found: OperationComparison, sides: tuple[ComparedDump, ComparedDump], pictures: ErrorPictures
) -> Verdict:
    """The verdict with a picture of where each failing output is off, as far as both `sides` hold its tensor."""
    from pytest_msprobe.suites.comparison.accounting.terms import load

    def arrays(value: ValueComparison) -> tuple[Any, Any]:
        if value.status != "error":
            return None, None
        return load(value.target, sides[0].tensors), load(value.golden, sides[1].tensors)

    pairs = map(arrays, filter(_is_shown, found.values))
    return replace(verdict, outputs=pictures.added(verdict.outputs, pairs))


def _is_shown(value: ValueComparison) -> bool:
    return value.is_tensor or value.status in ("error", "warning")


def _output(value: ValueComparison, split: OutputAccount | None) -> OutputRow:
    target, golden = value.target, value.golden
    metrics = value.figures.metrics if value.figures is not None else None
    leaf = target or golden
    assert leaf is not None
    return OutputRow(
        label=value.path,
        bench_dtype=canonical_dtype(golden.dtype) if golden is not None else "",
        tested_dtype=canonical_dtype(target.dtype) if target is not None else "",
        shape=leaf.shape,
        status=_STATUS[value.status],
        message=value.message,
        figures={
            "distance": value.distance,
            "tolerance": value.tolerance.limit if value.tolerance is not None else None,
            **{name: getattr(metrics, name, None) for name in ("cosine", "max_abs", "max_rel")},
            "ratio": _ratio(value),
            **(_shares(split) if split is not None else dict.fromkeys(SHARES)),
        },
    )


def _ratio(value: ValueComparison) -> float | None:
    """How many times its limit the distance is; what must be equal and is not, infinitely many times."""
    if value.distance is None or value.status not in ("pass", "warning", "error"):
        return None
    return value.distance / value.limit if value.limit else math.inf if value.distance else 0.0


_WORDS = dict(zip(PARTS, ("born in the target", "inherited", "defined differently", "born in the golden run")))


def _accounted(verdict: Verdict, found: OperationComparison, account: Account, settings: ComparisonSettings) -> Verdict:
    """The verdict by distances, changed by what the `account` shows.

    An operation at fault is an error, whatever its distance. One that is not keeps its error as an expected failure,
    where `settings` say so, and no value of it is in question beside those that the account splits.
    """
    if account.kind == "fault":
        sentences = [f"{output.path}: {text}" for output, _, text in account.blamed]
        lines = [*sentences, *(output_text(output) for output in account.outputs if output.shares)]
        explanation = "\n\n".join(filter(None, ["\n".join(lines), verdict.explanation]))
        return replace(verdict, status="error", message=sentences[0], explanation=explanation)
    if verdict.status != "error" or not _is_excusable(found, account.kind):
        return verdict
    if account.kind in ("unmatched", "unaccounted"):
        why = f"judged by its distance alone: {account.reason}" if account.reason else ""
        return replace(verdict, explanation="\n\n".join(filter(None, [verdict.explanation, why])))
    words = _excuse(account)
    return replace(verdict, message=words, excuse=words if settings.inherited == "pass" else "")


def _is_excusable(found: OperationComparison, kind: str) -> bool:
    """Whether an account of `kind` can explain the operation's errors: not a file that cannot be read, and not another
    plain argument (a number, a text) where all tensors are equal.
    """
    if found.fault or any(value.status == "unreadable" for value in found.values):
        return False
    wrong = [value for value in found.values if value.status == "error"]
    leaves = [leaf for value in wrong for leaf in (value.target, value.golden) if leaf is not None]
    return kind != "equal" or all(leaf.tensor is not None for leaf in leaves)


def _excuse(account: Account) -> str:
    """Why a difference is none of the operation's own, in one line."""
    if account.kind == "contained":
        return "contained: the difference of a layer is that of its calls, which are accounted for one by one"
    if account.kind == "equal":
        return "inherited: its inputs differ, its outputs do not"
    largest = max(account.outputs, key=lambda output: output.size)
    if account.kind == "rounding":
        return f"rounding: {output_text(largest)}"
    return f"inherited: {output_text(largest)}"


def _shares(output: OutputAccount) -> dict[str, float | None]:
    parts = output.shares[BORN_TARGET] + output.shares[BORN_GOLDEN], output.shares[INHERITED], output.shares[DEFINED]
    return {name: round(share, 4) if math.isfinite(share) else None for name, share in zip(SHARES, parts)}


def output_text(output: OutputAccount) -> str:
    """`output.0 differs by 0.012: 98 % inherited (growth x 1.2), 2 % born in the target`."""
    ranked = sorted(output.shares, key=lambda name: -abs(output.shares[name]))
    parts = [_part(output, name) for name in ranked if abs(output.shares[name]) >= 0.005]
    return f"{output.path} differs by {output.size:.3g}: {', '.join(parts) or 'by NaN or infinity'}"


def _part(output: OutputAccount, name: str) -> str:
    growth = f" (growth x {output.growth:.3g})" if name == INHERITED and output.growth is not None else ""
    return f"{100 * output.shares[name]:.3g} % {_WORDS[name]}{growth}"
