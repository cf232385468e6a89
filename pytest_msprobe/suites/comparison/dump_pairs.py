"""Which dump is compared with which: steps and ranks are paired by their numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.dump_format.slot import RANK, STEP, Slot, number_in

_PROCESS = re.compile(r"proc(\d+)")
FILE_NAMES = ("dump.json", "debug.json")


@dataclass(frozen=True, slots=True)
class DumpPairs:
    """The pairs of a run.

    Attributes:
        golden: golden dump by target dump; None for one that has none.
        golden_only: golden dumps that no target dump asks for.
        problems: one line for each target dump without partner, by its path.
    """

    golden: dict[Path, Path | None]
    golden_only: tuple[Path, ...]
    problems: dict[Path, str]

    def lone(self) -> list[str]:
        """A line for each dump, of either side, that is not compared."""
        golden = [f"{path}: no target dump for this golden dump" for path in self.golden_only]
        return [*self.problems.values(), *golden]


def find_files(root: Path) -> list[Path]:
    """The dump at `root`, or those in the folders below, in natural order. [] when there are none."""
    if root.is_file():
        return [root]
    found = [Path(folder) / FILE_NAMES[0] for folder, names in _folders(root) if FILE_NAMES[0] in names]
    found = found or [Path(folder) / FILE_NAMES[1] for folder, names in _folders(root) if FILE_NAMES[1] in names]
    return sorted(found, key=_natural)


def pair_dumps(targets: Sequence[Path], golden_root: Path) -> DumpPairs:
    """The golden dump of every target dump.

    A single dump on each side is a pair whatever their numbers are. Of several, those are paired whose steps and ranks
    agree and are the only ones that do; a number that one side does not have agrees with any.
    """
    goldens = find_files(golden_root)
    if len(targets) == len(goldens) == 1:
        return DumpPairs({targets[0]: goldens[0]}, (), {})
    golden: dict[Path, Path | None] = {}
    problems: dict[Path, str] = {}
    for target in targets:
        fitting = [path for path in goldens if Slot.of(target).agrees(Slot.of(path))]
        rivals = [path for path in targets if fitting and Slot.of(path).agrees(Slot.of(fitting[0]))]
        golden[target] = fitting[0] if len(fitting) == len(rivals) == 1 else None
        if not fitting:
            problems[target] = f"{golden_root} has no golden dump for {Slot.of(target)}"
        elif golden[target] is None:
            problems[target] = (
                f"{golden_root} has {len(fitting)} dumps for {Slot.of(target)}, which {len(rivals)} target dumps "
                f"would fit; name the folders step<N> and rank<N>, or compare them one by one"
            )
    taken = set(golden.values())
    return DumpPairs(golden, tuple(path for path in goldens if path not in taken), problems)


def table_stem(target: Path, *, several_steps: bool = False) -> str:
    """How tables of the target dump at `target` are called: `compare_result_rank0`, `debug_compare_result`, ..."""
    stem = "debug_compare_result" if target.name == FILE_NAMES[1] else "compare_result"
    folder = target.parent.name
    if several_steps and (step := number_in(target, STEP)) is not None:
        stem = f"{stem}_step{step}"
    return f"{stem}_{folder}" if RANK.fullmatch(folder) or _PROCESS.fullmatch(folder) else stem


def _folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    for folder, folders, names in os.walk(root):
        # A tensor folder can hold 100,000 files; it never holds a dump.
        folders[:] = [name for name in folders if name != "dump_tensor_data"]
        yield folder, names


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]
