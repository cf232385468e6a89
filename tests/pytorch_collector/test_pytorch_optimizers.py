"""What optimizers of PyTorch get and leave, whatever their kind; the training stays as it is without the collector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

REFERENCE = os.environ.get("MSPROBE_REFERENCE_PYTHON", "")


class Wrapper:
    """An optimizer that holds another one, as those of other packages do."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


KINDS: dict[str, Callable[[Iterator[nn.Parameter]], Any]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
    "foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    "wrapped": lambda parameters: Wrapper(torch.optim.Adagrad(parameters, lr=0.1)),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(kind: str, collected: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
    net = network()
    optimizer = KINDS[kind](net.parameters())
    for step in range(2):
        with collected(net):
            net(torch.randn(3, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            clip_grad_norm_(net.parameters(), 0.5)  # a generator, which can be looked through once
            optimizer.step()
            net.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_optimizer_gets_and_leaves(kind: str, make_debugger: Any, records: Any) -> None:
    bare = trained(kind, lambda _: nullcontext())
    debugger = make_debugger(level="mix", task="tensor")
    assert all(map(torch.equal, bare, trained(kind, debugger.collect)))
    (name,) = (name for name in records(1) if name.startswith("Optimizer.") and "clip" not in name)
    record, clipped = records(1)[name], records(1)["Optimizer.clip_grad_norm.0.forward"]
    before, (after,) = record["input_kwargs"], record["output"]
    assert record["input_args"] == []
    assert after["parameters.0.weight"]["Norm"] == pytest.approx(float(bare[0].norm()), rel=1e-6)
    assert before["parameters.0.weight"]["Norm"] != after["parameters.0.weight"]["Norm"]
    state = [name for name in before if name.startswith("state.2.bias.")]
    assert state
    gradients = {f"gradients.{place}" for place in ("0.weight", "0.bias", "2.weight", "2.bias")}
    assert set(before) - set(after) == {*gradients, "settings", "law"}
    assert f"Optimizer.{before['law']['formula']['value']}.0.forward" == name
    assert [(group["lr"]["value"], group["parameters"]["value"]) for group in before["settings"]] == [(0.1, 4)]
    norm = sum(clipped["input_kwargs"][name]["Norm"] ** 2 for name in gradients) ** 0.5
    assert clipped["output"][0]["Norm"] == pytest.approx(norm, rel=1e-6)
    scaled = min(1, 0.5 / norm)
    weight = clipped["input_kwargs"]["gradients.2.weight"]["Norm"]
    assert before["gradients.2.weight"]["Norm"] == pytest.approx(scaled * weight, rel=1e-4)


def test_a_closure_computes_the_gradients(make_debugger: Any, records: Any) -> None:
    net = network()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).square().mean()
        loss.backward()
        seen.append(net[0].weight.grad.norm().item())
        return loss

    with make_debugger().collect(net):
        optimizer.step(closure)
    record = records()["Optimizer.LBFGS.0.forward"]
    assert len(seen) > 1
    assert record["input_kwargs"]["gradients.0.weight"]["Norm"] == pytest.approx(seen[0], rel=1e-6)


def test_several_optimizers_and_parameters_of_no_model(make_debugger: Any, records: Any) -> None:
    net, lone = network(), torch.ones(2, requires_grad=True)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD([lone], lr=0.1)]
    with make_debugger().collect(net):
        (net(torch.ones(3, 4)).sum() * lone.sum()).backward()
        net[2].bias.grad = None
        for optimizer in optimizers:
            optimizer.step()
    data = records()
    assert data["Optimizer.SGD.0.forward"]["input_kwargs"]["gradients.2.bias"] is None
    place = "param_groups.0.params.0"
    keywords = data["Optimizer.SGD.1.forward"]["input_kwargs"]
    assert list(keywords) == [f"parameters.{place}", "settings", "law", f"gradients.{place}"]


def test_a_key_turns_it_off(make_debugger: Any, records: Any) -> None:
    trained("AdamW", make_debugger(common={"optimizer": False}).collect)
    assert not [name for name in records() if name.startswith("Optimizer.")]


def test_a_step_that_raises_is_said_in_its_record(make_debugger: Any, records: Any) -> None:
    """Also where the script goes on and steps again."""

    class Broken(torch.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> None:
            self.steps += 1
            if self.steps == 1:
                raise RuntimeError("broken")
            super().step(closure)

    net = network()
    optimizer = Broken(net.parameters(), lr=0.1)
    with make_debugger().collect(net):
        with pytest.raises(RuntimeError, match="broken"):
            optimizer.step()
        optimizer.step()
    torn, whole = (records()[f"Optimizer.Broken.{number}.forward"] for number in range(2))
    assert "did not end" in torn["fault"]
    assert "output" not in torn
    assert "fault" not in whole
    assert "output" in whole


def test_a_step_that_calls_that_of_its_base_class_is_one_update(make_debugger: Any, records: Any) -> None:
    """PyTorch calls the hooks in both."""

    class Decayed(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.mul_(0.5)
            return result

    net = network()
    optimizers = [kind(net.parameters(), lr=0.1) for kind in (torch.optim.SGD, Decayed)]
    with make_debugger().collect(net):
        net(torch.ones(3, 4)).square().mean().backward()
        optimizers[1].step()
    (record,) = (value for name, value in records().items() if name.startswith("Optimizer."))
    assert record["output"][0]["parameters.0.weight"]["Norm"] == pytest.approx(net[0].weight.norm().item(), rel=1e-6)


def test_values_that_cannot_be_read_are_said_in_the_record(make_debugger: Any, records: Any) -> None:
    class Unreadable(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("gone")

    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.state[net[0].bias]["cache"] = Unreadable(a=1)
    with make_debugger().collect(net):
        optimizer.step()
    record = records()["Optimizer.SGD.0.forward"]
    assert "RuntimeError: gone" in record["fault"]
    assert "parameters.2.bias" in record["output"][0]


def test_a_closure_that_raises_leaves_what_was_there_before(make_debugger: Any, records: Any) -> None:
    net = network()

    def closure() -> torch.Tensor:
        raise RuntimeError("no data")

    with make_debugger().collect(net), pytest.raises(RuntimeError, match="no data"):
        torch.optim.LBFGS(net.parameters()).step(closure)
    record = records()["Optimizer.LBFGS.0.forward"]
    assert "did not end" in record["fault"]
    assert "parameters.0.weight" in record["input_kwargs"]


def test_updates_without_gradients_and_of_other_threads_are_records(
    make_debugger: Any, records: Any, step_folder: Any
) -> None:
    net, frozen = network(), network().requires_grad_(False)
    several = [torch.optim.Adagrad(layer.parameters(), lr=0.1) for layer in (net[0], net[2])]
    with make_debugger().collect(net):
        torch.optim.Adadelta(frozen.parameters()).step()
        assert clip_grad_norm_(net.parameters(), 1.0) == 0
        assert clip_grad_norm_([], 1.0) == 0
        for wrong in (None, 5):
            with suppress(TypeError):
                clip_grad_norm_(wrong, 1.0)
        net(torch.ones(3, 4)).square().mean().backward()
        threads = [threading.Thread(target=optimizer.step) for optimizer in several]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not (step_folder() / "dump_error_info.log").exists()
    data = records()
    assert not any("gradients" in name for name in data["Optimizer.Adadelta.0.forward"]["input_kwargs"])
    nothing = data["Optimizer.clip_grad_norm.0.forward"]
    assert nothing["input_kwargs"]["gradients.0.weight"] is None
    assert [data[f"Optimizer.clip_grad_norm.{number}.forward"]["output"][0]["Norm"] for number in range(2)] == [0, 0]
    assert "Optimizer.clip_grad_norm.2.forward" not in data
    updated = [data[f"Optimizer.Adagrad.{number}.forward"]["output"][0] for number in range(2)]
    parameters = [name for after in updated for name in after if name.startswith("parameters.")]
    assert sorted(parameters) == [f"parameters.{place}" for place in ("0.bias", "0.weight", "2.bias", "2.weight")]


def clip_by_norm(parameters: Any, max_norm: float, total_norm: float) -> None:
    """The arguments of Megatron's functions."""
    for parameter in parameters:
        parameter.decoupled_grad.mul_(max_norm / total_norm)


def clip_as_deepspeed(parameters: Any, max_norm: float, norm_type: int = 2, mpu: Any = None) -> torch.Tensor:
    return clip_grad_norm_(parameters, max_norm, norm_type)


def test_other_functions_that_clip_are_records(
    make_debugger: Any, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Megatron and DeepSpeed, where they are imported, by whatever name; what they call themselves is no record."""
    megatron: Any = ModuleType("megatron.core.optimizer.clip_grads")
    megatron.clip_grad_by_total_norm_fp32 = clip_by_norm
    deepspeed: Any = ModuleType("deepspeed.runtime.utils")
    deepspeed.clip_grad_norm_ = clip_as_deepspeed
    user: Any = ModuleType("deepspeed.runtime.engine")
    user.clip = clip_as_deepspeed
    debugger, net = make_debugger(), network()
    with debugger.collect(net):
        clip_grad_norm_(net.parameters(), 1.0)
    for module in (megatron, deepspeed, user):  # imported after the first step
        monkeypatch.setitem(sys.modules, module.__name__, module)
    net(torch.ones(3, 4)).square().mean().backward()
    bias = nn.Parameter(torch.zeros(2))
    bias.decoupled_grad = torch.tensor([3.0, 4.0])  # type: ignore[attr-defined]  # Megatron sets it
    with debugger.collect(net):
        norm = user.clip(net.parameters(), 0.5)
        megatron.clip_grad_by_total_norm_fp32([bias], 1.0, 5.0)
    assert (megatron.clip_grad_by_total_norm_fp32, user.clip) == (clip_by_norm, clip_as_deepspeed)
    first, second = (records(1)[f"Optimizer.clip_grad_norm.{number}.forward"] for number in range(2))
    assert first["output"][0]["Norm"] == pytest.approx(norm.item())
    assert first["input_kwargs"]["max_norm"]["value"] == 0.5
    assert second["output"] == [{"type": "float", "value": 5.0}]
    assert second["input_kwargs"]["gradients.0"]["Norm"] == 5
    assert "Optimizer.clip_grad_norm.2.forward" not in records(1)


@pytest.mark.skipif(not REFERENCE, reason="MSPROBE_REFERENCE_PYTHON names no Python with the existing tool")
def test_the_comparison_of_the_existing_tool_reads_them(make_debugger: Any, step_folder: Any, tmp_path: Path) -> None:
    trained("AdamW", make_debugger(level="mix").collect)
    path, out = step_folder(1) / "dump.json", tmp_path / "table"
    assert json.loads(path.read_text())["data"]["Optimizer.AdamW.0.forward"]
    command = [str(Path(REFERENCE).with_name("msprobe")), "compare", "-tp", path, "-gp", path, "-o", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (table,) = out.glob("*.csv")
    assert "Optimizer.AdamW.0.forward" in table.read_text()


@pytest.mark.skipif(not hasattr(nn.utils, "get_total_norm"), reason="this PyTorch clips in one function only")
def test_a_norm_that_was_taken_apart_is_that_of_the_clipping(make_debugger: Any, records: Any) -> None:
    net = network()
    with make_debugger().collect(net):
        net(torch.ones(3, 4)).square().mean().backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in net.parameters()])
        nn.utils.clip_grads_with_norm_(net.parameters(), 0.1, norm)
    record = records()["Optimizer.clip_grad_norm.0.forward"]
    assert record["output"][0]["Norm"] == pytest.approx(norm.item(), rel=1e-6)
    assert record["input_kwargs"]["max_norm"]["value"] == 0.1
    before = [
        record["input_kwargs"][f"gradients.{place}"]["Norm"] for place in ("0.weight", "0.bias", "2.weight", "2.bias")
    ]
    assert sum(part**2 for part in before) ** 0.5 == pytest.approx(norm.item(), rel=1e-6)
