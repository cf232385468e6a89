"""Casts inside calls: a step under mindspore.amp or Cell.to_float, as precheck judges it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, mint, nn
from slow_parameters import slow


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Dense(16, 32), nn.LayerNorm((32,)), mint.nn.Linear(32, 8)

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.up(x))
        scores = mint.nn.functional.softmax(mint.matmul(hidden, mint.transpose(hidden, -1, -2)), -1)
        return mint.sum(scores) + mint.sum(self.down(hidden).astype(ms.float32))


def automatic() -> nn.Cell:
    return amp.auto_mixed_precision(Network(), "auto", dtype=ms.float16)


def by_cell() -> nn.Cell:
    return Network().to_float(ms.float16)


# Its expander of gradients now and then finds one input too few: "LayerNormGrad, the index 7 is out of range".
@pytest.mark.graph_compiler
@pytest.mark.parametrize("make_network", [*slow(automatic), by_cell])
def test_nothing_fails_in_a_right_step(
    make_debugger: Any,
    records: Any,
    pytester: pytest.Pytester,
    tmp_path: Path,
    make_network: Callable[[], nn.Cell],
) -> None:
    ms.set_seed(0)
    net, debugger = make_network(), make_debugger(task="tensor")
    x = Tensor(np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32))
    step = ms.value_and_grad(net, None, net.trainable_params())
    debugger.start(net)
    step(x)
    debugger.stop()
    debugger.step()
    product = records()["Primitive.matmul.MatMul.0.forward"]
    assert [value["dtype"] for value in product["input_args"]] == ["Float32", "Float32"]
    assert product["output"][0]["dtype"] == "Float16"
    result = pytester.runpytest_subprocess(
        f"--msprobe-dump={tmp_path / 'dump'}", "--msprobe-standard=backward-error", "-q"
    )
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] >= 25
