"""One training step of a MindSpore network, dumped by the collector: `python mindspore_runs.py FOLDER OPTIONS`.

A CNN with batch norm of Cells, and a mixer of mint's functions. OPTIONS is JSON: see `Run`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


@dataclass
class Run:
    """What is run.

    Attributes:
        network: `cnn` or `mixer`.
        plan: what a cause changes of the network, by name.
        kernel: (function of mint or its functional module, number of its call, fault): a wrong kernel.
        data: what a cause changes of data and state.
        dtype: that the network computes in.
        way: of computing: `two-parts` or "".
        seed: of parameters and batch.
        perturbed: whether the batch is moved by a rounding.
    """

    network: str
    plan: dict[str, Any] = field(default_factory=dict)
    kernel: tuple[str, int, str] | None = None
    data: str = ""
    dtype: str = "float32"
    way: str = ""
    seed: int = 0
    perturbed: bool = False


class Cnn(nn.Cell):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, pad_mode="pad", padding=1, has_bias=True)
        self.second = nn.Conv2d(6, 8, 3, pad_mode="valid")
        self.norm = nn.BatchNorm2d(6, eps=plan.get("eps", 1e-5))
        self.pool = nn.AvgPool2d(2, plan.get("stride", 2))
        self.head = nn.Dense(8 * 3 * 3, 5)
        self.plan = plan

    def construct(self, x: Tensor) -> Tensor:
        x = ops.elu(self.norm(self.first(x))) if self.plan.get("elu") else ops.relu(self.norm(self.first(x)))
        x = mint.tanh(self.second(self.pool(x)[:, :, :5, :5]))
        return self.head(mint.reshape(x, (x.shape[0], -1)))


class Mixer(nn.Cell):
    def __init__(self, plan: dict[str, Any], blocks: int = 3) -> None:
        super().__init__()
        self.inlet = mint.nn.Linear(10, 20)
        self.token = nn.CellList([mint.nn.Linear(6, 6) for _ in range(blocks)])
        self.channel = nn.CellList([mint.nn.Linear(20, 20) for _ in range(blocks)])
        self.scale = Parameter(Tensor(np.ones(20), ms.float32), name="scale")
        self.head = mint.nn.Linear(20, 5)
        self.plan = plan

    def norm(self, x: Tensor, eps: float) -> Tensor:
        centred = mint.sub(x, mint.mean(x, -1, True))
        return mint.mul(
            mint.mul(centred, mint.rsqrt(mint.add(mint.mean(mint.square(centred), -1, True), eps))), self.scale
        )

    def construct(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for i, (token, channel) in enumerate(zip(self.token, self.channel)):
            y = mint.transpose(self.norm(x, self.plan.get("eps", 1e-5) if i == 1 else 1e-5), 1, 2)
            x = mint.add(x, mint.transpose(F.silu(token(y)), 1, 2))
            y = self.norm(x, 1e-5)
            if self.plan.get("half") == i:
                y = y.astype(ms.float16).astype(ms.float32)
            y = mint.tanh(channel(y))
            x = mint.add(x, mint.mul(y, self.plan["gain"]) if "gain" in self.plan and i == 2 else y)
        return self.head(mint.mean(x, 1))


def spoil(name: str, call: int, fault: str) -> None:
    """Replace a function by one whose result is wrong in one call."""
    holder = F if hasattr(F, name) and not hasattr(mint, name) else mint
    original, calls = getattr(holder, name), [0]

    def spoilt(*arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        calls[0] += 1
        if calls[0] != call + 1:
            return result
        factor = np.ones(result.shape, np.float32)
        if fault == "tail":
            factor.reshape(-1)[-4:] = 0
        elif fault == "tile":
            factor[..., :3, 1:4] = 1.05
        else:
            factor *= float(fault)
        return result * Tensor(factor)

    setattr(holder, name, spoilt)


def two_parts() -> None:
    """Sum means along an axis in two parts."""
    mean, total = mint.mean, mint.sum

    def in_parts(x: Any, axis: Any = None, keepdim: bool = False) -> Any:
        if axis is None:
            return mean(x)
        count = x.shape[axis]
        parts = ops.split(x, [count // 3, count - count // 3], axis)
        return (total(parts[1], axis, keepdim) + total(parts[0], axis, keepdim)) / count

    mint.mean = in_parts


def step(folder: Path, run: Run) -> None:
    """Dump the step."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    if run.kernel:
        spoil(*run.kernel)
    if run.way == "two-parts":
        two_parts()
    from msprobe_collector import PrecisionDebugger

    random = np.random.default_rng(23 + run.seed)
    net: Any = Cnn(run.plan) if run.network == "cnn" else Mixer(run.plan)
    net.set_train()
    for parameter in net.trainable_params():
        mean = 1.0 if "gamma" in parameter.name or "scale" in parameter.name else 0.0
        value = mean + 0.3 * random.standard_normal(parameter.shape)
        if run.data == parameter.name:
            value.reshape(-1)[7] += 0.4
        parameter.set_data(Tensor(value, ms.float32))
    shape = (3, 3, 10, 10) if run.network == "cnn" else (3, 6, 10)
    pixels = random.standard_normal(shape).astype(np.float32)
    labels = np.eye(5, dtype=np.float32)[random.integers(0, 5, 3)]
    if run.data == "batch":
        pixels.reshape(-1)[77] = 2.5
    elif run.data == "labels":
        labels = labels[:, ::-1].copy()
    if run.dtype != "float32":
        net.to_float(getattr(ms, run.dtype))
    inputs, targets = Tensor(pixels), Tensor(labels)
    path = folder.with_suffix(".json")
    path.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": str(folder)}), encoding="utf-8")
    debugger = PrecisionDebugger(str(path))
    if run.perturbed:
        inputs = debugger.perturb(inputs)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        logits = net(x).astype(ms.float32)
        total = mint.log(mint.sum(mint.exp(logits), -1))
        return mint.mean(mint.sub(total, mint.sum(mint.mul(logits, y), -1)))

    with debugger.collect(net, rank_id=0):
        ms.value_and_grad(loss, None, net.trainable_params())(inputs, targets)


if __name__ == "__main__":
    step(Path(sys.argv[1]), Run(**json.loads(sys.argv[2])))
