"""How often the first difference of two manifests is the planted one.

    python -m quality.manifests [--half seen|held-out] [--only PATTERN...] [--keep DIR]

Trains a golden run and one with each planted difference, collects one step of each, and asks
`python -m pytest_msprobe manifest` what differs. Dumps that lie in DIR are taken from there: delete it after a change
of the collector.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from quality.manifests.catalogue import HELD_OUT, SEEN, Entry
from tools import ROOT, clone_environment


@dataclass
class Answer:
    """What was said of an entry, and whether it was the planted difference; seconds of the command."""

    entry: Entry
    lines: list[str]
    seconds: float

    @property
    def is_right(self) -> bool:
        return bool(self.lines) and re.search(self.entry.expected, self.lines[0]) is not None

    def __str__(self) -> str:
        mark = "right" if self.is_right else "WRONG"
        first = self.lines[0] if self.lines else "nothing"
        return (
            f"{mark} {self.entry.framework}/{self.entry.name} ({self.seconds:.2f} s, {len(self.lines)} lines): {first}"
        )


def dump_of(framework: str, changes: dict, environment: dict, folder: Path) -> Path:
    """The dump of a training with these changes, made where it is not there."""
    key = json.dumps([changes, environment], sort_keys=True)
    dump = folder / f"{framework}_{zlib.crc32(key.encode()):08x}"
    if not list(dump.glob("step*/*/run.json")):
        command = [sys.executable, "-m", f"quality.manifests.{framework}_training", str(dump), json.dumps(changes)]
        variables = clone_environment(GLOG_v="3", **environment)
        done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=ROOT, check=False)
        if done.returncode:
            raise RuntimeError(f"{framework} {changes}: {done.stderr[-2000:]}")
    return dump


def answered(entry: Entry, folder: Path) -> Answer:
    """What the command says of an entry."""
    target = dump_of(entry.framework, entry.changes, entry.environment, folder)
    golden = dump_of(entry.framework, entry.golden, {}, folder)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "pytest_msprobe", "manifest", str(target), str(golden)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return Answer(entry, done.stdout.splitlines(), time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("seen", "held-out"))
    parser.add_argument("--only", nargs="+", default=["*"])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("-v", action="store_true", dest="is_verbose")
    given = parser.parse_args()
    entries = {"seen": SEEN, "held-out": HELD_OUT}.get(given.half, [*SEEN, *HELD_OUT])
    entries = [one for one in entries if any(fnmatchcase(f"{one.framework}/{one.name}", name) for name in given.only)]
    with tempfile.TemporaryDirectory() as temporary:
        answers = []
        for entry in entries:
            answers.append(answered(entry, given.keep or Path(temporary)))
            print(answers[-1], flush=True)
            for line in answers[-1].lines[1:] if given.is_verbose else []:
                print("     ", line)
    right = sum(answer.is_right for answer in answers)
    slowest = max((answer.seconds for answer in answers), default=0.0)
    print(f"{right} of {len(answers)} named first; slowest {slowest:.2f} s")
    sys.exit(right != len(answers))


if __name__ == "__main__":
    main()
