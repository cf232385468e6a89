"""How the distance grows along a step, and where bits differ first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.report import Divergence, Growth, RecordSummary

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
#: Relative error of what goes into and comes out of each call of a chain.
CHAIN = [(0.0, 1e-6), (1e-6, 2e-6), (2e-6, 6e-5), (6e-5, 3e-5)]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "as workers report"])
def test_the_summary_shows_quarters_and_the_largest_growth(tmp_path: Path, backwards: bool) -> None:
    target, golden = (DumpBuilder(tmp_path / side, real=False, fingerprints=True) for side in ("a", "b"))
    for number, (before, after) in enumerate(CHAIN):
        target.call(f"Mint.op.{number}", [X * np.float32(1 + before)], [X * np.float32(1 + after)])
        golden.call(f"Mint.op.{number}", [X], [X])
    target.write(), golden.write()
    comparison = DumpComparison(target.path, golden.path, ComparisonSettings(accept=frozenset({"bits"})))
    divergence = Divergence()
    for verdict in sorted(comparison.verdicts(), key=lambda verdict: -verdict.order if backwards else verdict.order):
        divergence.add(RecordSummary.from_wire(RecordSummary.of(verdict).to_wire()))
    lines = list(divergence.lines())
    assert lines[:2] == [
        "Right: 4 of 4 operations differ, none by more than its limit",
        "first differing bits: Mint.op.0.forward.output.0",
    ]
    growing = lines[2].removeprefix("largest distance by quarter of the step: ")
    quarters, _, most = growing.partition("; it grows most in Mint.op.2.forward: x ")
    assert [float(part) for part in quarters.split(", ")] == pytest.approx([1e-6, 2e-6, 6e-5, 3e-5], rel=0.2)
    assert float(most) == pytest.approx(30, rel=0.2)


def test_equal_runs_have_no_growth() -> None:
    growth = Growth()
    assert list(growth.lines()) == []
    growth.add(0, "Mint.op.0.forward", 0.0, 0.0)
    assert list(growth.lines()) == []
