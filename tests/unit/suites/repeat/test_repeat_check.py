"""One API call, repeated on a device in NumPy that is steady, or unsteady in a way that has a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from fakes.checking import NO_LIMIT, Bench, X
from fakes.engine import FakeEngine

from msprobe_collector.dump_format import Direction, Dump
from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.suites.repeat import RepeatSettings
from pytest_msprobe.suites.repeat.check import RepeatCheck
from pytest_msprobe.verdicts import Verdict

BOTH: tuple[Direction, ...] = ("forward", "backward")


def check(
    folder: Path,
    engine: FakeEngine,
    *,
    api: str = "mul",
    runs: int = 8,
    target: str = "cpu",
    directions: tuple[Direction, ...] = BOTH,
    arguments: list[Any] | None = None,
) -> dict[Direction, Verdict]:
    bench = Bench(folder, api=api, **({} if arguments is None else {"arguments": arguments}))
    dump = Dump(bench.recorded().write())
    settings = RepeatSettings(runs=runs, max_memory_bytes=NO_LIMIT)
    made = RepeatCheck(dump, bench.name, engine, target, settings, directions=directions)
    return {direction: made.run(direction) for direction in directions}


def test_a_steady_device_passes_with_a_digest_of_its_results(tmp_path: Path) -> None:
    found = [check(tmp_path / name, FakeEngine()) for name in "ab"]
    for verdicts in found:
        assert [verdict.status for verdict in verdicts.values()] == ["pass", "pass"]
    digests = [[verdict.attachment["digest"] for verdict in verdicts.values()] for verdicts in found]  # type: ignore[index]
    assert digests[0] == digests[1]
    assert len({*digests[0]}) == 2


@pytest.mark.parametrize("runs", [2, 8, 64])
def test_each_run_is_one_forward_and_one_gradient(tmp_path: Path, runs: int) -> None:
    engine = FakeEngine()
    check(tmp_path, engine, runs=runs)
    filled = sum(run in (2, 3, 64) for run in range(1, runs + 1))
    assert engine.ran == {"forward": runs, "gradients": runs, "fill": filled}


def test_without_backward_no_gradient_runs(tmp_path: Path) -> None:
    engine = FakeEngine()
    check(tmp_path, engine, directions=("forward",))
    assert engine.ran["gradients"] == 0


def test_memory_is_filled_in_the_sizes_of_inputs_and_results(tmp_path: Path) -> None:
    engine = FakeEngine()
    check(tmp_path, engine)
    assert engine.filled[0] == [X.nbytes] * 5  # two inputs, one output, two gradients


def test_memory_that_cannot_be_filled_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise Unsupported("no kernel Fill")

    engine = FakeEngine()
    monkeypatch.setattr(engine, "fill_memory", refuse)
    found = check(tmp_path, engine)["forward"]
    assert (found.status, found.message) == ("pass", "memory was not filled between runs: no kernel Fill")


FAULTS = {
    "flips a bit now and then": "1 of 8 runs (4) differ: bit 30 of one element at [1, 0]",
    "flips a low bit now and then": "1 of 8 runs (4) differ: bit 0 of one element at [1, 0]",
    "adds in another order": "4 of 8 runs (2, 4, 6, 8) differ",
    "leaves an element unwritten": "runs (3, 4, 5, 6, ..) differ",
    "other values in every run": "there are more than 4 different results in 8 runs",
    "raises in run 3": "1 of 8 runs (3) raised: ",
    "writes beside its memory": "2 of 8 runs (2, 3) wrote into memory beside its own tensors",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_that_names_it(tmp_path: Path, fault: str) -> None:
    found = check(tmp_path, FakeEngine(fault=fault))
    assert [verdict.status for verdict in found.values()] == ["error", "error"]
    text = found["forward"].explanation
    assert FAULTS[fault] in text or fault in ("adds in another order", "leaves an element unwritten"), text
    assert found["forward"].attachment == {"digest": ""}


def test_unwritten_memory_shows_what_it_was_filled_with(tmp_path: Path) -> None:
    found = check(tmp_path, FakeEngine(fault="leaves an element unwritten"))["forward"]
    assert "of one element at [1, 0]" in found.outputs[0].pattern or "NaN" in found.outputs[0].pattern
    assert found.outputs[0].figures["elements"] == 1


def test_the_fault_of_a_device_that_is_always_wrong_is_not_seen_alone(tmp_path: Path) -> None:
    sound = check(tmp_path / "a", FakeEngine())["forward"]
    sick = check(tmp_path / "b", FakeEngine(fault="flips the same bit always"))["forward"]
    assert (sound.status, sick.status) == ("pass", "pass")
    assert sound.attachment is not None
    assert sick.attachment is not None
    assert sound.attachment["digest"] != sick.attachment["digest"]


def test_a_documented_difference_is_reported_and_does_not_fail(tmp_path: Path) -> None:
    a = np.linspace(0.5, 2.0, 4, dtype=np.float32).reshape(2, 2)
    engine = FakeEngine(fault="adds in another order")
    found = check(tmp_path, engine, api="matmul", arguments=[a, a], target="ascend")["forward"]
    assert found.status == "skip"
    assert "as documented" in found.message
    assert found.outputs[0].status == "skip"
    assert "runs" in found.outputs[0].message


def test_a_documented_difference_must_be_small(tmp_path: Path) -> None:
    a = np.linspace(0.5, 2.0, 4, dtype=np.float32).reshape(2, 2)
    engine = FakeEngine(fault="flips a bit now and then")
    assert check(tmp_path, engine, api="matmul", arguments=[a, a], target="ascend")["forward"].status == "error"


def test_random_operations_are_skipped(tmp_path: Path) -> None:
    engine = FakeEngine()
    found = check(tmp_path, engine, api="dropout", arguments=[X], directions=("forward",))["forward"]
    assert (found.status, engine.ran["forward"]) == ("skip", 0)
    assert "random by nature" in found.message


@pytest.mark.parametrize(("fault", "status"), [("unsupported", "skip"), ("refusal", "skip"), ("raises", "error")])
def test_a_call_that_cannot_run_is_run_once(tmp_path: Path, fault: str, status: str) -> None:
    engine = FakeEngine(fault=fault)
    found = check(tmp_path, engine)
    assert {verdict.status for verdict in found.values()} == {status}
    assert engine.ran["forward"] <= 1


def test_random_inputs_that_the_device_refuses_are_a_skip(tmp_path: Path) -> None:
    builder = DumpBuilder(tmp_path, real=False).call("Mint.mul.0", [X, X], [X * X])
    dump = Dump(builder.write())
    made = RepeatCheck(
        dump,
        "Mint.mul.0",
        FakeEngine(fault="raises"),
        "cpu",
        RepeatSettings(runs=3, max_memory_bytes=NO_LIMIT),
        directions=("forward",),
    )
    found = made.run("forward")
    assert found.status == "skip"
    assert "drawn at random" in found.message
