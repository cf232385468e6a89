"""A small GPT with PyTorch on CPU, in a training loop of its own.

python train.py           collects step 1 into ./gpt_torch_dump (config.json)
"""

from collections.abc import Iterator
from pathlib import Path

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

    def forward(self, x: Tensor) -> Tensor:
        heads = (BATCH, SEQUENCE, HEADS, WIDTH // HEADS)
        query, key, value = (part.reshape(heads).transpose(1, 2) for part in self.query_key_value(x).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(BATCH, SEQUENCE, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS))

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letters(letters) + self.places(torch.arange(SEQUENCE))
        return self.head(self.norm(self.blocks(x)))


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    for _ in range(steps):
        starts = torch.randint(len(TEXT) - SEQUENCE - 1, (BATCH,))
        windows = torch.stack([letters[start : start + SEQUENCE + 1] for start in starts])
        yield windows[:, :-1], windows[:, 1:]


def main() -> None:
    seed_all(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    debugger = PrecisionDebugger(str(HERE / "config.json"))
    for step, (letters, targets) in enumerate(batches(3)):
        debugger.start(model)
        loss = functional.cross_entropy(model(letters).flatten(0, 1), targets.flatten())
        loss.backward()
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
