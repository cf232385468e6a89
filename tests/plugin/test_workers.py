"""Real xdist workers: the same items, data and rows as in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

from pytest_msprobe.reports.jsonl import merge_runs, read_json_lines

RANDOM = np.random.default_rng(3)


def statistics_dump(folder: Path, calls: int = 6) -> DumpBuilder:
    builder = DumpBuilder(folder, real=False)
    for number in range(calls):
        a, b = RANDOM.standard_normal((2, 8, 8)).astype(np.float32)
        builder.call(f"Mint.matmul.{number}", [a, b], [a @ b], incoming=[a], gradients=[a, b])
    return builder


def test_lines_of_a_run_with_workers_stand_alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress begins where no dots are, and more workers than cores are met by a hint."""
    monkeypatch.setattr("pytest_msprobe.run.terminal.PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("pytest_msprobe.run.terminal._PROGRESS_SHARE", 0.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    statistics_dump(pytester.path).write()
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-device=torch:cpu", "-n2", "-p", "no:randomly")
    result.assert_outcomes(passed=12)
    told = [line for line in result.outlines if " done; about " in line]
    assert len(told) > 3
    assert all(line.startswith("msprobe: ") for line in told)
    result.stdout.fnmatch_lines(["msprobe: 2 workers on the CPU", "msprobe: -n 2: this machine has 1 core; use -n 1"])


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_workers(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path).write()
    rows = []
    for workers in ("0", "2"):
        out = pytester.path / f"out{workers}"
        result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", workers, f"--msprobe-out={out}")
        result.assert_outcomes(passed=12)
        reports = Reports(out)
        assert len(reports.results) == 6
        assert {row["Backward Test Success"] for row in reports.results.values()} == {"pass"}
        rows.append(reports.details)
    assert rows[0] == rows[1]


def test_rows_do_not_depend_on_what_else_is_selected(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path).write()
    pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-out=all")
    pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-out=one", "-k", "matmul.4 and backward")
    everything, alone = Reports(pytester.path / "all").details, Reports(pytester.path / "one").details
    assert alone.keys() == {"Mint.matmul.4.backward.output.0", "Mint.matmul.4.backward.output.1"}
    assert all(everything[name] == row for name, row in alone.items())


def test_another_seed_gives_other_data(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path, calls=1).write()
    for seed in ("0", "1"):
        pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-seed={seed}", f"--msprobe-out={seed}")
    errors = [
        Reports(pytester.path / seed).details["Mint.matmul.0.forward.output.0"]["MaxRelativeErr"] for seed in "01"
    ]
    assert errors[0] != errors[1]


def test_a_direction_that_was_not_selected_says_so(pytester: pytest.Pytester, reports: Reports) -> None:
    statistics_dump(pytester.path, calls=1).write()
    pytester.runpytest("--msprobe-dump=dump.json", "-m", "backward").assert_outcomes(passed=1, deselected=1)
    assert list(reports.results["Mint.matmul.0"].values()) == [
        "Mint.matmul.0",
        "",
        "pass",
        "forward: not selected in this run",
    ]


def test_a_direction_that_the_run_did_not_reach_says_so(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = statistics_dump(pytester.path, calls=1)
    builder.records["Mint.matmul.0.forward"]["input_args"][0]["dtype"] = "Float99"
    builder.write()
    pytester.runpytest("--msprobe-dump=dump.json", "-x").assert_outcomes(failed=1)
    row = reports.results["Mint.matmul.0"]
    assert (row["Forward Test Success"], row["Backward Test Success"]) == ("error", "")
    assert row["Message"].endswith("backward: not run, the run ended before it")


@pytest.mark.slow
def test_plain_arguments_a_bad_dump_and_last_failed_work_with_workers(pytester: pytest.Pytester) -> None:
    builder = statistics_dump(pytester.path / "rank0")
    builder.records["Mint.matmul.3.forward"]["input_args"][0]["dtype"] = "Float99"
    builder.write()
    (pytester.path / "rank1").mkdir()
    (pytester.path / "rank1" / "dump.json").write_text("{")
    arguments = ("rank0/dump.json", "rank1/dump.json", "-n", "2")
    result = pytester.runpytest_subprocess(*arguments)
    assert result.parseoutcomes()["passed"] == 10
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*rank1/dump.json: is not valid JSON*"])
    again = pytester.runpytest_subprocess("rank0/dump.json", "-n", "2", "--lf")
    again.assert_outcomes(failed=2)


@pytest.mark.slow
def test_machine_rows_hold_every_verdict(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path, calls=3).write()
    arguments = ("--msprobe-dump=dump.json", "--msprobe-jsonl=rows/rows.jsonl")
    pytester.runpytest_subprocess(*arguments, "-n", "2", "--msprobe-seed=5").assert_outcomes(passed=6)
    rows = [row for _, row in read_json_lines(pytester.path / "rows" / "rows.jsonl")]
    assert sorted(row.node_id for row in rows) == sorted(
        f"dump.json::Mint.matmul.{n}::{direction}" for n in range(3) for direction in ("forward", "backward")
    )
    assert {(row.status, row.seed, row.outputs[0].tested_dtype) for row in rows} == {("pass", 5, "Float32")}
    # The next run replaces the file, as it does those of --junitxml and --html.
    pytester.runpytest(*arguments, "-k", "matmul.1 and forward").assert_outcomes(passed=1, deselected=5)
    assert [name for name, _ in read_json_lines(pytester.path / "rows" / "rows.jsonl")] == ["Mint.matmul.1"]


def test_a_file_that_holds_something_else_is_not_replaced(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path, calls=1).write()
    (pytester.path / "mine.jsonl").write_text('{"mine": 1}\n')
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-jsonl=mine.jsonl")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mine.jsonl holds something else than rows of --msprobe-jsonl, and is not replaced"])
    assert (pytester.path / "mine.jsonl").read_text() == '{"mine": 1}\n'


def test_shards_together_are_the_whole_and_merge(pytester: pytest.Pytester) -> None:
    statistics_dump(pytester.path, calls=7).write()
    seen: list[str] = []
    for number in (1, 2, 3):
        rows = pytester.path / f"{number}.jsonl"
        pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-shard={number}/3", f"--msprobe-jsonl={rows}")
        part = [row.call for _, row in read_json_lines(rows) if row.direction == "forward"]
        assert 2 <= len(part) <= 3
        seen += part
    assert sorted(seen) == [f"Mint.matmul.{number}" for number in range(7)]
    merge_runs(
        [pytester.path / f"{number}.jsonl" for number in (1, 2, 3)],
        pytester.path / "all",
        lambda suite: None,
    )
    assert len(Reports(pytester.path / "all").results) == 7
