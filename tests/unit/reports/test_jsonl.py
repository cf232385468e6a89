from __future__ import annotations

import json
import math
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_msprobe.answers import Answer, Finding, Place
from pytest_msprobe.reports.jsonl import (
    Covered,
    JsonLines,
    answer_with,
    encode_row,
    read_json_lines,
    read_latest_rows,
)
from pytest_msprobe.verdicts import OUTCOMES, OutputRow, Status, VerdictRow


def row(call: str, part: str, status: Status = "pass", cosine: float | None = 1.0, message: str = "") -> VerdictRow:
    figures = {"cosine": cosine, "max_abs": math.inf, "max_rel": 0.5, "max_ulp": None}
    output = OutputRow("output.0", "Float64", "Float32", (2, 3), status, figures=figures)
    return VerdictRow(
        node_id=f"dump.json::{call}::{part}",
        dump="/d/dump.json",
        call=call,
        part=part,
        recorded=("forward", "backward"),
        selected=("forward", "backward"),
        status=status,
        outcome=OUTCOMES[status],
        message=message,
        outputs=(output,),
        seconds=0.25,
        seed=7,
        host="node1",
    )


def write(path: Path, *rows: VerdictRow) -> Path:
    lines = JsonLines(path)
    for item in rows:
        lines.write(item.call, item)
    lines.close()
    return path


def test_rows_come_back_and_every_line_is_strict_json(tmp_path: Path) -> None:
    rows = [row("Mint.add.0", "forward", cosine=math.nan), row("Mint.add.0", "backward", "error", None, 'a "b"\n')]
    path = write(tmp_path / "sub" / "rows.jsonl", *rows)
    found = [item for _, item in read_json_lines(path)]
    assert str(found) == str(rows)  # NaN is equal to nothing, also not to itself
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"), row("Mint.add.1", "forward"))
    path.write_bytes(path.read_bytes()[:-10])
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0"]


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"))
    path.write_text(path.read_text() + '{"a": 1}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl: line 2 is not a verdict row"):
        list(read_json_lines(path))


@pytest.mark.parametrize("content", ["mine", '{"names": 1}', " "])
def test_a_file_of_someone_else_is_never_written_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(FileExistsError, match="holds something else than rows"):
        JsonLines(tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == content


@pytest.mark.parametrize("content", ["", '{"na', '{"name":"Mint.a'])
def test_a_file_whose_first_row_was_cut_short_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    assert [name for name, _ in read_json_lines(write(tmp_path / "rows.jsonl", row("Mint.a.0", "forward")))]


@pytest.mark.parametrize("earlier", [3, 0])
def test_a_file_of_an_earlier_run_is_replaced(tmp_path: Path, earlier: int) -> None:
    path = write(tmp_path / "rows.jsonl", *(row(f"Mint.old.{number}", "forward") for number in range(earlier)))
    write(path, row("Mint.add.0", "forward"))
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0"]


def test_rows_can_be_appended(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"))
    lines = JsonLines(path, appends=True)
    lines.write("Mint.add.1", row("Mint.add.1", "forward"))
    lines.close()
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0", "Mint.add.1"]


def test_a_name_that_is_no_valid_text_costs_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.\udcff.0", "forward", message="\ud800"))
    ((name, read),) = read_json_lines(path)
    assert (name, read.message) == ("Mint.\\udcff.0", "\\ud800")


@pytest.mark.parametrize(
    "text", ["\x9b2J", "a\x7fb", "\u202eé\ufeff", "\U000e0001\U0001f642", "\ud800\u2028", "\x1b\n\r"]
)
def test_no_line_holds_what_a_terminal_obeys(text: str) -> None:
    line = encode_row("x", row("Mint.add.0", "forward", message=text))
    assert line.decode("utf-8").removesuffix("\n").isprintable()
    assert json.loads(line)["message"] == text.replace("\ud800", "\\ud800")
    assert "\U0001f642" not in text or "\U0001f642" in line.decode("utf-8")


def test_rows_of_which_more_is_known_follow_once_more_and_count(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    first = row("Cell.a.0", "forward").with_property("level", "inherited")
    for item in (first, row("Mint.add.0", "forward"), row("Cell.a.0", "backward")):
        lines.write(item.call, item)
    lines.append_corrections({("/d/dump.json", "Cell.a.0", "forward"): "arises inside"}, {})
    lines.close()
    assert len(list(read_json_lines(lines.path))) == 4
    found = {(item.call, item.part): item.properties for item in read_latest_rows([lines.path])}
    assert found == {
        ("Cell.a.0", "forward"): (("level", "arises inside"),),
        ("Mint.add.0", "forward"): (),
        ("Cell.a.0", "backward"): (),
    }


def test_without_more_to_say_no_row_is_written_again(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.write("Mint.add.0", row("Mint.add.0", "forward"))
    lines.append_corrections({}, {})
    lines.close()
    assert len(list(read_json_lines(lines.path))) == 1


@pytest.mark.parametrize("appends", [False, True])
def test_the_answer_goes_with_the_last_row_and_holds_for_its_rows_alone(tmp_path: Path, *, appends: bool) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"))
    before = path.read_bytes() if appends else b""
    place = Place(record="Mint.add.1.forward", operation="Mint.add.1")
    figures = {"ratio": math.inf, "side": "target", "size": 2}
    answer = Answer(suite="precheck", outcome="wrong", findings=(Finding(kind="wrong", place=place, figures=figures),))
    lines = JsonLines(path, appends=appends)
    lines.write("Mint.add.1", row("Mint.add.1", "forward"))
    lines.attach(None)
    lines.attach(answer)
    covered = Covered()
    for _, item in read_json_lines(path):
        covered.add(item)
    lines.write("Mint.add.2", row("Mint.add.2", "forward"))
    lines.close()
    assert path.read_bytes().startswith(before)
    found = {item.call: item for _, item in read_json_lines(path)}
    assert answer_with(found.pop("Mint.add.1")) == (covered.number, answer)
    assert [item.attachment for item in found.values()] == [None] * len(found)
    covered.add(replace(found["Mint.add.2"], outcome="failed"))
    later = covered.number
    covered.add(found["Mint.add.2"])
    assert covered.number != later


def test_where_there_is_no_room_the_last_row_stays_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"))
    before = path.read_bytes()
    lines = JsonLines(path, appends=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 7, limits[1]))
        with pytest.raises(OSError, match="large"):
            lines.attach(Answer(suite="precheck", outcome="right"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lines.close()
    assert path.read_bytes() == before
