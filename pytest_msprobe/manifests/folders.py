"""The manifests below a folder, and which of two runs belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, Manifest, read_manifest
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER
from msprobe_collector.dump_format.values import DumpError, printable


@dataclass(frozen=True, slots=True)
class Found:
    """A manifest that was found: its file, step, and the name of its rank's folder."""

    path: Path
    manifest: Manifest
    step: int | None
    owner: str

    @property
    def rank(self) -> int | None:
        """Number of its rank; None of the only process."""
        return Slot.of(self.path).rank


def manifests_in(path: Path) -> tuple[list[Found], list[str]]:
    """The manifests in a folder, of a run, a step or a rank, or in one file; and a line for each that cannot be read.

    Beside a dump.json that is named the manifest of that folder is taken.
    """
    found, problems = [], []
    for file in _files(path):
        try:
            manifest = read_manifest(file)
        except DumpError as error:
            problems.append(printable(str(error)))
            continue
        slot = Slot.of(file.absolute())
        step = manifest.number if slot.step is None else slot.step
        found.append(Found(file, manifest, step, file.absolute().parent.name))
    return found, problems


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path.with_name(MANIFEST_FILE) if path.name == "dump.json" else path]
    found = []
    for place, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name != TENSOR_FOLDER]
        if MANIFEST_FILE in files:
            found.append(Path(place) / MANIFEST_FILE)
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts step2 before step10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path))]


def paired(
    target: Sequence[Found], golden: Sequence[Found]
) -> tuple[list[tuple[Found, Found]], list[Found], list[Found]]:
    """Manifests of one step and rank, in the order of the steps; then those that only one run has.

    One manifest on each side is a pair whatever they are called, and so are the only ranks of a step.
    """
    if len(target) == len(golden) == 1:
        return [(target[0], golden[0])], [], []
    pairs, alone, rest = [], [], list(golden)
    for one in target:
        same_step = [other for other in rest if other.step == one.step]
        same = [other for other in same_step if other.owner == one.owner]
        is_only = len(same_step) == 1 and sum(other.step == one.step for other in target) == 1
        if same or is_only:
            other = (same or same_step)[0]
            rest.remove(other)
            pairs.append((one, other))
        else:
            alone.append(one)
    pairs.sort(key=lambda pair: pair[0].step or 0)
    return pairs, alone, rest
