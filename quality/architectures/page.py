"""Collects every network, has a pre-check judge what it left, and writes the table of docs/networks.md."""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from quality.architectures.collecting import OBSERVED
from quality.architectures.networks import ARCHITECTURES, Architecture
from tools import ROOT

PAGE = ROOT / "quality" / "pages" / "networks.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->\n"

#: What is known of a network: observed.json, and `verdicts` of the pre-check.
Found = Mapping[str, Any]


def measured(architectures: Sequence[Architecture], folder: Path) -> Iterator[tuple[Architecture, Found]]:
    """What is found of each; package by package, so that only the dumps of one lie on the disk."""
    for _, members in groupby(architectures, key=lambda item: item.package):
        group = list(members)
        command = [sys.executable, "-m", "quality.architectures.collecting", str(folder)]
        subprocess.run([*command, *(item.name for item in group)], cwd=ROOT, capture_output=True)
        for item, found in _judged_together(group, folder):
            sys.stderr.write(f"{item.name}: {json.dumps(found)}\n")
            yield item, found
        shutil.rmtree(folder, ignore_errors=True)


def _judged_together(group: Sequence[Architecture], folder: Path) -> Iterator[tuple[Architecture, Found]]:
    """What was observed of each network, with the verdicts of one pre-check of them all."""
    places = {item: folder / str(ARCHITECTURES.index(item)) for item in group}
    observed = {item: place / OBSERVED for item, place in places.items()}
    found: dict[Architecture, dict[str, Any]] = {
        item: json.loads(file.read_text("utf-8")) if file.is_file() else {"failure": "the process ended"}
        for item, file in observed.items()
    }
    rows = prechecked([places[item] / "tensors" for item, one in found.items() if "failure" not in one], folder)
    for item, one in found.items():
        one["verdicts"] = [_verdict(row) for row in rows if Path(row["dump"]).is_relative_to(places[item])]
    return iter(found.items())


def prechecked(dumps: Sequence[Path], folder: Path) -> list[Mapping[str, Any]]:
    """The rows of --msprobe-jsonl of these folders of dumps below `folder`, judged by the standard backward-error.

    Raises:
        RuntimeError: the pre-check did not run, with what it printed.
    """
    if not dumps:
        return []
    rows = folder / "rows.jsonl"
    options = ["--msprobe-standard=backward-error", f"--msprobe-jsonl={rows}", f"--msprobe-out={folder}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *options]
    command += [f"--msprobe-dump={dump}" for dump in dumps]
    run = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if not rows.is_file():
        raise RuntimeError(f"the pre-check of {len(dumps)} dumps wrote no rows; it printed:\n{run.stdout[-4000:]}")
    return [json.loads(line) for line in rows.read_text("utf-8").splitlines()]


def _verdict(row: Mapping[str, Any]) -> list[str]:
    """(outcome, call and direction, reason).

    An outcome is `passed`, `skipped`, `alarm` (values are judged wrong) or `error` (nothing could be judged).
    """
    call = f"{row['call']} {row['part']}"
    wrong = [output for output in row["outputs"] if output["status"] == "error"]
    if wrong:
        return ["alarm", call, "; ".join(f"{output['label']} {output['message']}" for output in wrong)]
    return ["error" if row["outcome"] == "failed" else row["outcome"], call, row["message"]]


def table(found: Iterable[tuple[Architecture, Found]]) -> str:
    """The text between the markers: counts, a row for each network, and what is missing."""
    rows = list(found)
    measured = [(item, one) for item, one in rows if "failure" not in one]
    failed = [item.name for item, one in rows if "failure" in one]
    lines = [*_summary(measured), *([f"Without a result: {', '.join(failed)}.", ""] if failed else []), *HEAD]
    lines += [row_of(item, one) for item, one in measured]
    return "\n".join([*lines, "", *_missing([one for _, one in measured])]) + "\n"


def _summary(rows: Sequence[tuple[Architecture, Found]]) -> Iterator[str]:
    for framework, name in (("pytorch", "PyTorch"), ("mindspore", "MindSpore")):
        own = [one for item, one in rows if item.framework == framework]
        if own:
            yield (
                f"- {name}: {sum(one['is_identical'] for one in own)} of {len(own)} trainings bit-identical; "
                + "; ".join((*_recorded(own), _judged(own)))
            )
    yield ""


def _recorded(own: Sequence[Found]) -> Iterator[str]:
    calls, lost = sum(one.get("calls", 0) for one in own), sum(sum(one.get("calls_lost", {}).values()) for one in own)
    if calls:
        yield f"{calls - lost:,} of {calls:,} forward calls recorded ({_share(calls - lost, calls)})"
    layers, without = sum(one["layers"] for one in own), sum(len(one["layers_lost"]) for one in own)
    share = _share(layers - without, layers)
    yield f"{layers - without:,} of {layers:,} calls of layers with a backward record ({share})"


def _judged(own: Sequence[Found]) -> str:
    verdicts = Counter(outcome for one in own for outcome, _, _ in one["verdicts"])
    return (
        f"of {verdicts.total():,} records the pre-check skips {verdicts['skipped']}, raises an alarm for "
        f"{verdicts['alarm']}, and has an error for {verdicts['error']}."
    )


HEAD = (
    "| network | package | bits | calls | recorded | layers | backward | null | judged | skipped | alarms | errors |",
    "|---|---|---|---:|---:|---:|---:|---|---:|---:|---:|---:|",
)


def row_of(item: Architecture, one: Found) -> str:
    """The row of a network; `calls` and `recorded` are empty for MindSpore, where nothing else sees calls."""
    verdicts = Counter(outcome for outcome, _, _ in one["verdicts"])
    calls, lost = one.get("calls"), sum(one.get("calls_lost", {}).values())
    layers, without = one["layers"], len(one["layers_lost"])
    cells = (
        *(item.name, item.package, "same" if one["is_identical"] else "**other**"),
        *(("", "") if calls is None else (calls, _share(calls - lost, calls))),
        *(layers, _share(layers - without, layers)),
        ", ".join(sorted({*one["nulls"], *(name.rpartition(".")[2] for name in one["null_types"])})),
        *(verdicts["passed"] + verdicts["alarm"], verdicts["skipped"], verdicts["alarm"], verdicts["error"]),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _share(part: int, whole: int) -> str:
    """In percent, rounded down, so that 100 % is all of it."""
    return "100 %" if part == whole else f"{math.floor(1000 * part / whole) / 10} %"


def _missing(found: Sequence[Found]) -> Iterator[str]:
    """What has no record, no backward, no verdict, and why; the most frequent first."""
    calls: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    reasons: Counter[tuple[str, str, str]] = Counter()
    for one in found:
        calls.update(one.get("calls_lost", {}))
        layers.update(name.rpartition(".backward")[0].rpartition(".")[2] for name in one["layers_lost"])
        reasons.update(
            (outcome, _kind(call), "" if outcome == "alarm" else _first_sentence(message))
            for outcome, call, message in one["verdicts"]
            if outcome != "passed"
        )
    yield f"Calls without a record: {_counted(calls)}. Layers without a backward record: {_counted(layers)}."
    yield ""
    yield "| not passed | call | records | why |"
    yield "|---|---|---:|---|"
    for (outcome, call, reason), number in sorted(reasons.items(), key=lambda item: (item[0][0], -item[1])):
        yield f"| {outcome} | {call} | {number} | {reason.replace('|', chr(92) + '|')} |"


def _first_sentence(message: str) -> str:
    return re.split(r"; (?:the hook|mindspore:)", message, maxsplit=1)[0]


def _kind(call: str) -> str:
    """`Torch.cat forward` of `Torch.cat.3 forward`."""
    name, _, direction = call.rpartition(" ")
    return f"`{name.rpartition('.')[0]}` {direction}"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"`{name}` {number}" for name, number in names.most_common()) or "none"


def put(text: str, page: Path = PAGE) -> None:
    """Put `text` between the markers of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}", encoding="utf-8")


def versions() -> str:
    """The packages and their versions, as the page names them."""
    names = dict.fromkeys(item.package for item in ARCHITECTURES)
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def main() -> int:
    """Measure, and put the table into the page unless only some networks were asked for."""
    parser = argparse.ArgumentParser(prog="python -m quality.architectures")
    parser.add_argument("names", nargs="*", help="networks to look at; none: all, and the page is written")
    names = parser.parse_args().names
    asked = [item for item in ARCHITECTURES if not names or item.name in names]
    asked.sort(key=lambda item: [other.package for other in ARCHITECTURES].index(item.package))
    with tempfile.TemporaryDirectory() as folder:
        found = list(measured(asked, Path(folder).resolve()))
    text = table(found)
    sys.stdout.write(text)
    if not names:
        put(f"{versions()}.\n\n{text}")
    return 0
