"""Collects every network, has a pre-check judge what it left, and makes tables of that."""

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
from itertools import groupby
from pathlib import Path
from typing import Any

from quality.architectures.collecting import OBSERVED
from quality.architectures.networks import ARCHITECTURES, Architecture
from quality.results import Table, how
from tools import ROOT

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


def summary(found: Sequence[tuple[Architecture, Found]]) -> Iterator[str]:
    """The counts of each framework, and what has no record, no layer and no result."""
    rows = measured_ones(found)
    for framework, name in (("pytorch", "PyTorch"), ("mindspore", "MindSpore")):
        own = [one for item, one in rows if item.framework == framework]
        if own:
            same = sum(one["is_identical"] for one in own)
            yield "; ".join((f"{name}: {same} of {len(own)} trainings bit-identical", *_recorded(own), _judged(own)))
    calls: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    for _, one in rows:
        calls.update(one.get("calls_lost", {}))
        layers.update(name.rpartition(".backward")[0].rpartition(".")[2] for name in one["layers_lost"])
    yield f"Calls without a record: {_counted(calls)}. Layers without a backward record: {_counted(layers)}."
    if failed := [item.name for item, one in found if "failure" in one]:
        yield f"Without a result: {', '.join(failed)}."


def measured_ones(found: Iterable[tuple[Architecture, Found]]) -> list[tuple[Architecture, Found]]:
    """Those that have a result."""
    return [(item, one) for item, one in found if "failure" not in one]


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


_HEAD = "network package bits calls recorded layers backward null judged skipped alarms errors".split()


def network_table(found: Iterable[tuple[Architecture, Found]]) -> Table:
    """Return a row for each network; `calls` and `recorded` are empty for MindSpore, where nothing else sees calls.

    `recorded` and `backward` are the shares of calls and of layers with a record; `null` are the types for which a dump
    has no form.
    """
    return Table.of("networks", _HEAD, [_row(item, one) for item, one in measured_ones(found)])


def _row(item: Architecture, one: Found) -> tuple[object, ...]:
    verdicts = Counter(outcome for outcome, _, _ in one["verdicts"])
    calls, lost = one.get("calls"), sum(one.get("calls_lost", {}).values())
    layers, without = one["layers"], len(one["layers_lost"])
    return (
        *(item.name, item.package, "same" if one["is_identical"] else "other"),
        *(("", "") if calls is None else (calls, _share(calls - lost, calls))),
        *(layers, _share(layers - without, layers)),
        ", ".join(sorted({*one["nulls"], *(name.rpartition(".")[2] for name in one["null_types"])})),
        *(verdicts["passed"] + verdicts["alarm"], verdicts["skipped"], verdicts["alarm"], verdicts["error"]),
    )


def _share(part: int, whole: int) -> str:
    """In percent, rounded down, so that 100 % is all of it."""
    return "100 %" if part == whole else f"{math.floor(1000 * part / whole) / 10} %"


def reason_table(found: Iterable[tuple[Architecture, Found]]) -> Table:
    """Return what did not pass and why, the most frequent first."""
    reasons = Counter(
        (outcome, _kind(call), "" if outcome == "alarm" else _first_sentence(message))
        for _, one in measured_ones(found)
        for outcome, call, message in one["verdicts"]
        if outcome != "passed"
    )
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0], -item[1]))
    rows = [(outcome, call, number, reason) for (outcome, call, reason), number in ordered]
    return Table.of("networks_not_passed", ("not passed", "call", "records", "why"), rows)


def _first_sentence(message: str) -> str:
    return re.split(r"; (?:the hook|mindspore:)", message, maxsplit=1)[0]


def _kind(call: str) -> str:
    """`Torch.cat forward` of `Torch.cat.3 forward`."""
    name, _, direction = call.rpartition(" ")
    return f"{name.rpartition('.')[0]} {direction}"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in names.most_common()) or "none"


def packages() -> list[str]:
    """The packages that the networks are of."""
    return list(dict.fromkeys(item.package for item in ARCHITECTURES))


def main() -> int:
    """Measure, print the counts, and write the tables when asked to."""
    parser = argparse.ArgumentParser(prog="python -m quality.architectures")
    parser.add_argument("names", nargs="*", help="networks to look at; none: all")
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    arguments = parser.parse_args()
    asked = [item for item in ARCHITECTURES if not arguments.names or item.name in arguments.names]
    asked.sort(key=lambda item: packages().index(item.package))
    with tempfile.TemporaryDirectory() as folder:
        found = list(measured(asked, Path(folder).resolve()))
    tables = network_table(found), reason_table(found)
    sys.stdout.write("".join((*(table.text for table in tables), *(f"{line}\n" for line in summary(found)))))
    for table in tables if arguments.write_results else ():
        table.write(how("quality.architectures --write-results", *packages()))
    return 0
