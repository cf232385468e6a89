"""Monitoring real optimizers of MindSpore on CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from monitored_runs import check_two_steps, configuration, table

from msprobe_collector.configuration.reader import read_configuration
from msprobe_collector.mindspore import GradientMonitor


def two_parameters() -> list[Parameter]:
    return [Parameter(Tensor([1.0, 2, 3], mindspore.float32), "a"), Parameter(Tensor([[4.0]], mindspore.float32), "b")]


GRADIENTS = (Tensor([0.5, -2.0, 0.0], mindspore.float32), Tensor([[3.0]], mindspore.float32))


OPTIMIZERS = {
    "Adam": lambda parameters: nn.Adam(parameters, 0.1),
    "SGD": lambda parameters: nn.SGD(parameters, 0.1),
    "Momentum": lambda parameters: nn.Momentum(parameters, 0.1, 0.9),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, 0.1),
    "grouped": lambda parameters: nn.Adam([{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(parameters)]),
    "experimental": lambda parameters: mindspore.experimental.optim.Adam(parameters, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_each_call_of_an_optimizer_is_a_step(tmp_path: Path, make: Any) -> None:
    optimizer = make(two_parameters())
    monitor = GradientMonitor(configuration(tmp_path))
    monitor.monitor(optimizer)
    for _ in range(2):
        optimizer(GRADIENTS)
    monitor.stop()
    optimizer(GRADIENTS)
    check_two_steps(tmp_path)


def test_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    def train(is_watched: bool) -> list[bytes]:
        mindspore.set_seed(3)
        network = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2))
        optimizer = nn.Adam(network.trainable_params(), 0.05)
        monitor = GradientMonitor(configuration(tmp_path, grad_level="L2"))
        if is_watched:
            monitor.monitor(optimizer)
        step = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer).set_train()
        values = np.random.default_rng(1).normal(size=(4, 3, 4)).astype(np.float32)
        found = [step(Tensor(x), Tensor(x[:, :2])).asnumpy().tobytes() for x in values]
        monitor.stop()
        return found + [parameter.asnumpy().tobytes() for parameter in network.trainable_params()]

    assert train(is_watched=True) == train(is_watched=False)
    assert [row["param_name"] for row in table(tmp_path, 3)] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_gradient_that_cannot_be_read_is_logged_once_and_the_rest_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = GradientMonitor(configuration(tmp_path))
    for _ in range(2):
        monitor.observe({"none": None, "int": Tensor([1]), "bad/name": GRADIENTS[0], "good": GRADIENTS[1]})
    assert [row["param_name"] for row in table(tmp_path, 1)] == ["bad/name", "good"]
    for part in (
        "'none' is left out: it is a NoneType",
        "'int' is left out: its dtype",
        "'bad/name' cannot name a file",
    ):
        assert caplog.text.count(part) == 1, part


def test_gradients_of_another_number_than_parameters_do_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Lenient(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.parameters = two_parameters()

        def construct(self, gradients: Any) -> int:
            return len(gradients)

    optimizer = Lenient()
    GradientMonitor(configuration(tmp_path)).monitor(optimizer)
    assert optimizer(GRADIENTS[:1]) == 1
    assert optimizer(GRADIENTS) == 2
    assert "has 2 parameters and was given 1 gradients" in caplog.text
    assert [row["param_name"] for row in table(tmp_path, 1)] == ["a", "b"], "the steps go on counting"


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    monitor = GradientMonitor(configuration(tmp_path))
    for wrong in (None, two_parameters(), nn.ReLU()):
        with pytest.raises(TypeError, match="is not a MindSpore optimizer"):
            monitor.monitor(wrong)


def test_a_second_optimizer_is_refused(tmp_path: Path) -> None:
    monitor = GradientMonitor(configuration(tmp_path))
    monitor.monitor(nn.SGD(two_parameters(), 0.1))
    with pytest.raises(RuntimeError, match="stop"):
        monitor.monitor(nn.SGD(two_parameters(), 0.1))
    monitor.stop()


def test_another_task_is_refused(tmp_path: Path) -> None:
    other = read_configuration(dump_path=str(tmp_path))
    with pytest.raises(ValueError, match="task 'grad_probe', not 'statistics'"):
        GradientMonitor(other)


IN_A_GRAPH = """
import sys
import mindspore
import numpy as np
from mindspore import Tensor, nn
from msprobe_collector.configuration.reader import read_configuration
from msprobe_collector.mindspore import GradientMonitor

network = nn.Dense(3, 2)
optimizer = nn.SGD(network.trainable_params(), 0.1)
x = Tensor(np.ones((2, 3), np.float32))
forward_backward = mindspore.value_and_grad(network, None, optimizer.parameters)


def step(x):
    loss, gradients = forward_backward(x)
    optimizer(gradients)
    return loss


if sys.argv[2] == "mode":
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    step = nn.TrainOneStepCell(network, optimizer)
else:
    step = mindspore.jit(step)
monitor = GradientMonitor(read_configuration(sys.argv[1]))
monitor.monitor(optimizer)
before = network.weight.asnumpy().copy()
step(x)
monitor.stop()
print("trained", not np.array_equal(before, network.weight.asnumpy()))
"""


@pytest.mark.graph_compiler
@pytest.mark.parametrize(("graph", "is_mode"), [("mode", True), ("jit", False)])
def test_an_optimizer_in_a_graph_trains_and_is_warned_of(tmp_path: Path, graph: str, is_mode: bool) -> None:
    configuration(tmp_path)
    script = tmp_path / "train.py"  # MindSpore compiles code from files only
    script.write_text(IN_A_GRAPH)
    command = [sys.executable, str(script), str(tmp_path / "config.json"), graph]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "trained True", done.stderr
    assert "no gradients were seen" in done.stderr
    assert ("GRAPH_MODE: gradients are seen only where Python calls" in done.stderr) is is_mode
