"""A pair of dumps: how both are written, what is planted, and which answers are right."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from quality.accounting.other_tool.values import Run

Framework = Literal["pytorch", "mindspore", "frameworks"]
Verdict = Literal["exact", "first", "behind", "other", "unaccounted", "all-clear", "clean", "blamed"]
#: Kinds of faults of values that no record made.
_VALUES = ("parameter", "batch", "constant", "unknown", "unrecorded")


@dataclass(frozen=True)
class ToolPair:
    """Two runs of one network.

    Attributes:
        name: of the row, alone in its framework.
        kind: kernel, gradient, formula, data, rewired, hidden or dtype; "" where nothing is wrong.
        framework: of both dumps; `frameworks` is MindSpore (target) against PyTorch (golden), by our collectors.
        expected: patterns of answers of which exactly one must be named: `CALL`, `gradient CALL`, `rewired CALL`,
            `parameter NAME`, `batch`, `value CALL` (an input of that call that no record made); none where nothing is
            wrong.
        also: patterns of what may be named beside it.
        target, golden: what is run.
    """

    name: str
    kind: str
    framework: Framework
    expected: tuple[str, ...]
    also: tuple[str, ...]
    target: Run
    golden: Run

    @property
    def network(self) -> str:
        """Of both."""
        return self.target.network

    @property
    def half(self) -> str:
        """`a` may be looked at while the accounting is mended, `b` is run at the end."""
        return "ab"[zlib.crc32(f"{self.framework} {self.name}".encode()) % 2]


class AnyFault(Protocol):
    """What is read of a `Fault` of the accounting."""

    kind: Any
    name: str
    step: Any


def names_of(fault: AnyFault) -> list[str]:
    """What a fault may be called in `expected`, the plainest first."""
    call = fault.step.operation.call
    if fault.kind in _VALUES:
        named = [f"{fault.kind} {fault.name}"] if fault.name else []
        return [*named, f"{fault.kind} {call}", f"value {call}", fault.kind]
    return [f"{fault.kind} {call}"] if fault.kind in ("rewired", "gradient") else [call]


def is_named(fault: AnyFault, patterns: Sequence[str]) -> bool:
    """Whether the fault is one of those."""
    return any(fnmatchcase(name, pattern) for name in names_of(fault) for pattern in patterns)


def verdict(pair: ToolPair, faults: Sequence[AnyFault], outcome: str) -> Verdict:
    """What became of the pair.

    Returns:
        `exact` (and alone), `first` (innocent ones behind, or the cause twice), `behind` (an innocent one before it),
        `other` (innocent ones only), `unaccounted` (nothing is blamed, nothing claimed), `all-clear` (a false one);
        `clean` or `blamed` where nothing is wrong.
    """
    if not pair.expected:
        return "blamed" if faults else "clean"
    if not faults:
        return "unaccounted" if outcome == "unaccounted" else "all-clear"
    right = [fault for fault in faults if is_named(fault, pair.expected)]
    told = {next(pattern for pattern in pair.expected if is_named(fault, [pattern])) for fault in right}
    innocent = [fault for fault in faults if not is_named(fault, (*pair.expected, *pair.also))]
    if not right:
        return "other"
    if not innocent and len(told) == 1:
        return "exact"
    return "behind" if faults[0] in innocent else "first"
