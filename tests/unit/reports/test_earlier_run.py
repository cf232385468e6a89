"""What of an interrupted run's file is complete, and the file made ready to be continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.suite import BOTH, row

from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.jsonl import JsonLines, read_json_lines
from pytest_msprobe.reports.resume import LOST, LOST_AGAIN, EarlierRun, ResumeError, resume
from pytest_msprobe.verdicts import VerdictRow

#: The groups of the dumps of this run.
PARTS = {"Mint.add.0": BOTH, "Mint.add.1": BOTH, "Mint.neg.0": ("forward",), "strange": ("record",)}


def parts_of(name: str) -> Sequence[str] | None:
    return PARTS.get(name)


def write(path: Path, *rows: VerdictRow) -> Path:
    lines = JsonLines(path)
    for item in rows:
        lines.write(item.call, item)
    lines.close()
    return path


def resumed(path: Path, suite: str = "fake") -> EarlierRun:
    return resume(path, suite, parts_of)


def both(call: str, message: str = "") -> list[VerdictRow]:
    return [row(call, part, selected=BOTH, message=message) for part in BOTH]


def test_complete_groups_are_done_and_keep_their_rows(tmp_path: Path) -> None:
    rows = [*both("Mint.add.0"), row("Mint.neg.0", status="skip", message="random"), row("strange", "record", "error")]
    path = write(tmp_path / "rows.jsonl", *rows)
    before = path.read_bytes()
    earlier = resumed(path)
    assert earlier.done == {"Mint.add.0", "Mint.neg.0", "strange"}
    assert [found for _, found in earlier.rows] == rows
    assert (earlier.jsonl, earlier.pair, earlier.lost) == (path, None, frozenset())
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", range(1, 400, 37))
def test_a_file_that_ends_anywhere_is_cut_back_to_complete_groups(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "rows.jsonl", *both("Mint.add.0"), *both("Mint.add.1"))
    path.write_bytes(path.read_bytes()[:-cut])
    earlier = resumed(path)
    assert earlier.done == {"Mint.add.0"}
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0"] * 2


def test_an_empty_file_is_a_run_that_did_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    assert resumed(tmp_path / "rows.jsonl").rows == ()


def test_of_two_rows_for_one_record_the_last_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.neg.0", status="error"), row("Mint.neg.0"))
    assert [found.status for _, found in resumed(path).rows] == ["pass"]


def test_a_group_in_which_a_process_died_is_tried_once_more(tmp_path: Path) -> None:
    died = row("Mint.neg.0", status="error", message=f"the worker process gw0 {LOST}")
    earlier = resumed(write(tmp_path / "rows.jsonl", *both("Mint.add.0"), died))
    assert (earlier.done, earlier.lost) == ({"Mint.add.0"}, {"Mint.neg.0"})
    again = row("Mint.neg.0", status="error", message=f"the worker process gw0 {LOST}, {LOST_AGAIN}")
    earlier = resumed(write(tmp_path / "rows.jsonl", again))
    assert (earlier.done, earlier.lost) == ({"Mint.neg.0"}, frozenset())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory; name the --msprobe-jsonl file of that run"),
        ("a,b\n", "is not a file of --msprobe-jsonl"),
        ("no line of its own", "is not a file of --msprobe-jsonl"),
        ('{"name": 1}\n', "is not a file of --msprobe-jsonl: .*line 1 is not a verdict row"),
    ],
)
def test_another_file_is_refused_and_stays_as_it_is(tmp_path: Path, content: str | None, sentence: str) -> None:
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ResumeError, match=sentence):
        resumed(path)
    assert content is None or path.read_text() == content


def test_the_rows_of_another_dump_or_suite_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.exp.0"))
    with pytest.raises(ResumeError, match=r"holds a row for Mint\.exp\.0, which no dump of this run has"):
        resumed(path)
    with pytest.raises(ResumeError, match="holds verdicts of the suite fake, and this run is one of comparison"):
        resumed(path, "comparison")


def test_a_csv_file_gives_its_verdicts_back(tmp_path: Path) -> None:
    pair = CsvPair(tmp_path)
    pair.write("Mint.add.0", [row("Mint.add.0"), row("Mint.add.0", "backward", "error", message="off")])
    pair.write("Mint.add.1", [row("Mint.add.1", selected=BOTH)])
    pair.write("strange", [row("strange", "record", "error", message="no name")])
    pair.close()
    assert pair.result is not None
    earlier = resume(pair.result, "precheck", parts_of)
    assert earlier.done == {"Mint.add.0", "strange"}
    assert [(name, found.part, found.status, found.outcome) for name, found in earlier.rows] == [
        ("Mint.add.0", "forward", "pass", "passed"),
        ("Mint.add.0", "backward", "error", "failed"),
        ("strange", "record", "error", "failed"),
    ]
    assert earlier.pair == (pair.details, pair.result)


def test_a_csv_file_is_none_of_other_suites(tmp_path: Path) -> None:
    (tmp_path / "accuracy_checking_result_1.csv").write_text("x")
    with pytest.raises(ResumeError, match="is not a file of --msprobe-jsonl"):
        resumed(tmp_path / "accuracy_checking_result_1.csv", "overflow")


@pytest.mark.parametrize("size", [0, 1, 3, 10, 69])
def test_a_csv_file_without_a_whole_heading_is_a_run_that_did_nothing(tmp_path: Path, size: int) -> None:
    pair = CsvPair(tmp_path)
    pair.write("Mint.neg.0", [row("Mint.neg.0")])
    pair.close()
    assert pair.result is not None
    heading = pair.result.read_bytes().partition(b"\n")[0] + b"\n"
    pair.result.write_bytes(heading[:size])
    assert resume(pair.result, "precheck", parts_of).rows == ()
    assert pair.result.read_bytes() == heading
