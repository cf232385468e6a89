"""What `python -m pytest_msprobe manifest` prints: differences of two runs, ranks that agree together; or one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.manifests.alone import facts, suspicions
from pytest_msprobe.manifests.differences import differences
from pytest_msprobe.manifests.folders import Found, manifests_in, paired
from pytest_msprobe.manifests.wording import counted, names, numbers

EQUAL, DIFFERS, UNREADABLE = 0, 1, 2


def told_of_two(target: Path, golden: Path) -> tuple[list[str], int]:
    """Lines on what differs between the manifests of two runs, and the exit code.

    Differences of several ranks are told once, with the ranks. Of a later step only what an earlier one has not is
    told.
    """
    (left, problems), (right, more) = manifests_in(target), manifests_in(golden)
    problems += more
    for path, found in ((target, left), (golden, right)):
        if not found:
            problems.append(why_none(path))
    if not left or not right:
        return problems, UNREADABLE
    pairs, alone, rest = paired(left, right)
    if not pairs:
        steps = [numbers(one.step for one in side if one.step is not None) or "unknown" for side in (left, right)]
        return [*problems, f"no step and rank is in both: steps {steps[0]} and {steps[1]}"], UNREADABLE
    lines: list[str] = []
    told: set[str] = set()
    for step in dict.fromkeys(one.step for one, _ in pairs):
        lines += _of_step(step, [pair for pair in pairs if pair[0].step == step], told, is_only=len(pairs) == 1)
    for side, own, other in ((alone, target, golden), (rest, golden, target)):
        if side:
            folders = (one.path.parent.relative_to(own).as_posix() for one in side)
            lines.append(f"not in {printable(str(other))}: {names(folders)}")
    has_differences = bool(lines)
    if not has_differences:
        lines = [f"equal: {counted(len(pairs), 'manifest')} of {printable(str(target))} and {printable(str(golden))}"]
    return [*problems, *lines], UNREADABLE if problems else DIFFERS if has_differences else EQUAL


def _of_step(step: int | None, pairs: Sequence[tuple[Found, Found]], told: set[str], *, is_only: bool) -> list[str]:
    """What differs in a step that no earlier step has told; that of all ranks first."""
    groups: dict[str, list[Found]] = {}
    for one, other in pairs:
        for difference in differences(one.manifest, other.manifest):
            groups.setdefault(difference.sentence, []).append(one)
    new = {sentence: found for sentence, found in groups.items() if sentence not in told}
    told.update(new)
    if is_only:
        return list(new)
    by_ranks: dict[tuple[str, ...], list[str]] = {}
    for sentence, found in new.items():
        by_ranks.setdefault(tuple(one.owner for one in found), []).append(sentence)
    lines = []
    for owners, sentences in sorted(by_ranks.items(), key=lambda item: -len(item[0])):
        lines.append(f"step {step}{_ranks(owners, pairs)}:")
        lines += [f"  {sentence}" for sentence in sentences]
    return lines


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
    """What differs between the manifests of the pairs, most likely explanation first; one sentence each.

    What only some ranks or steps show is told with these.
    """
    groups: dict[str, list[Found]] = {}
    likelihood: dict[str, float] = {}
    for one, other in sorted(pairs, key=lambda pair: pair[0].step or 0):
        for difference in differences(one.manifest, other.manifest):
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
    return lines


def told_of_one(path: Path) -> tuple[list[str], int]:
    """Lines on one run: its facts, and what looks wrong in it; exit code 1 where something does."""
    found, problems = manifests_in(path)
    if not found:
        return [*problems, why_none(path)], UNREADABLE
    lines = list(problems)
    wrong: dict[str, list[Found]] = {}
    for one in found:
        for line in suspicions(one.manifest):
            wrong.setdefault(line, []).append(one)
    if len(found) > 1:
        lines.append(f"{len(found)} manifests; the first is {printable(str(found[0].path))}")
    lines += facts(found[0].manifest)
    for line, where in wrong.items():
        several = f" ({counted(len(where), 'manifest')} of {len(found)})" if len(found) > 1 else ""
        lines.append(f"looks wrong: {line}{several}")
    if not wrong:
        lines.append("nothing looks wrong")
    return lines, UNREADABLE if problems else DIFFERS if wrong else EQUAL


def why_none(path: Path) -> str:
    """Why there is nothing to compare at `path`, and what to do."""
    where = printable(str(path))
    if not path.exists():
        return f"{where}: there is no such file or folder"
    return f"{where}: holds no run.json; collect the run with the msprobe_collector of this version"
