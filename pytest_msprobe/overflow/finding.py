"""The verdict on one record, and the form in which it crosses processes and goes into files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from msprobe_collector.dump_format.leaves import canonical_dtype
from pytest_msprobe.overflow.finiteness import Finiteness
from pytest_msprobe.overflow.levels import Conduct
from pytest_msprobe.overflow.options import OverflowSettings
from pytest_msprobe.overflow.record_values import ObservedValue
from pytest_msprobe.overflow.survey import UNINITIALISED, SurveyedRecord
from pytest_msprobe.reports.row import OutputRow, Status


@dataclass(frozen=True, slots=True)
class RecordFinding:
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
        message: one sentence.
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
        """In builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> RecordFinding:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What becomes of an item, and why.

    Attributes:
        status: outcome.
        verdict: see `RecordFinding`.
        message: one sentence.
    """

    status: Status
    verdict: str
    message: str


def rule_on(found: SurveyedRecord) -> Ruling:
    """The ruling on a record that need not be computed again: on all but origins."""
    if found.fault:
        return Ruling("error", "unreadable", found.fault)
    if found.level == "unknown":
        return Ruling("skip", "unknown", "the dump holds neither data nor statistics of its outputs")
    if found.level == "ignored":
        return Ruling("skip", "uninitialised", UNINITIALISED)
    bad = ", ".join(map(str, found.observation.bad)) if found.observation is not None else ""
    if found.level == "absorbed":
        return Ruling("pass", "", f"absorbed: its outputs are finite although {bad or 'its forward was not'}")
    if found.level == "clean":
        return Ruling("pass", "", "")
    if found.is_uncollected:
        return Ruling(
            "error", "uncollected", f"no record before it made what it passes on: {bad}; collect its producer"
        )
    if found.is_intended and not found.source:
        return Ruling("pass", "intended", f"begins with a number that the script passed: {bad}")
    makes_nan = found.observation is not None and found.observation.conduct is Conduct.MAKES_NAN
    return Ruling("skip", "", f"propagated from {found.source}{', whose Inf becomes NaN here' if makes_nan else ''}")


def rule_on_origin(cause: str, message: str, settings: OverflowSettings) -> Ruling:
    """The ruling on an origin that was computed again."""
    if cause == "abnormal":
        return Ruling("error", cause, message)
    if cause == "undecided":
        return Ruling("error" if settings.fails_undecided else "skip", cause, message)
    return Ruling("error" if settings.strict else "pass", cause, message)


def count_text(finiteness: Finiteness) -> tuple[int | str, int | str]:
    """(NaN, Inf) as cells."""
    counts = ((finiteness.has_nan, finiteness.nan_count), (finiteness.has_inf, finiteness.inf_count))
    nan, inf = (0 if not has else "some" if count is None else count for has, count in counts)
    return nan, inf


def chosen_value(bad: Sequence[ObservedValue]) -> ObservedValue | None:
    """The value that stands for a record: its first output that is not finite, else the first input."""
    return next((value for value in bad if not value.is_input), bad[0] if bad else None)


def output_rows(bad: Sequence[ObservedValue], status: Status) -> tuple[OutputRow, ...]:
    """Rows for the reports: one per output that is not finite."""
    return tuple(
        OutputRow(
            label=value.path,
            bench_dtype="",
            tested_dtype=canonical_dtype(value.dtype),
            shape=value.shape,
            cosine=None,
            max_abs=None,
            max_rel=None,
            max_ulp=None,
            status="error" if status == "error" else "pass",
            message=str(value),
        )
        for value in bad
        if not value.is_input
    )
