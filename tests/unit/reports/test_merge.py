"""Rows of several runs as one, by function and by command."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pytest_msprobe.__main__ import main
from pytest_msprobe.reports.jsonl import JsonLines, merge_runs, read_json_lines
from pytest_msprobe.verdicts import OUTCOMES, OutputRow, Status, VerdictRow


def row(call: str, part: str, status: Status = "pass", *, suite: str = "precheck") -> VerdictRow:
    return VerdictRow(
        node_id=f"dump.json::{call}::{part}",
        dump="/d/dump.json",
        call=call,
        part=part,
        recorded=(part,),
        selected=(part,),
        status=status,
        outcome=OUTCOMES[status],
        outputs=(OutputRow("output.0", "Float64", "Float32", (2, 3), status, figures={"max_abs": 0.5}),),
        suite=suite,
    )


def write(path: Path, *rows: VerdictRow) -> Path:
    lines = JsonLines(path)
    for item in rows:
        lines.write(item.call, item)
    lines.close()
    return path


def test_two_runs_merge_into_one_pair(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", row("Mint.add.0", "forward"), row("Mint.mul.0", "backward", "error"))
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "rows.jsonl", row("Mint.add.0", "backward", "skip"), row("Mint.mul.0", "backward"))
    lines = merge_runs([a, tmp_path / "b"], tmp_path / "out", lambda suite: None).lines()
    assert lines[0].startswith("2 passed, 0 failed, 1 skipped")
    (result,) = (tmp_path / "out").glob("*result*.csv")
    with result.open(encoding="utf-8-sig", newline="") as file:
        rows = {line["API Name"]: line for line in csv.DictReader(file)}
    assert (rows["Mint.add.0"]["Forward Test Success"], rows["Mint.add.0"]["Backward Test Success"]) == ("pass", "SKIP")
    assert rows["Mint.mul.0"]["Backward Test Success"] == "pass"
    assert len(list(read_json_lines(tmp_path / "out" / "merged.jsonl"))) == 3
    with pytest.raises(FileExistsError):
        merge_runs([a], tmp_path / "out", lambda suite: None)


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
        merge_runs([tmp_path / name], tmp_path / "out", lambda suite: None)


def test_the_command_takes_rows_of_every_suite_and_fails_when_one_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = ("precheck", "comparison", "overflow", "gradients")
    for number, suite in enumerate(suites):
        write(tmp_path / f"{number}.jsonl", row("Mint.add.0", "forward", suite=suite))
    assert main(["merge", str(tmp_path), "-o", str(tmp_path / "good")]) == 0
    text = capsys.readouterr().out
    assert text.count("1 passed, 0 failed, 0 skipped") == len(suites)
    assert "(records)" in text
    assert "(operations)" in text
    assert len(list(read_json_lines(tmp_path / "good" / "merged.jsonl"))) == len(suites)
    write(tmp_path / "9.jsonl", row("Mint.add.1", "forward", "error", suite="overflow"))
    assert main(["merge", str(tmp_path), "-o", str(tmp_path / "bad")]) == 1
    assert "1 passed, 1 failed, 0 skipped" in capsys.readouterr().out


def test_rows_of_other_suites_make_no_csv_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.jsonl", row("Mint.add.0", "forward", suite="comparison"))
    assert main(["merge", str(source), "-o", str(tmp_path / "out")]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["merged.jsonl"]
    assert "results:" not in capsys.readouterr().out


def test_the_page_of_the_merged_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, page = write(tmp_path / "rows.jsonl", row("Mint.add.0", "forward")), tmp_path / "page.html"
    page.write_text("mine")
    assert main(["merge", str(source), "-o", str(tmp_path / "out"), f"--page={page}"]) == 2
    assert "is not a page of --msprobe-page" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()  # nothing is written where something must not be replaced
    page.unlink()
    assert main(["merge", str(source), "-o", str(tmp_path / "out"), f"--page={page}"]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    assert page.read_bytes().startswith(b"<!doctype html>")
