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
from pytest_msprobe.suites.sharded.outline import LogicalRun
from pytest_msprobe.suites.sharded.placements import Grid, tried
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


def stepped(folder: Path, gradient: np.ndarray) -> RankDump:
    """The step of an optimizer that moves each element by as much."""
    builder = DumpBuilder(folder)
    given = {"parameters.w": builder.value(X, "before"), "gradients.w": builder.value(gradient, "gradient")}
    after = {"parameters.w": builder.value(X - np.float32(0.01) * np.sign(gradient), "after")}
    builder.records["Optimizer.Adam.0.forward"] = {"input_args": [], "input_kwargs": given, "output": [after]}
    builder.write()
    return RankDump(folder / "dump.json")


@pytest.mark.parametrize("steps", [0, 1])
def test_elements_within_the_noise_of_their_gradient_may_be_anything(tmp_path: Path, steps: int) -> None:
    gradient = np.ones((4, 4), np.float32)
    gradient[0] = 1e-9
    noise = gradient.copy()
    noise[0] = -1e-9
    dump = stepped(tmp_path, gradient)
    tolerances = Tolerances(LogicalRun([dump]), phase_of, steps=steps)
    record = "Optimizer.Adam.0.forward"
    best = tried(gradient.astype(float), [noise.astype(float)], Grid((), (), ((),)), 1e-6)[0]
    operation, leaf = at(dump, record, "input.gradients.w")
    tolerances.arrived(operation, arrived(leaf.path, best.distance), leaf, best)
    _, before = at(dump, record, "input.parameters.w")
    tolerances.arrived(operation, arrived(before.path, 0.0), before)
    _, after = at(dump, record, "output.0.parameters.w")
    room = tolerances.room(after, after.path)
    assert room is not None
    assert [bool(np.isinf(row).all()) for row in room] == [True, False, False, False]
    begin = tolerances.room(before, before.path)  # a step behind the first one begins as such an update left it
    assert (begin is not None) is bool(steps)


def test_a_wrong_gradient_is_no_noise(tmp_path: Path) -> None:
    dump = stepped(tmp_path, np.ones((4, 4), np.float32))
    tolerances = Tolerances(LogicalRun([dump]), phase_of)
    best = tried(np.ones((4, 4)), [np.full((4, 4), 2.0)], Grid((), (), ((),)), 1e-6)[0]
    operation, leaf = at(dump, "Optimizer.Adam.0.forward", "input.gradients.w")
    tolerances.arrived(operation, replace(arrived(leaf.path, 1.0), state="unexplained"), leaf, best)
    _, after = at(dump, "Optimizer.Adam.0.forward", "output.0.parameters.w")
    assert tolerances.room(after, after.path) is None
