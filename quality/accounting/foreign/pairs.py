"""One pair of dumps of the catalogue, and what may be named for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: What the answer should be: the cause; that not everything is accounted for, or the cause; or nothing.
Answer = Literal["fault", "unaccounted", "nothing"]


@dataclass(frozen=True)
class Pair:
    """Two runs of one network.

    Attributes:
        name: of the row, with the network.
        kind: of the cause; `clean` where nothing is wrong.
        framework: `pytorch` or `mindspore`.
        network: see packages, scripts and cells.
        target, golden: ways to run it, of the framework's own class; the golden run of equal ways is made once.
        answer: what should be found.
        place: whose calls may be named, as the runs mark them; "" for none.
        forms: how these calls are named: `{}` an operation at fault, `rewired {}` a value of that kind at it.
        expected: what else may be named, with `*`.
        part: `c` or `d` of the parts that were written later; "" of the two halves before them.
    """

    name: str
    kind: str
    framework: str
    network: str
    target: Any
    golden: Any
    answer: Answer = "fault"
    place: str = ""
    forms: tuple[str, ...] = ("{}",)
    expected: tuple[str, ...] = ()
    part: str = ""

    @property
    def half(self) -> str:
        """`a`, which may be looked at while the accounting is mended, `b`, or the later `c` and `d`."""
        return self.part or half_of(self.name)

    def accepted(self, *marks: Mapping[str, Sequence[str]]) -> list[str]:
        """What may be named, from the marks of both runs.

        Raises:
            ValueError: no call was marked.
        """
        return list(dict.fromkeys([*self.expected, *self._of_marks(marks)]))

    def _of_marks(self, marks: Sequence[Mapping[str, Sequence[str]]]) -> Iterator[str]:
        records = [record for one in marks for record in one.get(self.place, ())]
        if self.place and not records:
            raise ValueError(f"{self.name}: no call was marked for {self.place!r}")
        for record in records:
            call, _, direction = record.rpartition(".")
            for form in self.forms:
                # A kernel is wrong in one direction; what a script does otherwise may show in both.
                yield form.format(record if self.place == "kernel" and direction == "backward" else call)


def half_of(name: str) -> str:
    """`a` or `b`, by a hash of the name that never changes."""
    return "ab"[hashlib.md5(name.encode(), usedforsecurity=False).digest()[0] % 2]
