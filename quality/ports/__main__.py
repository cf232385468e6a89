"""What is said of two implementations of one model: right ones, and ports with the bugs that ports have.

    python -m quality.ports [-k TEXT] [--tasks tensor,statistics] [--folder FOLDER] [--losses] [--write-results]

Runs the scripts of pairs.tsv, and of held_out.tsv, which was written without a look at the code: the reference first,
since it writes weights and batch, and asks `diagnose` about each port. The place is right where the first finding
stands at a line of the port with the comment `# bug: NAME`, or has it among the lines of the region that it names, or
at a record that the table has: `records` of the port, `golden` of the reference; what is said of the right port as
well names no bug. --losses runs the scripts alone: what they print of a right pair is equal, and that of a bug is not,
but where only a gradient differs (gpt2 tied). The scripts that were held out print the loss, the size of all gradients
and that of all weights after the step. Dumps stay in the folder and are made again when a script is newer.
--write-results writes results/ports.tsv: what was said of a row when it was first asked about stays.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import astuple, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from quality.results import FOLDER, Table, how, read

HERE = Path(__file__).parent
TABLES = ("pairs", "held_out")
_MODULE = [sys.executable, "-m"]
#: Lines that are read at once.
_SCREEN = 24
_ANSWER = ("named", "outcome", "causes", "record", "source", "first line")
HEAD = ("pair", "bug", "task", *(f"{when}: {what}" for when in ("first", "now") for what in _ANSWER))


@dataclass(frozen=True)
class Row:
    """A pair of runs.

    Attributes:
        pair, bug: its name; the bug of a right pair is `none` or the other way that it computes in.
        reference, port: scripts of this folder with their arguments.
        records, golden: calls that the answer may name beside the marked lines, apart by commas.
        table: the file that has the row, without its suffix: `pairs` or `held_out`.
    """

    pair: str
    bug: str
    reference: str
    port: str
    records: str
    golden: str
    table: str

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong in the port: no line of it is marked with this bug."""
        return not self.lines

    @property
    def lines(self) -> set[str]:
        """The lines of the port that the answer may name, as `file.py:12`."""
        name = self.port.split()[0]
        marks = (re.search(r"# bug: (.*)", line) for line in (HERE / name).read_text("utf-8").splitlines())
        bugs = (re.split(r"\W+", mark[1]) if mark else () for mark in marks)
        return {f"{name}:{number}" for number, here in enumerate(bugs, 1) if self.bug in here}

    def is_named_by(self, finding: dict[str, Any]) -> bool:
        """Return whether a finding stands where the bug is: a call, or a region of calls in which the runs part."""
        place, figures = finding["place"], finding["figures"]
        calls = {re.sub(r"\.(forward|backward)$", "", place["record"] or "")}
        golden = {figures[end] for end in ("golden", "golden_until") if end in figures}
        if figures.get("side") == "golden":
            calls, golden = set(), golden | calls
        ends = [Path(source or "").name for source in (place["source"], figures.get("until_source"))]
        lines = _lines_between(*(end for end in ends if end))
        return bool(lines & self.lines or calls & set(self.records.split(",")) or golden & set(self.golden.split(",")))


def _lines_between(first: str = "", last: str = "") -> set[str]:
    """`file.py:12` of all lines from one to another of the same file, of a screen at most."""
    file, _, start = first.rpartition(":")
    end = last.rpartition(":")[2] if last.startswith(f"{file}:") else start
    numbers = sorted((int(start or 0), int(end or 0)))
    return {f"{file}:{number}" for number in range(numbers[0], min(numbers[1], numbers[0] + _SCREEN) + 1)}


@dataclass(frozen=True)
class Said:
    """An answer: whether the place is named, the outcome, how many causes, and the first of them."""

    named: str
    outcome: str
    causes: int
    record: str
    source: str
    line: str


def rows() -> list[Row]:
    """Return the rows of both tables."""
    both: list[Row] = []
    for table in TABLES:
        with (HERE / f"{table}.tsv").open(encoding="utf-8") as file:
            both += [Row(**row, table=table) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return both


@cache
def loss(command: str, folder: Path) -> str:
    """Return what a script prints last."""
    script, *arguments = command.split()
    run = subprocess.run([sys.executable, HERE / script, *arguments], cwd=folder, capture_output=True, text=True)
    return (run.stdout if run.returncode == 0 else run.stderr).strip().rpartition("\n")[2]


def collected(command: str, task: str, folder: Path) -> Path:
    """Return the dump of a script, made when there is none that is newer than the script."""
    script, *arguments = command.split()
    dump = folder / task / "_".join((Path(script).stem, *arguments))
    done = dump / "done"
    if not done.is_file() or done.stat().st_mtime < (HERE / script).stat().st_mtime:
        if "mindspore" in script:
            run = [sys.executable, str(HERE / script), *arguments, str(dump), task]
        else:
            options = ["--exit", f"--task={task}", f"--dump-path={dump}"]
            run = [*_MODULE, "msprobe_collector", "collect", *options, str(HERE / script), *arguments]
        subprocess.run(run, cwd=folder, check=True, capture_output=True)
        done.touch()
    return dump


def ask(row: Row, task: str, folder: Path) -> Said:
    """Collect both runs, and return what `diagnose` says of them."""
    golden, target = (collected(command, task, folder) for command in (row.reference, row.port))
    answer = answer_of(row.bug, task, folder)
    answer.unlink(missing_ok=True)
    command = [*_MODULE, "pytest_msprobe", "diagnose", str(target), str(golden), "--json", str(answer)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not answer.is_file():
        return Said("not asked", f"exit {run.returncode}", 0, "", "", (run.stderr or run.stdout).strip()[-200:])
    return judged(row, task, folder)


def answer_of(bug: str, task: str, folder: Path) -> Path:
    """Return the file of an answer."""
    return folder / task / f"answer_{bug}.json"


def judged(row: Row, task: str, folder: Path) -> Said:
    """Return whether an answer that is written names the place."""
    answer = json.loads(answer_of(row.bug, task, folder).read_text(encoding="utf-8"))
    findings = answer["findings"]
    causes = len(findings) + answer.get("cut", {}).get("findings", 0)
    if row.is_right:
        named = {"right": "clean", "wrong": "blamed"}.get(answer["outcome"], "open")
    else:
        right = answer_of("none", task, folder)
        alarms = json.loads(right.read_text(encoding="utf-8"))["findings"] if right.is_file() else []
        known = {(alarm["kind"], alarm["place"]["record"]) for alarm in alarms}
        hits = [row.is_named_by(it) and (it["kind"], it["place"]["record"]) not in known for it in findings]
        named = ("alone" if causes == 1 else "first") if hits and hits[0] else "later" if any(hits) else "no"
    first = findings[0]["place"] if findings else {"record": "", "source": ""}
    source = Path(first["source"] or "").name
    return Said(named, answer["outcome"], causes, first["record"] or "", source, answer["headline"])


def table_of(said: dict[tuple[str, str, str], Said]) -> Table:
    """Return the table: what was first said is that of the file, where it has it."""
    before = read("ports") if (FOLDER / "ports.tsv").is_file() else []
    cells = {tuple(row[name] for name in HEAD[:3]): tuple(row[name] for name in HEAD) for row in before}
    for key, now in said.items():
        first = cells[key][3 : 3 + len(_ANSWER)] if key in cells else astuple(now)
        cells[key] = (*key, *first, *astuple(now))
    return Table.of("ports", HEAD, cells.values())


def main() -> int:
    """Ask, list, count, and write; the exit code is 0 where every right pair is clean and each bug is named alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", metavar="TEXT", dest="chosen", help="rows whose `table pair bug` has it")
    parser.add_argument("--tasks", default="tensor,statistics", help="what is collected")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "msprobe_ports", help="for dumps")
    parser.add_argument("--losses", action="store_true", help="run the scripts alone and list their losses")
    parser.add_argument("--write-results", action="store_true", help="write quality/results/ports.tsv")
    options = parser.parse_args()
    said: dict[tuple[str, str, str], Said] = {}
    for row in rows():
        if options.chosen not in f"{row.table} {row.pair} {row.bug}":
            continue
        folder = (options.folder / row.pair).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if options.losses:
            losses = [loss(command, folder) for command in (row.reference, row.port)]
            sys.stdout.write(f"{row.pair:12} {row.bug:14} {' '.join(losses)}\n")
            continue
        for task in options.tasks.split(","):
            now = said[row.pair, row.bug, task] = ask(row, task, folder)
            sys.stdout.write(
                f"{row.pair:12} {row.bug:14} {task:10} {now.named:9} {now.causes:2} {now.source} {now.line}\n"
            )
            sys.stdout.flush()
            if options.write_results:
                table_of(said).write(how("quality.ports --write-results", "torch", "transformers", "mindspore"))
    tables = {row.pair: row.table for row in rows()}
    for table, task in product(TABLES, options.tasks.split(",")):
        counts = Counter(now.named for (pair, _, one), now in said.items() if (tables[pair], one) == (table, task))
        if not counts:
            continue
        right, wrong = counts["clean"] + counts["open"] + counts["blamed"], sum(counts[name] for name in _NAMED)
        sys.stdout.write(f"{table}, {task}: {counts['blamed']} of {right} right pairs are blamed; ")
        sys.stdout.write(f"{counts['alone']} of {wrong} bugs are named first and alone\n")
    return int(any(now.named not in ("clean", "alone") for now in said.values()))


_NAMED = ("alone", "first", "later", "no", "not asked")


if __name__ == "__main__":
    sys.exit(main())
