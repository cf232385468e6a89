"""What `manifest` prints of the manifests below folders: differences, ranks that agree together; or one run."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format.dump import Slot, natural
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, read_manifest
from msprobe_collector.dump_format.tensors import TENSOR_FOLDER
from msprobe_collector.dump_format.values import DumpError, counted, optional, printable
from pytest_msprobe.manifests.alone import facts, suspicions
from pytest_msprobe.manifests.differences import differences
from pytest_msprobe.manifests.value import ManifestDifference, names, numbers


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


EQUAL, DIFFERS, UNREADABLE = 0, 1, 2
#: The manifests of both runs that belong together.
_Pairs = Sequence[tuple[ManifestFile, ManifestFile]]
#: By a sentence the manifests of the target in which it holds, and what it says.
_Groups = dict[str, list[tuple[ManifestFile, ManifestDifference]]]


def lines_of_two(target: Path, golden: Path) -> tuple[list[str], int]:
    """Lines on what differs between the manifests of two runs, and the exit code.

    Differences of several ranks stand there once, with the ranks; of a later step only what no earlier one has.
    """
    sides = ((target, manifests_in(target)), (golden, manifests_in(golden)))
    problems = [_why_none(path) for path, files in sides if not files]
    if problems:
        return problems, UNREADABLE
    pairs, alone, rest = paired(sides[0][1], sides[1][1])
    if not pairs:
        steps = " and ".join(_numbers(map(attrgetter("step"), files)) or "unknown" for _, files in sides)
        return [f"no step and rank is in both: steps {steps}"], UNREADABLE
    lines: list[str] = []
    earlier: set[str] = set()
    for step in dict.fromkeys(_of_files("step", pairs)):
        of_step = [pair for pair in pairs if pair[0].step == step]
        groups, unread = _by_sentence(of_step)
        new = {sentence: files for sentence, files in groups.items() if sentence not in earlier}
        earlier.update(new)
        lines += new if len(pairs) == 1 else _by_ranks(new, of_step)
        problems += unread
    for files, folder, other in ((alone, target, golden), (rest, golden, target)):
        if files:
            folders = (file.path.parent.relative_to(folder).as_posix() for file in files)
            lines.append(f"not in {printable(str(other))}: {names(folders)}")
    if problems:
        return [*problems, *lines], UNREADABLE
    if lines:
        return lines, DIFFERS
    both = " and ".join(map(printable, map(str, (target, golden))))
    return [f"equal: {counted(len(pairs), 'manifests')} of {both}"], EQUAL


def _numbers(steps: Iterable[int | None]) -> str:
    """Return `0-3, 7` of the steps that are known."""
    return numbers(step for step in steps if step is not None)


def _of_files(fact: str, entries: Iterable[tuple[ManifestFile, object]]) -> list[Any]:
    """Return the `step`, `rank` or `owner` of manifests of the target, in their order."""
    return [getattr(file, fact) for file, _ in entries]


def _by_sentence(pairs: _Pairs) -> tuple[_Groups, list[str]]:
    """Return what differs in the pairs by its sentences, and what cannot be read."""
    groups: _Groups = {}
    differing, problems = differences_of(pairs)
    for file, difference in differing:
        groups.setdefault(difference.sentence, []).append((file, difference))
    return groups, problems


def _by_ranks(groups: _Groups, pairs: _Pairs) -> Iterator[str]:
    """Yield lines on what differs in a step, what all ranks have first."""
    by_ranks: dict[tuple[str, ...], list[str]] = {}
    for sentence, entries in groups.items():
        by_ranks.setdefault(tuple(_of_files("owner", entries)), []).append(sentence)
    for owners, sentences in sorted(by_ranks.items(), key=lambda item: -len(item[0])):
        yield f"step {pairs[0][0].step}{_ranks(owners, pairs)}:"
        yield from map("  {}".format, sentences)


def _ranks(owners: Sequence[str], pairs: _Pairs) -> str:
    if len(pairs) == 1:
        return ""
    if len(owners) == len(pairs):
        return f", all {len(pairs)} ranks"
    ranks = [file.rank for file, _ in pairs if file.owner in owners]
    if None in ranks:
        return f", {names(owners)}"
    return f", rank{'' if len(ranks) == 1 else 's'} {_numbers(ranks)}"


def sentences_of(pairs: _Pairs) -> list[str]:
    """What differs between the manifests of the pairs, most likely explanation first; one sentence each. Then a line
    for each manifest that cannot be read.

    What only some ranks or steps show stands with these.
    """
    groups, problems = _by_sentence(sorted(pairs, key=lambda pair: pair[0].step or 0))
    every_step = set(_of_files("step", pairs))
    lines = []
    for sentence, entries in sorted(groups.items(), key=lambda group: -group[1][0][1].likelihood):
        where = []
        steps = set(_of_files("step", entries))
        if steps != every_step:
            where.append(f"step {_numbers(steps)}")
        within = [pair for pair in pairs if pair[0].step in steps]
        if len(entries) < len(within):
            owners = list(dict.fromkeys(_of_files("owner", entries)))
            where.append(_ranks(owners, within).removeprefix(", "))
        lines.append(f"{sentence}{optional(' ({})', ', '.join(where))}")
    return [*lines, *problems]


def lines_of_one(path: Path) -> tuple[list[str], int]:
    """Lines on one run: its facts, and what looks wrong in it; exit code 1 where something does."""
    files = manifests_in(path)
    if not files:
        return [_why_none(path)], UNREADABLE
    lines: list[str] = []
    shown: list[str] = []
    wrong: Counter[str] = Counter()
    for file in files:
        try:
            manifest = read_manifest(file.path)
        except DumpError as error:
            lines.append(printable(str(error)))
            continue
        shown = shown or facts(manifest)
        if manifest.ended_in is not None:
            wrong[f"the step ended in {manifest.ended_in}"] += 1
        wrong.update(suspicions(manifest))
    is_unread = bool(lines)
    if len(files) > 1:
        lines.append(f"{counted(len(files), 'manifests')}; the first is {printable(str(files[0].path))}")
    lines += shown
    for sentence, count in wrong.items():
        several = f" ({counted(count, 'manifests')} of {len(files)})" if len(files) > 1 else ""
        lines.append(f"looks wrong: {sentence}{several}")
    if not wrong and shown:
        lines.append("nothing looks wrong")
    if is_unread:
        return lines, UNREADABLE
    return lines, DIFFERS if wrong else EQUAL


def _why_none(path: Path) -> str:
    """Why there is nothing to compare at `path`, and what to do."""
    where = printable(str(path))
    if not path.exists():
        return f"{where}: there is no such file or folder"
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        return f"{where}: cannot be read: {os.strerror(errno.EACCES)}"
    return f"{where}: holds no run.json; collect the run with the msprobe_collector of this version"
