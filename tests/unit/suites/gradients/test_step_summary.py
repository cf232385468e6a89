"""Reading grad_summary_{step}.csv of this collector and the existing tool."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gradient_runs import write_step

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.gradients.run import read_summary


@pytest.mark.parametrize("level", ["L0", "L1", "L2"])
@pytest.mark.parametrize("is_older", [False, True])
def test_each_level_of_both_tools(tmp_path: Path, level: str, is_older: bool) -> None:
    gradients = {"a.weight": [[1.0, -2.0], [2.0, 0.0]], "b": np.zeros((0, 3))}
    summary = read_summary(write_step(tmp_path, 7, gradients, level=level, is_older=is_older))
    assert list(summary.rows) == ["a.weight", "b"]
    row = summary.rows["a.weight"]
    assert (row.order, row.shape, row.size, row.max, row.min, row.norm) == (0, (2, 2), 4, 2.0, -2.0, 3.0)
    assert (row.nans, row.infs) == ((None, None) if is_older else (0, 0))
    assert (row.md5 is not None) == (level == "L0")
    assert summary.rows["b"].size == 0
    assert [row.fault or row.nonfinite() for row in summary.rows.values()] == ["", ""]


def test_graph_mode_of_the_existing_tool_begins_names_with_a_capital(tmp_path: Path) -> None:
    path = tmp_path / "grad_summary_0.csv"
    path.write_text('Param_name,"(-inf, 0]","(0, inf)",=0,Max,Min,Norm,Shape\nw,0.5,0.5,0.0,1,-1,1.4142,"(2,)"\n')
    row = read_summary(path).rows["w"]
    assert (row.shape, row.max, row.min, row.norm, row.fault) == ((2,), 1.0, -1.0, 1.4142, "")


NONFINITE = {
    "NaN and Inf": ([np.nan, np.inf, 1.0], False, "1 NaN and 1 Inf among 3 elements"),
    "NaN alone": ([np.nan, 1.0], False, "1 NaN among 2 elements"),
    "NaN without counts": ([np.nan, 1.0], True, "max is nan"),
    "Inf without counts": ([-np.inf, 1.0], True, "min is -inf"),
    "norm out of range": ([3e38, 3e38], True, "norm is inf"),
    "finite": ([1.0, 0.0], True, ""),
}


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("case", NONFINITE)
def test_what_is_not_finite(tmp_path: Path, case: str) -> None:
    values, is_older, expected = NONFINITE[case]
    summary = read_summary(write_step(tmp_path, 0, {"w": values}, is_older=is_older))
    assert summary.rows["w"].nonfinite() == expected


HEAD = "param_name,max,min,norm,shape,nan,inf\n"
BROKEN_ROWS = {
    "cut off": ("w,1.0,0.5,1.", "w: line 2 holds 4 of 7 cells; it is truncated"),
    "cut off in the name": ("w", "w: line 2 holds 1 of 7 cells; it is truncated"),
    "a word for a number": ('w,1,much,1,"[2]",0,0', "w: min: 'much' cannot be read; record this step again"),
    "a word for a shape": ("w,1,1,1,two,0,0", "w: shape: 'two' cannot be read"),
    "half a count": ('w,1,1,1,"[2]",0.5,0', "w: nan: '0.5' cannot be read"),
    "twice": ('w,1,1,1,"[2]",0,0\nw,1,1,1,"[2]",0,0', "w: line 3 names this parameter a second time"),
}


@pytest.mark.parametrize("case", BROKEN_ROWS)
def test_a_broken_row_is_one_sentence_and_the_others_are_read(tmp_path: Path, case: str) -> None:
    line, text = BROKEN_ROWS[case]
    path = tmp_path / "grad_summary_0.csv"
    path.write_text(f'{HEAD}{line}\nother,1,1,1,"[2]",0,0\n')
    rows = read_summary(path).rows
    assert rows["w"].fault.startswith(f"{path}: {text}")
    assert rows["other"].fault == ""


BROKEN_FILES = {
    "empty": (b"", "has no column param_name, max, min, norm, shape"),
    "another table": (b"step,0\nw,1\n", "has no column param_name"),
    "cut off in the header": (b"param_name,max,mi", "has no column min, norm, shape; it is truncated"),
    "bytes": (b"\xff\xfe\x00", "is not a CSV file in UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file_is_one_line(tmp_path: Path, case: str) -> None:
    content, text = BROKEN_FILES[case]
    path = tmp_path / "grad_summary_0.csv"
    path.write_bytes(content)
    with pytest.raises(DumpError) as raised:
        read_summary(path)
    assert str(raised.value).startswith(f"{path}: {text}")


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be read: No such file"):
        read_summary(tmp_path / "grad_summary_0.csv")
