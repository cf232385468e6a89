"""Train experts that get slices of their tokens, whose bounds are counted: `counted_router.py [scale]`.

`scale`: attention divides by another number.
"""

import sys

import torch


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.gate = torch.nn.Linear(8, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens):
        hidden = self.norm(tokens)
        scores = self.query(hidden) @ self.key(hidden).T / (0.3 if "scale" in sys.argv else 3.0)
        hidden = tokens + torch.softmax(scores, -1) @ hidden
        weights, chosen = self.gate(hidden).softmax(-1).max(-1)
        order, counts = chosen.argsort(stable=True), torch.bincount(chosen, minlength=3)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = order[counts[:number].sum() : counts[: number + 1].sum()]
            mixed = mixed.index_add(0, rows, expert(hidden[rows]) * weights[rows, None])
        return mixed


torch.manual_seed(0)
model = Experts()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(24, 8)).square().mean().backward()
optimizer.step()
