"""The manifests below a folder, and which of two runs belong together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from msprobe_collector.dump_format.dump import Slot, natural
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, read_manifest
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER
from msprobe_collector.dump_format.values import DumpError, printable
from pytest_msprobe.manifests.differences import ManifestDifference, differences


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest that was found: its file, step, and the name of its rank's folder. It is read when it is asked for,
    since a run of 1,000 ranks has as many.
    """

    path: Path
    step: int | None
    owner: str

    @classmethod
    def at(cls, path: Path) -> ManifestFile:
        """The manifest in the file at `path`; its step is that of its folders, or its own."""
        absolute = path.absolute()
        step = Slot.of(absolute).step
        if step is None:
            with suppress(DumpError):
                step = read_manifest(path).number
        return cls(path, step, absolute.parent.name)

    @property
    def rank(self) -> int | None:
        """Number of its rank; None of the only process."""
        return Slot.of(self.path.absolute()).rank


def manifests_in(path: Path) -> list[ManifestFile]:
    """The manifests in a folder, of a run, a step or a rank, or in one file.

    Beside a dump.json that is named the manifest of that folder is taken.
    """
    return list(map(ManifestFile.at, _files(path)))


def differences_of(
    pairs: Sequence[tuple[ManifestFile, ManifestFile]],
) -> tuple[list[tuple[ManifestFile, ManifestDifference]], list[str]]:
    """What each of the pairs differs in, and a line for each manifest that cannot be read."""
    differing: list[tuple[ManifestFile, ManifestDifference]] = []
    problems = []
    for pair in pairs:
        manifests = []
        for file in pair:
            try:
                manifests.append(read_manifest(file.path))
            except DumpError as error:
                problems.append(printable(str(error)))
        if len(manifests) == 2:
            differing += [(pair[0], difference) for difference in differences(*manifests)]
    return differing, list(dict.fromkeys(problems))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        file = path.with_name(MANIFEST_FILE) if path.name == "dump.json" else path
        return [file] if file.is_file() else []
    manifests = []
    for place, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name != TENSOR_FOLDER]
        if MANIFEST_FILE in files:
            manifests.append(Path(place) / MANIFEST_FILE)
    return sorted(manifests, key=natural)


def paired(
    target: Sequence[ManifestFile], golden: Sequence[ManifestFile]
) -> tuple[list[tuple[ManifestFile, ManifestFile]], list[ManifestFile], list[ManifestFile]]:
    """Manifests of one step and rank, in the order of the steps; then those that only one run has.

    One manifest on each side is a pair whatever they are called, and so are the only ranks of a step.
    """
    if len(target) == len(golden) == 1:
        return [(target[0], golden[0])], [], []
    pairs, alone, rest = [], [], list(golden)
    steps = Counter(map(attrgetter("step"), target))
    for file in target:
        same_step = [other for other in rest if other.step == file.step]
        same = [other for other in same_step if other.owner == file.owner]
        if same or (len(same_step) == 1 and steps[file.step] == 1):
            other = (same or same_step)[0]
            rest.remove(other)
            pairs.append((file, other))
        else:
            alone.append(file)
    pairs.sort(key=lambda pair: pair[0].step or 0)
    return pairs, alone, rest
