"""Which step and which rank a dump is of, as its folders say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

STEP = re.compile(r"step(\d+)")
RANK = re.compile(r"rank(\d+)?")


@dataclass(frozen=True, slots=True)
class Slot:
    """Step and rank of a dump, as its folders say; None where they do not."""

    step: int | None
    rank: int | None

    @classmethod
    @lru_cache(maxsize=1024)  # asked for every record of a dump
    def of(cls, path: Path) -> Slot:
        """Step and rank of the dump at `path`, from the innermost folders that name one."""
        return cls(number_in(path, STEP), number_in(path, RANK))

    def agrees(self, other: Slot) -> bool:
        """Whether no number that both know differs."""
        return all(
            left is None or right is None or left == right
            for left, right in ((self.step, other.step), (self.rank, other.rank))
        )

    def __str__(self) -> str:
        known = [f"step {self.step}"] if self.step is not None else []
        return " ".join([*known, f"rank {self.rank}"] if self.rank is not None else known) or "a dump without numbers"


def number_in(path: Path, pattern: re.Pattern[str]) -> int | None:
    """The number in the innermost folder of `path` whose name fits `pattern`, or None."""
    for part in reversed(path.parts[:-1]):
        match = pattern.fullmatch(part)
        if match is not None and match.group(1) is not None:
            return int(match.group(1))
    return None
