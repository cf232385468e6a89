"""Sharded runs written outside: by somebody who did not read what judges them, and which nothing was mended on.

    python -m quality.sharded.outside [--only PATTERN...] [--keep DIR] [--task tensor|statistics|sketch]
                                      [--check | --list | --write-results]

Writes the dumps, and prints for each entry what is said of it, with the run on one rank and without. --check prints, of
the runs without the collector, how far right ones and bugs are from the run on one rank: nothing is judged. --list
prints the entries with the record, setting and source line where each answer is right. --write-results writes the
table in quality/results, in which first answers stay.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quality.results import how, read
from quality.sharded import (
    outside_data as data,
    outside_model as layers,
    outside_pipeline as pipeline,
    outside_sequence as sequence,
)
from quality.sharded.answers import Answer, answered, summary
from quality.sharded.entries import Entry
from quality.sharded.launching import Launch
from quality.sharded.outside_check import apart
from quality.sharded.table import outside_table
from quality.sharded.tasks import TASKS

#: Trainings by the word `run` of an entry's settings.
RUNS: dict[str, Any] = {"data": data.DataRun, "flat": data.FlatRun, "tables": data.TablesRun}
RUNS |= {"sequence": sequence.SequenceRun, "window": sequence.WindowRun, "spatial": sequence.SpatialRun}

RUNS |= {"tensor": layers.TensorRun, "experts": layers.ExpertRun, "dtensor": layers.DTensorRun}
RUNS |= {"scheduled": pipeline.ScheduledRun, "tied": pipeline.TiedRun}


def _right(name: str, run: str, sizes: dict[str, int], steps: int = 1, ways: Any = None, **settings: object) -> Entry:
    return Entry(name, "outside", sizes, {"run": run, **settings}, ways or {}, steps=steps)


_DP2, _DP3, _DP4, _HSDP = {"dp": 2}, {"dp": 3}, {"dp": 4}, {"replicate": 2, "shard": 2}

RIGHT: tuple[Entry, ...] = (
    _right("DDP, qkv bias, two steps", "data", _DP2, 2),
    _right("DDP, 3 ranks", "data", _DP3),
    _right("DDP, no_sync", "data", _DP2, microbatches=2),
    _right("DDP, bfloat16 autocast", "data", _DP2, half="autocast"),
    _right("DDP, bias before GroupNorm, 4 ranks", "data", _DP4, 2, net="group norm"),
    _right("DDP, synchronised BatchNorm, two steps", "data", _DP2, 2, net="batch norm"),
    _right("DDP, LSTM, tokens that do not count", "data", _DP3, net="lstm"),
    _right("DDP, contrast over all ranks", "data", _DP2, net="towers"),
    _right("DDP, dropout off", "data", _DP4, 2, net="no dropout"),
    _right("DDP, EMA, two steps", "data", _DP2, 2, has_ema=True),
    _right("gradients averaged by hand", "data", _DP2, way="hand"),
    _right("gradients averaged by hand, clipped", "data", _DP2, way="hand", max_norm=0.5),
    _right("ZeRO 1, two steps", "data", _DP2, 2, way="zero"),
    _right("ZeRO 1, a rank that owns nothing", "data", _DP3, 2, net="line", way="zero"),
    _right("ZeRO 2 by hand, 3 ranks, two steps", "flat", _DP3, 2),
    _right("FSDP2, clipped, two steps", "data", _DP2, 2, way="fsdp", max_norm=0.5),
    _right("FSDP2, uneven, 3 ranks", "data", _DP3, 2, net="odd width", way="fsdp"),
    _right("FSDP2, bfloat16, 4 ranks", "data", _DP4, way="fsdp", half="policy"),
    _right("FSDP2, accumulated, recomputed", "data", _DP2, way="fsdp", microbatches=2, is_checkpointed=True),
    _right("HSDP", "data", _HSDP, way="fsdp"),
    _right("tables of embeddings over ranks", "tables", _DP2, 2),
    _right("tables of embeddings over 4 ranks", "tables", _DP4),
    _right("Ulysses, two steps", "sequence", {"cp": 2}, 2, {"core": "ulysses"}),
    _right("Ulysses, 4 ranks, means", "sequence", {"cp": 4}, 1, {"core": "ulysses", "is_mean": True}),
    _right("ring attention", "sequence", {"cp": 2}, 1, {"core": "ring"}),
    _right("ring attention, 3 ranks, means, two steps", "sequence", {"cp": 3}, 2, {"core": "ring", "is_mean": True}),
    _right("attention over split keys", "sequence", {"cp": 2}, 2, {"core": "split keys"}),
    _right("attention over split keys, 4 ranks", "sequence", {"cp": 4}, 1, {"core": "split keys"}),
    _right("context windows", "window", {"cp": 2}, 2),
    _right("context windows, 3 ranks", "window", {"cp": 3}),
    _right("halo of a spatial convolution", "spatial", {"rows": 2}, 2),
    _right("halo, kernel of 5, 3 ranks", "spatial", {"rows": 3}, kernel=5),
    _right("column and row parallel, two steps", "tensor", {"tp": 2}, 2),
    _right("column and row parallel, 4 ranks, clipped", "tensor", {"tp": 4}, max_norm=0.5),
    _right("one head of keys for all", "tensor", {"tp": 2}, is_shared=True),
    _right("sequence parallel, two steps", "tensor", {"tp": 2}, 2, {"is_sequence": True}),
    _right("sequence parallel, 4 ranks, clipped", "tensor", {"tp": 4}, 1, {"is_sequence": True}, max_norm=0.5),
    _right("tp2 dp2, means of the own part", "tensor", {"dp": 2, "tp": 2}, 2),
    _right("tp2 dp2, sequence parallel, clipped", "tensor", {"dp": 2, "tp": 2}, 1, {"is_sequence": True}, max_norm=0.5),
    _right("experts, one of 4", "experts", {"ep": 2}, 2),
    _right("experts, two of 8, 4 ranks", "experts", {"ep": 4}, count=8, chosen=2),
    _right("DTensor, tensor parallel, loss parallel", "dtensor", {"tp": 2}, 1, {"way": "tensor"}),
    _right("DTensor, sequence parallel, loss parallel, 4 ranks", "dtensor", {"tp": 4}, 2, {"way": "sequence"}),
    _right("DTensor, rows over ranks", "dtensor", {"dp": 2}, 2, {"way": "rows"}),
    _right("pipeline 1F1B, two steps", "scheduled", {"pp": 2}, 2, {"schedule": "1F1B"}),
    _right(
        "pipeline GPipe, 3 ranks, clipped", "scheduled", {"pp": 3}, 1, {"schedule": "GPipe"}, blocks=3, max_norm=0.5
    ),
    _right("pipeline interleaved", "scheduled", {"pp": 2}, 2, {"schedule": "interleaved"}, blocks=4),
    _right("pipeline by hand, tied words", "tied", {"pp": 2}, 2),
    _right("pipeline by hand, tied words, 3 ranks", "tied", {"pp": 3}, blocks=3),
)


def right(name: str) -> Entry:
    """The right run of this name."""
    return next(entry for entry in RIGHT if entry.name == name)


def everything() -> tuple[Entry, ...]:
    """Right runs, then the bugs."""
    from quality.sharded import outside_bugs

    return (*RIGHT, *outside_bugs.BUGS)


def line(entry: Entry) -> str:
    """Where the wrong line is."""
    if entry.place is None:
        return ""
    return f"{inspect.getsourcefile(entry.place)}:{inspect.getsourcelines(entry.place)[1]}"


def main() -> int:
    """Write, and check, list or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of entries")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where dumps are kept and taken from")
    parser.add_argument("--task", choices=TASKS, default="tensor", help="what is collected of values")
    parser.add_argument(
        "--check", action="store_true", help="measure the runs without the collector; nothing is judged"
    )
    parser.add_argument("--list", action="store_true", help="print the entries and where their answers are")
    parser.add_argument("--write-results", action="store_true", help="write the table in quality/results")
    asked = parser.parse_args()
    entries = [one for one in everything() if any(fnmatchcase(one.name, pattern) for pattern in asked.only)]
    if asked.list:
        sys.stdout.writelines(f"{described(one)}\n" for one in entries)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        if asked.check:
            return checked(entries, folder, asked.task)
        answers = judged(entries, folder, asked.task)
    if asked.write_results:
        first = {row["entry"]: row["first answer"] for row in read("sharded_outside")}
        outside_table(answers, first).write(how("quality.sharded.outside --write-results", "torch"))
    return 0


def judged(entries: list[Entry], folder: Path, task: str) -> list[Answer]:
    """Return, and print, what is said of each entry, with the run on one rank and without."""
    launch = Launch(folder, task)
    launch.run(entries)
    answers = []
    for entry in entries:
        place = folder / "answers" / entry.folder
        if entry.name in launch.failures:
            answers.append(Answer(entry, failure=launch.failures[entry.name]))
            continue
        alone = answered(entry, launch.dump(entry), None, place / "alone")
        answers.append(replace(answered(entry, launch.dump(entry), launch.logical(entry), place), alone=alone))
        is_asked = entry.change is None or entry.is_lawless
        without = "" if is_asked else " (may be silent)"
        sys.stdout.write(
            f"{answers[-1]}; {answers[-1].said}\n    alone{without}: {alone.named or 'nothing'}; {alone.said}\n"
        )
        sys.stdout.flush()
    lawless = [one.alone for one in answers if one.entry.is_lawless and one.alone is not None]
    sys.stdout.write("\n".join([*summary(answers), *launch.failures, ""]))
    sys.stdout.write(
        f"bugs that ranks alone show: {sum(bool(one.blamed) for one in lawless)} of {len(lawless)} found\n"
    )
    return answers


def described(entry: Entry) -> str:
    """An entry with the answers that are right."""
    if entry.change is None:
        return f"right: {entry.name} ({entry.world} ranks)"
    where = " | ".join((*entry.expected, *([f"says /{entry.says}/"] if entry.says else [])))
    alone = "; ranks contradict each other" if entry.is_lawless else ""
    return f"bug: {entry.name} ({entry.world} ranks; {line(entry)}): {entry.wrong} At: {where}{alone}"


def checked(entries: list[Entry], folder: Path, task: str) -> int:
    """Print how far each entry is from the run on one rank; 1 where that, or a dump, is not as it ought to be."""
    launch = Launch(folder, task)
    launch.run(entries)
    faults = 0
    for entry in entries:
        failure = launch.failures.get(entry.name)
        differences = [] if failure else list(apart(entry, launch))
        is_as_meant = not failure and bool(differences) is (entry.change is not None)
        is_as_meant &= entry.name not in launch.changed
        faults += not is_as_meant
        said = failure or "; ".join([*differences[:2], f"{len(differences)} differences"])
        changed = "; the collector changed a bit" if entry.name in launch.changed else ""
        sys.stdout.write(f"{'ok' if is_as_meant else 'FAULT'}: {entry.name}: {said}{changed}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
