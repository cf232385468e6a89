"""One training step of a PyTorch network, dumped by the collector: `python torch_runs.py FOLDER OPTIONS`.

The networks are none of those that the accounting was made with: a residual CNN with grouped convolutions, a mixer of
perceptrons and an LSTM of single operations. OPTIONS is JSON: see `Run`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Run:
    """What is run.

    Attributes:
        network: `resnet`, `mixer` or `lstm`.
        plan: what a cause changes of the network, by name.
        kernel: (name of an ATen operator, number of its call, number of the output, fault): a wrong kernel.
        data: what a cause changes of data and state.
        dtype: of parameters and batch.
        way: of computing: `mkldnn-off`, `channels-last` or "".
        seed: of parameters and batch.
        loss_scale: factor of the loss.
    """

    network: str
    plan: dict[str, Any] = field(default_factory=dict)
    kernel: tuple[str, int, int, str] | None = None
    data: str = ""
    dtype: str = "float32"
    way: str = ""
    seed: int = 0
    loss_scale: float = 1.0


class ResidualCnn(nn.Module):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, stride=1, padding=1, bias=False)
        self.convs = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1, groups=g) for g in (1, 3, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(12) for _ in range(4)])
        self.head = nn.Linear(12, 7)
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norms[0](self.stem(x)), 0.01)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms[1:])):
            slope = self.plan.get("slope", 0.01) if i == 1 else 0.01
            shortcut = x.detach() if self.plan.get("detach") == i else x
            x = torch.add(shortcut, F.leaky_relu(norm(conv(x)), slope))
        x = F.avg_pool2d(x, 3, 2, 1, count_include_pad=self.plan.get("counts_pad", True))
        return self.head(torch.mean(x, (2, 3)))


class Mixer(nn.Module):
    def __init__(self, plan: dict[str, Any], blocks: int = 3) -> None:
        super().__init__()
        self.inlet = nn.Linear(10, 24)
        self.token = nn.ModuleList([nn.Linear(8, 8) for _ in range(blocks)])
        self.channel = nn.ModuleList([nn.Linear(24, 24) for _ in range(blocks)])
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in range(2 * blocks)])
        self.head = nn.Linear(24, 5)
        self.plan = plan
        if "eps" in plan:
            self.norms[3].eps = plan["eps"]

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for i, (token, channel) in enumerate(zip(self.token, self.channel)):
            y = torch.transpose(self.norms[2 * i](x), 1, 2)
            beta = self.plan.get("beta", 1) if i == 2 else 1
            x = x + torch.transpose(F.softplus(token(y), beta), 1, 2)
            y = self.norms[2 * i + 1](x)
            if self.plan.get("low") == i:
                y = F.linear(y.bfloat16(), channel.weight.bfloat16(), channel.bias.bfloat16()).to(x.dtype)
            else:
                y = channel(y)
            y = F.mish(y)
            x = y if self.plan.get("no_residual") == i else x + y
        return self.head(torch.mean(x, 1))


class Lstm(nn.Module):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.entry, self.again = nn.Linear(16, 4 * 20), nn.Linear(20, 4 * 20, bias=False)
        self.head = nn.Linear(20, 30)
        self.plan = plan
        self.state = torch.zeros(4, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        hidden = cell = self.state.to(x.dtype)
        for t in range(ids.shape[1]):
            gates = torch.add(self.entry(x[:, t]), self.again(hidden))
            i, f, g, o = torch.chunk(gates, 4, -1)
            forget = torch.sigmoid(f + 1) if self.plan.get("forget_bias") == t else torch.sigmoid(f)
            cell = torch.mul(forget, cell) + torch.mul(torch.sigmoid(i), torch.tanh(g))
            hidden = torch.mul(torch.sigmoid(o), torch.tanh(cell))
        return self.head(hidden)


class WrongKernel(TorchDispatchMode):
    """Spoils one output of one call of an ATen operator, below everything that records."""

    def __init__(self, name: str, call: int, output: int, fault: str) -> None:
        super().__init__()
        self.name, self.call, self.output, self.fault = name, call, output, fault
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # what runs below PyTorch's calls is not to be recorded
            result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ == self.name:
            if self.calls == self.call:
                whole = list(result) if isinstance(result, (tuple, list)) else [result]
                with torch._C.DisableTorchFunction():
                    self.spoil(whole[self.output])
            self.calls += 1
        return result

    def spoil(self, out: Tensor) -> None:
        flat = out.view(-1) if out.is_contiguous() else out.flatten()
        if self.fault == "infinite":
            flat[17] = float("inf")
        elif self.fault == "swapped":
            rows = out[[1, 0]].clone()
            out[:2].copy_(rows)
        elif self.fault == "hole":
            out[..., -3:].zero_()
        elif self.fault == "low":
            out.copy_(out.bfloat16().to(out.dtype) * 1.004)
        else:
            out.mul_(float(self.fault))


def batch_of(run: Run, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(inputs, labels)."""
    dtype = getattr(torch, run.dtype)
    if run.network == "resnet":
        x = torch.randn(6, 3, 12, 12, generator=generator, dtype=torch.float64).to(dtype)
        labels = torch.randint(0, 7, (6,), generator=generator)
        if run.data == "swapped samples":
            x = x[[0, 4, 2, 3, 1, 5]]
        if run.way == "channels-last":
            x = x.contiguous(memory_format=torch.channels_last)
        return x, labels
    if run.network == "mixer":
        x = torch.randn(5, 8, 10, generator=generator, dtype=torch.float64).to(dtype)
        labels = torch.randint(0, 5, (5,), generator=generator)
    else:
        x = torch.randint(0, 30, (4, 6), generator=generator)
        labels = torch.randint(0, 30, (4,), generator=generator)
    return x, torch.roll(labels, 1) if run.data == "shifted labels" else labels


def step(folder: Path, run: Run) -> None:
    """Dump the step."""
    from msprobe_collector.pytorch import PrecisionDebugger

    torch.set_num_threads(1)
    net: Any = {"resnet": ResidualCnn, "mixer": Mixer, "lstm": Lstm}[run.network](run.plan)
    generator = torch.Generator().manual_seed(41 + run.seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
        if run.data == "state kept":
            net.state = torch.randn(4, 20, generator=torch.Generator().manual_seed(5)) * 0.1
        elif run.data == "row of a table":
            net.words.weight[11] = 0
        elif run.data == "stale weight":
            net.token[1].weight.mul_(0.98)
    net.to(getattr(torch, run.dtype))
    if run.way == "channels-last":
        net.to(memory_format=torch.channels_last)
    inputs, labels = batch_of(run, generator)
    path = folder.with_suffix(".json")
    path.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": str(folder)}), encoding="utf-8")
    debugger = PrecisionDebugger(str(path))
    way = torch.backends.mkldnn.flags(enabled=False) if run.way == "mkldnn-off" else nullcontext()
    with way, WrongKernel(*run.kernel) if run.kernel else nullcontext():
        debugger.start(net)
        loss = F.cross_entropy(net(inputs).float() if run.dtype != "float64" else net(inputs), labels)
        (loss * run.loss_scale).backward()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    step(Path(sys.argv[1]), Run(**json.loads(sys.argv[2])))
