"""A comparison's verdict as the row that all reports take."""

from __future__ import annotations

from collections.abc import Sequence

from msprobe_collector.dump_format import Direction
from msprobe_collector.dump_format.leaves import canonical_dtype
from pytest_msprobe.comparison.leaf_verdict import LeafVerdict
from pytest_msprobe.comparison.record_verdict import RecordVerdict
from pytest_msprobe.reports.row import OutputRow, Status, VerdictRow

_DIRECTIONS: dict[str, Direction] = {"forward": "forward", "backward": "backward"}
_STATUS: dict[str, Status] = {
    "pass": "pass",
    "warning": "pass",
    "error": "error",
    "unreadable": "error",
    "unmatched": "skip",
    "skip": "skip",
}


def verdict_row(
    found: RecordVerdict,
    *,
    place: tuple[str, str, str],
    directions: Sequence[str],
    bench: str,
    seconds: float,
    host: str,
) -> VerdictRow:
    """The row of one operation. `place` is (node id, path of the target dump, name of the call in reports)."""
    known = tuple(_DIRECTIONS[phase] for phase in directions if phase in _DIRECTIONS)
    return VerdictRow(
        node_id=place[0],
        dump=place[1],
        call=place[2],
        direction=_DIRECTIONS.get(found.operation.phase),
        recorded=known,
        selected=known,
        status=found.status,
        message=found.message if found.status != "error" or not _has_own_row(found) else "",
        bench=bench if found.held_by == "both" else "",
        outputs=tuple(_output(value) for value in found.values if _is_shown(value)),
        seconds=seconds,
        host=host,
    )


def _has_own_row(found: RecordVerdict) -> bool:
    """Whether the reason of an error stands with one of the values."""
    return any(value.status in ("error", "unreadable") for value in found.values)


def _is_shown(value: LeafVerdict) -> bool:
    return value.is_tensor or value.status in ("error", "warning")


def _output(value: LeafVerdict) -> OutputRow:
    target, golden, figures = value.target, value.golden, value.figures
    leaf = target or golden
    assert leaf is not None
    return OutputRow(
        label=value.path,
        bench_dtype=canonical_dtype(golden.dtype) if golden is not None else "",
        tested_dtype=canonical_dtype(target.dtype) if target is not None else "",
        shape=leaf.shape,
        cosine=figures.cosine if figures is not None else None,
        max_abs=figures.max_abs if figures is not None else None,
        max_rel=figures.max_rel if figures is not None else None,
        max_ulp=None,
        status=_STATUS[value.status],
        message=value.message,
    )
