"""Checking a call needs no framework: only the engines do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
HERE = Path(__file__).parent


@pytest.mark.skipif("fakes.without_frameworks" in sys.modules, reason="this whole run is one without frameworks")
def test_the_table_of_faults_holds_where_no_framework_can_be_imported() -> None:
    path = os.pathsep.join([str(TESTS), *sys.path])
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "fakes.without_frameworks", "-p", "no:cacheprovider"),
            *(str(HERE / "test_check_faults.py"), str(HERE / "test_call_check.py"), "-k", "fault or benchmark"),
        ],
        env={**os.environ, "PYTHONPATH": path},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
