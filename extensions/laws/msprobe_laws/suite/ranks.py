"""Laws on all ranks of one run, from what each has written while it trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe_collector.dump_format.values import printable
from msprobe_laws.signals import are_one_mask
from msprobe_laws.suite.live import LawsFile
from pytest_msprobe.verdicts import OutputRow, Verdict

_SHOWN = 20
_NO_MASKS = "no two ranks have drawn masks of one layer for different batches"


def judge_replicas(files: Sequence[LawsFile]) -> Verdict:
    """Return whether replicas of parameters are equal on the ranks that hold them, after each step that all wrote."""
    if len(files) < 2:
        return Verdict("skip", "the run has one rank")
    compared = 0
    for place in sorted(set.intersection(*(set(laws.replicas) for laws in files)), key=lambda place: place[::-1]):
        about, step = place
        for ranks in _groups(files, place):
            entries = {laws.rank: laws.replicas[place] for laws in files if laws.rank in ranks}
            if len(entries) < 2:
                continue
            compared += 1
            first = {laws.rank: laws.replicas.get((about, 0), {}) for laws in files if laws.rank in ranks}
            wanted = _replicas(entries, first)
            held = {rank: _texts(entry.get("parameters")) for rank, entry in entries.items()}
            if odd := [(name, where) for name, where in _differing(held) if name in wanted]:
                name, where = odd[0]
                more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
                message = (
                    f"{name}{more}: ranks {where} have replicas that differ after step {step} of {printable(about)}"
                )
                rows = tuple(
                    OutputRow(name, "", "", (), "error", f"ranks {where} differ") for name, where in odd[:_SHOWN]
                )
                return Verdict("error", message, rows, explanation=message)
    if not compared:
        return Verdict("skip", "no ranks hold replicas (DistributedDataParallel, or gradients that all_reduce sums)")
    return Verdict("pass", f"replicas are equal in {compared} comparisons of ranks")


def _replicas(entries: Mapping[int, Mapping[str, Any]], first: Mapping[int, Mapping[str, Any]]) -> set[str]:
    """Return the names of parameters that ranks must have alike.

    All, where DistributedDataParallel says so; else those whose gradients are summed over the ranks, and those that
    began alike on all of them by more than being constant.
    """
    if any(entry.get("are_all") is True for entry in entries.values()):
        return {name for entry in entries.values() for name in _texts(entry.get("parameters"))}
    summed = {str(name) for entry in entries.values() for name in entry.get("reduced") or ()}
    begins = [_texts(entry.get("begins")) for entry in first.values()]
    constant = {str(name) for entry in first.values() for name in entry.get("constant") or ()}
    alike = set.intersection(*(set(digests.items()) for digests in begins)) if begins else set()
    return summed | ({name for name, _ in alike} - constant)


def _texts(value: object) -> dict[str, str]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {printable(str(key)): str(item) for key, item in items}


def _groups(files: Sequence[LawsFile], place: tuple[str, int]) -> Iterator[tuple[int, ...]]:
    groups = set()
    for laws in files:
        ranks = laws.replicas[place].get("ranks")
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            groups.add(tuple(sorted(ranks)))
    yield from sorted(groups)


def _differing(held: Mapping[int, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Return (parameter, the ranks whose copies are not those of most) of each that differs."""
    names = dict.fromkeys(name for parameters in held.values() for name in parameters)
    for name in names:
        digests = {rank: parameters.get(name) for rank, parameters in held.items()}
        usual, count = Counter(map(str, digests.values())).most_common(1)[0]
        if count < len(digests):
            odd = [rank for rank, digest in digests.items() if str(digest) != usual]
            rest = [rank for rank in digests if rank not in odd]
            yield name, f"{', '.join(map(str, odd))} and {', '.join(map(str, rest))}"


def judge_draws(files: Sequence[LawsFile]) -> Verdict:
    """Return whether ranks that train on different data have drawn different dropout masks."""
    if len(files) < 2:
        return Verdict("skip", "the run has one rank")
    compared = 0
    for step in sorted(set.intersection(*(set(laws.draws) for laws in files))):
        entries = sorted(((laws.rank, laws.draws[step]) for laws in files), key=lambda entry: entry[0])
        for at, (rank, entry) in enumerate(entries):
            for other, before in entries[:at]:
                if entry.get("batch") == before.get("batch") or entry.get("place") != before.get("place"):
                    continue
                same = _have_one_mask(entry, before)
                compared += same is not None
                if same:
                    place = printable(str(entry.get("place", "")))
                    message = (
                        f"{place}: ranks {other} and {rank} draw the same dropout mask in step {step} for different "
                        "batches: seed each data-parallel rank differently"
                    )
                    row = OutputRow(place, "", "", (), "error", message)
                    return Verdict("error", message, (row,), explanation=message)
    return Verdict("pass", f"masks of {compared} pairs of ranks differ") if compared else Verdict("skip", _NO_MASKS)


def _have_one_mask(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Return whether the masks of two lines are equal; None where they do not tell."""
    try:
        dropped, others, telling, telling_of_other = (
            int(str(line[key]), 16) for key in ("dropped", "known") for line in (entry, other)
        )
    except (KeyError, ValueError):
        return None
    return are_one_mask(dropped, others, telling & telling_of_other)
