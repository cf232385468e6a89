"""Origins computed again by real PyTorch, in the dtype of the dump and in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from overflow_dumps import F16, F32, INF, NAN, X, edited

from pytest_msprobe.engines.protocol import DeviceSpecification
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.overflow.recomputation import Recomputer
from pytest_msprobe.suites.overflow.survey import Survey
from pytest_msprobe.suites.overflow.values import OverflowDump, read_rules

pytestmark = pytest.mark.needs("torch")

ENGINES = Engines(EngineChoice(DeviceSpecification("mindspore", "cpu"), "auto", None))
BF16 = ml_dtypes.bfloat16
ONE = np.array([1.0], F32)


def again(path, *, max_memory_bytes=10**9):
    """The recomputation of the only origin of the dump at `path`."""
    dump = OverflowDump(path)
    origins = [found for found in Survey(dump, read_rules(None)).records.values() if found.level == "origin"]
    (origin,) = origins
    operation = origin.operation
    recomputer = Recomputer(dump, ENGINES, 0, max_memory_bytes)
    return recomputer.recompute(operation.call, operation.phase, origin.bad)


def built(folder, name, arguments, outputs, *, real=True, framework="mindspore", **more):
    return DumpBuilder(folder, real=real, framework=framework).call(name, arguments, outputs, **more).write()


def full(value, dtype=F32):
    return np.full(2, value, dtype)


CASES = {
    "60000 + 60000 in float16": ("Mint.add.0", [full(6e4, F16), full(6e4, F16)], full(INF, F16), "normal-range", "Inf"),
    "exp(12) in float16": ("Mint.exp.0", [full(12.0, F16)], full(INF, F16), "normal-range", "Inf"),
    "the largest bfloat16, rounded up": (
        "Mint.add.0",
        [full(3.3895e38, BF16), full(9e35, BF16)],
        full(INF, BF16),
        "normal-range",
        "Inf",
    ),
    "log(0)": ("Mint.log.0", [full(0.0)], full(-INF), "normal-math", "Inf"),
    "1 / 0": ("Mint.div.0", [full(1.0), full(0.0)], full(INF), "normal-math", "Inf"),
    "sqrt(-1)": ("Mint.sqrt.0", [full(-1.0)], full(NAN), "normal-math", "NaN"),
    "exp(300) in float32": ("Mint.exp.0", [full(300.0)], full(INF), "normal-math", "Inf"),
    "exp(300) in float16": ("Mint.exp.0", [full(300.0, F16)], full(INF, F16), "normal-math", "Inf"),
    "inf - inf": ("Mint.sub.0", [full(INF), full(INF)], full(NAN), "normal-math", "NaN"),
    "a device that is wrong": ("Mint.add.0", [full(1.0), full(2.0)], full(INF), "abnormal", "finite"),
    "a device that is wrong in float16": ("Mint.exp.0", [full(1.0, F16)], full(NAN, F16), "abnormal", "finite"),
}


@pytest.mark.parametrize(("name", "arguments", "output", "cause", "same"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_whose_fault_it_is(tmp_path, name, arguments, output, cause, same, framework):
    name = name if framework == "mindspore" else name.replace("Mint", "Torch")
    found = again(built(tmp_path, name, arguments, [output], framework=framework))
    assert (found.cause, found.same) == (cause, same)
    assert found.bench == "torch CPU in the dump dtypes and torch CPU float64"


@pytest.mark.parametrize(
    ("name", "arguments", "output", "cause"),
    [
        ("Mint.add.0", [full(6e4, F16), full(6e4, F16)], full(INF, F16), "normal-range"),
        ("Mint.log.0", [np.array([0.0, 1.0], F32)], np.array([-INF, 0.0], F32), "normal-math"),
        ("Mint.exp.0", [np.array([1.0, 12.0], F16)], np.array([2.7, INF], F16), "normal-range"),
        ("Mint.add.0", [full(1.0), full(2.0)], full(INF), "abnormal"),  # constant tensors are known from statistics
        ("Mint.exp.0", [np.array([1.0, 2.0], F32)], np.array([2.7, INF], F32), "undecided"),
    ],
)
def test_statistics_decide_what_they_can(tmp_path, name, arguments, output, cause):
    found = again(built(tmp_path, name, arguments, [output], real=False))
    assert found.cause == cause
    assert cause != "undecided" or "dump this step with task tensor" in found.message


def test_an_element_that_only_the_device_spoils_is_abnormal(tmp_path):
    zeros = np.array([0.0, 1.0, 1.0], F32)
    found = again(built(tmp_path, "Mint.log.0", [zeros], [np.array([-INF, 0.0, NAN], F32)]))
    assert (found.cause, found.same) == ("abnormal", "Inf")
    assert "at some of the places" in found.message


def test_statistics_that_say_more_than_the_data(tmp_path):
    path = built(tmp_path, "Mint.add.0", [X, X], [X + X])
    edited(path, "Mint.add.0.forward", lambda record: record["output"][0].update(Max=INF))
    assert again(path).cause == "abnormal"


@pytest.mark.parametrize(
    ("gradient", "cause"), [(np.array([INF, 0.25], F32), "normal-math"), (np.array([INF, INF], F32), "abnormal")]
)
def test_a_backward(tmp_path, gradient, cause):
    x = np.array([0.0, 4.0], F32)
    path = built(tmp_path, "Mint.sqrt.0", [x], [np.sqrt(x)], incoming=[full(1.0)], gradients=[gradient])
    assert again(path).cause == cause


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mint.rand_like.0", "random by nature"),
        ("MintFunctional.dropout.0", "random by nature"),
        ("Custom.fused.0", "no engine could compute it again"),
        ("Jit.step.0", "a jit function"),
    ],
)
def test_what_cannot_be_computed_is_undecided(tmp_path, name, words):
    found = again(built(tmp_path, name, [X], [full(NAN)]))
    assert found.cause == "undecided"
    assert words in found.message


def test_a_call_that_is_too_large_is_undecided(tmp_path):
    found = again(built(tmp_path, "Mint.log.0", [X], [full(NAN)]), max_memory_bytes=10)
    assert found.cause == "undecided"
    assert "--msprobe-max-memory" in found.message
