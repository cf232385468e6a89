"""What a run of our own tests takes: folders without slow tests, a named file whole, `-m ""` everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "has_slow"),
    [
        (("tests/contract",), False),
        (("tests/contract", "-m", ""), True),
        (("tests/contract/test_contract_outcomes.py",), True),
    ],
)
def test_slow_tests_wait_until_they_are_asked_for(arguments: tuple[str, ...], has_slow: bool) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    ids = {line.rpartition("::")[2] for line in lines}
    assert "test_last_failed_runs_what_failed[precheck]" in ids
    assert ("test_last_failed_runs_what_failed[overflow]" in ids) == has_slow
    assert ("deselected" in lines[-1]) != has_slow
