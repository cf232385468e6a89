"""What is said of two runs before any of their numbers.

- Whether they are the same step, and whether an earlier step differs already.
- In what they are set up differently, as their manifests say.
- Why they have no operation in common, or whether one is a rank of a sharded run whose whole model
  the other one is.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, starmap
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.dump import STEP, Slot
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, manifest_beside
from msprobe_collector.dump_format.values import abbreviated, printable
from pytest_msprobe.manifests.text import ManifestFile, differences_of, sentences_of
from pytest_msprobe.manifests.value import ManifestDifference, of_other_step
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.sides import ComparedDump

#: Names of tensor files and of process groups, which say nothing of numbers.
_NAMES = re.compile(rb',?\s*"(?:data_name|group_id)"\s*:\s*"[^"]*"')


def setup_of(pairs: Sequence[tuple[Path, Path]]) -> tuple[list[str], list[ManifestDifference]]:
    """Return what is said of the pairs of dumps of a run before their numbers.

    Returns:
        Sentences, the most important first, and what differs in the set-ups, the most likely
        explanation of other numbers first.
    """
    manifests = _manifests(pairs)
    differences = dict.fromkeys(chain.from_iterable(starmap(_other_steps, pairs)))
    others = dict.fromkeys(difference.sentence for difference in differences)
    sentences = [*others, *_earlier_steps(pairs), *sentences_of(manifests)]
    differences |= dict.fromkeys(difference for _, difference in differences_of(manifests)[0])
    return sentences, sorted(differences, key=lambda difference: -difference.likelihood)


def _other_steps(target: Path, golden: Path) -> Iterator[ManifestDifference]:
    """Two dumps of different steps, as their folders say; where manifests say it they do."""
    mine, theirs = Slot.of(target.absolute()), Slot.of(golden.absolute())
    is_other = mine.step is not None and theirs.step is not None and mine.step != theirs.step
    if is_other and not all(manifest_beside(path)[0] for path in (target, golden)):
        yield of_other_step(str(mine.step), str(theirs.step))


def _earlier_steps(pairs: Sequence[tuple[Path, Path]]) -> Iterator[str]:
    """The first step before those of the run that both sides hold, where it differs already."""
    steps = {Slot.of(target.absolute()).step for target, _ in pairs}
    earlier: dict[int, tuple[Path, Path]] = {}
    for target, golden in pairs:
        if Slot.of(target.absolute()).step == Slot.of(golden.absolute()).step:
            theirs = dict(_siblings(golden))
            for step, path in _siblings(target):
                if step in theirs and step not in steps:
                    earlier.setdefault(step, (path, theirs[step]))
    for step, (target, golden) in sorted(earlier.items()):
        if (record := first_difference(target, golden)) is not None:
            folders = _near(target.parent.parent), _near(golden.parent.parent)
            command = shlex.join(["pytest", f"--msprobe-dump={folders[0]}", f"--msprobe-golden={folders[1]}"])
            yield printable(f"step {step} already differs, first in {record}: compare it: {command}")
            return


def _near(path: Path) -> Path:
    """`path` from the working directory, where it is inside."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _siblings(dump: Path) -> Iterator[tuple[int, Path]]:
    """(number, dump) of the earlier steps beside the step of a dump, of the same rank."""
    path = dump.absolute()
    at = next((at for at in range(len(path.parts) - 1, 0, -1) if STEP.fullmatch(path.parts[at])), None)
    if at is None:
        return
    root, rest = Path(*path.parts[:at]), path.parts[at + 1 :]
    number = Slot.of(path).step
    for folder in root.iterdir() if root.is_dir() else ():
        match = STEP.fullmatch(folder.name)
        other = folder.joinpath(*rest)
        if match is not None and number is not None and int(match.group(1)) < number and other.is_file():
            # As it was named, so that a command can be copied.
            yield int(match.group(1)), dump.parents[len(rest)] / folder.name / Path(*rest)


def first_difference(target: Path, golden: Path) -> str | None:
    """The first record of two dumps that is not the same text; None where none differs.

    Dumps that are large or cannot be read say nothing.
    """
    try:
        # An earlier dump that is larger is not looked into.
        if max(target.stat().st_size, golden.stat().st_size) > 1 << 28:
            return None
        mine, theirs = Dump(target), Dump(golden)
    except (OSError, DumpError):
        return None
    if mine.framework != theirs.framework or mine.task != theirs.task:
        return None
    for name in mine.record_names:
        if name in theirs and _NAMES.sub(b"", mine.raw(name)) != _NAMES.sub(b"", theirs.raw(name)):
            return name
    return None


def _manifests(pairs: Sequence[tuple[Path, Path]]) -> list[tuple[ManifestFile, ManifestFile]]:
    """The manifests of all pairs that have both."""
    manifests = []
    for target, golden in pairs:
        mine, theirs = target.with_name(MANIFEST_FILE), golden.with_name(MANIFEST_FILE)
        if os.path.lexists(mine) and os.path.lexists(theirs):
            manifests.append((ManifestFile.at(mine), ManifestFile.at(theirs)))
    return manifests


_MOST_KINDS = 3
_KIND = {True: "Cells", False: "API calls"}
_MAPPINGS = "--msprobe-layer-mapping, --msprobe-cell-mapping, --msprobe-api-mapping and --msprobe-fuzzy"


def why_unmatched(comparison: DumpComparison) -> str:
    """The likely reason why no operation matched, on one line, with what to do."""
    target, golden = comparison.target, comparison.golden
    kinds = _kinds(target), _kinds(golden)
    if not kinds[0] & kinds[1]:
        return (
            f"no operation matched: the levels differ, the target holds {_listed(kinds[0])} and the golden dump "
            f"{_listed(kinds[1])}; dump both at one level"
        )
    names = f"{_operation_names(target)} in the target, {_operation_names(golden)} in the golden dump"
    if target.framework != golden.framework:
        return (
            f"no operation matched: the names of {target.framework} and {golden.framework} need another mapping "
            f"({names}); see {_MAPPINGS}"
        )
    if comparison.mappings.are_given:
        return f"no operation matched with the mapping that was given ({names}); leave it out, or see {_MAPPINGS}"
    return f"no operation matched: the dumps are of different models or steps ({names}); see --msprobe-fuzzy"


def _kinds(side: ComparedDump) -> set[str]:
    return {_KIND[operation.is_cell] for operation in side.operations}


def _listed(kinds: set[str]) -> str:
    return " and ".join(sorted(kinds)) or "nothing"


def _operation_names(side: ComparedDump) -> str:
    names = list(dict.fromkeys(abbreviated(operation.name) for operation in side.operations))
    more = f" and {len(names) - _MOST_KINDS} more" if len(names) > _MOST_KINDS else ""
    return ", ".join(names[:_MOST_KINDS]) + more


def why_sharded(target: ComparedDump, golden: ComparedDump) -> str:
    """What to do where parameters of one dump are whole parts of those of the other, on one line; "" where not."""
    ratios = Counter(_ratios(target, golden))
    # Parameters whose shapes say so; fewer may be a coincidence.
    if sum(ratios.values()) < 3 or len(ratios) > 1 or min(ratios) < 2:
        return ""
    ((ratio, count),) = ratios.items()
    return (
        f"{target.path}: {count} parameters are 1/{ratio} of those of the golden dump, so it is one rank of a sharded "
        f"run: judge all its ranks with --msprobe-logical={golden.path} in place of --msprobe-golden"
    )


def _ratios(target: ComparedDump, golden: ComparedDump) -> Iterator[int]:
    """Of each parameter of another shape how many times it is longer in the golden dump; 0 where that is not all."""
    for operation in target.operations:
        record = operation.record
        is_layer = operation.is_cell and operation.phase == "forward"
        if is_layer and record in golden and target.shapes(record) != golden.shapes(record):
            leaves = golden.readable_leaves(record)
            shapes = {leaf.path: leaf.shape for leaf in leaves if leaf.path.startswith("parameters.")}
            for leaf in target.readable_leaves(record):
                if shapes.get(leaf.path, leaf.shape) != leaf.shape:
                    yield _ratio(leaf.shape, shapes[leaf.path])


def _ratio(part: tuple[int, ...], whole: tuple[int, ...]) -> int:
    if len(part) != len(whole) or 0 in part:
        return 0
    longer = [(small, large) for small, large in zip(part, whole) if small != large]
    return longer[0][1] // longer[0][0] if len(longer) == 1 and longer[0][1] % longer[0][0] == 0 else 0
