"""The verdict on one record, and the form in which it crosses processes and goes into files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from msprobe_collector.dump_format.leaves import canonical_dtype
from pytest_msprobe.suites.overflow.finiteness import Finiteness
from pytest_msprobe.suites.overflow.levels import Conduct
from pytest_msprobe.suites.overflow.options import OverflowSettings
from pytest_msprobe.suites.overflow.record_values import ObservedValue
from pytest_msprobe.suites.overflow.survey import UNINITIALISED, SurveyedRecord
from pytest_msprobe.verdicts import OutputRow, Status


@dataclass(frozen=True, slots=True)
class OverflowRecord:
    """One record, as the CSV file has it.

    Attributes:
        dump: path of the dump.json.
        order: place in the order of execution.
        record: full name.
        status: verdict of the item.
        level: what the record does with NaN and Inf.
        verdict: of an origin `abnormal`, `normal-range`, `normal-math` or `undecided`; of others `intended`,
            `uncollected`, `uninitialised`, `unreadable`, `unknown`; "" where the level says it all.
        in_nan, in_inf, out_nan, out_inf: elements; "some" where only statistics are known.
        dtype, shape, first_bad_index: of the first output that is not finite, else of the first such input.
        cpu_same, cpu_high: what the CPU got in the dump's dtype and in float64.
        is_first_origin: whether it is the first origin of its rank.
        stack: the line of the script that made the call.
        message: one line.
    """

    dump: str
    order: int
    record: str
    status: Status
    level: str
    verdict: str = ""
    in_nan: int | str = 0
    in_inf: int | str = 0
    out_nan: int | str = 0
    out_inf: int | str = 0
    dtype: str = ""
    shape: str = ""
    first_bad_index: str = ""
    cpu_same: str = ""
    cpu_high: str = ""
    is_first_origin: bool = False
    stack: str = ""
    message: str = ""

    def to_wire(self) -> dict[str, Any]:
        """The record in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> OverflowRecord:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)


@dataclass(frozen=True, slots=True)
class OverflowDecision:
    """What becomes of an item, and why.

    Attributes:
        status: outcome.
        verdict: see `OverflowRecord`.
        message: one line.
    """

    status: Status
    verdict: str
    message: str


def rule_on(found: SurveyedRecord) -> OverflowDecision:
    """The ruling on a record that need not be computed again: on all but origins."""
    if found.fault:
        return OverflowDecision("error", "unreadable", found.fault)
    if found.level == "unknown":
        return OverflowDecision("skip", "unknown", "the dump holds neither data nor statistics of its outputs")
    if found.level == "ignored":
        return OverflowDecision("skip", "uninitialised", UNINITIALISED)
    bad = ", ".join(map(str, found.observation.bad)) if found.observation is not None else ""
    if found.level == "absorbed":
        return OverflowDecision("pass", "", f"absorbed: its outputs are finite although {bad or 'its forward was not'}")
    if found.level == "clean":
        return OverflowDecision("pass", "", "")
    if found.is_uncollected:
        return OverflowDecision(
            "error", "uncollected", f"no record before it made what it passes on: {bad}; collect its producer"
        )
    if found.is_intended and not found.source:
        return OverflowDecision("pass", "intended", f"begins with a number that the script passed: {bad}")
    makes_nan = found.observation is not None and found.observation.conduct is Conduct.MAKES_NAN
    return OverflowDecision(
        "skip", "", f"propagated from {found.source}{', whose Inf becomes NaN here' if makes_nan else ''}"
    )


def rule_on_origin(cause: str, message: str, settings: OverflowSettings) -> OverflowDecision:
    """The ruling on an origin that was computed again."""
    if cause == "abnormal":
        return OverflowDecision("error", cause, message)
    if cause == "undecided":
        return OverflowDecision("error" if settings.fails_undecided else "skip", cause, message)
    return OverflowDecision("error" if settings.strict else "pass", cause, message)


def count_text(finiteness: Finiteness) -> tuple[int | str, int | str]:
    """(NaN, Inf) as cells."""
    counts = ((finiteness.has_nan, finiteness.nan_count), (finiteness.has_inf, finiteness.inf_count))
    nan, inf = (0 if not has else "some" if count is None else count for has, count in counts)
    return nan, inf


def chosen_value(bad: Sequence[ObservedValue]) -> ObservedValue | None:
    """The value that is shown for a record: its first output that is not finite, else the first input."""
    return next((value for value in bad if not value.is_input), bad[0] if bad else None)


def output_rows(bad: Sequence[ObservedValue], status: Status) -> tuple[OutputRow, ...]:
    """Rows for the reports: one per output that is not finite."""
    return tuple(
        OutputRow(
            label=value.path,
            bench_dtype="",
            tested_dtype=canonical_dtype(value.dtype),
            shape=value.shape,
            status="error" if status == "error" else "pass",
            message=str(value),
            figures=_figures(value.finiteness),
        )
        for value in bad
        if not value.is_input
    )


def _figures(finiteness: Finiteness) -> dict[str, float | None]:
    """Counts; None where only statistics are known."""
    counts = ((finiteness.has_nan, finiteness.nan_count), (finiteness.has_inf, finiteness.inf_count))
    nan, inf = (None if has and count is None else float(count or 0) for has, count in counts)
    return {"nan": nan, "inf": inf}
