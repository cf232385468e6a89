"""How often laws name what is wrong with a training, and how often they alarm where nothing is.

    python -m quality.laws [--framework torch|mindspore] [-k TEXT...] [--held-out | --seen] [-m TEXT] [--keep DIR]
                         [-j N] [--write-results]

Starts each training of the catalogue in processes of its own with MSPROBE_LAWS=1, reads what the laws wrote, and
compares it with what the catalogue expects. The training with a model of transformers is left out where that package is
missing. --write-results writes what is said of each training into quality/results.

Each training is a plain script of 10 steps that runs in a process of its own with MSPROBE_LAWS=1, on the CPU. A
violation counts as right when the law and the parameter (layer, batch, part of the state) that the catalogue expects
are named and nothing else is. Held out are trainings that were written after the laws had been mended on the others;
`-m outside` are those of people who had not read the laws.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from quality.laws.answers import Answer, read, summary
from quality.laws.entries import MODULES, Entry, catalogue
from quality.laws.launching import Server, launched
from quality.laws.table import table_of
from quality.results import how


def chosen(frameworks: Sequence[str], texts: Sequence[str], is_held_out: bool | None, module: str = "") -> list[Entry]:
    """Entries whose names hold one of `texts`, of modules whose names hold `module`."""
    entries = [entry for framework in frameworks for entry in catalogue(framework, is_held_out=is_held_out)]
    has_transformers = importlib.util.find_spec("transformers") is not None
    return [
        entry
        for entry in entries
        if any(text in entry.name for text in texts)
        and module in entry.train.__module__
        and (has_transformers or "of transformers" not in entry.name)
    ]


def measured(entry: Entry, folder: Path, servers: Queue[Server]) -> Answer:
    """Train in `folder`, and read."""
    server = servers.get() if entry.framework == "torch" else None
    try:
        outcome = launched(entry, folder / entry.folder, server)
    finally:
        if server is not None:
            servers.put(server)
    return read(entry, outcome.folder, failure=outcome.failure, seconds=outcome.seconds)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=sorted(MODULES), help="only trainings of this framework")
    parser.add_argument("-k", nargs="+", default=[""], metavar="TEXT", dest="texts", help="part of the name")
    parser.add_argument("-m", default="", metavar="TEXT", dest="module", help="part of the name of their module")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--held-out", action="store_const", const=True, dest="held_out", help="those written last")
    half.add_argument("--seen", action="store_const", const=False, dest="held_out", help="those written first")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the trainings leave their files")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="how many trainings run at a time")
    parser.add_argument("--write-results", action="store_true", help="write the table in quality/results")
    return parser.parse_args()


def main() -> int:
    """Measure, print the answers and the counts, and write the table when asked to."""
    options = _asked()
    frameworks = [options.framework] if options.framework else sorted(MODULES, reverse=True)
    entries = chosen(frameworks, options.texts, options.held_out, options.module)
    answers = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.j) as pool:
        folder = (options.keep or Path(temporary)).resolve()
        servers: Queue[Server] = Queue()
        if any(entry.framework == "torch" for entry in entries):
            for _ in range(options.j):
                servers.put(Server())
        for answer in pool.map(lambda entry: measured(entry, folder, servers), entries):
            answers.append(answer)
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()
        while not servers.empty():
            servers.get().close()
    sys.stdout.write("\n".join([*summary(answers), ""]))
    if options.write_results:
        table_of(answers).write(how("quality.laws --write-results", "torch", "mindspore"))
    return 1 if any(one.failure for one in answers) else 0


if __name__ == "__main__":
    sys.exit(main())
