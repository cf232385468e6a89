"""What one rank under msrun does, or one process alone: python mindspore_runs.py FOLDER TASK NAME...

Data parallel ranks average gradients; tensor parallel ranks have the columns of the first layer and the rows of the
second one.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn
from mindspore.communication import init
from mindspore.mint import distributed

WIDTH, HIDDEN, BATCH = 8, 16, 4


class Copied(nn.Cell):
    """What every rank has; the gradients of the ranks are summed."""

    def __init__(self, is_spread: bool) -> None:
        super().__init__()
        self.is_spread = is_spread

    def construct(self, x: Tensor) -> Tensor:
        """The same values."""
        return x

    def bprop(self, x: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:
        """The sum over ranks."""
        return (_summed(grad) if self.is_spread else grad,)


class Reduced(nn.Cell):
    """The sum over ranks, whose gradient every rank has."""

    def __init__(self, is_spread: bool) -> None:
        super().__init__()
        self.is_spread = is_spread

    def construct(self, x: Tensor) -> Tensor:
        """The sum."""
        return _summed(x) if self.is_spread else x

    def bprop(self, x: Tensor, out: Tensor, grad: Tensor) -> tuple[Tensor]:
        """As it comes."""
        return (grad,)


def _summed(x: Tensor) -> Tensor:
    whole = x.copy()
    distributed.all_reduce(whole)
    return whole


class Linear(nn.Cell):
    """x @ weight.T."""

    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(weight)))

    def construct(self, x: Tensor) -> Tensor:
        """All rows of the weight that this rank has."""
        return mint.nn.functional.linear(x, self.weight)


class Network(nn.Cell):
    """Two layers with a residual; tensor parallel ranks divide what is between them."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        first, last = (
            generator.standard_normal(shape).astype(np.float32) / 3 for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN))
        )
        self.norm = nn.LayerNorm((WIDTH,))
        self.entered, self.left = Copied(ranks > 1), Reduced(ranks > 1)
        self.first = Linear(np.split(first, ranks, 0)[rank])
        self.last = Linear(np.split(last, ranks, 1)[rank])

    def construct(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return x + self.left(self.last(mint.nn.functional.silu(self.first(self.entered(self.norm(x))))))


def train(sizes: dict[str, int], debugger: Any) -> dict[str, np.ndarray]:
    """One step; what it leaves."""
    rank = distributed.get_rank() if sizes else 0
    network = Network(*((rank, sizes["tp"]) if "tp" in sizes else (0, 1)))
    generator = np.random.default_rng(1)
    x, y = (generator.standard_normal((BATCH, WIDTH)).astype(np.float32) for _ in range(2))
    if "dp" in sizes:
        x, y = (np.split(each, sizes["dp"])[rank] for each in (x, y))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)

    def forward(rows: Tensor, wanted: Tensor) -> Tensor:
        return mint.mean(mint.square(network(rows) - wanted))

    if debugger is not None:
        debugger.start(network)
    loss, gradients = ms.value_and_grad(forward, None, network.trainable_params())(Tensor(x), Tensor(y))
    if "dp" in sizes:
        gradients = tuple(_summed(each) / sizes["dp"] for each in gradients)
    optimizer(gradients)
    if debugger is not None:
        debugger.stop()
    found = {"loss": loss.asnumpy()}
    found |= {f"gradients.{one.name}": each.asnumpy() for one, each in zip(network.trainable_params(), gradients)}
    return found | {f"parameters.{one.name}": one.asnumpy() for one in network.trainable_params()}


def ran(sizes: dict[str, int], place: Path, rank: int, task: str) -> dict[str, Any]:
    """Train without the collector and with it; whether both leave the same bits."""
    from msprobe_collector import PrecisionDebugger
    from quality.sharded.tasks import arguments

    plain = train(sizes, None)
    np.savez(place / f"result{rank}.npz", **plain)
    made: Any = PrecisionDebugger
    made._instance = None
    debugger = made(**arguments(task, place, rank))
    collected = train(sizes, debugger)
    debugger._at_exit()
    return {"is_identical": all(np.array_equal(collected[name], value) for name, value in plain.items())}


def main(folder: Path, task: str, names: list[str]) -> None:
    """Run each entry of `names`."""
    from quality.sharded import catalogue

    ms.set_device("CPU")
    is_spread = "RANK_ID" in os.environ
    if is_spread:
        init()
    rank = distributed.get_rank() if is_spread else 0
    for name in names:
        entry = catalogue.by_name(name)
        place = folder / entry.folder
        place.mkdir(parents=True, exist_ok=True)
        try:
            found = ran(entry.sizes if is_spread else {}, place, rank, task)
        except Exception:
            found = {"failure": traceback.format_exc()}
        (place / f"done{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
