"""PyTorch runs one call many times: arguments are converted once, unless the call writes into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines import torch_engine
from pytest_msprobe.engines.protocol import Call, LeafPath, Unsupported
from pytest_msprobe.engines.torch_engine import TorchEngine

pytest.importorskip("torch")

X = np.linspace(-2.0, 2.0, 6, dtype=np.float32).reshape(2, 3)
RUNS = 5


def call_of(name: str, *arguments: Any, **keywords: Any) -> Call:
    prefix, plain = name.split(".")
    return Call(ApiName(prefix, plain, 0), "pytorch", arguments, keywords)


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each array that became a tensor, of an argument or of an incoming gradient."""
    made: list[int] = []
    plain = torch_engine.to_tensor
    monkeypatch.setattr(torch_engine, "to_tensor", lambda torch, array: made.append(array.size) or plain(torch, array))
    return made


def results(call: Call, differentiate: tuple[LeafPath, ...] = ()) -> list[list[Any]]:
    run = TorchEngine(is_raised=False).repeated(call, differentiate=differentiate)
    found = []
    for _ in range(RUNS):
        execution = run()
        outputs = [output.value for output in execution.outputs]
        found.append([*outputs, *(execution.gradients((X,)) if differentiate else ())])
    return found


def assert_all_equal(found: list[list[Any]]) -> None:
    for others in found[1:]:
        for value, first in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(value, first)


def test_arguments_are_converted_once(converted: list[int]) -> None:
    found = results(call_of("Torch.mul", X, X + 1), differentiate=(("input", 0), ("input", 1)))
    assert_all_equal(found)
    np.testing.assert_array_equal(found[-1][1], X * (X + 1))
    assert len(converted) == 2 + RUNS  # two arguments, and an incoming gradient in each run


@pytest.mark.parametrize(
    ("call", "differentiate"),
    [
        (call_of("Tensor.add_", X, 1.0), ()),
        (call_of("Tensor.add_", X, 1.0), (("input", 0),)),
        (call_of("Functional.relu", X, inplace=True), (("input", 0),)),
    ],
    ids=["forward", "with a gradient", "asked to"],
)
def test_a_call_that_writes_in_place_gets_its_arguments_anew(
    call: Call, differentiate: tuple[LeafPath, ...], converted: list[int]
) -> None:
    source = X.copy()
    assert_all_equal(results(call, differentiate))
    assert len(converted) == RUNS * (2 if differentiate else 1)  # the argument, and an incoming gradient
    np.testing.assert_array_equal(X, source)


def test_statistics_that_a_call_keeps_begin_as_recorded_in_each_run(converted: list[int]) -> None:
    mean, variance = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert_all_equal(results(call_of("Functional.batch_norm", X, mean, variance, training=True)))
    assert len(converted) == 3 * RUNS
    assert mean.tolist() == [0, 0, 0]


def test_a_write_that_pytorch_does_not_count_is_seen(converted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def careless(tensor: Any) -> Any:
        tensor.detach().numpy()[...] += 1  # as a kernel of a device that knows nothing of PyTorch's counter
        return tensor.clone()

    monkeypatch.setattr(torch, "sigmoid", careless)
    assert_all_equal(results(call_of("Torch.sigmoid", X)))
    assert len(converted) == RUNS


def test_an_unknown_function_is_refused_as_in_a_single_run() -> None:
    run = TorchEngine(is_raised=False).repeated(call_of("Torch.no_such_function", X), differentiate=())
    with pytest.raises(Unsupported, match="not a known operator of torch"):
        run()
