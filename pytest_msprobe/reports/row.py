"""The verdict row: the one value that travels from an item to every report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from msprobe_collector.dump_format import Direction

Status = Literal["pass", "error", "skip"]


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How one output (or gradient) compared.

    Attributes:
        label: its place, as in the details table: `output.0`.
        bench_dtype, tested_dtype: names as in dumps (`Float64`), or the Python type of a plain value.
        shape: of the benchmark's output.
        cosine, max_abs, max_rel, max_ulp: metrics; None where they have no meaning.
        status: `pass` or `error`; `skip` where the standard cannot judge it.
        message: one line on what is wrong, "" for a pass.
        standard: name of the rule that judged it, "" for the default one.
    """

    label: str
    bench_dtype: str
    tested_dtype: str
    shape: tuple[int, ...]
    cosine: float | None
    max_abs: float | None
    max_rel: float | None
    max_ulp: float | None
    status: Status
    message: str
    standard: str = ""

    @property
    def badness(self) -> tuple[bool, float]:
        """Sorts outputs: a failed one above all that pass, then by error; an error without a figure is the largest."""
        largest = self.max_abs
        return self.status == "error", math.inf if largest is None or math.isnan(largest) else largest


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """The verdict on one API call in one direction.

    Attributes:
        node_id: the pytest item.
        dump: path of the dump.json.
        call: name of the API call.
        direction: `forward` or `backward`; None for a record that has neither.
        recorded, selected: directions of the call that the dump holds, and those that this run checks.
        status: `pass`, `error` or `skip`.
        message: one sentence on a skip or an error that no output explains, or a note on a pass.
        device, bench: who was tested and against what, "" when it did not come to that.
        outputs: one row per output or gradient.
        seconds: time the check took.
        seed: of random inputs.
        host: name of the machine that ran it.
    """

    node_id: str
    dump: str
    call: str
    direction: Direction | None
    recorded: tuple[Direction, ...]
    selected: tuple[Direction, ...]
    status: Status
    message: str = ""
    device: str = ""
    bench: str = ""
    outputs: tuple[OutputRow, ...] = field(default=())
    seconds: float = 0.0
    seed: int = 0
    host: str = ""

    @property
    def worst(self) -> OutputRow | None:
        """The output that stands for all where there is room for one; None when nothing was compared."""
        return max(self.outputs, key=lambda output: output.badness, default=None)

    def to_wire(self) -> dict[str, Any]:
        """The row in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> VerdictRow:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)
