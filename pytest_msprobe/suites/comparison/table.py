"""Rows of the comparison table: names, order and vocabulary of columns are those that users' scripts know."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.text import shortened
from pytest_msprobe.suites.comparison.operation_comparison import OperationComparison
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison

Cell = Any
ABSENT = "N/A"
#: Beyond it a spreadsheet, and MessagePack on the way, would not keep every digit.
_MOST_EXACT = 2**53

_BASIC = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
    "NPU Requires_grad",
    "Bench Requires_grad",
)
_STATISTICS = tuple(f"{side} {name}" for side in ("NPU", "Bench") for name in ("max", "min", "mean", "l2norm"))
_FIGURES = {
    "real": (
        "Cosine",
        "EucDist",
        "MaxAbsErr",
        "MaxRelativeErr",
        "One Thousandth Err Ratio",
        "Five Thousandths Err Ratio",
        *_STATISTICS,
    ),
    "statistics": (
        "Max diff",
        "Min diff",
        "Mean diff",
        "L2norm diff",
        "MaxRelativeErr",
        "MinRelativeErr",
        "MeanRelativeErr",
        "NormRelativeErr",
        *_STATISTICS,
    ),
    "md5": ("NPU MD5", "BENCH MD5"),
}
#: The verdict column of the older generation, by mode: its name, and its word for each of our states.
_YES_NO = {"pass": "Yes", "warning": "Yes", "error": "No", "unmatched": "Unmatched"}
_ACCURACY = {
    "real": ("Accuracy Reached or Not", _YES_NO),
    "statistics": ("Result", {"pass": "", "error": "warning", "warning": "warning", "unmatched": ABSENT}),
    "md5": ("Result", {"pass": "pass", "warning": "pass", "error": "Different", "unmatched": ABSENT}),
}


def columns(mode: str, style: str) -> tuple[str, ...]:
    """Names of the columns in `mode` (`real`, `statistics`, `md5`) and `style` (`result` or `accuracy`)."""
    verdict = "Result" if style == "result" else _ACCURACY[mode][0]
    message = () if style == "accuracy" and mode == "md5" else ("Err_message",)
    names = (*_BASIC, *_FIGURES[mode], "Requires_grad Consistent", verdict, *message, "NPU_Stack_Info")
    return (*names, "Data_name") if mode == "real" else names


def rows(verdict: OperationComparison, mode: str, style: str) -> list[list[Cell]]:
    """The rows of one operation; a row per value, and one for an operation that has none or cannot be read.

    The stack column is left empty (`N/A`): it is filled where the table is written.
    """
    if not verdict.values:
        return [_whole(verdict, mode, style)]
    return [_row(value, verdict, mode, style) for value in verdict.values]


def _row(value: ValueComparison, verdict: OperationComparison, mode: str, style: str) -> list[Cell]:
    target, golden = value.target, value.golden
    consistent = target is not None and golden is not None and target.requires_grad == golden.requires_grad
    row = _basic(target, golden)
    row += _figure_cells(value, mode)
    row.append("True" if consistent else "False" if target and golden else ABSENT)
    row += _verdict_cells(value.status, value.reasons, mode, style)
    row.append(ABSENT)
    if mode == "real":
        names = [leaf.data_name if leaf is not None and leaf.data_name else "-1" for leaf in (target, golden)]
        row.append(str(names))
    return row


def _whole(verdict: OperationComparison, mode: str, style: str) -> list[Cell]:
    names = [verdict.operation.record, verdict.partner.record if verdict.partner is not None else ABSENT]
    if verdict.held_by == "golden":
        names.reverse()
    figures = len(_FIGURES[mode])
    status = "unreadable" if verdict.fault else "pass" if verdict.held_by == "both" else "unmatched"
    reasons = (verdict.message,) if verdict.message else ()
    row = [*names, *[ABSENT] * (len(_BASIC) - 2 + figures + 1)]
    row += _verdict_cells(status, reasons, mode, style)
    return [*row, ABSENT, str(["-1", "-1"])] if mode == "real" else [*row, ABSENT]


def _basic(target: Leaf | None, golden: Leaf | None) -> list[Cell]:
    pair = (target, golden)
    row: list[Cell] = [leaf.name if leaf is not None else ABSENT for leaf in pair]
    row += [leaf.dtype if leaf is not None and not leaf.is_none else ABSENT for leaf in pair]
    row += [str(list(leaf.shape)) if leaf is not None and not leaf.is_none else ABSENT for leaf in pair]
    row += [leaf.requires_grad or ABSENT if leaf is not None else ABSENT for leaf in pair]
    return row


def _figure_cells(value: ValueComparison, mode: str) -> list[Cell]:
    pair = (value.target, value.golden)
    if mode == "md5":
        return [leaf.md5 or ABSENT if leaf is not None else ABSENT for leaf in pair]
    recorded = [_cell(number) for leaf in pair for number in (leaf.statistics if leaf is not None else [ABSENT] * 4)]
    return [*(_real_cells(value) if mode == "real" else _difference_cells(value)), *recorded]


def _real_cells(value: ValueComparison) -> list[Cell]:
    figures = value.figures
    if figures is None:
        target, golden = value.target, value.golden
        is_shape = target is not None and golden is not None and target.is_tensor and target.shape != golden.shape
        return ["shape unmatched" if is_shape else "unsupported"] * 6
    shares = figures.shares or (None, None)
    return [_cell(number) for number in (figures.cosine, figures.euclid, figures.max_abs, figures.max_rel, *shares)]


def _difference_cells(value: ValueComparison) -> list[Cell]:
    if value.target is None or value.golden is None:
        return [ABSENT] * 8
    pairs = [_difference(a, b) for a, b in zip(value.target.statistics, value.golden.statistics)]
    return [difference for difference, _ in pairs] + [relative for _, relative in pairs]


def _difference(target: Any, golden: Any) -> tuple[Cell, Cell]:
    """(signed difference, relative error in per cent as text) of one statistic, in the existing tool's words."""
    if target is None or golden is None:
        return ABSENT, ABSENT
    if str(target) == str(golden):
        return 0, "0"
    try:
        left, right = float(target), float(golden)
    except (ValueError, OverflowError):
        return "Diff", "Diff"
    difference = left - right
    if right == 0:
        return _cell(difference), "inf"
    return _cell(difference), "Nan" if difference != difference else f"{abs(difference / right) * 100}%"


def _verdict_cells(status: str, reasons: Sequence[str], mode: str, style: str) -> list[Cell]:
    if style == "result":
        kind = "warning" if status in ("warning", "skip") else "error"
        return [status, json.dumps([f"{kind}: {reason}" for reason in reasons], ensure_ascii=False)]
    word = _ACCURACY[mode][1].get(status, "None")
    return [word] if mode == "md5" else [word, "\n".join(reasons)]


def _cell(value: Any) -> Cell:
    """A number as it is; NaN, infinity, bools and nothing in words."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return _bounded(_number_in(value))
    return _bounded(value) if value - value == 0 else {"inf": "inf", "-inf": "-inf"}.get(str(value), "Nan")


def _bounded(value: Cell) -> Cell:
    """`value`, or as text a whole number that neither the rows on their way nor a spreadsheet can hold as a number."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return shortened(value)
    return value


def _number_in(text: str) -> Cell:
    """The finite number that `text` writes, so that a plain -1 is not text to a spreadsheet; else `text`."""
    try:
        number = int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text
    return number if number - number == 0 and abs(number) < _MOST_EXACT else text
