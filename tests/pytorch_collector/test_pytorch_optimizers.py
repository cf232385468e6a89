"""What optimizers of PyTorch get and leave, whatever their kind; the training stays as it is without the collector."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
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
    assert set(before) - set(after) == {f"gradients.{place}" for place in ("0.weight", "0.bias", "2.weight", "2.bias")}
    norm = sum(clipped["input_kwargs"][name]["Norm"] ** 2 for name in set(before) - set(after)) ** 0.5
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
    assert list(data["Optimizer.SGD.1.forward"]["input_kwargs"]) == [f"parameters.{place}", f"gradients.{place}"]


def test_a_key_turns_it_off(make_debugger: Any, records: Any) -> None:
    trained("AdamW", make_debugger(common={"optimizer": False}).collect)
    assert not [name for name in records() if name.startswith("Optimizer.")]


def test_a_step_that_raises_is_said_in_its_record(make_debugger: Any, records: Any) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("broken")

    net = network()
    optimizer = Broken(net.parameters(), lr=0.1)
    with make_debugger().collect(net), pytest.raises(RuntimeError, match="broken"):
        optimizer.step()
    record = records()["Optimizer.Broken.0.forward"]
    assert "did not end" in record["fault"]
    assert "output" not in record


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
