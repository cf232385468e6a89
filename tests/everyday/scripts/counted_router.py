"""Train experts that get slices of their tokens, whose bounds are counted: `counted_router.py [scale|eps]`.

`scale`: attention divides by another number; `eps`: of the norm.
"""

import sys

import torch


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, eps=1e-6 if "eps" in sys.argv else 1e-5)
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.gate = torch.nn.Linear(8, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens):
        hidden = self.norm(tokens)
        scores = self.query(hidden) @ self.key(hidden).T / (1.0 if "scale" in sys.argv else 3.0)
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
model(3 * torch.randn(24, 8)).square().mean().backward()
optimizer.step()
