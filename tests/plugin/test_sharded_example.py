"""The two ranks of README and docs/sharded.md: the right run is what the whole model computes; of the wrong one the
forgotten all-reduce is named, in the words of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "collector" / "examples" / "tensor_parallel" / "train.py"
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step on one rank, on two, and on two without the reduction."""
    folder = tmp_path_factory.mktemp("tensor_parallel")
    assert train(folder, "single") == train(folder, "right", *TWO_RANKS)
    train(folder, "wrong", *TWO_RANKS, last=("--forget-all-reduce",))
    return folder


def train(folder: Path, dump: str, *launcher: str, last: tuple[str, ...] = ()) -> list[str]:
    """What the script prints of its loss. A rank that dies fails the test with what it said."""
    command = [sys.executable, *launcher, str(SCRIPT), "--dump", dump, *last]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return [line for line in done.stdout.splitlines() if line.startswith("loss ")]


def judged(folder: Path, dump: str) -> tuple[int, str]:
    """Exit code and output of the suite."""
    options = [f"--msprobe-dump={dump}/step0", "--msprobe-logical=single/step0", f"--msprobe-out={dump}_answers"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir=.", *options]
    environment = {**os.environ, "COLUMNS": "120"}  # of the page
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_the_right_run_holds_what_the_single_one_holds(dumps: Path) -> None:
    code, output = judged(dumps, "right")
    assert code == 0, output
    assert "the 2 ranks hold what the logical run holds" in output


def test_the_forgotten_reduction_is_named(dumps: Path) -> None:
    code, output = judged(dumps, "wrong")
    assert code == 1, output
    page = (SCRIPT.parents[3] / "docs" / "sharded.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```console\n\$ pytest .*\n([^`]*)```", page)
    pytest.LineMatcher(output.splitlines()).fnmatch_lines([line.replace("[", "[[]") for line in printed.splitlines()])
    assert "\nWrong: Module.1.Block.0 backward, " in output
    assert "follows from it: 13 records" in output
    (table,) = (dumps / "wrong_answers").glob("sharded_result_*.csv")
    (gradient,) = [line for line in table.read_text().splitlines() if ",input.gradients.1.norm.weight," in line]
    assert ",illegal,P(sum) over 2 ranks," in gradient  # terms of a sum, as the optimizer gets them
