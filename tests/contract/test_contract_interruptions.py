"""Runs that end before their end, and runs that continue them: nothing lost, nothing doubled."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from contract_runs import Run, Workspace, comparable, comparable_answer, judge_that, read_rows
from slow_parameters import WITH_WORKERS

pytestmark = pytest.mark.one_suite

HANG = "if not Path('go').exists(): Path('reached').touch(); time.sleep(60)"


def middle(plain: Run) -> str:
    """A passing record after the first failing one if there is one, with others before and after it."""
    passing = plain.ids["passed"]
    return passing[len(passing) // 2]


@WITH_WORKERS
def test_ctrl_c_keeps_the_rows_so_far(workspace: Workspace, plain: Run, workers: tuple[str, ...]) -> None:
    conftest = judge_that(HANG, plain.by_id[middle(plain)])
    run = workspace.run_until("reached", *workers, conftest=conftest, send=signal.SIGINT, rows=3, is_settled=True)
    assert run.exit_code == pytest.ExitCode.INTERRUPTED, run.text
    assert len(run.rows) == len(run.outcomes) >= 3
    assert {row["node_id"]: row["outcome"] for row in run.rows} == run.outcomes
    assert middle(plain) not in run.by_id
    assert "unfinished" in [gap["kind"] for gap in run.answer["open"]]
    found, usual = comparable(run.rows, run.folder), comparable(plain.rows, plain.folder)
    assert found == {node_id: usual[node_id] for node_id in found}


@WITH_WORKERS
def test_a_killed_run_is_continued(
    workspace: Workspace, plain: Run, plain_tables: dict[str, list[str]], workers: tuple[str, ...]
) -> None:
    conftest = judge_that(HANG, plain.by_id[middle(plain)])
    killed = workspace.run_until("reached", *workers, conftest=conftest, send=signal.SIGKILL, rows=3)
    done = [row["node_id"] for row in killed.rows]
    assert 3 <= len(done) < len(plain.rows)
    assert killed.answer["outcome"] == "nothing judged"
    assert killed.answer["headline"] == "Nothing judged: the run has not ended"
    (workspace.folder / "go").touch()
    rows = killed.out / "rows.jsonl"
    again = workspace.run(f"--msprobe-resume={rows}", *workers, conftest=conftest, out=killed.out.name)
    assert comparable(read_rows(rows), again.folder) == comparable(plain.rows, plain.folder)
    assert len(read_rows(rows)) == len(plain.rows)
    assert again.outcomes.items() <= plain.outcomes.items()
    # An API call is complete when both its directions are: at most the other directions of one call run again.
    assert len(again.outcomes) <= len(plain.rows) - len(done) + 1 + len(workers)
    assert (again.summary, again.exit_code) == (plain.summary, plain.exit_code)
    assert workspace.tables(killed.out) == plain_tables
    assert comparable_answer(again) == comparable_answer(plain)


def rows_of_before(plain: Run, workspace: Workspace, name: str) -> Path:
    """The rows of a finished run, as if it had run in this folder."""
    path = workspace.folder / name
    text = (plain.out / "rows.jsonl").read_text(encoding="utf-8").replace(str(plain.folder), str(workspace.folder))
    path.write_text(text, encoding="utf-8")
    return path


def test_finished_torn_and_foreign_rows_are_continued(
    workspace: Workspace, plain: Run, plain_tables: dict[str, list[str]]
) -> None:
    """A finished run by nothing, one whose last row is torn by that call; rows of another input are refused."""
    finished, torn, foreign = (rows_of_before(plain, workspace, f"{name}.jsonl") for name in "abc")
    before = finished.read_bytes()
    torn.write_bytes(before[:-20])
    foreign.write_text(before.decode().replace(plain.rows[0]["call"], "Mint.nowhere.0"), encoding="utf-8")
    runs = workspace.run_all([f"--msprobe-resume={path}"] for path in (finished, torn, foreign))
    assert finished.read_bytes() == before
    assert runs[0].outcomes == {}
    assert plain.rows[-1]["node_id"] in runs[1].outcomes
    assert len(runs[1].outcomes) <= 2
    for run, path in zip(runs[:2], (finished, torn)):
        assert comparable(read_rows(path), run.folder) == comparable(plain.rows, plain.folder)
        assert (run.summary, run.exit_code) == (plain.summary, plain.exit_code)
        assert workspace.tables(run.out) == plain_tables
    assert runs[2].exit_code == pytest.ExitCode.USAGE_ERROR, runs[2].text
    assert "Mint.nowhere.0" in runs[2].text
