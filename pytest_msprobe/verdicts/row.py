"""A verdict with its place: the one value that travels from an item to every report, also across processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from msprobe_collector.dump_format import DIRECTIONS, Direction
from pytest_msprobe.verdicts.place import Place
from pytest_msprobe.verdicts.verdict import EXPLAINED, OutputRow, Status

#: What pytest made of an item: an expected failure (xfail mark) is none of ours, and counts as pytest counts it.
Outcome = Literal["passed", "failed", "skipped", "xfailed", "xpassed"]
#: Of an item without marks.
OUTCOMES: dict[Status, Outcome] = {"pass": "passed", "error": "failed", "skip": "skipped"}


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """The verdict on one record.

    Attributes:
        node_id: the pytest item.
        dump: path of the dump.json, or of another file that the suite judges.
        call: name of the API call, or what the suite uses instead.
        part: last component of the node id: `forward`, `backward`, or a word of the suite.
        recorded, selected: parts of the call that the dump holds, and those that this run judges.
        status: `pass`, `error` or `skip`.
        outcome: what pytest made of it.
        message: one line on a skip or an error that no output explains, or a note on a pass.
        device, bench: what was tested and against what, "" when it did not come to that.
        outputs: one row per judged value.
        seconds: time the check took.
        seed: of random inputs.
        host: name of the machine that ran it.
        suite: name of the suite that judged it; "" in files of version 0.1.
        properties: further facts for JUnit, as (name, value).
        attachment: what the suite's own report needs of this record; None for nothing.
        place: where the record stands in its training step; None in files of version 0.1.
        explanation: of an error, over several lines: what differs and where.
        run: of the first row that a process writes, how its run was started: `arguments`, `header` lines and
            `version`; None in the others.
    """

    node_id: str
    dump: str
    call: str
    part: str
    recorded: tuple[str, ...]
    selected: tuple[str, ...]
    status: Status
    outcome: Outcome
    message: str = ""
    device: str = ""
    bench: str = ""
    outputs: tuple[OutputRow, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    host: str = ""
    suite: str = ""
    properties: tuple[tuple[str, str | float], ...] = ()
    attachment: Mapping[str, Any] | None = None
    place: Place | None = None
    explanation: str = ""
    run: Mapping[str, Any] | None = None

    @property
    def direction(self) -> Direction | None:
        """`forward` or `backward`, also of `forward-device3`; None for a record that has neither."""
        word = self.part.partition("-")[0]
        return word if word in DIRECTIONS else None

    @property
    def worst(self) -> OutputRow | None:
        """The worst output, which is shown where there is room for one; None when nothing was compared."""
        return max(self.outputs, key=lambda output: output.badness, default=None)

    @property
    def rounding(self) -> str:
        """Rounding text of an error: `explained by rounding` when all failed outputs are, else the first other text."""
        failed = [output.rounding for output in self.outputs if output.status == "error"]
        return next((text for text in failed if text != EXPLAINED), EXPLAINED if failed else "")

    @property
    def label(self) -> str:
        """What tells the record from the others of its call, for people: the direction; "" where the call says it."""
        return self.part if self.direction or self.part == "record" else ""

    def with_property(self, name: str, value: str) -> VerdictRow:
        """A copy with property `name` set to `value`; an empty value removes it."""
        others = tuple(entry for entry in self.properties if entry[0] != name)
        return replace(self, properties=(*others, (name, value)) if value else others)

    def to_wire(self) -> dict[str, Any]:
        """The row in builtin types, which is all that may cross a process."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> VerdictRow:
        """The inverse of `to_wire`."""
        return msgspec.convert(wire, cls)
