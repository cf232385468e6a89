"""Interrupted runs, continued: no finished row lost, none doubled, whatever was killed and when."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

from pytest_msprobe.reports.jsonl import read_json_lines
from pytest_msprobe.reports.resume import LOST_AGAIN

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def dump_of(folder: Path, calls: int) -> DumpBuilder:
    builder = DumpBuilder(folder)
    for number in range(calls):
        builder.call(f"Mint.neg.{number}", [A], [-A], incoming=[A], gradients=[-A])
    builder.write()
    return builder


def result_file(folder: Path) -> Path:
    (path,) = folder.glob("accuracy_checking_result_*.csv")
    return path


def test_only_what_has_no_row_runs_and_the_pair_grows(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 6)
    pytester.runpytest("--msprobe-dump=dump.json", "-k", "neg.0 or neg.1 or neg.2").assert_outcomes(
        passed=6, deselected=6
    )
    before = result_file(pytester.path)
    result = pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-resume={before}")
    result.assert_outcomes(passed=6, deselected=6)
    result.stdout.fnmatch_lines(
        ["resumed: 6 of these verdicts are from the earlier run", "12 passed, 0 failed, 0 skipped*"]
    )
    assert result_file(pytester.path) == before
    assert list(reports.results) == [f"Mint.neg.{number}" for number in range(6)]
    assert len(reports.details) == 12


def test_a_call_with_one_direction_done_runs_again(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 2)
    pytester.runpytest("--msprobe-dump=dump.json", "-m", "forward").assert_outcomes(passed=2, deselected=2)
    resume = f"--msprobe-resume={result_file(pytester.path)}"
    pytester.runpytest("--msprobe-dump=dump.json", resume).assert_outcomes(passed=4)
    assert [row["Backward Test Success"] for row in reports.results.values()] == ["pass", "pass"]
    assert len(reports.details) == 4


TEARS = {
    "half a row": lambda text: text[:-9],
    "half a message": lambda text: text + 'Mint.neg.5,error,,"first line\r\n',
    "a row without its end": lambda text: text + "Mint.neg.5,pass,pass,",
    "an empty file's worth": lambda text: text.split("\r\n")[0] + "\r\n",
}


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_result_file_is_mended(pytester: pytest.Pytester, reports: Reports, tear: str) -> None:
    dump_of(pytester.path, 6)
    pytester.runpytest("--msprobe-dump=dump.json", "-k", "not neg.5")
    path = result_file(pytester.path)
    path.write_bytes(TEARS[tear](path.read_bytes().decode("utf-8")).encode("utf-8"))
    pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-resume={path}")
    assert sorted(reports.results) == [f"Mint.neg.{number}" for number in range(6)]
    assert {row["Backward Test Success"] for row in reports.results.values()} == {"pass"}
    assert len(reports.details) == 12


@pytest.mark.parametrize("is_ahead", [True, False])
def test_details_ahead_or_behind_are_mended(pytester: pytest.Pytester, reports: Reports, is_ahead: bool) -> None:
    dump_of(pytester.path, 3)
    pytester.runpytest("--msprobe-dump=dump.json")
    path = result_file(pytester.path)
    details = path.with_name(path.name.replace("result", "details"))
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join(lines[:2]) + b"\r\n")
    if not is_ahead:
        details.write_bytes(b"\r\n".join(details.read_bytes().split(b"\r\n")[:3]) + b"\r\n")
    pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-resume={path}").assert_outcomes(passed=4, deselected=2)
    assert len(reports.results) == 3
    assert len(reports.details) == 6


#: What is left of the details of four calls with two lines each, and how many items are judged again.
CUTS = {"all": (0, 8), "two lines": (2, 8), "half a line": (3.5, 6), "at the end of a call": (4, 6), "nothing": (8, 0)}


@pytest.mark.parametrize("cut", CUTS)
def test_calls_that_lack_details_are_judged_again(pytester: pytest.Pytester, reports: Reports, cut: str) -> None:
    kept, again = CUTS[cut]
    dump_of(pytester.path, 4)
    pytester.runpytest("--msprobe-dump=dump.json")
    path = result_file(pytester.path)
    details = path.with_name(path.name.replace("result", "details"))
    heading, *lines = details.read_bytes().splitlines(keepends=True)
    half = lines[int(kept)][:9] if kept % 1 else b""
    details.write_bytes(heading + b"".join(lines[: int(kept)]) + half)
    result = pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-resume={path}")
    result.assert_outcomes(passed=again, deselected=8 - again)
    said = f"resumed: {again // 2} API calls of {path.name} are judged again: {details.name} is cut"
    assert (said in result.outlines) == bool(again)
    assert len(reports.results) == 4
    assert len(reports.details) == 8


@pytest.mark.slow
def test_a_crashed_call_is_tried_once_more_and_then_left(pytester: pytest.Pytester, reports: Reports) -> None:
    dump_of(pytester.path, 3)
    pytester.makeconftest(
        "import os\ndef pytest_runtest_call(item):\n    if 'neg.1::forward' in item.nodeid: os._exit(9)\n"
    )
    pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "1")
    arguments = ("--msprobe-dump=dump.json", "-n", "1", f"--msprobe-resume={result_file(pytester.path)}")
    second = pytester.runpytest_subprocess(*arguments)
    assert second.parseoutcomes() == {"failed": 1, "passed": 1}
    assert "as in the run before" in reports.results["Mint.neg.1"]["Message"]
    third = pytester.runpytest_subprocess(*arguments)
    # Nothing is left to run; the file still holds a failure.
    assert third.ret == pytest.ExitCode.TESTS_FAILED
    third.stdout.fnmatch_lines(["5 passed, 1 failed, 0 skipped*"])
    assert len(reports.results) == 3
    assert len(reports.details) == 6


WRONG = {
    "missing": ("accuracy_checking_result_1.csv", None, "cannot be read"),
    "name": ("other.csv", "x", "is neither a file of --msprobe-jsonl nor an accuracy_checking_result_*.csv file"),
    "columns": (
        "accuracy_checking_result_1.csv",
        "a,b\r\n",
        "does not have the columns API Name, Forward Test Success",
    ),
    "dump": (
        "accuracy_checking_result_1.csv",
        "API Name,Forward Test Success,Backward Test Success,Message\r\nMint.exp.0,pass,,\r\n",
        "holds a row for Mint.exp.0, which no dump of this run has",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_cannot_be_resumed_is_a_usage_error(pytester: pytest.Pytester, case: str) -> None:
    name, content, sentence = WRONG[case]
    dump_of(pytester.path, 1)
    path = pytester.path / name
    if content is not None:
        path.write_text(content, newline="")
    result = pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-resume={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()
    if content is not None:
        assert path.read_bytes() == content.encode()


@dataclass(frozen=True)
class Subject:
    """A run to kill.

    Attributes:
        build: writes a dump of so many calls, with a backward each.
        options: of its first run.
        rows: pattern of the file that it is resumed from.
        finished: names of the complete rows of that file, each once.
        check: that the files of a complete run of so many calls are right.
        rows_per_call: in that file.
    """

    build: Callable[[Path, int], object]
    options: tuple[str, ...]
    rows: str
    finished: Callable[[Path], list[str]]
    check: Callable[[Path, int], None]
    rows_per_call: int = 1

    def count(self, calls: int) -> int:
        return calls * self.rows_per_call

    def file(self, folder: Path) -> Path:
        (path,) = folder.glob(self.rows)
        return path


def both_dumps(folder: Path, calls: int) -> None:
    for side in ("target", "golden"):
        dump_of(folder / side, calls)


def finished_calls(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")[1:-1]
    return [line.split(",")[0] for line in lines if ",pass,pass," in line]


def finished_records(path: Path) -> list[str]:
    """Those of calls that are complete: a call of which a part is missing is judged again as a whole."""
    rows = [row for _, row in read_json_lines(path) if row.status == "pass"]
    parts = Counter(row.call for row in rows)
    return [row.node_id for row in rows if parts[row.call] == len(row.recorded)]


def check_pair(folder: Path, calls: int) -> None:
    reports = Reports(folder)  # refuses doubled names
    assert sorted(reports.results) == sorted(f"Mint.neg.{number}" for number in range(calls))
    tried = [row for row in reports.results.values() if LOST_AGAIN not in row["Message"]]
    assert {(row["Forward Test Success"], row["Backward Test Success"]) for row in tried} == {("pass", "pass")}
    assert len(reports.details) == 2 * calls


def check_tables(folder: Path, calls: int) -> None:
    rows = [row for _, row in read_json_lines(folder / "rows.jsonl")]
    assert sorted(row.call for row in rows) == sorted([f"Mint.neg.{number}" for number in range(calls)] * 2)
    assert len({row.node_id for row in rows}) == len(rows)
    assert {row.status for row in rows if LOST_AGAIN not in row.message} == {"pass"}
    table = max(folder.glob("compare_result_*.csv"), key=lambda path: path.stat().st_mtime_ns)
    with table.open(encoding="utf-8-sig", newline="") as file:
        found = [row["NPU Name"] for row in csv.DictReader(file)]
    assert len(found) == len(set(found)) == 4 * calls


SUBJECTS = {
    "precheck": Subject(
        dump_of, ("--msprobe-dump=dump.json",), "accuracy_checking_result_*.csv", finished_calls, check_pair
    ),
    "comparison": Subject(
        both_dumps,
        ("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-jsonl=rows.jsonl"),
        "rows.jsonl",
        finished_records,
        check_tables,
        rows_per_call=2,
    ),
}


def wait_for_rows(folder: Path, rows: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the run has written a row of its own, or has ended."""
    least = None
    while process.poll() is None:
        size = sum(path.stat().st_size for path in folder.glob(rows))
        least = size if least is None else min(least, size)
        # A resumed run first repairs the file, which may make it smaller.
        if size > max(least, 100):
            return
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids of the xdist workers of a run."""
    try:
        return [int(word) for word in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except OSError:
        return []


def kill_somewhere(folder: Path, rows: str, chance: random.Random, arguments: list[str]) -> None:
    """Start a run and kill all its processes, at times a worker before, mostly while it writes rows."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    if chance.random() < 0.8 or not list(folder.glob(rows)):
        wait_for_rows(folder, rows, process)
    if chance.random() < 0.3 and (workers := workers_of(process)):
        time.sleep(chance.uniform(0, 0.3))
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
    time.sleep(chance.uniform(0, 0.6))
    sign = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    if process.poll() is None:
        os.killpg(process.pid, sign)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUBJECTS)
def test_no_row_is_lost_or_doubled_by_kills_at_random_moments(tmp_path: Path, suite: str) -> None:
    """As many kills as MSPROBE_TEST_KILLS says, in runs that are resumed until they are complete."""
    kills, chance = int(os.environ.get("MSPROBE_TEST_KILLS", "5")), random.Random(20261121)
    for number in range(kills):
        if kills <= 0:
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        kills -= kill_until_complete(folder, SUBJECTS[suite], chance, most_kills=kills, calls=200)


def kill_until_complete(folder: Path, subject: Subject, chance: random.Random, *, most_kills: int, calls: int) -> int:
    """Number of kills in one run that ended complete, after its files were found right."""
    subject.build(folder, calls)
    # Slow enough that a kill finds work in progress.
    (folder / "conftest.py").write_text("import time\ndef pytest_runtest_call(item):\n    time.sleep(0.004)\n")
    fixed = ("-p", "no:hypothesispytest")
    arguments = [*subject.options, *fixed]
    finished: set[str] = set()
    kills = 0
    while kills < most_kills and len(finished) < subject.count(calls):
        kill_somewhere(folder, subject.rows, chance, arguments)
        kills += 1
        path = subject.file(folder)
        inputs = (option for option in subject.options if not option.startswith("--msprobe-jsonl"))
        arguments = [*inputs, *fixed, f"--msprobe-resume={path}"]
        complete = set(subject.finished(path))
        assert finished <= complete, "a finished row was lost"
        finished = complete
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert b"INTERNALERROR" not in done.stdout
    subject.check(folder, calls)
    return kills
