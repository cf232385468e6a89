"""The GPT of ../gpt with PyTorch on CPU, in a training loop of its own.

python train.py                                  collects step 0 into ./gpt_torch_dump (config.json)
python train.py --weights weights.npz            starts from these weights, which it writes where there are none
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger, seed_all

HERE = Path(__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog. " * 20
LETTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, SEQUENCE, BATCH = 32, 4, 2, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.hidden_future = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), diagonal=1)

    def forward(self, x: Tensor) -> Tensor:
        heads = (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        query, key, value = (
            torch.transpose(torch.reshape(part, heads), 1, 2)
            for part in torch.chunk(self.query_key_value(x), 3, dim=-1)
        )
        scores = torch.matmul(query, torch.transpose(key, -2, -1)) / (WIDTH // HEADS) ** 0.5
        weights = functional.softmax(scores.masked_fill(self.hidden_future, -1e4), dim=-1)
        mixed = torch.transpose(torch.matmul(weights, value), 1, 2)
        return self.out(torch.reshape(mixed, (BATCH, SEQUENCE, WIDTH)))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean_square = torch.mean(torch.square(x), dim=-1, keepdim=True)
        return torch.mul(torch.mul(x, torch.rsqrt(torch.add(mean_square, 1e-6))), self.weight)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(), RMSNorm()
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.add(x, self.attention(self.attention_norm(x)))
        return torch.add(x, self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Parameter(torch.randn(len(LETTERS), WIDTH))
        self.places = nn.Parameter(torch.randn(SEQUENCE, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        x = functional.embedding(letters, self.letters) + self.places
        return self.head(self.norm(self.blocks(x)))


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of the text and, as targets, the same windows one letter on."""
    numbers = np.array([LETTERS.index(letter) for letter in TEXT], np.int64)
    random = np.random.default_rng(0)
    for _ in range(steps):
        starts = random.integers(0, len(numbers) - SEQUENCE - 1, BATCH)
        windows = torch.from_numpy(np.stack([numbers[start : start + SEQUENCE + 1] for start in starts]))
        yield windows[:, :-1], windows[:, 1:]


def use_weights(file: Path, model: nn.Module) -> None:
    """Start from the weights in `file`, which is written where there is none."""
    parameters = dict(model.named_parameters())
    if not file.exists():
        np.savez(file, **{name: parameter.detach().numpy() for name, parameter in parameters.items()})
    with np.load(file) as weights, torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name]))


def loss_of(model: GPT, letters: Tensor, targets: Tensor) -> Tensor:
    logits = model(letters)
    return functional.cross_entropy(torch.reshape(logits, (-1, len(LETTERS))), torch.reshape(targets, (-1,)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--weights", type=Path, help="file of weights to start from")
    arguments = parser.parse_args()

    seed_all(1234)
    debugger = PrecisionDebugger(HERE / "config.json")
    model = GPT()
    if arguments.weights:
        use_weights(arguments.weights, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for step, (letters, targets) in enumerate(batches(arguments.steps)):
        debugger.start(model)
        loss = loss_of(model, letters, targets)
        loss.backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
