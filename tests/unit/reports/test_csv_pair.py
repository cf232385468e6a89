"""The CSV pair, byte by byte where scripts depend on it; the oracle is what the existing tool wrote."""

from __future__ import annotations

import csv
import math
import os
import resource
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from real_dumps import real_dumps

from pytest_msprobe.reports import csv_pair
from pytest_msprobe.reports.csv_pair import CsvPair, neutral, original
from pytest_msprobe.verdicts import OUTCOMES, OutputRow, VerdictRow

PEER = sorted(real_dumps().glob("*/msprobe_26.2.0"))
BOM = b"\xef\xbb\xbf"
NOW = datetime(2026, 11, 21, 5, 26, 59)


@pytest.fixture(autouse=True)
def _fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return NOW

    monkeypatch.setattr(csv_pair, "datetime", Clock)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[CsvPair]:
    pair = CsvPair(tmp_path)
    yield pair
    pair.close()


def output(label: str = "output.0", *, status: Any = "pass", message: str = "", **fields: Any) -> OutputRow:
    figures = {"cosine": 1.0, "max_abs": 0.5, "max_rel": 0.25, "max_ulp": 1.0}
    given = {name: fields.pop(name) for name in figures if name in fields}
    values = {"label": label, "bench_dtype": "Float64", "tested_dtype": "Float32", "shape": (2, 3), **fields}
    return OutputRow(**values, status=status, message=message, figures={**figures, **given})


def row(part: Any = "forward", status: Any = "pass", *outputs: OutputRow, **fields: Any) -> VerdictRow:
    base = {"node_id": "n", "dump": "d", "call": "Mint.add.0", "recorded": (part,), "selected": (part,)}
    return VerdictRow(**{**base, **fields}, part=part, status=status, outcome=OUTCOMES[status], outputs=outputs)


def path_of(path: Path | None) -> Path:
    assert path is not None
    return path


def read(path: Path | None) -> list[dict[str, str]]:
    with path_of(path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def results(pair: CsvPair) -> list[list[str]]:
    return [list(item.values()) for item in read(pair.result)]


def details(pair: CsvPair) -> list[list[str]]:
    return [list(item.values()) for item in read(pair.details)]


def test_nothing_is_created_before_the_first_row(tmp_path: Path) -> None:
    pair = CsvPair(tmp_path / "out")
    pair.close()
    assert (pair.result, pair.details) == (None, None)
    assert not (tmp_path / "out").exists()


def test_names_tell_the_local_time_and_belong_together(pair: CsvPair, tmp_path: Path) -> None:
    pair.write("Mint.add.0", [row()])
    assert pair.result == tmp_path / "accuracy_checking_result_20261121052659.csv"
    assert pair.details == tmp_path / "accuracy_checking_details_20261121052659.csv"
    assert sorted(tmp_path.iterdir()) == [pair.details, pair.result]


@pytest.mark.parametrize("peer", PEER, ids=lambda peer: peer.parent.name)
def test_headers_are_those_of_the_existing_tool_to_the_byte(pair: CsvPair, peer: Path) -> None:
    pair.write("Mint.add.0", [row()])
    for ours, theirs in ((pair.result, "result"), (pair.details, "details")):
        lines = (peer / f"accuracy_checking_{theirs}.csv").read_bytes().split(b"\n")
        assert path_of(ours).read_bytes().split(b"\n")[0].rstrip(b"\r") == lines[0].rstrip(b"\r")


def test_rows_of_the_existing_tool_would_be_written_the_same(pair: CsvPair) -> None:
    """Each passing row of a real details file, given as a verdict, becomes that row again."""
    peer = next(folder for folder in PEER if folder.parent.name == "gpt_tiny_tensor")
    with (peer / "accuracy_checking_details.csv").open(encoding="utf-8-sig", newline="") as file:
        theirs = [item for item in csv.DictReader(file) if item["Status"] == "pass"]
    assert len(theirs) > 50
    for item in theirs:
        call, direction, *place = _cut(item["API Name"])
        figures = [float(item[key]) for key in ("Cosine", "MaxAbsErr", "MaxRelativeErr")]
        shape = tuple(int(part) for part in item["Shape"].strip("()").split(",") if part.strip())
        shown = output(
            place[0],
            bench_dtype=item["Bench Dtype"],
            tested_dtype=item["Tested Dtype"],
            shape=shape,
            cosine=figures[0],
            max_abs=figures[1],
            max_rel=figures[2],
        )
        pair.write(call, [row(direction, "pass", shown)])
    assert read(pair.details) == theirs


def _cut(name: str) -> tuple[str, str, str]:
    for direction in ("forward", "backward"):
        call, found, place = name.partition(f".{direction}.")
        if found:
            return call, direction, place
    raise AssertionError(name)


def test_bytes_are_bom_once_and_crlf(pair: CsvPair) -> None:
    for number in range(3):
        pair.write(f"Mint.add.{number}", [row("forward", "pass", output())])
    for path in (pair.result, pair.details):
        content = path_of(path).read_bytes()
        assert content.startswith(BOM)
        assert content.count(BOM) == 1
        assert content.count(b"\r\n") == content.count(b"\n") == 4
        assert content.endswith(b"\r\n")


@pytest.mark.parametrize(
    ("rows", "cells"),
    [
        ([row()], ["pass", "", ""]),
        ([row("backward")], ["", "pass", ""]),
        ([row(), row("backward", "error", message="bad")], ["pass", "error", "backward: bad"]),
        ([row("forward", "skip", message="random")], ["SKIP", "", "random"]),
        ([row("backward", "skip", message="why")], ["", "SKIP", "backward: why"]),
        (
            [row("forward", "skip", message="a"), row("backward", "skip", message="a")],
            ["SKIP", "SKIP", "forward: a\nbackward: a"],
        ),
        ([row("record", "error", recorded=(), message="no name")], ["error", "", "no name"]),
        ([row("forward", recorded=("forward", "backward"))], ["pass", "", "backward: not selected in this run"]),
        (
            [row("forward", "error", output(status="error", message="m0"), output("output.1", message="m1"))],
            ["error", "", "output.0: m0\noutput.1: m1"],
        ),
    ],
)
def test_the_result_file_has_one_row_per_api_call(pair: CsvPair, rows: list[VerdictRow], cells: list[str]) -> None:
    pair.write("Mint.add.0", rows)
    assert results(pair) == [["Mint.add.0", *cells]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row("forward", "pass")], []),
        (
            [row("forward", "skip", message="random")],
            [["Mint.add.0.forward", "", "", "", "", "", "", "SKIP", "random"]],
        ),
        ([row("backward", "error", message="bad")], [["Mint.add.0.backward", "", "", "", "", "", "", "error", "bad"]]),
        ([row("record", "error", message="no name")], [["Mint.add.0", "", "", "", "", "", "", "error", "no name"]]),
        (
            [row("forward", "error", output(), output("output.1", status="error", message="x")), row("backward")],
            [
                ["Mint.add.0.forward.output.0", "Float64", "Float32", "(2, 3)", "1.0", "0.5", "0.25", "pass", ""],
                ["Mint.add.0.forward.output.1", "Float64", "Float32", "(2, 3)", "1.0", "0.5", "0.25", "error", "x"],
            ],
        ),
    ],
)
def test_the_details_file_has_one_row_per_output(
    pair: CsvPair, rows: list[VerdictRow], expected: list[list[str]]
) -> None:
    pair.write("Mint.add.0", rows)
    assert details(pair) == expected


@pytest.mark.parametrize(("shape", "text"), [((), "()"), ((3,), "(3,)"), ((2, 16, 32), "(2, 16, 32)")])
def test_shapes_are_python_tuples(pair: CsvPair, shape: tuple[int, ...], text: str) -> None:
    pair.write("Mint.add.0", [row("forward", "pass", output(shape=shape))])
    assert read(pair.details)[0]["Shape"] == text


@pytest.mark.parametrize("number", [0.1 + 0.2, -0.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, -1e-300])
def test_figures_are_unrounded_numbers_never_text(pair: CsvPair, number: float) -> None:
    pair.write("Mint.add.0", [row("forward", "pass", output(cosine=number, max_abs=None, max_rel=math.nan))])
    found = read(pair.details)[0]
    assert float(found["Cosine"]) == number
    assert found["MaxAbsErr"] == ""
    assert found["MaxRelativeErr"] == "nan"


AWKWARD = 'line 1\nline 2, with "quotes"; é 中文 🙂\n\n tail'


def test_any_message_comes_back_whole(pair: CsvPair) -> None:
    pair.write("Mint.add.0", [row("forward", "error", message=AWKWARD)])
    pair.write("Mint.add.1", [row("forward", "error", output(message=AWKWARD))])
    assert [item["Message"] for item in read(pair.result)] == [AWKWARD, f"output.0: {AWKWARD}"]
    assert [item["Message"] for item in read(pair.details)] == [AWKWARD, AWKWARD]


def test_bytes_that_are_no_text_do_not_cost_the_row(pair: CsvPair) -> None:
    pair.write("Mint.add.0", [row("forward", "error", message=os.fsdecode(b"/data/\xff/dump.json: bad"))])
    assert read(pair.result)[0]["Message"] == "/data/\\udcff/dump.json: bad"


FORMULAS = ["=cmd|' /C calc'!A0", "@SUM(A1)", "+1+1", "-1+1", "\n=1", " =1", "\uff1d1", "=", "-"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula_to_a_spreadsheet(pair: CsvPair, text: str) -> None:
    harmful = output(text, bench_dtype=text, tested_dtype=text, message=text)
    pair.write(text, [row("forward", "error", harmful, message=text)])
    pair.write(text, [row("forward", "skip", message=text)])
    cells = [cell for line in results(pair) + details(pair) for cell in line]
    assert not [cell for cell in cells if cell and cell[0] in "=+-@\uff1d \n"]
    assert [item["Message"] for item in read(pair.details)] == [f"'{text}"] * 2
    assert read(pair.result)[1] == {
        "API Name": f"'{text}",
        "Forward Test Success": "SKIP",
        "Backward Test Success": "",
        "Message": f"'{text}",
    }


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"),
        ("\ufeff=1", "\\ufeff=1"),
        ("\u3000=1", "\\u3000=1"),
        ("a\x1b[31m\nb\u202e", "a\\x1b[31m\nb\\u202e"),
    ],
)
def test_control_characters_are_escaped(text: str, written: str) -> None:
    assert neutral(text) == written


@pytest.mark.parametrize("name", ["=1", " a", "\n=", "a", "", "'", "\uff1d1"])
def test_a_name_comes_back_from_its_cell(name: str) -> None:
    assert original(neutral(name)) == name


@pytest.mark.parametrize("cell", [-1.5, -3, 0.0, None, "", "a=1", "Mint.add.0", "1e-5", "(2, 3)", "'=1"])
def test_other_cells_stay_as_they_are(cell: Any) -> None:
    assert neutral(cell) is cell


def test_every_call_can_be_read_while_the_run_goes_on(pair: CsvPair) -> None:
    for number in range(3):
        pair.write(f"Mint.add.{number}", [row("forward", "pass", output())])
        assert [item["API Name"] for item in read(pair.result)] == [f"Mint.add.{n}" for n in range(number + 1)]
        assert len(read(pair.details)) == number + 1


def test_details_are_on_disk_before_the_result_that_sums_them_up(
    pair: CsvPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed between the two must not leave a call that counts as done without its details."""
    pair.write("Mint.add.0", [row("forward", "pass", output())])
    monkeypatch.setattr(csv_pair, "_result", lambda name, rows: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pair.write("Mint.add.1", [row("forward", "pass", output())])
    assert len(read(pair.details)) == 2
    assert len(read(pair.result)) == 1


@pytest.mark.parametrize(("umask", "expected"), [(0o022, [0o644, 0o755]), (0o027, [0o640, 0o750]), (0, [0o666, 0o777])])
def test_files_and_folder_follow_the_umask(tmp_path: Path, umask: int, expected: list[int]) -> None:
    before = os.umask(umask)
    try:
        pair = CsvPair(tmp_path / "out")
        pair.write("Mint.add.0", [row()])
        pair.close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path_of(path).stat().st_mode) for path in (pair.result, pair.details, tmp_path / "out")]
    assert modes == [expected[0], *expected]


@pytest.mark.parametrize("taken", [("result", "details"), ("result",), ("details",)], ids="+".join)
def test_a_pair_of_the_same_second_is_never_written_into(tmp_path: Path, taken: tuple[str, ...]) -> None:
    others = [tmp_path / f"accuracy_checking_{name}_20261121052659.csv" for name in taken]
    for other in others:
        other.write_text("another run's")
    pair = CsvPair(tmp_path)
    pair.write("Mint.add.0", [row()])
    pair.close()
    assert pair.result == tmp_path / "accuracy_checking_result_20261121052700.csv"
    assert pair.details == tmp_path / "accuracy_checking_details_20261121052700.csv"
    assert [other.read_text() for other in others] == ["another run's"] * len(taken)
    assert sorted(tmp_path.iterdir()) == sorted([*others, pair.result, pair.details])


def test_links_waiting_at_the_name_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "accuracy_checking_result_20261121052659.csv").symlink_to(victim)
    pair = CsvPair(tmp_path)
    pair.write("Mint.add.0", [row()])
    pair.close()
    assert not victim.exists()


def test_two_pairs_of_one_second_are_four_files(tmp_path: Path) -> None:
    pairs = [CsvPair(tmp_path), CsvPair(tmp_path)]
    for number, pair in enumerate(pairs):
        pair.write(f"Mint.add.{number}", [row()])
    for number, pair in enumerate(pairs):
        assert [item["API Name"] for item in read(pair.result)] == [f"Mint.add.{number}"]
        pair.close()


def test_a_folder_that_cannot_be_made_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    pair = CsvPair(tmp_path / "file" / "out")
    with pytest.raises(OSError, match="Not a directory"):
        pair.write("Mint.add.0", [row()])
    assert (pair.result, pair.details) == (None, None)
    pair.close()


def test_a_full_disk_is_an_error_once_and_keeps_the_rows_before_it(tmp_path: Path) -> None:
    pair = CsvPair(tmp_path)
    pair.write("Mint.add.0", [row("forward", "pass", output())])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            pair.write("Mint.add.1", [row("forward", "error", message="x" * 5000)])
        pair.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert results(pair) == [["Mint.add.0", "pass", "", ""]]
    assert details(pair)[0][0] == "Mint.add.0.forward.output.0"
