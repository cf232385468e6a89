"""What a terminal of 80 columns shows of runs: how wrong first, tables that fit, each finding once."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

A = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)
#: What stays whole, to be copied, however wide it is.
WHOLE = ("::", "next: ", "results: ", "details: ", "summary: ", "rows: ", "page: ")


@pytest.fixture(params=["", "true"], ids=["terminal", "CI"])
def columns(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """The width of the terminal; pytest shortens no line of its summary by itself where the variable CI is set."""
    monkeypatch.setenv("CI", request.param)
    monkeypatch.setenv("COLUMNS", "80")
    return 80


def wrong(folder: Path) -> str:
    """A dump in which one of two operations is wrong, in two calls."""
    builder = DumpBuilder(folder / "step0" / "rank0")
    for number in range(3):
        builder.call(f"Mint.exp.{number}", [A], [np.exp(A.astype(np.float64)).astype(np.float32)])
        builder.call(f"Mint.neg.{number}", [A], [-A * np.float32(2 if number else 1)])
    builder.write()
    return "--msprobe-dump=step0"


@pytest.mark.needs("torch")
def test_a_failed_line_says_how_wrong_and_then_the_whole_node_id(pytester: pytest.Pytester, columns: int) -> None:
    result = pytester.runpytest(wrong(pytester.path), "--msprobe-device=recorded")
    failed = [line for line in result.outlines if line.startswith("FAILED ")]
    assert len(failed) == 2
    for number, line in enumerate(failed, 1):
        how, _, rest = line.removeprefix("FAILED (").partition(") ")
        assert how == "2 x too large"
        assert rest.split(" - ")[0] == f"step0/rank0/dump.json::Mint.neg.{number}::forward"
    verbose = pytester.runpytest("--msprobe-dump=step0", "--msprobe-device=recorded", "-v", "--msprobe-out=verbose")
    verbose.stdout.fnmatch_lines(["step0/rank0/dump.json::Mint.neg.1::forward FAILED (2 x too large)*"])


@pytest.mark.needs("torch")
def test_the_summary_fits_and_ends_with_the_answer(pytester: pytest.Pytester, columns: int) -> None:
    result = pytester.runpytest(wrong(pytester.path), "--msprobe-device=recorded")
    begin = next(place for place, line in enumerate(result.outlines) if line.strip("= ") == "msprobe precheck")
    told = result.outlines[begin + 1 : -1]
    place = next(place for place, line in enumerate(told) if line.startswith("Wrong: Mint.neg"))
    answer = told[place:]
    assert len(answer[0]) <= columns + 10
    wide = [line for line in told if len(line) > columns and not any(part in line for part in WHOLE)]
    assert wide == answer[:1] * (len(answer[0]) > columns)
    assert told[place - 1] == ""
    assert len(answer) <= 12
    assert sum(line.strip("= ").startswith("msprobe") for line in result.outlines if line.startswith("=")) == 1


def test_an_overflow_is_told_once(pytester: pytest.Pytester, columns: int, dumps: Path) -> None:
    shutil.copytree(dumps / "overflow_attention" / "step0", pytester.path / "step0")
    result = pytester.runpytest("--msprobe-dump=step0", "--msprobe-suite=overflow")
    told = " ".join(result.outlines)
    assert told.count("holds 7 Inf") == 2, "where it failed, and in the answer"
    assert told.count("train_attention.py:24") <= 3, "the failure, the headline and the cause name the line"
    assert told.count("first anomaly of step 0") <= 2, "where it failed, and in the line of the failure"
    verbose = pytester.runpytest("--msprobe-dump=step0", "--msprobe-suite=overflow", "-v", "--msprobe-out=verbose")
    verbose.stdout.fnmatch_lines(["first anomaly of step 0: rank 0, Mint.matmul.3.forward: the range of its dtype*"])
