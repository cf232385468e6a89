"""What a pipeline reads of a run, in the situations of everyday: exit codes, JUnit, selections, workers, commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from real_dumps import COMMITTED
from situations import (
    WRONG,
    Answered,
    Ended,
    Runner,
    Situation,
    Training,
    check,
    check_failures,
    failed_items,
    line_of,
    row,
    row_of_cases,
    rows,
)

WRONG_GELU, GELU = Training("gelu", ("wrong",)), Training("gelu")
CAUSE = "Functional.gelu.0.forward"
#: Ends a run that would start workers, and says so. The machine has GPUs, as far as it is asked.
NO_WORKERS = """
import pytest

import pytest_msprobe.engines.selection as selection

selection.has_cuda = lambda: True

def pytest_xdist_setupnodes(config, specs):
    pytest.exit(f"{len(specs)} workers would start", returncode=99)
"""


@rows(
    Situation(
        "40",
        WRONG_GELU,
        GELU,
        outcome=WRONG,
        first_line=("gelu", "1.01 x too large", line_of("gelu", ".gelu(self.up")),
        failing=(CAUSE,),
    )
)
def test_answer(situation: Situation, answer: Callable[[Situation], Answered]) -> None:
    check(situation, answer(situation))


@row("40 options")
def test_the_cause_is_repeated_stopped_at_and_shown(runner: Runner, tmp_path: Path) -> None:
    cache, page = tmp_path / "cache", tmp_path / "report.html"
    report = tmp_path / "junit.xml"
    kept = {"out": tmp_path / "out", "cache": cache}
    shown = ("--html", str(page), "--self-contained-html", f"--junitxml={report}")
    assert runner.pytest(WRONG_GELU, GELU, *shown, **kept).code == 1
    check_failures((CAUSE,), failed_items(report))
    assert re.search(r"\b1 Failed", page.read_text(encoding="utf-8"))
    for option in ("--lf", "-x"):
        assert runner.pytest(WRONG_GELU, GELU, option, f"--junitxml={report}", **kept).code == 1
        check_failures((CAUSE,), failed_items(report))


SELECTIONS = [("backward",), ("linear and forward",), ("not (Functional.gelu and forward)",)]


@row_of_cases("41", SELECTIONS)
def test_a_selection_makes_no_wrong_run_right(runner: Runner, case: tuple[str]) -> None:
    run, _ = runner.junit(WRONG_GELU, GELU, "-k", *case)
    assert run.code == 1, run.output


@row("41 sharded")
def test_a_selection_makes_no_wrong_sharded_run_right(runner: Runner) -> None:
    ranks = Training("data_parallel", ("2", "wrong"), has_debugger=True)
    logical = runner.dump(Training("data_parallel", ("1",), has_debugger=True))
    run = runner.pytest(ranks, None, "--msprobe-suite=sharded", f"--msprobe-logical={logical}", "-k", "Optimizer")
    assert run.code == 1, run.output


@row("42")
def test_an_outcome_has_one_exit_code(runner: Runner) -> None:
    statistics = Training("convolutions", options=("--exit", "--task=statistics"))
    assert [runner.diagnose(GELU).code, runner.diagnose(GELU, GELU).code] == [0, 0]
    for suite in ("precheck", "overflow", "laws"):
        assert runner.pytest(GELU, None, f"--msprobe-suite={suite}").code == 0
    assert runner.pytest(GELU, GELU).code == 0
    assert [runner.diagnose(WRONG_GELU, GELU).code, runner.pytest(WRONG_GELU, GELU).code] == [1, 1]
    dropout = Training("attention_dropout")
    assert [runner.diagnose(dropout).code, runner.pytest(dropout, None).code] == [0, 0]
    assert runner.pytest(dropout, None, "--msprobe-strict").code == 1
    assert [runner.diagnose(statistics).code, runner.pytest(statistics, None).code] == [5, 5]


@row("43")
def test_items_have_the_name_of_their_call(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    open('names.txt', 'w').write('\\n'.join(item.name for item in session.items))\n"
    )
    dump = runner.folder / runner.dump(GELU)
    runner.run("-m", "pytest", f"--msprobe-dump={dump}", "--collect-only", "-q", folder=tmp_path)
    names = (tmp_path / "names.txt").read_text().splitlines()
    assert len(set(names)) == len(names)
    assert any("Functional.gelu.0" in name and "forward" in name for name in names)


def with_workers(runner: Runner, folder: Path, *options: str) -> Ended:
    """Run pytest with workers that are never started: 99 is the exit code where they would be."""
    (folder / "conftest.py").write_text(NO_WORKERS)
    dump = runner.folder / runner.dump(GELU)
    return runner.run(
        *("-m", "pytest", f"--msprobe-dump={dump}", "-p", "no:cacheprovider", *options),
        folder=folder,
        CUDA_VISIBLE_DEVICES="0",
    )


@row("44")
def test_more_workers_than_gpus_are_refused(runner: Runner, tmp_path: Path) -> None:
    run = with_workers(runner, tmp_path, "-n", "3", "--msprobe-device=torch:cuda")
    assert run.code == 4, run.output
    assert re.search(r"\b3 workers\b", run.errors + run.output)
    assert re.search(r"\b1 device\b", run.errors + run.output)


@row("45 devices")
def test_devices_of_a_cpu_are_refused(runner: Runner, tmp_path: Path) -> None:
    run = with_workers(runner, tmp_path, "-n", "2", "--msprobe-device=torch:cpu", "--msprobe-device-ids=0,1")
    assert run.code == 4, run.output
    assert "--msprobe-device-ids" in run.errors + run.output


@row("45 workers")
def test_far_more_workers_than_cores_are_refused_or_said(runner: Runner, tmp_path: Path) -> None:
    run = with_workers(runner, tmp_path, "-n", "500")
    assert re.search(r"\b500\b.*\b\d+ cores?\b", run.errors + run.output)


@row("46")
def test_a_reader_that_ends_early_sees_no_traceback(runner: Runner) -> None:
    dump = runner.folder / runner.dump(GELU)
    command = f"{shlex.quote(sys.executable)} -m pytest_msprobe diagnose {shlex.quote(str(dump))} | head -1"
    run = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert len(run.stdout.splitlines()) == 1
    assert run.stderr == ""


def next_commands(text: str) -> list[list[str]]:
    """The commands that an answer names as the next ones."""
    lines = re.findall(r"^next: ((?:pytest|python) .*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


@row("47")
def test_next_commands_can_be_pasted(runner: Runner) -> None:
    dump = runner.dump(WRONG_GELU)
    selection = ["-k", "gelu or linear", "-p", "no:cacheprovider"]
    run = runner.run("-m", "pytest", f"--msprobe-dump={dump}", f"--msprobe-out={runner.folder / 'out47'}", *selection)
    commands = next_commands(run.output)
    assert commands
    for command in commands:
        assert command != ["pytest", f"--msprobe-dump={dump}", *selection]
        assert "no:cacheprovider" not in command
        names = [argument.split("=")[0] for argument in command if argument.startswith("--")]
        assert len(set(names)) == len(names), command
        assert runner.run("-m", *command[(command[:2] == ["python", "-m"] and 2) or 0 :]).code in (0, 1, 5)
    assert any("gelu" in argument for command in commands for argument in command)


@row("47 done")
def test_what_was_done_is_not_next(runner: Runner) -> None:
    for training in (Training("accuracy"), GELU):
        run = runner.pytest(training, None, "--msprobe-standard=backward-error")
        for command in next_commands(run.output):
            assert "--msprobe-standard=backward-error" not in command


@row("48")
def test_there_is_one_record_not_one_records(runner: Runner) -> None:
    quickstart = COMMITTED / "quickstart"
    texts = [runner.diagnose(quickstart), runner.diagnose(quickstart, quickstart), runner.pytest(quickstart, None)]
    for ended in texts:
        said = re.search(r"\b1 (records|inputs|calls|values|parameters|operations|outputs)\b", ended.output)
        assert said is None, ended.output
