"""How far one record travels: counts of `python -m tools.benchmarks.way`, which only a change of the code can move."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from comparison_dumps import unpack_perturbed

ROOT = Path(__file__).resolve().parents[2]
WAY = re.compile(r"::(\w+): (\d+) files, (\d+) moves between files, deepest call (\d+), (\d+) calls")


def _assert_within(options: list[str], limits: tuple[int, int, int, int]) -> None:
    """Watch the record in the middle of a run; `limits` of its files, moves, deepest call and calls."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tools.benchmarks.way", *options]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = WAY.search(printed)
    assert found is not None, printed
    assert found[1] == options[-1]
    assert all(int(count) <= most for count, most in zip(found.groups()[1:], limits, strict=True)), printed


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "limits"), [("forward", (32, 142, 17, 560)), ("backward", (32, 186, 17, 920))])
def test_the_way_of_a_precheck_record(direction: str, limits: tuple[int, int, int, int]) -> None:
    _assert_within([str(ROOT / "tests" / "dumps" / "gpt_tiny_tensor" / "step0" / "proc0"), "-k", direction], limits)


@pytest.mark.slow
def test_the_way_of_a_comparison_record(tmp_path: Path) -> None:
    folder = unpack_perturbed(tmp_path)
    options = [str(folder / "target"), f"--msprobe-golden={folder / 'golden'}", "-k", "backward"]
    _assert_within(options, (39, 550, 23, 2400))
