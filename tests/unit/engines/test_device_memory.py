"""Memory that a device fills before a call, and tensors that it gets as views, with the real frameworks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Call, filled_memory
from pytest_msprobe.engines.torch_engine import TorchEngine

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def device(name: str) -> Any:
    pytest.importorskip(name)
    return TorchEngine("cpu", is_raised=False) if name == "torch" else MindSporeEngine(is_raised=False)


@pytest.mark.parametrize("name", ["torch", "mindspore"])
@pytest.mark.parametrize("value", [math.nan, 1e30])
def test_memory_is_filled_and_its_neighbours_are_read_back(name: str, value: float) -> None:
    is_intact = device(name).fill_memory([4, 6, 4096, 0], value)
    assert is_intact()


def test_what_is_filled_read_and_released() -> None:
    made: list[np.ndarray] = []

    def full(count: int) -> np.ndarray:
        made.append(np.full(count, 7, np.float32))
        return made[-1]

    is_intact = filled_memory([10, 16], full, lambda array: array)
    assert [array.size for array in made] == [128, 3, 4, 128]
    assert is_intact()


def test_a_neighbour_that_was_overwritten() -> None:
    made: list[np.ndarray] = []

    def full(count: int) -> np.ndarray:
        made.append(np.full(count, np.nan, np.float32))
        return made[-1]

    is_intact = filled_memory([10], full, lambda array: array)
    made[-1][0] = 0
    assert not is_intact()


@pytest.mark.parametrize("name", ["torch", "mindspore"])
def test_a_strided_call_gets_views_with_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = device(name)
    contiguous = []
    frameworks = {"torch": "torch.neg", "mindspore": "mindspore.mint.neg"}
    module, _, function = frameworks[name].rpartition(".")
    __import__(module)
    original = eval(frameworks[name], {name: __import__(name)})

    def watched(tensor: Any) -> Any:
        contiguous.append(tensor.is_contiguous())
        return original(tensor)

    monkeypatch.setattr(f"{module}.{function}", watched)
    for is_strided in (False, True):
        call = Call(parse_api_name("Mint.neg.0"), "mindspore", (X,), {}, is_strided=is_strided)
        assert (engine.forward(call, differentiate=()).outputs[0].value == -X).all()
    assert contiguous == [True, False]
