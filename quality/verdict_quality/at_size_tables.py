"""The figures at size as tables and as lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from quality.results import Table
from quality.verdict_quality import tables
from quality.verdict_quality.at_size import AtSize, Honest
from quality.verdict_quality.layer import CALLS
from quality.verdict_quality.partial_faults import PARTIAL_FAULTS
from quality.verdict_quality.quality import Planted
from quality.verdict_quality.samples import DTYPES


def tables_of(figures: AtSize) -> tuple[Table, ...]:
    """Return all tables."""
    return (
        _honest_table(figures),
        _cost_table(figures),
        _alarm_table(figures),
        _fault_table(figures),
        _catalogue_table(figures),
    )


def note_of(figures: AtSize) -> str:
    """Return how much was measured, and with how much memory."""
    seen, of_all = len({(one.call, one.dtype) for one in figures.honest}), len(CALLS) * len(DTYPES)
    return f"{seen} of {of_all} calls in one dtype, one process took {figures.memory_bytes / 1e9:.1f} GB at most"


def lists(figures: AtSize) -> Iterator[str]:
    """One line for each alarm, each fault missed, and the costs of each record."""
    for one in figures.honest:
        default, strict = one.seconds
        yield (
            f"{_WORDS[one.status]} {one.call} {one.direction} {one.dtype} {one.framework}: {one.elements:,} elements, "
            f"{default:.2f} and {strict:.2f} s; {one.reason}"
        )
    for _, fault in figures.planted:
        if fault.status == "pass" and fault in tables.visible([fault]):
            yield (
                f"MISSED {call_of(fault)} {fault.dtype}: {fault.fault} ({fault.size.roundings:.3g} roundings, "
                f"{fault.size.conditioned:.3g} with those of the inputs; {fault.ratio or 0:.2f} of its tolerance)"
            )


_WORDS = {"error": "ALARM", "skip": "UNJUDGED", "pass": "PASS"}


def call_of(fault: Planted) -> str:
    """What a fault was planted into: `Mint.bmm scores backward`."""
    name, _, direction = fault.record.rpartition(".")
    call = CALLS[int(name.rpartition(".")[2]) % 1000]
    return f"{call.api} {call.part} {direction}"


def _honest_table(figures: AtSize) -> Table:
    rows = []
    for is_held_out in (False, True):
        half = figures.of_half(is_held_out=is_held_out).honest
        for head, group in tables.grouped(half, lambda one: (one.dtype, one.framework)):
            judged = [one for one in group if one.status != "skip"]
            alarms = [one for one in judged if one.status == "error"]
            right = sum(bool(cause_in_kernel(one)) for one in alarms)
            rows.append(
                (
                    "held out" if is_held_out else "first",
                    *head,
                    len(group),
                    right,
                    f"{len(alarms) - right} ({tables.share(len(alarms) - right, len(judged))})",
                    len(group) - len(judged),
                    *_costs(group),
                )
            )
    columns = ("half", "dtype", "kernels of", "records", "kernel wrong", "other alarms", "unjudged")
    return Table.of("at_size_verdicts", (*columns, *_COSTS), rows)


def _cost_table(figures: AtSize) -> Table:
    rows = []
    of_float32 = [one for one in figures.honest if one.dtype == "float32"]
    for (api, direction), group in tables.grouped(of_float32, lambda one: (one.call.partition(" ")[0], one.direction)):
        rows.append((f"{api} {direction}", len(group), *_costs(group)))
    return Table.of("at_size_costs", ("records of", "number", *_COSTS), rows)


_COSTS = ("default: s each", "backward-error: s each", "times")


def _costs(group: Sequence[Honest]) -> tuple[str, str, str]:
    default, strict = (sum(one.seconds[which] for one in group) for which in (0, 1))
    return f"{default / len(group):.2f}", f"{strict / len(group):.2f}", f"{strict / max(1e-9, default):.1f}"


_IN_HALF = "its kernel rounds each step to float16"
_ADDS_IN_HALF = "its kernel adds up tokens in the dtype of the tensors"
#: Kernels that are wrong, or compute or add in a half dtype: (API, direction, dtype, kernels of) and what they do.
#: Computing in steps or sums of the half dtype gives the same bits as those that are said to do so. Alarms are right.
_WRONG_KERNELS = {
    ("MintFunctional.silu", "forward", "float16", "MindSpore"): "exp overflows in float16: 0 below -11",
    ("MintFunctional.silu", "backward", "float16", "MindSpore"): "exp overflows in float16: 0 below -11",
    ("MintFunctional.softmax", "backward", "float16", "MindSpore"): _IN_HALF,
    ("Functional.cross_entropy", "forward", "float16", "MindSpore"): "NaN for every row",
    ("Functional.cross_entropy", "backward", "float16", "MindSpore"): "the forward is NaN",
    ("MintFunctional.layer_norm", "backward", "float16", "PyTorch"): _ADDS_IN_HALF,
    ("MintFunctional.layer_norm", "backward", "bfloat16", "PyTorch"): _ADDS_IN_HALF,
    ("Functional.layer_norm", "backward", "float16", "PyTorch"): _ADDS_IN_HALF,
    ("Functional.layer_norm", "backward", "bfloat16", "PyTorch"): _ADDS_IN_HALF,
    ("Functional.gather", "backward", "float16", "MindSpore"): _ADDS_IN_HALF,
    ("MintFunctional.embedding", "backward", "float16", "PyTorch"): _ADDS_IN_HALF,
    ("MintFunctional.embedding", "backward", "bfloat16", "PyTorch"): _ADDS_IN_HALF,
}


def cause_in_kernel(one: Honest) -> str:
    """Why an alarm on a record is right; "" for one that is false, or of which that is not known."""
    return _WRONG_KERNELS.get((one.call.partition(" ")[0], one.direction, one.dtype, one.framework), "")


def _alarm_table(figures: AtSize) -> Table:
    rows = [
        (
            f"{one.call} {one.direction}",
            one.dtype,
            one.framework,
            _half(one),
            one.reason.partition(" Worst at")[0],
            cause_in_kernel(one),
        )
        for one in figures.honest
        if one.status == "error"
    ]
    head = ("record", "dtype", "kernels of", "half", "what backward-error says", "known cause")
    return Table.of("at_size_alarms", head, rows)


def _half(one: Honest) -> str:
    return "held out" if one.is_held_out else "first"


def _fault_table(figures: AtSize) -> Table:
    rows = []
    for is_held_out in (False, True):
        planted = [one for _, one in figures.of_half(is_held_out=is_held_out).planted]
        for dtype, group in tables.grouped(planted, lambda one: one.dtype):
            seen = tables.visible(group)
            below = [one for one in group if not one.size.is_observable]
            hidden = len(group) - len(seen) - len(below)
            sizes = [[one for one in seen if low < one.size.conditioned <= high] for low, high in _RANGES]
            half = "held out" if is_held_out else "first"
            rows.append((half, dtype, len(group), len(below), hidden, *map(tables.caught, (seen, *sizes))))
    names = ("2 to 8", "8 to 64", "over 64")
    columns = ("half", "dtype", "planted", "below rounding", "cannot be seen", "visible: caught")
    return Table.of("at_size_faults", (*columns, *names), rows)


_RANGES = ((2.0, 8.0), (8.0, 64.0), (64.0, math.inf))


def _catalogue_table(figures: AtSize) -> Table:
    planted = [one for _, one in figures.planted]
    dtypes = list(dict.fromkeys(one.dtype for one in planted))
    rows = []
    for fault in PARTIAL_FAULTS:
        groups = [[one for one in planted if (one.fault, one.dtype) == (fault, dtype)] for dtype in dtypes]
        rows.append((fault, *(_cell(group) for group in groups)))
    return Table.of("at_size_faults_by_kind", ("fault", *dtypes), rows)


def _cell(group: Sequence[Planted]) -> str:
    seen = tables.visible(group)
    hidden = len(group) - len(seen)
    return tables.caught(seen) + (f"; {hidden} cannot be seen" if hidden else "")
