"""Values of an operation as rows of the reports.

What an account makes of the verdict on an operation, and its words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.suites.comparison.sides import ComparedDump
from pytest_msprobe.suites.comparison.values import DistanceLimits, ValueComparison
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


def output_rows(found: OperationComparison, limits: DistanceLimits) -> tuple[OutputRow, ...]:
    """One row per tensor, and per plain value that differs."""
    return tuple(_output(value, limits) for value in found.values if _is_shown(value))


def explanation(found: OperationComparison, golden: ComparedDump, frame: Frame | None) -> str:
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
    if verdict.status != "error" or verdict.excuse:
        return verdict
    values = filter(_is_shown, found.values)
    pairs = (_arrays(value, sides) if value.status == "error" else (None, None) for value in values)
    return replace(verdict, outputs=pictures.added(verdict.outputs, pairs))


def _arrays(value: ValueComparison, sides: tuple[ComparedDump, ComparedDump]) -> tuple[Any, Any]:
    from pytest_msprobe.suites.comparison.accounting.terms import load

    return load(value.target, sides[0].tensors), load(value.golden, sides[1].tensors)


def _is_shown(value: ValueComparison) -> bool:
    return value.is_tensor or value.status in ("error", "warning")


def _output(value: ValueComparison, limits: DistanceLimits) -> OutputRow:
    target, golden, figures = value.target, value.golden, value.figures
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
            **{name: getattr(figures, name, None) for name in ("cosine", "max_abs", "max_rel")},
            "ratio": _ratio(value, limits),
            **dict.fromkeys(SHARES),
        },
    )


def _ratio(value: ValueComparison, limits: DistanceLimits) -> float | None:
    """How many times its limit the distance is; what must be equal and is not, infinitely many times."""
    if value.distance is None or value.status not in ("pass", "warning", "error"):
        return None
    dtypes = (leaf.dtype for leaf in (value.target, value.golden) if leaf is not None)
    limit = value.tolerance.limit if value.tolerance is not None else limits.limit(*dtypes)
    return value.distance / limit if limit else math.inf if value.distance else 0.0


_WORDS = dict(zip(PARTS, ("born in the target", "inherited", "defined differently", "born in the golden run")))


def accounted(verdict: Verdict, account: Account, *, inherited_passes: bool, is_excusable: bool) -> Verdict:
    """`verdict` by distances, changed by what the `account` shows.

    An operation at fault is an error, whatever its distance. One that is not keeps its error as an expected failure,
    where `inherited_passes` and `is_excusable`: no value of it is in question beside those that the account splits.
    """
    verdict = replace(verdict, outputs=_with_shares(verdict.outputs, account))
    if account.kind == "fault":
        sentences = [f"{output.path}: {text}" for output, _, text in account.blamed]
        lines = [*sentences, *(output_text(output) for output in account.outputs if output.shares)]
        explanation = "\n\n".join(filter(None, ["\n".join(lines), verdict.explanation]))
        return replace(verdict, status="error", message=sentences[0], explanation=explanation)
    if verdict.status != "error" or not is_excusable:
        return verdict
    if account.kind in ("unmatched", "unaccounted"):
        why = f"judged by its distance alone: {account.reason}" if account.reason else ""
        return replace(verdict, explanation="\n\n".join(filter(None, [verdict.explanation, why])))
    if not inherited_passes:
        return replace(verdict, message=excuse(account))
    return replace(verdict, message=excuse(account), excuse=excuse(account))


def excuse(account: Account) -> str:
    """Why a difference is none of the operation's own, in one line."""
    if account.kind == "contained":
        return "contained: the difference of a layer is that of its calls, which are accounted for one by one"
    if account.kind == "equal":
        return "inherited: its inputs differ, its outputs do not"
    largest = max(account.outputs, key=lambda output: output.size)
    if account.kind == "rounding":
        return f"rounding: {output_text(largest)}"
    return f"inherited: {output_text(largest)}"


def _with_shares(rows: Sequence[OutputRow], account: Account) -> tuple[OutputRow, ...]:
    """`rows` with the figures `SHARES` of those outputs whose difference was split."""
    split = {output.path: _shares(output) for output in account.outputs}
    return tuple(
        replace(row, figures={**row.figures, **split[row.label]}) if row.label in split else row for row in rows
    )


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
