"""How far one record travels: counts of `python -m tools.benchmarks.way`, which only a change of the code can move."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAY = re.compile(r"::(\w+): (\d+) files, (\d+) moves between files, deepest call (\d+), (\d+) calls")


@pytest.mark.parametrize(
    ("direction", "files", "moves", "deepest", "calls"),
    [("forward", 68, 210, 21, 575), ("backward", 70, 300, 19, 940)],
)
def test_the_way_of_a_precheck_record(direction: str, files: int, moves: int, deepest: int, calls: int) -> None:
    pytest.importorskip("torch")
    dump = ROOT / "tests" / "dumps" / "gpt_tiny_tensor" / "step0" / "proc0"
    command = [sys.executable, "-m", "tools.benchmarks.way", str(dump), "-k", direction]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = WAY.search(printed)
    assert found is not None, printed
    assert found[1] == direction
    assert all(
        int(count) <= most for count, most in zip(found.groups()[1:], (files, moves, deepest, calls), strict=True)
    )
