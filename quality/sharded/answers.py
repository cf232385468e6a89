"""What the suite `sharded` says of a pair of runs, and whether it is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from quality.sharded.entries import Entry

_PASSES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Blamed:
    """A record that the suite calls wrong.

    Attributes:
        record: of the logical run.
        parent: the Module that it ran in; "" for none.
        phase: "forward", "backward" or "optimizer".
        role: "first", "own" or "inherited".
        values: those that are wrong.
    """

    record: str
    parent: str
    phase: str
    role: str
    values: tuple[str, ...]

    def names(self) -> Iterator[str]:
        """Under which an expectation may know it; a Module's without the number of its call."""
        is_module = self.record.startswith("Module.")
        record = self.record.rpartition(".")[0] if is_module else self.record
        yield record
        if self.parent:
            yield f"{self.parent} > {record}"
        if self.values:
            yield f"{self.record} {self.values[0]}"

    def __str__(self) -> str:
        first = f" {self.values[0]}" if self.values else ""
        return f"{self.record}{first}"


@dataclass(frozen=True)
class Answer:
    """What came out for an entry.

    Attributes:
        entry: of the catalogue.
        blamed: all records that are wrong, in the order of passes and of execution.
        states: how many values are placed, not judged, and so on.
        seconds: that the suite took.
        said: the first line of the answer.
        failure: why there is no answer; "" where there is one.
        alone: what came out of the ranks without the logical run; None where that was not asked.
    """

    entry: Entry
    blamed: tuple[Blamed, ...] = ()
    states: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: str = ""
    said: str = ""
    alone: Answer | None = None

    @property
    def named(self) -> str:
        """What is named first; "" for nothing."""
        first = next((one for one in self.blamed if one.role == "first"), None)
        return str(first or next(iter(self.blamed), ""))

    @property
    def verdict(self) -> str:
        """`right`, `innocent named` or `not found` of a bug; `right` or `blamed` of a right run; else `no answer`."""
        if self.failure:
            return "no answer"
        if self.entry.change is None:
            return "blamed" if self.blamed else "right"
        if self.entry.says and self.said.startswith("Wrong") and re.search(self.entry.says, self.said):
            return "right"
        first = next((one for one in self.blamed if one.role == "first"), None)
        if first is None:
            return "not found"
        is_right = any(fnmatchcase(name, pattern) for name in first.names() for pattern in self.entry.expected)
        return "right" if is_right else "innocent named"

    def __str__(self) -> str:
        placed = f"{self.states.get('placed', 0)} of {sum(self.states.values())} values placed"
        last = self.failure.strip().splitlines()[-1] if self.failure else placed
        return f"{self.entry.name}: {self.verdict}; {self.named or 'nothing named'}; {last}; {self.seconds:.1f} s"


def answered(entry: Entry, dump: Path, logical: Path | None, folder: Path) -> Answer:
    """Run the suite on a step, with the logical one or by laws alone; its files lie below `folder`."""
    rows = folder / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    judge = "--msprobe-suite=sharded" if logical is None else f"--msprobe-logical={logical}"
    options = [f"--msprobe-dump={dump}", judge, f"--msprobe-jsonl={rows}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    started = time.monotonic()
    done = subprocess.run([*command, *options, f"--msprobe-out={folder}"], cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - started
    if not rows.is_file():
        return Answer(entry, seconds=seconds, failure=(done.stdout + done.stderr)[-2000:] or "no rows")
    found = [json.loads(line) for line in rows.read_text("utf-8").splitlines()]
    said = next((line for line in done.stdout.splitlines() if line.startswith(("Wrong", "Right", "Nothing"))), "")
    return replace(read(entry, found, parents(logical or dump), seconds), said=said)


def read(entry: Entry, rows: Sequence[Mapping[str, Any]], parent: Mapping[str, str], seconds: float) -> Answer:
    """The answer that rows of --msprobe-jsonl amount to."""
    judged = [row for row in rows if row.get("attachment") and "finding" in row["attachment"]]
    states = Counter(value["state"] for row in judged for value in row["attachment"]["finding"]["values"])
    wrong = [row for row in judged if row["attachment"]["role"] != "right"]
    wrong.sort(key=lambda row: _place(row["attachment"]["finding"]))
    blamed = tuple(_blamed(row["attachment"], parent) for row in wrong)
    failure = "" if judged else "no row has a finding"
    return Answer(entry, blamed, dict(states), seconds, failure)


def _place(finding: Mapping[str, Any]) -> tuple[int, int]:
    return _PASSES.index(finding["phase"]), int(finding["order"])


def _blamed(attachment: Mapping[str, Any], parent: Mapping[str, str]) -> Blamed:
    finding = attachment["finding"]
    values = [value["path"] for value in finding["values"] if value["state"] in ("illegal", "unexplained")]
    values = [path.removeprefix("input.").removeprefix("output.") for path in values]
    record = finding["record"]
    return Blamed(record, parent.get(record, ""), finding["phase"], attachment["role"], tuple(values))


def parents(logical: Path) -> dict[str, str]:
    """The Module that each record of a step ran in: `blocks.0.attn.o` without class and number."""
    found: dict[str, str] = {}
    for file in sorted(logical.rglob("construct.json")):
        for record, parent in json.loads(file.read_text("utf-8")).items():
            if parent:
                found[record] = module_of(parent)
    return found


def module_of(record: str) -> str:
    """`blocks.0.attn.o` of `Module.blocks.0.attn.o.RowLinear.forward.0`."""
    words = record.removeprefix("Module.").split(".")
    return ".".join(words[:-3])


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """The counts."""
    right = [one for one in answers if one.entry.change is None]
    if right:
        counts = Counter(one.verdict for one in right)
        states = sum((Counter(one.states) for one in right), Counter[str]())
        yield f"right runs: {len(right)}; something blamed in {counts['blamed']}; no answer for {counts['no answer']}"
        yield f"values of right runs: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}"
        if alone := [one.alone for one in right if one.alone is not None]:
            alarms, none = (sum(one.verdict == verdict for one in alone) for verdict in ("blamed", "no answer"))
            yield f"without a logical run, right runs: {len(alone)}; alarms in {alarms}; no answer for {none}"
    for half, is_held_out in (("seen", False), ("held out", True)):
        own = [one for one in answers if one.entry.change is not None and one.entry.is_held_out is is_held_out]
        if own:
            counts = Counter(one.verdict for one in own)
            yield f"bugs, {half}: {len(own)}; " + "; ".join(f"{count} {verdict}" for verdict, count in counts.items())
            yield from _alone(half, [one.alone for one in own if one.alone is not None])


def _alone(half: str, answers: Sequence[Answer]) -> Iterator[str]:
    """How many bugs are found without the logical run, wherever, and at the place where they begin."""
    if answers:
        found, right = (sum(test(one) for one in answers) for test in (_is_found, _is_right))
        yield f"without a logical run, bugs, {half}: {len(answers)}; {found} found, {right} of them named at the place"


def _is_found(answer: Answer) -> bool:
    return bool(answer.blamed)


def _is_right(answer: Answer) -> bool:
    return answer.verdict == "right"
