"""What a comparison of sketches asks to be collected next: the suspects, and what their tensors are judged with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosing import diagnose
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.accounting.diagnosis import RunDiagnosis
from pytest_msprobe.suites.comparison.accounting.next_collection import NextCollection, next_collections

X = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
Y = np.random.default_rng(2).normal(size=(6, 8)).astype(np.float32)
Fill = Callable[[DumpBuilder, bool], Any]


@pytest.fixture
def diagnosed(tmp_path: Path) -> Callable[..., RunDiagnosis]:
    """diagnosed(fill) -> the diagnosis of two dumps of sketches; fill(builder, whether it is the target) makes each."""

    def run(fill: Fill, rank: int = 5, **how: Any) -> RunDiagnosis:
        paths = []
        for side in ("target", "golden"):
            folder = tmp_path / side / "step2" / f"rank{rank}"
            builder = DumpBuilder(folder, **{"real": False, "sketches": True, "framework": "pytorch", **how})
            fill(builder, side == "target")
            paths.append(builder.write())
        return diagnose(*paths)

    return run


def next_collection(diagnoses: Sequence[RunDiagnosis]) -> NextCollection | None:
    return next(next_collections(diagnoses), None)


def lists(found: NextCollection | None) -> tuple[list[str], list[str]]:
    assert found is not None
    return found.target.tensor["list"], found.golden.tensor["list"]


def chain(builder: DumpBuilder, is_target: bool) -> None:
    """exp, of which the target's is 1 % too large, and what uses it."""
    made = np.exp(X) * np.float32(1.01 if is_target else 1)
    builder.call("Torch.exp.0", [X], [made], incoming=[Y], gradients=[Y * made])
    builder.call("Torch.sqrt.0", [made], [np.sqrt(made)])


def test_a_forward_needs_its_own_record_alone(diagnosed: Callable[..., RunDiagnosis]) -> None:
    found = next_collection([diagnosed(chain)])
    assert lists(found) == (["Torch.exp.0.forward"], ["Torch.exp.0.forward"])
    assert found is not None
    assert (found.calls, found.target.step, found.target.rank) == (["Torch.exp.0"], [2], [5])


def test_a_backward_needs_its_forward(diagnosed: Callable[..., RunDiagnosis]) -> None:
    def fill(builder: DumpBuilder, is_target: bool) -> None:
        gradient = Y * np.exp(X) * np.float32(1.01 if is_target else 1)
        builder.call("Torch.exp.0", [X], [np.exp(X)], incoming=[Y], gradients=[gradient])

    names = ["Torch.exp.0.forward", "Torch.exp.0.backward"]
    assert lists(next_collection([diagnosed(fill)])) == (names, names)


def test_a_call_of_one_run_needs_what_gets_its_result(diagnosed: Callable[..., RunDiagnosis]) -> None:
    def fill(builder: DumpBuilder, is_target: bool) -> None:
        made = np.exp(X)
        builder.call("Torch.exp.0", [X], [made])
        used = made
        if not is_target:
            used = made / 2
            builder.call("Tensor.__truediv__.0", [made, 2.0], [used])
        builder.call("Torch.sqrt.0", [used], [np.sqrt(used)])

    target, golden = lists(next_collection([diagnosed(fill)]))
    assert target == ["Torch.sqrt.0.forward"]
    assert golden == ["Tensor.__truediv__.0.forward", "Torch.sqrt.0.forward"]


def test_a_gradient_that_is_no_sum_is_named_and_needs_its_parts(diagnosed: Callable[..., RunDiagnosis]) -> None:
    def fill(builder: DumpBuilder, is_target: bool) -> None:
        made, first, second = np.exp(X), Y, Y * X
        arrives = (first + second) * np.float32(2 if is_target else 1)
        builder.call("Torch.exp.0", [X], [made])
        builder.call("Torch.neg.0", [made], [-made], incoming=[-first], gradients=[first])
        builder.call("Torch.square.0", [made], [np.square(made)], incoming=[X], gradients=[second])
        builder.records["Torch.exp.0.backward"] = {
            "input": [builder.value(arrives, "in")],
            "output": [builder.value(arrives * made, "out")],
        }

    diagnosis = diagnosed(fill)
    (fault,) = diagnosis.faults
    assert (fault.kind, fault.step.record) == ("gradient", "Torch.exp.0.backward")
    assert "is not what its uses give: Torch.neg.0.backward and Torch.square.0.backward" in fault.sentence
    found = next_collection([diagnosis])
    assert found is not None
    assert found.calls == ["Torch.exp.0", "Torch.neg.0", "Torch.square.0"]


def test_of_many_parameters_a_few_are_asked_for(diagnosed: Callable[..., RunDiagnosis]) -> None:
    def fill(builder: DumpBuilder, is_target: bool) -> None:
        for number in range(12):
            weight = np.random.default_rng(10 + number + 50 * is_target).normal(size=(8, 8)).astype(np.float32)
            layer = {"input_args": [builder.value(X, "x")], "parameters": {"weight": builder.value(weight, "w")}}
            name = f"Module.layers.{number}.Linear.forward.0"
            builder.records[name] = {**layer, "output": [builder.value(X @ weight, "y")]}
            builder.call(f"Functional.linear.{number}", [X, weight], [X @ weight])

    diagnosis = diagnosed(fill)
    assert [fault.kind for fault in diagnosis.faults] == ["parameter"] * 12
    assert lists(next_collection([diagnosis]))[0] == [f"Functional.linear.{number}.forward" for number in range(3)]


def test_no_more_than_ten_calls_are_asked_for(diagnosed: Callable[..., RunDiagnosis]) -> None:
    def fill(builder: DumpBuilder, is_target: bool) -> None:
        for number in range(25):
            given = np.random.default_rng(number).normal(size=(4, 4)).astype(np.float32)
            builder.call(f"Torch.exp.{number}", [given], [np.exp(given) * np.float32(1.1 if is_target else 1)])

    found = next_collection([diagnosed(fill)])
    assert found is not None
    assert len(found.calls) == 10


def test_ranks_share_one_configuration(diagnosed: Callable[..., RunDiagnosis]) -> None:
    one = diagnosed(chain)
    found = next_collection([one, diagnosed(chain, rank=7)])
    assert found is not None
    assert (found.calls, found.golden.step, found.golden.rank) == (["Torch.exp.0"], [2], [5, 7])


def test_equal_runs_need_nothing(diagnosed: Callable[..., RunDiagnosis]) -> None:
    assert next_collection([diagnosed(lambda builder, is_target: chain(builder, False))]) is None


@pytest.mark.needs("torch")
def test_what_has_its_tensors_needs_no_more(diagnosed: Callable[..., RunDiagnosis]) -> None:
    diagnosis = diagnosed(chain, real=True, sketches=False)
    assert diagnosis.outcome == "fault"
    assert next_collection([diagnosis]) is None


@pytest.mark.needs("torch")
def test_rounding_of_the_calls_that_were_collected_is_not_that_of_the_step(
    diagnosed: Callable[..., RunDiagnosis],
) -> None:
    """The input differs already, and who made it is not in the dumps."""

    def fill(builder: DumpBuilder, is_target: bool) -> None:
        given = X * np.float32(1 + 1e-6 * is_target)
        builder.call("Torch.exp.0", [given], [np.exp(given)])
        builder.records["Torch.exp.0.forward"]["input_args"][0]["made_by"] = "Torch.matmul.3.forward.output.0"

    diagnosis = diagnosed(fill, real=True, sketches=False)
    assert diagnosis.outcome == "rounding"
    assert diagnosis.unheld == [("Torch.exp.0.forward", "input.0")]
