"""Monitoring real optimizers of MindSpore on CPU."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from msprobe_collector.configuration import Configuration, Overrides, read_configuration
from msprobe_collector.mindspore import GradientMonitor


def configuration(folder: Path, **keys: Any) -> Configuration:
    file = folder / "config.json"
    probe = {key: keys.pop(key) for key in ("grad_level", "param_list", "bounds") if key in keys}
    file.write_text(json.dumps({"task": "grad_probe", "dump_path": str(folder / "out"), "grad_probe": probe, **keys}))
    return read_configuration(file, overrides=Overrides())


def two_parameters() -> list[Parameter]:
    return [Parameter(Tensor([1.0, 2, 3], mindspore.float32), "a"), Parameter(Tensor([[4.0]], mindspore.float32), "b")]


GRADIENTS = (Tensor([0.5, -2.0, 0.0], mindspore.float32), Tensor([[3.0]], mindspore.float32))


def table(folder: Path, step: int, rank: int = 0) -> list[dict[str, str]]:
    with open(folder / "out" / f"rank{rank}" / f"grad_summary_{step}.csv", newline="") as file:
        return list(csv.DictReader(file))


def signs(folder: Path, step: int, name: str) -> Any:
    return np.load(folder / "out" / "rank0" / f"step{step}" / f"{name}.npy", allow_pickle=False)


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
    for step in (0, 1):
        first, second = table(tmp_path, step)
        assert first["param_name"] == "a"
        assert (float(first["max"]), float(first["min"]), float(first["norm"])) == (0.5, -2.0, 4.25**0.5)
        assert (first["shape"], first["nan"], first["inf"]) == ("[3]", "0", "0")
        assert (second["param_name"], second["shape"], float(second["norm"])) == ("b", "[1, 1]", 3.0)
        assert signs(tmp_path, step, "a").tolist() == [True, False, False]
        assert signs(tmp_path, step, "b").dtype == bool
    assert not (tmp_path / "out" / "rank0" / "grad_summary_2.csv").exists(), "stop() leaves the optimizer alone"


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


def test_level_0_has_a_checksum_and_no_signs(tmp_path: Path) -> None:
    optimizer = nn.SGD(two_parameters(), 0.1)
    GradientMonitor(configuration(tmp_path, grad_level="L0")).monitor(optimizer)
    optimizer((Tensor([1.0, 2, 3], mindspore.float32), GRADIENTS[1]))
    assert table(tmp_path, 0)[0]["MD5"] == "6e55f044605a4991f15fd4505d83faf4"
    assert list((tmp_path / "out").rglob("*.npy")) == []


def test_steps_ranks_and_parameters_are_those_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = nn.SGD(two_parameters(), 0.1)
    monitor = GradientMonitor(configuration(tmp_path, step=[1, "3-4"], param_list=["b", "missing"]))
    monitor.monitor(optimizer)
    assert "the optimizer has no parameter missing; it has a, b" in caplog.text
    for _ in range(7):
        optimizer(GRADIENTS)
    files = sorted(path.name for path in (tmp_path / "out" / "rank0").glob("*.csv"))
    assert files == ["grad_summary_1.csv", "grad_summary_3.csv", "grad_summary_4.csv"]
    assert [row["param_name"] for row in table(tmp_path, 3)] == ["b"]
    assert type(optimizer) is nn.SGD, "past the last step the optimizer is left alone"


def test_another_rank_is_not_watched(tmp_path: Path) -> None:
    optimizer = nn.SGD(two_parameters(), 0.1)
    GradientMonitor(configuration(tmp_path, rank=[1])).monitor(optimizer)
    optimizer(GRADIENTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_dtypes(tmp_path: Path, dtype: str) -> None:
    values = Tensor([1.5, -0.25, np.nan, np.inf], mindspore.float32).astype(getattr(mindspore, dtype))
    monitor = GradientMonitor(configuration(tmp_path))
    monitor.observe({"w": values})
    (row,) = table(tmp_path, 0)
    assert (row["nan"], row["inf"], row["max"]) == ("1", "1", "nan")
    assert signs(tmp_path, 0, "w").tolist() == [True, False, False, True]


def test_functional_loops_name_their_gradients(tmp_path: Path) -> None:
    monitor = GradientMonitor(configuration(tmp_path))
    for _ in range(2):
        monitor.observe(zip(["x", "y"], GRADIENTS))
    assert [row["param_name"] for row in table(tmp_path, 1)] == ["x", "y"]


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


def test_a_full_disk_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = nn.SGD(two_parameters(), 0.1)
    GradientMonitor(configuration(tmp_path)).monitor(optimizer)
    for step in range(3):
        (tmp_path / "out" / "rank0" / f"step{step}").touch()  # a file where the folder should come
        optimizer(GRADIENTS)
    assert caplog.text.count("FileExistsError") == 1


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
    other = read_configuration(overrides=Overrides(dump_path=str(tmp_path)))
    with pytest.raises(ValueError, match="task 'grad_probe', not 'statistics'"):
        GradientMonitor(other)


IN_A_GRAPH = """
import sys
import mindspore
import numpy as np
from mindspore import Tensor, nn
from msprobe_collector.configuration import Overrides, read_configuration
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
monitor = GradientMonitor(read_configuration(sys.argv[1], overrides=Overrides()))
monitor.monitor(optimizer)
before = network.weight.asnumpy().copy()
step(x)
monitor.stop()
print("trained", not np.array_equal(before, network.weight.asnumpy()))
"""


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


KILLED = """
import os, signal, sys
import mindspore
from mindspore import Parameter, Tensor, nn
from msprobe_collector.configuration import Overrides, read_configuration
from msprobe_collector.gradient_monitor import rank_folder
from msprobe_collector.mindspore import GradientMonitor
optimizer = nn.SGD([Parameter(Tensor([1.0, 2]), name) for name in "abc"], 0.1)
GradientMonitor(read_configuration(sys.argv[1], overrides=Overrides())).monitor(optimizer)
gradients = tuple(Tensor([1.0, -1.0], mindspore.float32) for _ in "abc")
optimizer(gradients)
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
optimizer(gradients)
"""


def test_a_killed_run_leaves_whole_steps_only(tmp_path: Path) -> None:
    configuration(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "config.json")], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "out" / "rank0").glob("*.csv")] == ["grad_summary_0.csv"]
    assert len(table(tmp_path, 0)) == 3
    assert list((tmp_path / "out" / "rank0" / "step1").glob("*.npy")) == []


ANOTHER_PROCESS = """
import sys
from msprobe_collector.configuration import Overrides, read_configuration
from msprobe_collector.mindspore import GradientMonitor
from mindspore import Tensor
import mindspore
GradientMonitor(read_configuration(sys.argv[1], overrides=Overrides())).observe({"w": Tensor([7.0], mindspore.float32)})
"""


def test_two_processes_never_write_into_one_folder(tmp_path: Path) -> None:
    monitor = GradientMonitor(configuration(tmp_path))
    monitor.observe({"w": GRADIENTS[0]})
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path / "config.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rank0 is being written by another process or monitor" in done.stderr
    monitor.observe({"w": GRADIENTS[0]})
    (other,) = (tmp_path / "out").glob("proc*")
    assert [path.name for path in other.glob("*.csv")] == ["grad_summary_0.csv"]
    assert [len(table(tmp_path, step)) for step in (0, 1)] == [1, 1]
    monitor.stop()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stderr == ""
    assert table(tmp_path, 0)[0]["max"] == "7.0"


def test_two_monitors_of_one_process_are_kept_apart(tmp_path: Path) -> None:
    first, second, third = (GradientMonitor(configuration(tmp_path)) for _ in range(3))
    first.observe({"w": GRADIENTS[0]})
    second.observe({"v": GRADIENTS[1]})
    third.observe({"u": GRADIENTS[1]})  # its folder is in use as well: nothing is written, and training goes on
    assert table(tmp_path, 0)[0]["param_name"] == "w"
    assert len([*(tmp_path / "out").rglob("*.csv")]) == 2
    for monitor in (first, second):
        monitor.stop()
    third.observe({"u": GRADIENTS[1]})
    assert table(tmp_path, 1)[0]["param_name"] == "u"
