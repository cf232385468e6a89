"""Data and tensor parallel trainings of two ranks under msrun: no bit changes, and the ranks say who they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from two_ranks import run_on_two_ranks

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import create_group, get_group_size, get_rank, init
from msprobe_collector import PrecisionDebugger

ms.set_device("CPU")
ms.runtime.launch_blocking()
init()
rank, size = get_rank(), get_group_size()
create_group("pair", [0, 1])


def values(seed, *shape):
    return Tensor(np.random.default_rng(seed).normal(size=shape).astype("float32"))


class Split(nn.Cell):
    # The rows of the second weight are divided among the ranks, as the columns of the first.
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(4, 8 // size), nn.Dense(8 // size, 2, has_bias=False)
        self.reduce = ops.AllReduce()

    def construct(self, x):
        return self.reduce(self.down(ops.relu(self.up(x))))


def train(kind, debugger):
    net = Split() if kind == "tensor" else nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))
    for seed, parameter in enumerate(net.get_parameters()):
        parameter.set_data(values(seed + (10 * rank if kind == "tensor" else 0), *parameter.shape))
    optimizer = nn.Adam(net.trainable_params(), 0.1)
    reduce = ops.AllReduce()
    x = values(100 + (rank if kind == "data" else 0), 3, 4)
    gradients_of = ms.value_and_grad(lambda x: net(x).square().mean(), None, optimizer.parameters)
    for _ in range(2):
        if debugger is not None:
            debugger.start(net)
        loss, gradients = gradients_of(x)
        if kind == "data":
            gradients = tuple(reduce(gradient) / size for gradient in gradients)
        optimizer(gradients)
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return [loss.asnumpy().tobytes(), *(parameter.asnumpy().tobytes() for parameter in net.get_parameters())]


kinds = ("data", "tensor")
bare = [train(kind, None) for kind in kinds]
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="tensor")
assert bare == [train(kind, debugger) for kind in kinds], "the collector changed the training"
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run_on_two_ranks(tmp_path_factory.mktemp("sharded"), TRAIN)
    assert not list(folder.glob("*/*/dump_error_info.log"))
    return folder


@pytest.fixture
def read(dump: Path) -> Callable[[int, int], dict[str, Any]]:
    return lambda step, rank: json.loads((dump / f"step{step}" / f"rank{rank}" / "dump.json").read_text())


def test_each_rank_says_who_it_is(read: Callable[[int, int], dict[str, Any]]) -> None:
    for rank in range(2):
        ranks = read(1, rank)["ranks"]
        assert (ranks["world_size"], ranks["rank"]) == (2, rank)
        assert ranks["groups"]["world"] == {"ranks": [0, 1], "index": rank}


def test_an_optimizer_gets_reduced_gradients(read: Callable[[int, int], dict[str, Any]]) -> None:
    one, other = (read(1, rank)["data"]["Optimizer.Adam.0.forward"] for rank in range(2))
    names = [name for name in one["input_kwargs"] if name.startswith("gradients.")]
    assert names == ["gradients.0.weight", "gradients.0.bias", "gradients.2.weight", "gradients.2.bias"]
    for name in names:
        assert one["input_kwargs"][name]["Norm"] == other["input_kwargs"][name]["Norm"] > 0
    assert {"state.0.weight.moment1", "state.2.bias.moment2", "state.beta1_power"} <= one["output"][0].keys()


def test_parts_of_a_layer_differ_between_the_ranks(read: Callable[[int, int], dict[str, Any]]) -> None:
    one, other = (read(3, rank)["data"] for rank in range(2))
    name = "parameters.up.weight"
    shapes = [data["Optimizer.Adam.0.forward"]["input_kwargs"][name]["shape"] for data in (one, other)]
    assert shapes == [[4, 4], [4, 4]]
    reduced = [data["Primitive.reduce.AllReduce.0.forward"] for data in (one, other)]
    assert reduced[0]["output"][0]["Norm"] == reduced[1]["output"][0]["Norm"]
    assert reduced[0]["input_args"][0]["Norm"] != reduced[1]["input_args"][0]["Norm"]
