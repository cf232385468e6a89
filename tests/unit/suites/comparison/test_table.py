"""The files: columns and words that users' scripts read, order, both generations, ranks side by side."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison import compare, compare_distributed, table as table_files
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.table import MergeError, RowStore, columns, merge_ranks

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)

REAL = (
    "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,"
    "NPU Requires_grad,Bench Requires_grad,"
    "Cosine,EucDist,MaxAbsErr,MaxRelativeErr,One Thousandth Err Ratio,Five Thousandths Err Ratio,"
    "NPU max,NPU min,NPU mean,NPU l2norm,Bench max,Bench min,Bench mean,Bench l2norm,"
    "Requires_grad Consistent,Result,Err_message,NPU_Stack_Info,Data_name"
)
STATISTICS = (
    "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,"
    "NPU Requires_grad,Bench Requires_grad,"
    "Max diff,Min diff,Mean diff,L2norm diff,MaxRelativeErr,MinRelativeErr,MeanRelativeErr,NormRelativeErr,"
    "NPU max,NPU min,NPU mean,NPU l2norm,Bench max,Bench min,Bench mean,Bench l2norm,"
    "Requires_grad Consistent,Result,Err_message,NPU_Stack_Info"
)
MD5 = (
    "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,"
    "NPU Requires_grad,Bench Requires_grad,"
    "NPU MD5,BENCH MD5,Requires_grad Consistent,Result,Err_message,NPU_Stack_Info"
)


@pytest.mark.parametrize(("mode", "expected"), [("real", REAL), ("statistics", STATISTICS), ("md5", MD5)])
def test_columns_are_those_that_users_know(mode: str, expected: str) -> None:
    assert ",".join(columns(mode, "result")) == expected


def test_columns_of_the_older_generation() -> None:
    assert ",".join(columns("real", "accuracy")) == REAL.replace(",Result,", ",Accuracy Reached or Not,")
    assert ",".join(columns("md5", "accuracy")) == MD5.replace(",Err_message", "")


def pair(folder: Path, *, real: bool = True, factor: float = 1.01) -> dict[str, Path]:
    """Two dumps: equal, drifted, missing on one side, missing on the other, and a string."""
    for side, scale in (("target", factor), ("golden", 1.0)):
        builder = DumpBuilder(folder / side, real=real)
        builder.call("Mint.same.0", [X, "=1+1"], [X])
        builder.call("Mint.drift.0", [X], [X * np.float32(scale)])
        builder.call(f"Mint.only_{side}.0", [X], [X])
        builder.write()
    return {"npu_path": folder / "target" / "dump.json", "bench_path": folder / "golden" / "dump.json"}


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_of_real_data(tmp_path: Path) -> None:
    result = compare(pair(tmp_path), tmp_path / "out")
    table = read(result.files[0])
    assert re.fullmatch(r"compare_result_\d{14}\.csv", result.files[0].name)
    assert [row["NPU Name"] for row in table] == [
        "Mint.same.0.forward.input.0",
        "Mint.same.0.forward.input.1",
        "Mint.same.0.forward.output.0",
        "Mint.drift.0.forward.input.0",
        "Mint.drift.0.forward.output.0",
        "Mint.only_target.0.forward.input.0",
        "Mint.only_target.0.forward.output.0",
        "N/A",
        "N/A",
    ]
    assert [row["Result"] for row in table] == ["pass"] * 4 + ["error"] + ["unmatched"] * 4
    drift = table[4]
    difference = X * np.float32(1.01) - X
    assert float(drift["EucDist"]) == pytest.approx(float(np.linalg.norm(difference)), rel=1e-6)
    assert float(drift["MaxAbsErr"]) == pytest.approx(float(np.abs(difference).max()), rel=1e-6)
    assert float(drift["MaxRelativeErr"]) == pytest.approx(0.01, rel=1e-4)
    assert float(drift["One Thousandth Err Ratio"]) == 0.0
    assert float(drift["Cosine"]) == pytest.approx(1.0)
    (message,) = json.loads(drift["Err_message"])
    assert message.startswith("error: ")
    assert "distance 0.01 is above 0.0001" in message
    assert json.loads(table[0]["NPU_Stack_Info"]) == ["/home/train/net.py:7, in construct: y = Mint.same.0(x)"]
    assert table[1]["NPU_Stack_Info"] == "N/A"
    assert table[0]["Data_name"] == "['Mint.same.0.forward.input.0.npy', 'Mint.same.0.forward.input.0.npy']"
    assert table[1]["NPU max"] == "'=1+1", "a spreadsheet must not run it"
    assert table[-1]["Bench Name"] == "Mint.only_golden.0.forward.output.0"


def test_a_table_of_statistics(tmp_path: Path) -> None:
    table = read(compare(pair(tmp_path, real=False, factor=-1.0), tmp_path / "out").files[0])
    drift = table[4]
    assert drift["Result"] == "error"
    assert float(drift["Max diff"]) == pytest.approx(1 - 2)
    assert drift["MaxRelativeErr"] == "50.0%"
    assert drift["L2norm diff"] == "0"
    assert drift["NormRelativeErr"] == "0"
    assert table[-1]["Max diff"] == "N/A"


def test_the_older_result_column(tmp_path: Path) -> None:
    settings = ComparisonSettings(result_column="accuracy")
    table = read(compare(pair(tmp_path), tmp_path / "out", settings=settings).files[0])
    assert [row["Accuracy Reached or Not"] for row in table] == ["Yes"] * 4 + ["No"] + ["Unmatched"] * 4
    assert "above 0.0001" in table[4]["Err_message"]


def test_rows_come_out_in_the_order_of_execution_whatever_the_order_of_arrival() -> None:
    store = RowStore()
    for order in (3, 0, 2, 1):
        store.add(order, f"record {order}", [[order]] * (order + 1))
    assert [record for record, _ in store] == [f"record {order}" for order in range(4)]
    assert store.line_of_value("record 2", "") == 2 + 1 + 2
    store.close()


def test_a_table_too_long_for_a_spreadsheet_has_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "MOST_CSV_ROWS", 4)
    result = compare(pair(tmp_path), tmp_path / "out", auto_analyze=False)
    assert [len(read(path)) for path in result.files] == [4, 4, 1]
    assert [path.stem.partition("_part_")[2] for path in result.files] == ["", "1", "2"]


def test_a_workbook_is_coloured_and_runs_no_formula(tmp_path: Path) -> None:
    pytest.importorskip("xlsxwriter")
    openpyxl = pytest.importorskip("openpyxl")
    result = compare(pair(tmp_path), tmp_path / "out", settings=ComparisonSettings(xlsx=True))
    (book,) = [path for path in result.files if path.suffix == ".xlsx"]
    sheet = openpyxl.load_workbook(book).active
    rows = list(sheet.iter_rows())
    names = [cell.value for cell in rows[0]]
    assert ",".join(names) == REAL
    colours = [row[0].fill.fgColor.rgb for row in rows[1:]]
    assert colours[4] == "FFFF0000"
    assert colours[-1] == "FFC7C7C7"
    assert rows[2][names.index("NPU max")].data_type == "s"


def test_two_runs_of_one_second_do_not_write_into_one_file(tmp_path: Path) -> None:
    dumps = pair(tmp_path)
    first, second = (compare(dumps, tmp_path / "out", auto_analyze=False).files[0] for _ in range(2))
    assert first != second


def ranks(folder: Path, *numbers: int, factor: float = 1.0) -> Path:
    for number in numbers:
        DumpBuilder(folder / f"rank{number}").call("Mint.op.0", [X], [X * np.float32(factor)]).write()
    return folder


def test_ranks_are_compared_by_number_and_put_side_by_side(tmp_path: Path) -> None:
    target, golden = ranks(tmp_path / "a", 0, 1, 3, factor=1.01), ranks(tmp_path / "b", 0, 1, 2)
    result = compare_distributed(target, golden, tmp_path / "out")
    assert [found.target.parent.name for found in result.results] == ["rank0", "rank1"]
    assert not result.agrees
    assert [problem.partition("has ")[2] for problem in result.problems[:1]] == ["no golden dump for rank 3"]
    assert "rank2" in result.problems[1]
    (merged,) = [path for path in result.merged if "MaxRelativeErr" in path.name]
    table = read(merged)
    assert list(table[0]) == ["NPU Name", "rank0", "rank1"]
    assert [row["NPU Name"] for row in table] == ["Mint.op.0.forward.input.0", "Mint.op.0.forward.output.0"]
    assert float(table[1]["rank1"]) == pytest.approx(0.01, rel=1e-4)


def test_a_long_name_is_put_side_by_side(tmp_path: Path) -> None:
    long = f"Mint.{'x' * 140_000}.0"
    for run in "ab":
        for number in (0, 1):
            DumpBuilder(tmp_path / run / f"rank{number}", real=False).call(long, [X], [X]).write()
    result = compare_distributed(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert f"{long}.forward.output.0" in result.merged[0].read_text(encoding="utf-8-sig")


def test_a_broken_rank_does_not_cost_the_others(tmp_path: Path) -> None:
    target, golden = ranks(tmp_path / "a", 0, 1), ranks(tmp_path / "b", 0, 1)
    (target / "rank1" / "dump.json").write_text("{")
    result = compare_distributed(target, golden, tmp_path / "out")
    assert len(result.results) == 1
    (problem,) = result.problems
    assert "rank1/dump.json" in problem
    assert "not valid JSON" in problem


def test_tables_without_rank_cannot_be_merged(tmp_path: Path) -> None:
    result = compare(pair(tmp_path), tmp_path / "out")
    with pytest.raises(MergeError, match="name tables of ranks only"):
        merge_ranks([result.files[0]], tmp_path)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [({"bench_path": "x"}, "key 'npu_json_path' is missing"), ({"npu_pth": "x"}, "unknown key 'npu_pth'")],
)
def test_wrong_parameters_are_named(tmp_path: Path, parameters: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compare(parameters, tmp_path)


def test_steps_are_merged_apart(tmp_path: Path) -> None:
    for side in ("a", "b"):
        for step in (0, 1):
            ranks(tmp_path / side / f"step{step}", 0, 1)
    result = compare_distributed(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert result.agrees
    names = {path.name.partition("_merge_")[2].partition("_")[0] for path in result.merged}
    assert names == {"step0", "step1"}
    assert {path.name.partition("_rank")[0] for found in result.results for path in found.files[:1]} == {
        "compare_result_step0",
        "compare_result_step1",
    }


def test_plain_numbers_are_numbers_and_none_has_no_dtype(tmp_path: Path) -> None:
    for side in ("target", "golden"):
        DumpBuilder(tmp_path / side).call("Mint.op.0", [X, -1, None, 1e-5, 2**70], [X]).write()
    paths = {"npu_path": tmp_path / "target" / "dump.json", "bench_path": tmp_path / "golden" / "dump.json"}
    table = read(compare(paths, tmp_path / "out").files[0])
    assert [row["NPU max"] for row in table[1:5]] == ["-1", "None", "1e-05", str(2**70)]
    assert (table[2]["NPU Dtype"], table[2]["NPU Tensor Shape"]) == ("N/A", "N/A")
