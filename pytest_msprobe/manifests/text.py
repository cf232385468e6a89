"""What `python -m pytest_msprobe manifest` prints: differences of two runs, ranks that agree together; or one run."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from msprobe_collector.dump_format.manifest import read_manifest
from msprobe_collector.dump_format.values import DumpError, counted, printable
from pytest_msprobe.manifests.alone import facts, suspicions
from pytest_msprobe.manifests.folders import Found, differences_of, manifests_in, paired
from pytest_msprobe.manifests.wording import names, numbers

EQUAL, DIFFERS, UNREADABLE = 0, 1, 2


def told_of_two(target: Path, golden: Path) -> tuple[list[str], int]:
    """Lines on what differs between the manifests of two runs, and the exit code.

    Differences of several ranks are told once, with the ranks. Of a later step only what an earlier one has not is
    told.
    """
    left, right = manifests_in(target), manifests_in(golden)
    problems = [why_none(path) for path, found in ((target, left), (golden, right)) if not found]
    if problems:
        return problems, UNREADABLE
    pairs, alone, rest = paired(left, right)
    if not pairs:
        steps = [numbers(one.step for one in side if one.step is not None) or "unknown" for side in (left, right)]
        return [f"no step and rank is in both: steps {steps[0]} and {steps[1]}"], UNREADABLE
    lines: list[str] = []
    told: set[str] = set()
    for step in dict.fromkeys(one.step for one, _ in pairs):
        more, unread = _of_step([pair for pair in pairs if pair[0].step == step], told, is_only=len(pairs) == 1)
        lines += more
        problems += unread
    for side, own, other in ((alone, target, golden), (rest, golden, target)):
        if side:
            folders = (one.path.parent.relative_to(own).as_posix() for one in side)
            lines.append(f"not in {printable(str(other))}: {names(folders)}")
    has_differences = bool(lines)
    if not has_differences and not problems:
        lines = [f"equal: {counted(len(pairs), 'manifests')} of {printable(str(target))} and {printable(str(golden))}"]
    return [*problems, *lines], UNREADABLE if problems else DIFFERS if has_differences else EQUAL


def _of_step(pairs: Sequence[tuple[Found, Found]], told: set[str], *, is_only: bool) -> tuple[list[str], list[str]]:
    """What differs in a step that no earlier step has told, that of all ranks first; what cannot be read."""
    groups: dict[str, list[Found]] = {}
    differ, problems = differences_of(pairs)
    for one, difference in differ:
        groups.setdefault(difference.sentence, []).append(one)
    new = {sentence: found for sentence, found in groups.items() if sentence not in told}
    told.update(new)
    if is_only:
        return list(new), problems
    by_ranks: dict[tuple[str, ...], list[str]] = {}
    for sentence, found in new.items():
        by_ranks.setdefault(tuple(one.owner for one in found), []).append(sentence)
    lines = []
    for owners, sentences in sorted(by_ranks.items(), key=lambda item: -len(item[0])):
        lines.append(f"step {pairs[0][0].step}{_ranks(owners, pairs)}:")
        lines += [f"  {sentence}" for sentence in sentences]
    return lines, problems


def _ranks(owners: Sequence[str], pairs: Sequence[tuple[Found, Found]]) -> str:
    if len(pairs) == 1:
        return ""
    if len(owners) == len(pairs):
        return f", all {len(pairs)} ranks"
    ranks = [one.rank for one, _ in pairs if one.owner in owners]
    known = [rank for rank in ranks if rank is not None]
    if len(known) != len(ranks):
        return f", {names(owners)}"
    return f", rank{'' if len(known) == 1 else 's'} {numbers(known)}"


def sentences_of(pairs: Sequence[tuple[Found, Found]]) -> list[str]:
    """What differs between the manifests of the pairs, most likely explanation first; one sentence each. Then a line
    for each manifest that cannot be read.

    What only some ranks or steps show is told with these.
    """
    groups: dict[str, list[Found]] = {}
    likelihood: dict[str, float] = {}
    differ, problems = differences_of(sorted(pairs, key=lambda pair: pair[0].step or 0))
    for one, difference in differ:
        groups.setdefault(difference.sentence, []).append(one)
        likelihood.setdefault(difference.sentence, difference.likelihood)
    steps = {one.step for one, _ in pairs}
    lines = []
    for sentence, found in sorted(groups.items(), key=lambda item: -likelihood[item[0]]):
        own = {one.step for one in found}
        where = [] if own == steps else [f"step {numbers(step for step in own if step is not None)}"]
        within = [pair for pair in pairs if pair[0].step in own]
        owners = list(dict.fromkeys(one.owner for one in found))
        if len(found) < len(within):
            where.append(_ranks(owners, within).removeprefix(", "))
        lines.append(f"{sentence} ({', '.join(where)})" if where else sentence)
    return [*lines, *problems]


def told_of_one(path: Path) -> tuple[list[str], int]:
    """Lines on one run: its facts, and what looks wrong in it; exit code 1 where something does."""
    found = manifests_in(path)
    if not found:
        return [why_none(path)], UNREADABLE
    problems: list[str] = []
    shown: list[str] = []
    wrong: dict[str, list[Found]] = {}
    for one in found:
        try:
            manifest = read_manifest(one.path)
        except DumpError as error:
            problems.append(printable(str(error)))
            continue
        shown = shown or facts(manifest)
        ended = [] if manifest.ended_in is None else [f"the step ended in {manifest.ended_in}"]
        for line in (*ended, *suspicions(manifest)):
            wrong.setdefault(line, []).append(one)
    lines = [*problems]
    if len(found) > 1:
        lines.append(f"{counted(len(found), 'manifests')}; the first is {printable(str(found[0].path))}")
    lines += shown
    for line, where in wrong.items():
        several = f" ({counted(len(where), 'manifests')} of {len(found)})" if len(found) > 1 else ""
        lines.append(f"looks wrong: {line}{several}")
    if not wrong and shown:
        lines.append("nothing looks wrong")
    return lines, UNREADABLE if problems else DIFFERS if wrong else EQUAL


def why_none(path: Path) -> str:
    """Why there is nothing to compare at `path`, and what to do."""
    where = printable(str(path))
    if not path.exists():
        return f"{where}: there is no such file or folder"
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        return f"{where}: cannot be read: {os.strerror(errno.EACCES)}"
    return f"{where}: holds no run.json; collect the run with the msprobe_collector of this version"
