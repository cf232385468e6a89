"""How often the suite `sharded` names the right place: right runs, and runs with a public bug.

    python -m quality.sharded [--only PATTERN...] [--half seen|held-out] [--keep DIR]
                            [--task tensor|statistics|sketch]
                            [--write-only | --laws-only | --pairs] [--write-results]

Starts the ranks, dumps one step of each sharded run and of the run on one rank that it ought to equal, has
the suite judge them, and compares what it names first with what the catalogue expects; once more without the run on one
rank, by laws alone (--laws-only: only that). With --pairs some entries are judged by runs of several ranks. Bugs
of the half `held-out` may be looked at only after an answer is kept. Dumps that lie in DIR are taken from there: delete
it after a change of the collector. --write-results writes what is said of each entry into quality/results.

Small networks are trained for one step on 2 and 4 ranks of the CPU (gloo; MindSpore by msrun), and on one rank from the
same parameters with the same batch. Right runs are tensor, sequence, expert, context, data and pipeline parallel, and
mixtures, hand-made (autograd functions around collectives) and by PyTorch's own means (DTensor, FSDP2, DDP,
pipelining). In the others one line is wrong, as it was reported of another project. A bug counts as right when the
record that is named first is one of a short list that was written with the bug.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from quality.results import how
from quality.sharded import catalogue
from quality.sharded.answers import Answer, answered, summary
from quality.sharded.entries import Entry
from quality.sharded.equality import differences
from quality.sharded.launching import Launch
from quality.sharded.table import tables_of
from quality.sharded.tasks import TASKS


def chosen(patterns: list[str], half: str | None) -> list[Entry]:
    """Entries whose names match, of one half of the bugs; right runs belong to `seen`."""
    entries = [one for one in catalogue.everything() if half is None or one.is_held_out is (half == "held-out")]
    return [one for one in entries if any(fnmatchcase(one.name, pattern) for pattern in patterns)]


def measured(
    entries: list[Entry], folder: Path, task: str = "tensor", *, write_only: bool = False, laws_only: bool = False
) -> tuple[Launch, list[Answer]]:
    """Dumps and answers of these entries, below `folder`."""
    launch = Launch(folder, task)
    launch.run(entries)
    answers = []
    for entry in [] if write_only else entries:
        failure = launch.failures.get(entry.name, "")
        pair = launch.dump(entry), launch.logical(entry)
        place = folder / "answers" / entry.folder
        alone = None if failure else answered(entry, pair[0], None, place / "alone")
        judged = Answer(entry, failure=failure) if failure or laws_only else answered(entry, *pair, place)
        answers.append(replace(judged, alone=alone))
        sys.stderr.write("".join(f"{one}\n" for one in (None if laws_only else judged, alone) if one is not None))
    return launch, answers


def paired(folder: Path, task: str) -> tuple[Launch, list[Answer]]:
    """Dumps and answers of entries that are judged by a run of several ranks, below `folder`."""
    launch = Launch(folder, task)
    pairs = [(catalogue.by_name(name), catalogue.by_name(by)) for name, by in catalogue.PAIRS]
    launch.run(list(dict.fromkeys(one for pair in pairs for one in pair)))
    answers = []
    for entry, by in pairs:
        place = folder / "answers" / f"{entry.folder}_by_{by.folder}"
        answers.append(answered(entry, launch.dump(entry), launch.dump(by), place))
        sys.stderr.write(f"by {by.name}: {answers[-1]}\n")
    return launch, answers


def unequal(launch: Launch, entries: list[Entry]) -> Iterator[str]:
    """Right runs that do not end where the run on one rank ends: faults of the catalogue."""
    for entry in entries:
        if entry.change is None and entry.name not in launch.failures:
            apart = list(differences(entry, launch.dump(entry).parent, launch.logical(entry).parent))
            if apart:
                yield f"{entry.name}: no right run: {apart[0]}, and {len(apart) - 1} more"


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of entries")
    parser.add_argument("--half", choices=["seen", "held-out"], help="one half of the bugs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where dumps are kept and taken from")
    parser.add_argument("--task", choices=TASKS, default="tensor", help="what is collected of values")
    parser.add_argument("--write-only", action="store_true", help="write the dumps and say no more")
    parser.add_argument("--laws-only", action="store_true", help="judge by laws alone, not by the run on one rank")
    parser.add_argument("--pairs", action="store_true", help="judge by runs of several ranks")
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    return parser.parse_args()


def main() -> int:
    """Measure, print the counts, and write the tables when asked to."""
    options = _asked()
    task = options.task
    only = {"write_only": options.write_only, "laws_only": options.laws_only}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        entries = chosen(options.only, options.half)
        launch, answers = paired(folder, task) if options.pairs else measured(entries, folder, task, **only)
        answers = [one.alone or one for one in answers] if options.laws_only else answers
        failed = [] if options.pairs else list(unequal(launch, entries))
    failed += [f"{name}: {reason}" for name, reason in launch.failures.items()]
    failed += [f"{name}: the collector changed a bit" for name in launch.changed]
    sys.stdout.write("\n".join([*summary(answers), *failed, ""]))
    for table in tables_of(answers) if options.write_results else ():
        table.write(how("quality.sharded --write-results", "torch", "mindspore"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
