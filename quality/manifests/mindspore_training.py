"""A small training with MindSpore that collects a step: `python -m quality.manifests.mindspore_training DUMP CHANGES`.

CHANGES is a JSON object; without it the training is the golden one.
"""

from __future__ import annotations

import json
import sys

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops

from msprobe_collector.mindspore import PrecisionDebugger

WIDTH, ROWS = 8, 4


class Network(nn.Cell):
    def __init__(self, changes: dict) -> None:
        super().__init__()
        self.first = nn.Dense(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm([2 * WIDTH], epsilon=changes.get("norm_eps", 1e-5))
        self.drop = nn.Dropout(p=changes.get("dropout", 0.0))
        self.second = nn.Dense(2 * WIDTH, WIDTH)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.drop(ops.relu(self.norm(self.first(x)))))


def optimizer_of(network: nn.Cell, changes: dict) -> nn.Cell:
    left_out = changes.get("left_out", "-")
    trained = [item for item in network.trainable_params() if not item.name.startswith(left_out)]
    rate = changes.get("lr", 0.1)
    if "decay_rate" in changes:
        rate = nn.ExponentialDecayLR(0.1, changes["decay_rate"], 10)
    if changes.get("optimizer") == "mint.AdamW":
        return mint.optim.AdamW(trained, lr=rate, betas=tuple(changes.get("betas", (0.9, 0.999))))
    groups = [
        {"params": [item for item in trained if item.ndim > 1], "weight_decay": changes.get("decay", 0.0)},
        {"params": [item for item in trained if item.ndim == 1], "weight_decay": 0.0},
    ]
    return nn.Momentum(
        groups,
        rate,
        changes.get("momentum", 0.9),
        use_nesterov=changes.get("nesterov", False),
        loss_scale=changes.get("loss_scale", 1.0),
    )


def train(dump: str, changes: dict) -> None:
    if changes.get("deterministic"):
        mindspore.set_deterministic(True)
    if changes.get("mode") == "graph":
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_seed(changes.get("seed", 1))
    network = Network(changes)
    for item in network.get_parameters():
        if item.name.startswith(changes.get("moved", "-")):
            item.set_data(item + 1e-3)
        if item.name.startswith(changes.get("frozen", "-")):
            item.requires_grad = False
    if "dtype" in changes:
        network.to_float(getattr(mindspore, changes["dtype"]))
    network.set_train(not changes.get("eval", False))
    optimizer = optimizer_of(network, changes)
    generator = np.random.RandomState(changes.get("batch_seed", 7))
    loss_of = nn.MSELoss()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return loss_of(network(x), y)

    computed = mindspore.value_and_grad(loss, None, optimizer.parameters)
    steps = changes.get("step", 0) + 1
    debugger = PrecisionDebugger(task="statistics", level="L0", dump_path=dump, step=[changes.get("step", 0)])
    for _ in range(steps):
        x, y = (Tensor(generator.randn(changes.get("rows", ROWS), WIDTH).astype(np.float32)) for _ in range(2))
        debugger.start(network)
        _, gradients = computed(x, y)
        debugger.stop()
        optimizer(gradients)
        debugger.step()


if __name__ == "__main__":
    train(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
