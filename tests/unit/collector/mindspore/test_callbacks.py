"""The callbacks in a real Model.train, with a debugger that notes how it is called."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

from msprobe_collector import PrecisionDebugger
from msprobe_collector.mindspore import callbacks
from msprobe_collector.recording.guard import FaultLog


class Noting:
    """A debugger that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.model: Any = None
        self.faults = FaultLog()

    def start(self, model: Any = None) -> None:
        self.calls.append(("start", model))

    def stop(self) -> None:
        self.calls.append("stop")

    def step(self) -> None:
        self.calls.append("step")

    def set_init_step(self, step: int) -> None:
        self.calls.append(("set_init_step", step))


class Failing(Callback):
    """Training that breaks off in its second step."""

    def on_train_step_begin(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 2:
            raise KeyboardInterrupt


def train(*others: Any, epochs: int = 1, **keywords: Any) -> nn.Cell:
    network = nn.Dense(2, 2)
    data = np.ones((6, 2), np.float32)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1))
    dataset = NumpySlicesDataset((data, data), shuffle=False).batch(3)
    model.train(epochs, dataset, callbacks=list(others), dataset_sink_mode=False, **keywords)
    return network


def test_each_step_is_started_with_the_network_stopped_and_counted() -> None:
    debugger = Noting()
    network = train(callbacks.MsprobeStep(debugger))
    assert debugger.calls == [("start", network), "stop", "step"] * 2


def test_a_training_that_breaks_off_within_a_step_is_stopped() -> None:
    debugger = Noting()
    with pytest.raises(KeyboardInterrupt):
        train(callbacks.MsprobeStep(debugger), Failing())
    assert [call if isinstance(call, str) else call[0] for call in debugger.calls] == [
        "start", "stop", "step", "start", "stop",
    ]  # fmt: skip


@pytest.mark.parametrize(("initial_epoch", "first_step"), [(0, 0), (3, 6)])
def test_a_resumed_training_numbers_its_steps_on(initial_epoch: int, first_step: int) -> None:
    debugger = Noting()
    both = [callbacks.MsprobeInitStep(debugger), callbacks.MsprobeStep(debugger)]
    train(*both, epochs=initial_epoch + 2, initial_epoch=initial_epoch)
    assert debugger.calls[0] == ("set_init_step", first_step)
    assert [call if isinstance(call, str) else call[0] for call in debugger.calls[1:]] == ["start", "stop", "step"] * 4


def test_the_first_step_is_by_default_that_of_the_only_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    debugger = Noting()
    monkeypatch.setattr(PrecisionDebugger, "_instance", debugger)
    train(callbacks.MsprobeInitStep())
    assert debugger.calls == [("set_init_step", 0)]


def test_the_part_that_the_script_has_chosen_is_kept() -> None:
    debugger = Noting()
    debugger.model = "part"
    train(callbacks.MsprobeStep(debugger))
    assert debugger.calls == [("start", "part"), "stop", "step"] * 2


def test_a_loss_chooses_the_step_behind_it() -> None:
    debugger = Noting()
    losses: list[float] = []

    def is_first(loss: float) -> bool:
        losses.append(loss)
        return len(losses) == 1

    network = train(callbacks.MsprobeStep(debugger, when=is_first), epochs=2)
    assert len(losses) == 4
    assert debugger.calls == [("set_init_step", 1), ("start", network), "stop", "step"]


def test_the_classes_are_mindspores_and_always_the_same() -> None:
    assert issubclass(callbacks.MsprobeStep, Callback)
    assert callbacks.MsprobeStep is callbacks.MsprobeStep
    with pytest.raises(AttributeError, match="no attribute 'MsprobeStop'"):
        _ = callbacks.MsprobeStop


def test_importing_the_module_imports_no_framework() -> None:
    check = "import sys, msprobe_collector.mindspore.callbacks; print('mindspore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
