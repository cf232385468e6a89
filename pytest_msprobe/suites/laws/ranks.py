"""Laws on all ranks of one run, from what each has written while it trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.laws.live import LawsFile
from pytest_msprobe.verdicts import OutputRow, Verdict

_SHOWN = 20


def judge_replicas(files: Sequence[LawsFile]) -> Verdict:
    """Whether replicas of parameters are equal on the ranks that hold them, after each step that all have written."""
    if len(files) < 2:
        return Verdict("skip", "the run has one rank")
    compared = 0
    for step in sorted(set.intersection(*(set(laws.replicas) for laws in files))):
        for ranks in _groups(files, step):
            held = {
                laws.rank: laws.replicas[step].get("parameters")
                for laws in files
                if laws.rank in ranks and isinstance(laws.replicas[step].get("parameters"), Mapping)
            }
            if len(held) < 2:
                continue
            compared += 1
            if odd := list(_differing(held)):
                first, others = odd[0], len(odd) - 1
                more = f" and {others} more" if others else ""
                message = (
                    f"{first[0]}{more}: differs between ranks {first[1]} after step {step}, and is a replica there"
                )
                rows = tuple(
                    OutputRow(name, "", "", (), "error", f"differs between ranks {where}")
                    for name, where in odd[:_SHOWN]
                )
                return Verdict("error", message, rows, explanation=message)
    if not compared:
        return Verdict("skip", "no ranks hold replicas (DistributedDataParallel, or Replicate in a mesh)")
    return Verdict("pass", f"replicas are equal in {compared} comparisons of ranks")


def _groups(files: Sequence[LawsFile], step: int) -> Iterator[tuple[int, ...]]:
    found = set()
    for laws in files:
        ranks = laws.replicas[step].get("ranks")
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found.add(tuple(sorted(ranks)))
    yield from sorted(found)


def _differing(held: Mapping[int, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, the ranks whose copies are not those of most) of each that differs."""
    names = dict.fromkeys(name for parameters in held.values() for name in parameters)
    for name in names:
        digests = {rank: parameters.get(name) for rank, parameters in held.items()}
        usual, count = Counter(map(str, digests.values())).most_common(1)[0]
        if count < len(digests):
            odd = [rank for rank, digest in digests.items() if str(digest) != usual]
            rest = [rank for rank in digests if rank not in odd]
            yield printable(str(name)), f"{', '.join(map(str, odd))} and {', '.join(map(str, rest))}"


def judge_draws(files: Sequence[LawsFile]) -> Verdict:
    """Whether ranks that train on different data have drawn different dropout masks."""
    if len(files) < 2:
        return Verdict("skip", "the run has one rank")
    compared = 0
    for step in sorted(set.intersection(*(set(laws.draws) for laws in files))):
        entries = {laws.rank: laws.draws[step] for laws in files}
        seen: dict[str, int] = {}
        for rank, entry in sorted(entries.items()):
            mask, batch = entry.get("mask"), entry.get("batch")
            if not isinstance(mask, str) or not isinstance(batch, str) or not mask:
                continue
            if mask in seen and entries[seen[mask]].get("batch") != batch:
                place = printable(str(entry.get("place", "")))
                message = (
                    f"{place}: ranks {seen[mask]} and {rank} draw the same dropout mask in step {step} for different "
                    "batches: seed each data-parallel rank differently"
                )
                row = OutputRow(place, "", "", (), "error", message)
                return Verdict("error", message, (row,), explanation=message)
            compared += 1
            seen.setdefault(mask, rank)
    return Verdict("pass", f"{compared} masks differ") if compared > 1 else Verdict("skip", "no rank has drawn masks")
