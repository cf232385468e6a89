"""Tolerances of values: from how far the run came, from what went into a call, from a second logical run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.sharded.judgement import ValueFinding, phase_of
from pytest_msprobe.suites.sharded.logical import LogicalRun
from pytest_msprobe.suites.sharded.ranks import RankDump
from pytest_msprobe.suites.sharded.tolerances import Tolerances

X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
ROUNDOFF = 2.0**-24


def run(folder: Path, factor: float = 1.0) -> RankDump:
    """A linear call, one that may amplify errors, and the step of an optimizer."""
    builder = DumpBuilder(folder)
    made = X * np.float32(factor)
    builder.call("Functional.linear.0", [X], [made]).call("Torch.softmax.0", [X], [made])
    fields = {"input_args": [], "input_kwargs": {"parameters.w": builder.value(X, "before")}}
    builder.records["Optimizer.SGD.0.forward"] = {
        **fields,
        "output": [{"parameters.w": builder.value(X * np.float32(1.01), "after")}],
    }
    builder.write()
    return RankDump(folder / "dump.json")


def at(dump: RankDump, record: str, path: str) -> tuple[Operation, Leaf]:
    operation = next(one for one in dump.operations if one.record == record)
    return operation, next(leaf for leaf in dump.leaves(record) if leaf.path == path)


def arrived(path: str, distance: float) -> ValueFinding:
    return ValueFinding(path, "placed", "Float32", (4, 4), distance=distance, apart=distance)


def test_a_linear_call_hands_on_what_it_gets(tmp_path: Path) -> None:
    dump = run(tmp_path)
    tolerances = Tolerances(LogicalRun([dump]), phase_of)
    operation, leaf = at(dump, "Functional.linear.0.forward", "output.0")
    assert tolerances.close(operation, leaf, leaf.path, 2) == math.inf  # nothing is known of its input
    tolerances.arrived(operation, arrived("input.0", 1e-6), leaf)
    assert tolerances.close(operation, leaf, leaf.path, 3) == pytest.approx(16 * (1e-6 + 2 * ROUNDOFF))
    assert tolerances.is_only_close(operation)
    assert not tolerances.is_only_close(at(dump, "Torch.softmax.0.forward", "output.0")[0])
    tolerances.arrived(operation, replace(arrived("input.1", 0.0), state="unjudged"), leaf)
    assert tolerances.close(operation, leaf, leaf.path, 3) == math.inf


def test_an_update_is_judged_by_its_own_size(tmp_path: Path) -> None:
    dump = run(tmp_path)
    tolerances = Tolerances(LogicalRun([dump]), phase_of)
    operation, before = at(dump, "Optimizer.SGD.0.forward", "input.parameters.w")
    tolerances.arrived(operation, arrived(before.path, 0.0), before)
    _, after = at(dump, "Optimizer.SGD.0.forward", "output.0.parameters.w")
    expected = 4 * ROUNDOFF + 4 * math.sqrt(ROUNDOFF) * 0.01 / 1.01
    assert tolerances.close(operation, after, after.path, 2) == pytest.approx(expected, rel=1e-3)


def test_a_second_logical_run_is_the_measure(tmp_path: Path) -> None:
    dump, noise = run(tmp_path / "a"), run(tmp_path / "b", 1.001)
    operation, leaf = at(dump, "Functional.linear.0.forward", "output.0")
    assert Tolerances(LogicalRun([dump]), phase_of).of(operation, leaf, leaf.path) == 16 * ROUNDOFF
    assert Tolerances(LogicalRun([dump]), phase_of, LogicalRun([noise])).of(
        operation, leaf, leaf.path
    ) == pytest.approx(0.01, rel=1e-3)
    assert Tolerances(LogicalRun([dump]), phase_of, LogicalRun([dump])).of(operation, leaf, leaf.path) == 4 * ROUNDOFF
