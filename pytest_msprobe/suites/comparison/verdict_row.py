"""Values of an operation as rows of the reports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import Frame
from msprobe_collector.dump_format.leaves import canonical_dtype
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.suites.comparison.agreement import DistanceLimits
from pytest_msprobe.suites.comparison.operation_comparison import OperationComparison
from pytest_msprobe.suites.comparison.side import Side
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison
from pytest_msprobe.verdicts import OutputRow, Status, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.evidence.error_picture import ErrorPictures

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


def explanation(found: OperationComparison, golden: Side, frame: Frame | None) -> str:
    """What is wrong with an operation, over several lines: values, partner, line of the script."""
    wrong = [value for value in found.values if value.status in ("error", "unreadable")]
    lines = [shown(found.fault)] if found.fault else []
    lines += [value.explanation or shown(f"{value.name} {value.status}: {value.message}") for value in wrong]
    partner = found.partner.record if found.partner is not None else "nothing"
    lines.append(shown(f"tested: {found.operation.record}; benchmark: {partner} of {golden.path}"))
    if found.is_origin:
        lines.append("its inputs agree: the difference arises here, unless a backward took it from its forward")
    if frame is not None:
        lines.append(f"called from {frame.file}:{frame.line}, in {frame.function}:\n    {frame.source}")
    return "\n\n".join(lines)


def pictured(
    verdict: Verdict, found: OperationComparison, sides: tuple[Side, Side], pictures: ErrorPictures
) -> Verdict:
    """The verdict with a picture of where each failing output is off, as far as both `sides` hold its tensor."""
    if verdict.status != "error" or verdict.excuse:
        return verdict
    values = filter(_is_shown, found.values)
    pairs = (_arrays(value, sides) if value.status == "error" else (None, None) for value in values)
    return replace(verdict, outputs=pictures.added(verdict.outputs, pairs))


def _arrays(value: ValueComparison, sides: tuple[Side, Side]) -> tuple[Any, Any]:
    from pytest_msprobe.suites.comparison.accounting.content import load

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
