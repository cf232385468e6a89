from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from pytest_msprobe.__main__ import main
from pytest_msprobe.reports.jsonl import JsonLines, read_json_lines
from pytest_msprobe.reports.merge import merge_runs
from pytest_msprobe.reports.row import OutputRow, Status, VerdictRow


def row(
    call: str, direction: str, status: Status = "pass", cosine: float | None = 1.0, message: str = ""
) -> VerdictRow:
    output = OutputRow("output.0", "Float64", "Float32", (2, 3), cosine, math.inf, 0.5, None, status, "")
    return VerdictRow(
        node_id=f"dump.json::{call}::{direction}",
        dump="/d/dump.json",
        call=call,
        direction=direction,  # type: ignore[arg-type]  # the two words of the parametrisation
        recorded=("forward", "backward"),
        selected=("forward", "backward"),
        status=status,
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
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"), row("Mint.add.1", "forward"))
    path.write_bytes(path.read_bytes()[:-10])
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0"]


def test_a_line_of_something_else_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward"))
    path.write_text(path.read_text() + '{"a": 1}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl: line 2 is no verdict row"):
        list(read_json_lines(path))


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("mine")
    with pytest.raises(FileExistsError):
        JsonLines(tmp_path / "rows.jsonl")
    assert (tmp_path / "rows.jsonl").read_text() == "mine"


def test_two_runs_merge_into_one_pair(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", row("Mint.add.0", "forward"), row("Mint.mul.0", "backward", "error"))
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "rows.jsonl", row("Mint.add.0", "backward", "skip"), row("Mint.mul.0", "backward"))
    lines = merge_runs([a, tmp_path / "b"], tmp_path / "out")
    assert lines[0].startswith("2 passed, 0 failed, 1 skipped")
    (result,) = (tmp_path / "out").glob("*result*.csv")
    with result.open(encoding="utf-8-sig", newline="") as file:
        rows = {line["API Name"]: line for line in csv.DictReader(file)}
    assert (rows["Mint.add.0"]["Forward Test Success"], rows["Mint.add.0"]["Backward Test Success"]) == ("pass", "SKIP")
    assert rows["Mint.mul.0"]["Backward Test Success"] == "pass"
    assert len(list(read_json_lines(tmp_path / "out" / "merged.jsonl"))) == 3
    with pytest.raises(FileExistsError):
        merge_runs([a], tmp_path / "out")


def test_the_command_merges_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.jsonl", row("Mint.add.0", "forward"))
    assert main(["merge", str(source), "-o", str(tmp_path / "out")]) == 0
    assert "1 passed, 0 failed, 0 skipped" in capsys.readouterr().out
    assert main(["merge", str(source), "-o", str(tmp_path / "out")]) == 2
    assert "merged.jsonl: File exists" in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "sentence"), [("none.jsonl", "no such file"), ("empty", r"holds no \.jsonl file")])
def test_what_is_no_source_is_said(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=sentence):
        merge_runs([tmp_path / name], tmp_path / "out")
