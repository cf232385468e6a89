"""Whatever goes wrong in a function of the collector, training goes on as without it, and the dump is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("injecting.py")
#: Fewest functions that the frameworks and the training call, and that get an exception.
LEAST = {"torch": (28, 430), "mindspore": (25, 360)}


@pytest.mark.parametrize("framework", [pytest.param(name, marks=pytest.mark.needs(name)) for name in LEAST])
def test_no_fault_of_the_collector_reaches_the_training(framework: str, tmp_path: Path) -> None:
    started = tmp_path / "started"  # MindSpore makes folders where it is started
    started.mkdir()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), framework, str(tmp_path)],
        cwd=started,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    entries, injections = LEAST[framework]
    assert len(found["entries"]) >= entries
    assert found["injections"] >= injections
    assert [name for name in found["unreached"] if ".provenance." in name] == []
