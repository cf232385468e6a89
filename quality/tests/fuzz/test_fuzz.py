"""A few hundred of the seeds that `python -m quality.fuzz` reads by the thousand; the same in every run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import ROOT


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: its audit hook and memory limit stay with it."""
    return subprocess.run(
        [sys.executable, "-m", "quality.fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_damaged_tensor_files_are_read_or_refused_in_bounded_memory() -> None:
    done = fuzz("tensors", "400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 tensors, 0 problems" in done.stdout


def test_damaged_checkpoints_are_compared_or_refused_in_bounded_memory() -> None:
    done = fuzz("checkpoints", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "200 checkpoints, 0 problems" in done.stdout


#: Gradients are drawn as pictures for every rank, which takes half a second each.
COUNTS = {"precheck": 100, "comparison": 100, "overflow": 100, "gradients": 20, "repeat": 60, "edge-cases": 20}


@pytest.mark.parametrize("suite", COUNTS)
def test_mutated_dumps_cost_their_records_and_nothing_else(suite: str) -> None:
    done = fuzz("dumps", str(COUNTS[suite]), "--suites", suite)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNTS[suite]} dumps, 0 problems" in done.stdout
