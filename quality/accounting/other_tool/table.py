"""The table of answers, and the counts below it."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from diagnosing import diagnose

from quality.accounting.other_tool import framework_catalogue, mindspore_catalogue, torch_catalogue, written
from quality.accounting.other_tool.pairs import ToolPair, Verdict, names_of, verdict

PAIRS: tuple[ToolPair, ...] = (
    *torch_catalogue.CAUSES,
    *mindspore_catalogue.CAUSES,
    *framework_catalogue.CAUSES,
    *torch_catalogue.CLEAN,
    *mindspore_catalogue.CLEAN,
    *framework_catalogue.CLEAN,
)
_SHOWN = 4
_SAID: dict[Verdict | str, str] = {
    "exact": "exact and alone",
    "first": "right first, more behind",
    "behind": "right, innocent first",
    "other": "innocent only",
    "unaccounted": "nothing named, unaccounted",
    "all-clear": "FALSE ALL-CLEAR",
    "clean": "clean, nothing blamed",
    "blamed": "clean, blamed",
}


@dataclass(frozen=True)
class Row:
    """What became of a pair.

    Attributes:
        pair: that was judged.
        verdict: see `pairs.verdict`; "error" where the accounting raised.
        named: what is at fault.
        outcome: of the diagnosis.
        items: failed items, and those among them that are no fault; None where the suite was not run.
        seconds: of the diagnosis.
    """

    pair: ToolPair
    verdict: Verdict | str
    named: tuple[str, ...]
    outcome: str
    items: tuple[int, int] | None
    seconds: float

    def __str__(self) -> str:
        pair = self.pair
        more = f" and {len(self.named) - _SHOWN} more" if len(self.named) > _SHOWN else ""
        items = "" if self.items is None else f" | {self.items[0]} failed, {self.items[1]} no fault"
        said = _SAID.get(self.verdict, self.verdict)
        return (
            f"{pair.half} | {pair.framework} | {pair.kind or '-'} | {pair.name} | {pair.target.level} | {said} | "
            f"{self.outcome}: {', '.join(self.named[:_SHOWN])}{more}{items} | {self.seconds:.1f} s"
        )


def judged(pair: ToolPair, target: Path, golden: Path, *, items: bool) -> Row:
    """The answers for one pair."""
    started = time.monotonic()
    try:
        diagnosis = diagnose(target, golden)
    except Exception as error:  # one pair must not end the others; the row shows it
        return Row(pair, "error", (f"{type(error).__name__}: {error}",), "error", None, time.monotonic() - started)
    seconds = time.monotonic() - started
    named = tuple(names_of(fault)[0] for fault in diagnosis.faults)
    failed = _failed_items(pair, target, golden) if items else None
    return Row(pair, verdict(pair, diagnosis.faults, diagnosis.outcome), named, diagnosis.outcome, failed, seconds)


class _Failures:
    """A plugin: which calls failed."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the call of a failed item."""
        if report.failed:
            self.calls.append(report.nodeid.split("::")[1])


def _failed_items(pair: ToolPair, target: Path, golden: Path) -> tuple[int, int]:
    """(failed items, those that are not of a call at fault) of a run of the suite."""
    failures, before = _Failures(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        try:
            options = [f"--msprobe-dump={target.parent}", f"--msprobe-golden={golden.parent}"]
            quiet = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}"]
            pytest.main([*options, *quiet], plugins=[failures])
        finally:
            os.chdir(before)
    right = {pattern.rpartition(" ")[2] for pattern in (*pair.expected, *pair.also)}
    return len(failures.calls), sum(call not in right for call in failures.calls)


def counts(rows: Sequence[Row]) -> Iterator[str]:
    """Lines on all rows."""
    for framework in ("pytorch", "mindspore", "frameworks"):
        of = [row for row in rows if row.pair.framework == framework]
        if not of:
            continue
        planted = Counter(row.verdict for row in of if row.pair.expected)
        clean = Counter(row.verdict for row in of if not row.pair.expected)
        told = ", ".join(f"{_SAID.get(key, key)} {count}" for key, count in planted.most_common())
        yield f"{framework}: {planted['exact']} of {planted.total()} exact and alone ({told})"
        yield f"{framework}: {clean['blamed']} of {clean.total()} clean pairs blamed"
        if items := [row.items for row in of if row.items is not None]:
            failed, innocent = (sum(column) for column in zip(*items))
            yield f"{framework}: {innocent} of {failed} failed items are no fault"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pairs, or judge those of a folder."""
    parser = argparse.ArgumentParser(prog="python -m quality.accounting.other_tool")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write the dumps that are not there, and the index"
    )
    parser.add_argument("--pairs", type=Path, metavar="FOLDER", help="judge the pairs of an index")
    parser.add_argument("--framework", choices=("pytorch", "mindspore", "frameworks"), action="append")
    parser.add_argument("--half", choices=("a", "b"))
    parser.add_argument("--items", action="store_true", help="run the suite as well, and count the failed items")
    parser.add_argument("names", nargs="*", help="parts of names of pairs; all without one")
    options = parser.parse_args(arguments)
    if (options.write is None) == (options.pairs is None):
        parser.error("give --write FOLDER or --pairs FOLDER")

    def is_wanted(pair: ToolPair) -> bool:
        if options.framework and pair.framework not in options.framework:
            return False
        if options.half and pair.half != options.half:
            return False
        return not options.names or any(name in pair.name for name in options.names)

    if options.write is not None:
        failed = written.write(options.write.resolve(), [pair for pair in PAIRS if is_wanted(pair)], PAIRS)
        sys.stdout.write("".join(f"{line}\n" for line in failed))
        return int(bool(failed))
    torch.set_num_threads(1)
    rows = []
    for pair, target, golden in written.read(options.pairs.resolve()):
        if is_wanted(pair):
            rows.append(judged(pair, target, golden, items=options.items))
            sys.stdout.write(f"{rows[-1]}\n")
            sys.stdout.flush()
    sys.stdout.write("".join(f"{line}\n" for line in counts(rows)))
    return 0
