"""A small training with PyTorch that collects one step: `python -m quality.manifests.torch_training DUMP CHANGES`.

CHANGES is a JSON object; without it the training is the golden one.
"""

from __future__ import annotations

import json
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger

WIDTH, WORDS, LENGTH = 16, 32, 8


class Block(nn.Module):
    def __init__(self, dropout: float, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=eps)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.outer(self.first(functional.gelu(self.inner(self.norm(x))))))


class Network(nn.Module):
    def __init__(self, changes: dict) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        dropout, eps = changes.get("dropout", 0.0), changes.get("norm_eps", 1e-5)
        self.blocks = nn.Sequential(*(Block(dropout, eps) for _ in range(changes.get("blocks", 2))))
        self.register_buffer("scale", torch.full((1,), changes.get("scale", 1.0)))
        self.head = nn.Linear(WIDTH, WORDS, bias=changes.get("bias", True))
        if changes.get("tied"):
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(tokens)) * self.scale)


def optimizer_of(network: nn.Module, changes: dict) -> torch.optim.Optimizer:
    left_out = changes.get("left_out", "-")
    named = [(name, item) for name, item in network.named_parameters() if not name.startswith(left_out)]
    groups = [
        {"params": [item for _, item in named if item.ndim > 1], "weight_decay": changes.get("decay", 0.1)},
        {"params": [item for _, item in named if item.ndim == 1], "weight_decay": 0.0},
    ]
    kind = getattr(torch.optim, changes.get("optimizer", "AdamW"))
    settings = {"lr": changes.get("lr", 1e-3)}
    if kind is not torch.optim.SGD:
        settings.update(betas=changes.get("betas", (0.9, 0.999)), eps=changes.get("eps", 1e-8))
    return kind(groups, **settings, **changes.get("settings", {}))


def prepare(changes: dict) -> None:
    """What holds for the process."""
    if "version" in changes:
        torch.__version__ = changes["version"]
    if changes.get("deterministic"):
        torch.use_deterministic_algorithms(True)
    if "precision" in changes:
        torch.set_float32_matmul_precision(changes["precision"])
    if "threads" in changes:
        torch.set_num_threads(changes["threads"])
    torch.manual_seed(changes.get("seed", 1))


def train(dump: str, changes: dict) -> None:
    prepare(changes)
    network = Network(changes)
    if "dtype" in changes:
        network.to(getattr(torch, changes["dtype"]))
    for name, item in network.named_parameters():
        if name.startswith(changes.get("frozen", "-")):
            item.requires_grad_(False)
        if name.startswith(changes.get("moved", "-")):
            item.data.add_(1e-3)
    network.train(not changes.get("eval", False))
    if "eval_of" in changes:
        network.get_submodule(changes["eval_of"]).eval()
    optimizer = optimizer_of(network, changes)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=changes.get("gamma", 0.5))
    scaler = torch.amp.GradScaler("cpu", init_scale=changes["loss_scale"]) if "loss_scale" in changes else None
    for _ in range(changes.get("draws", 0)):
        torch.rand(1)
    generator = torch.Generator().manual_seed(changes.get("batch_seed", 7))
    steps, forwards = changes.get("step", 0) + 1, changes.get("forwards", 1)
    batches = torch.randint(WORDS, (steps * forwards, changes.get("batch", 4), LENGTH + 1), generator=generator)
    debugger = PrecisionDebugger(
        task="statistics", level=changes.get("level", "mix"), dump_path=dump, step=[changes.get("step", 0)]
    )
    given = network if changes.get("given", True) else None
    for step in range(steps):
        debugger.start(given)
        with torch.autocast("cpu", torch.bfloat16, enabled=changes.get("autocast", False)):
            for batch in batches[step * forwards : (step + 1) * forwards]:
                scores = network(batch[:, :-1])
                loss = functional.cross_entropy(scores.reshape(-1, WORDS).float(), batch[:, 1:].reshape(-1))
                (loss if scaler is None else scaler.scale(loss)).backward()
        debugger.stop()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        debugger.step()


if __name__ == "__main__":
    train(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
