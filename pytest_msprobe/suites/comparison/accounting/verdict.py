"""What an account makes of the verdict on an operation, and its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_msprobe.suites.comparison.accounting.account import Account, OutputAccount
from pytest_msprobe.suites.comparison.accounting.parts import BORN_GOLDEN, BORN_TARGET, DEFINED, INHERITED, PARTS
from pytest_msprobe.suites.comparison.verdict_row import SHARES
from pytest_msprobe.verdicts import OutputRow, Verdict

_WORDS = dict(zip(PARTS, ("born in the target", "inherited", "defined differently", "born in the golden run")))


def accounted(verdict: Verdict, account: Account, *, inherited_passes: bool, is_excusable: bool) -> Verdict:
    """`verdict` by distances, changed by what the `account` shows.

    An operation at fault is an error, whatever its distance. One that is not keeps its error as an expected failure,
    where `inherited_passes` and `is_excusable`: no value of it is in question beside those that the account splits.
    """
    verdict = replace(verdict, outputs=_with_shares(verdict.outputs, account))
    if account.kind == "fault":
        sentences = [f"{output.path}: {text}" for output, _, text in account.blamed]
        lines = [*sentences, *(shown(output) for output in account.outputs if output.shares)]
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
        return f"rounding: {shown(largest)}"
    return f"inherited: {shown(largest)}"


def _with_shares(rows: Sequence[OutputRow], account: Account) -> tuple[OutputRow, ...]:
    """`rows` with the figures `SHARES` of those outputs whose difference was split."""
    split = {output.path: _shares(output) for output in account.outputs}
    return tuple(
        replace(row, figures={**row.figures, **split[row.label]}) if row.label in split else row for row in rows
    )


def _shares(output: OutputAccount) -> dict[str, float | None]:
    parts = output.shares[BORN_TARGET] + output.shares[BORN_GOLDEN], output.shares[INHERITED], output.shares[DEFINED]
    return {name: round(share, 4) if math.isfinite(share) else None for name, share in zip(SHARES, parts)}


def shown(output: OutputAccount) -> str:
    """`output.0 differs by 0.012: 98 % inherited (growth x 1.2), 2 % born in the target`."""
    ranked = sorted(output.shares, key=lambda name: -abs(output.shares[name]))
    parts = [_part(output, name) for name in ranked if abs(output.shares[name]) >= 0.005]
    return f"{output.path} differs by {output.size:.3g}: {', '.join(parts) or 'by NaN or infinity'}"


def _part(output: OutputAccount, name: str) -> str:
    growth = f" (growth x {output.growth:.3g})" if name == INHERITED and output.growth is not None else ""
    return f"{100 * output.shares[name]:.3g} % {_WORDS[name]}{growth}"
