"""Values of an operation as rows of the reports."""

from __future__ import annotations

import math

from msprobe_collector.dump_format.leaves import canonical_dtype
from pytest_msprobe.suites.comparison.agreement import DistanceLimits
from pytest_msprobe.suites.comparison.operation_comparison import OperationComparison
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison
from pytest_msprobe.verdicts import OutputRow, Status

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
