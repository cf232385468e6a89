"""How often a comparison of checkpoints is right about conversions that are, and that are not.

    python -m quality.checkpoints [-k TEXT...] [--wrong | --right] [--keep DIR] [-j N] [--show] [--write-results]

Writes each pair of the catalogue into a folder, runs `python -m pytest_msprobe checkpoints A B` on it and prints a row:
the entry, what is expected, the exit code, whether the parameter that is at fault stands in the answer, whether the
answer says what it is, and how many tensors that are not at fault it names. --show prints the answers, --keep leaves
the pairs, --write-results writes the table into quality/results. Nobody who wrote the pairs had read the code.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from quality.checkpoints.entries import Entry, catalogue, tensors
from quality.results import Table, how
from tools import ROOT, clone_environment

HEAD = ("entry", "expected", "exit code", "names it", "says it", "others named", "answer")


@dataclass(frozen=True)
class Answer:
    """What the command said of a pair.

    Attributes:
        entry: the pair.
        code: the exit code.
        text: what it wrote.
    """

    entry: Entry
    code: int
    text: str

    @property
    def is_named(self) -> bool:
        """Whether each place at fault stands in the answer."""
        return all(re.search(pattern, self.text) for pattern in self.entry.at)

    @property
    def is_said(self) -> bool:
        """Whether the answer has the words."""
        return bool(re.search(self.entry.says, self.text, re.IGNORECASE))

    @property
    def others(self) -> int:
        """How many tensors of the golden side it names that are not at fault."""
        names = {name for name, _ in tensors(self.entry.golden())}
        named = [name for name in names if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", self.text)]
        return sum(not any(re.search(pattern, name) for pattern in self.entry.at) for name in named)

    @property
    def verdict(self) -> str:
        """`right`; `called equal`, `not named`; `called different`, `not said`; `no answer`."""
        if self.code not in (0, 1):
            return "no answer"
        if self.entry.outcome == "different":
            return "called equal" if not self.code else "right" if self.is_named else "not named"
        if self.entry.outcome == "said":
            return "right" if self.is_said else "not said"
        return "called different" if self.code else "right"

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells."""
        entry = self.entry
        named = ("yes" if self.is_named else "no") if entry.at else ""
        said = ("yes" if self.is_said else "no") if entry.says else ""
        return entry.name, entry.outcome, str(self.code), named, said, str(self.others), self.verdict


def asked(entry: Entry, pair: tuple[Path, Path]) -> Answer:
    """Run the command on the pair."""
    command = [sys.executable, "-m", "pytest_msprobe", "checkpoints", *map(str, pair)]
    run = subprocess.run(command, env=clone_environment(), cwd=ROOT, capture_output=True, text=True, timeout=120)
    # The folder has the name of the entry, which says what is wrong.
    return Answer(entry, run.returncode, (run.stdout + run.stderr).replace(str(pair[0].parent), ""))


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """The counts."""
    for outcome in ("equal", "said", "different"):
        counts = Counter(one.verdict for one in answers if one.entry.outcome == outcome)
        text = "; ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        yield f"expected {outcome}: {sum(counts.values())}: {text}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", nargs="+", default=[""], metavar="TEXT", dest="texts", help="part of the name")
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--wrong", action="store_const", const=True, dest="is_wrong", help="only wrong conversions")
    half.add_argument("--right", action="store_const", const=False, dest="is_wrong", help="only right conversions")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder in which the pairs stay")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="how many commands run at a time")
    parser.add_argument("--show", action="store_true", help="print the answers")
    parser.add_argument("--write-results", action="store_true", help="write the table in quality/results")
    return parser.parse_args()


def main() -> int:
    """Measure, print the table and the counts, and write the table when asked to."""
    options = _options()
    entries = [entry for entry in catalogue() if any(text in entry.name for text in options.texts)]
    if options.is_wrong is not None:
        entries = [entry for entry in entries if (entry.outcome == "different") is options.is_wrong]
    answers = []
    sys.stdout.write("\t".join(HEAD) + "\n")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.j) as pool:
        folder = (options.keep or Path(temporary)).resolve()
        # Pairs are written one by one: the random numbers of PyTorch belong to the process.
        written = [(entry, entry.written(folder / entry.folder)) for entry in entries]
        for answer in pool.map(lambda pair: asked(*pair), written):
            answers.append(answer)
            sys.stdout.write("\t".join(answer.row) + "\n" + (f"{answer.text}\n" if options.show else ""))
            sys.stdout.flush()
    sys.stdout.write("\n".join([*summary(answers), ""]))
    if options.write_results:
        table = Table.of("checkpoints", HEAD, (one.row for one in answers))
        table.write(how("quality.checkpoints --write-results", "torch", "mindspore"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
