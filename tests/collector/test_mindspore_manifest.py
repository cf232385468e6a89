"""run.json of a MindSpore training: nn and mint optimizers, schedules, Cells, scalers, random state, batch."""

from __future__ import annotations

import json
from typing import Any

import mindspore
import pytest
from mindspore import Tensor, amp, mint, nn, ops

from msprobe_collector.dump_format.manifest import Manifest, read_manifest


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Dense(4, 8), nn.Dropout(p=0.25), nn.Dense(8, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.drop(ops.relu(self.first(x))))


def trained(debugger: Any, network: nn.Cell, optimizer: nn.Cell, *, is_given: bool = True, steps: int = 1) -> None:
    """Some steps, whose optimizer runs after `stop`."""

    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    computed = mindspore.value_and_grad(loss, None, optimizer.parameters)
    for number in range(steps):
        debugger.start(network if is_given else None)
        _, gradients = computed(Tensor([[float(number)] * 4]))
        debugger.stop()
        optimizer(gradients)
        debugger.step()


@pytest.fixture
def manifest(step_folder: Any) -> Any:
    """manifest(step): what was written without a fault."""

    def read(step: int = 0) -> Manifest:
        assert not (step_folder(step) / "dump_error_info.log").exists()
        json.loads((step_folder(step) / "run.json").read_text(), parse_constant=pytest.fail)
        return read_manifest(step_folder(step) / "run.json")

    return read


NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")


@pytest.mark.parametrize(
    "mode", [{"level": "L0"}, {"level": "L1"}, {"level": "mix", "task": "overflow_check"}], ids=str
)
def test_every_level_has_model_optimizer_and_batch(make_debugger: Any, manifest: Any, mode: dict[str, Any]) -> None:
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), nn.ExponentialDecayLR(0.1, 0.5, 1), 0.9, loss_scale=8.0)
    scaler = amp.DynamicLossScaler(1024.0, 2, 100)
    trained(make_debugger(**mode), network.set_train(), optimizer, steps=2)
    for step, rate in enumerate((0.1, 0.05)):
        found = manifest(step)
        assert (found.framework, found.number, found.step["loss_scale"]["scale"]) == ("mindspore", step, 1024.0)
        (group,) = found.optimizers[0].groups
        assert (group.parameters, group.settings["lr"], group.settings["loss_scale"]) == (NAMES, rate, 8.0)
        assert tuple(found.parameters) == NAMES
        assert [(layer.path, layer.settings.get("p")) for layer in found.models[0].layers][2] == ("drop", 0.25)
        assert all(layer.is_training for layer in found.models[0].layers)
        (batch,) = found.batches
        assert [(one.name, one.shape) for one in batch] == [("input.0", (1, 4))]
    assert scaler is not None
    assert {name: one.fingerprint for name, one in found.parameters.items()} != {
        name: one.fingerprint for name, one in manifest(0).parameters.items()
    }


def test_mint_optimizers_and_a_model_that_was_not_given(make_debugger: Any, manifest: Any) -> None:
    network = Network()
    parameters = network.trainable_params()
    optimizer = mint.optim.SGD([{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:]}], lr=0.1)
    trained(make_debugger(level="L1"), network, optimizer, is_given=False)
    found = manifest()
    assert [(group.parameters, group.settings["lr"]) for group in found.optimizers[0].groups] == [
        (NAMES[:2], 0.5),
        (NAMES[2:], 0.1),
    ]
    assert found.models[0].kind.endswith("Network")
    assert found.step["loss_scale"] is None


def test_names_of_several_models_are_told_apart_as_those_of_their_records_are(
    make_debugger: Any, manifest: Any
) -> None:
    networks = [Network(), Network()]
    optimizer = nn.SGD(networks[1].trainable_params(), 0.1)
    debugger = make_debugger(level="L0")
    debugger.start(networks)
    debugger.stop()
    debugger.step()
    written = manifest()
    for number, model in enumerate(written.models):
        assert [tensor.name for tensor in model.parameters] == [f"{number}.{name}" for name in NAMES]
        paths = [layer.path for layer in model.layers]
        assert paths[1:] == [f"{number}.first", f"{number}.drop", f"{number}.second"]
    assert len(written.parameters) == 8
    assert written.optimizers[0].groups[0].parameters == tuple(f"1.{name}" for name in NAMES)
    assert len(optimizer.parameters) == 4


def test_no_warning_of_mindspore_and_no_draw(make_debugger: Any, capfd: pytest.CaptureFixture[str]) -> None:
    mindspore.set_seed(5)
    network = Network()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    before = mindspore.get_rng_state().asnumpy().tolist()
    debugger = make_debugger(level="L0")
    capfd.readouterr()
    debugger.start(network)
    assert mindspore.get_rng_state().asnumpy().tolist() == before
    debugger.stop()
    debugger.step()
    assert "WARNING" not in capfd.readouterr().err
    assert len(optimizer.parameters) == 4
