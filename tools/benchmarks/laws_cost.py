"""What checking laws costs a training step: a GPT, steps with and without laws in turn, in CPU seconds.

    python -m tools.benchmarks.laws_cost [--width 512] [--layers 12] [--steps 12] [--tokens 1024]

The default has about 50 million parameters. Steps are taken in pairs, one watched and one not, in an order that
changes, on one model and optimizer; the figure is the median over the pairs of (watched - bare) / bare.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional

from msprobe_laws.pytorch.watch import TorchWatch


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(rows, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norms[1](x)))))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int, words: int = 16000, length: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, width // 64) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("width", 512), ("layers", 12), ("steps", 12), ("tokens", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Gpt(chosen.width, chosen.layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    count = sum(item.numel() for item in net.parameters())

    def step() -> float:
        data = torch.randint(0, 16000, (max(1, chosen.tokens // 256), 257))
        start = time.process_time()
        optimizer.zero_grad()
        logits = net(data[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return time.process_time() - start

    step()
    shares, bare_times = [], []
    with tempfile.TemporaryDirectory() as folder:
        from pathlib import Path

        watch = TorchWatch(Path(folder), ())
        watch.install()
        watch.optimizers.uninstall()
        watch.signals.uninstall()
        for pair in range(chosen.steps):
            taken = {}
            for is_watched in (True, False) if pair % 2 else (False, True):
                if is_watched:
                    watch.optimizers.install()
                    watch.signals.install()
                taken[is_watched] = step()
                if is_watched:
                    watch.optimizers.uninstall()
                    watch.signals.uninstall()
            shares.append((taken[True] - taken[False]) / taken[False])
            bare_times.append(taken[False])
        watch.close()
    print(f"{count / 1e6:.1f} M parameters, {len(optimizer.param_groups[0]['params'])} tensors, {chosen.tokens} tokens")
    print(
        f"bare step {statistics.median(bare_times):.3f} CPU seconds; laws add {100 * statistics.median(shares):.1f} %"
    )
    print("pairs: " + ", ".join(f"{100 * share:.1f}" for share in shares))


if __name__ == "__main__":
    main()
