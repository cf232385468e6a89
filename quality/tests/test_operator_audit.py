"""A sample of all names of both frameworks, tried under an audit hook; the whole takes hours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import ROOT


@pytest.mark.parametrize(("part", "every"), [("refused", 400), ("runs", 800), ("called", 200)])
def test_a_sample_of_all_names_does_nothing(part: str, every: int) -> None:
    command = [sys.executable, "-m", "quality.operator_audit", part, "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout
    assert " 0 events" in done.stdout
    assert " 0 files made" in done.stdout
