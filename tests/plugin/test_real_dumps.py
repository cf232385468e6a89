"""The dumps of a real training step, judged through real pytest runs."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from report_reader import Reports


def existing_rows(folder: Path, kind: str) -> list[dict[str, str]]:
    path = folder / "msprobe_26.2.0" / f"accuracy_checking_{kind}.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["gpt_tiny_tensor", "gpt_tiny_mix", "gpt_tiny_statistics"])
def test_every_call_of_a_float32_step_passes(
    pytester: pytest.Pytester, reports: Reports, dumps: Path, name: str
) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dumps / name}", "--msprobe-bench=torch")
    result.assert_outcomes(passed=180)
    assert len(reports.results) == 90
    assert {row["Forward Test Success"] for row in reports.results.values()} == {"pass"}
    assert {row["Backward Test Success"] for row in reports.results.values()} == {"pass"}
    assert {row["Bench Dtype"] for row in reports.details.values()} <= {"Float64", "Float32", "Bool", "Int64"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_tiny_tensor", "gpt_tiny_statistics"])
def test_mindspore_float64_is_benchmark_enough_for_this_step(
    pytester: pytest.Pytester, reports: Reports, dumps: Path, name: str
) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dumps / name}", "--msprobe-bench=mindspore")
    result.assert_outcomes(passed=180)
    result.stdout.fnmatch_lines(["msprobe: * 90 API calls, * against MindSpore * CPU float64"])


def test_the_first_run_fits_on_a_screen(pytester: pytest.Pytester, dumps: Path) -> None:
    """It says what is tested against what, and names no engine that has nothing to do."""
    shutil.copytree(dumps / "gpt_tiny_tensor", pytester.path / "tests/dumps/gpt_tiny_tensor")
    result = pytester.runpytest("--msprobe-dump=tests/dumps/gpt_tiny_tensor")
    result.assert_outcomes(passed=180)
    assert len(result.outlines) <= 20
    (header,) = [line for line in result.outlines if line.startswith("msprobe: ")]
    assert "gpt_tiny_tensor/step0/proc0/dump.json: 90 API calls, recorded values against PyTorch 2." in header
    assert header.endswith(" CPU float64")


def test_quickstart_equals_the_existing_tools_files(pytester: pytest.Pytester, reports: Reports, dumps: Path) -> None:
    pytester.runpytest(f"--msprobe-dump={dumps / 'quickstart' / 'dump.json'}").assert_outcomes(passed=1)
    for kind, ours in (("result", reports.results), ("details", reports.details)):
        (theirs,) = existing_rows(dumps / "quickstart", kind)
        assert list(ours.values()) == [theirs]
        assert [list(row) for row in ours.values()] == [list(theirs)]


def test_cells_are_left_to_other_suites_and_counted(pytester: pytest.Pytester, dumps: Path) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dumps / 'gpt_tiny_mix'}", "--co", "-q")
    result.stdout.fnmatch_lines(["180 tests collected*"])
    result.stdout.no_fnmatch_line("*Cell*")
    header = pytester.runpytest(f"--msprobe-dump={dumps / 'gpt_tiny_mix'}", "--co")
    header.stdout.fnmatch_lines(["*90 API calls, recorded values against *; 56 Cell records are left to*"])


def test_our_verdicts_agree_with_the_existing_tool_where_it_has_one(
    pytester: pytest.Pytester, reports: Reports, dumps: Path
) -> None:
    pytester.runpytest(f"--msprobe-dump={dumps / 'gpt_tiny_tensor'}", "--msprobe-bench=torch")
    theirs = existing_rows(dumps / "gpt_tiny_tensor", "details")
    assert len(theirs) > 150
    ours = list(reports.details.items())
    for row in theirs:
        # The existing tool numbers gradients after dropping nulls, so that `where`'s only one is its output.0.
        stem, index = row["API Name"].rsplit(".", 1)
        found = [entry for name, entry in ours if name.rsplit(".", 1)[0] == stem][int(index)]
        assert [found[key] for key in ("Status", "Tested Dtype", "Shape")] == [
            row[key] for key in ("Status", "Tested Dtype", "Shape")
        ]


def test_float16_failures_name_the_users_own_line(pytester: pytest.Pytester, dumps: Path) -> None:
    dump = dumps / "gpt_tiny_float16" / "step0" / "rank0" / "dump.json"
    result = pytester.runpytest(f"{dump}::Mint.rsqrt.1::forward")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Mint.rsqrt, call 1, forward*",
            "*max absolute error*at [[]0, 1, 0[]] (tested 1.8330078125, benchmark 1.833984375)*",
            "*off*6 of 32 elements*",
            "called from /home/train/train_gpt.py:25, in construct:",
            "*return mint.mul(mint.mul(x,mint.rsqrt(mint.add(v,1e-6))),s.w)",
        ]
    )
