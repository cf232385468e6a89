"""Attend with a mask that is written in one of the ways of people: `causal_mask.py KIND`."""

import sys

import torch

KIND = sys.argv[1]
FILLED = {"fill_1e4": -1e4, "fill_finfo": torch.finfo(torch.float32).min}.get(KIND, float("-inf"))
DIAGONAL = 2 if KIND in ("add_diagonal", "fill_diagonal") else 1


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.value = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, hidden):
        scores = self.query(hidden) @ hidden.transpose(1, 2)
        if KIND.startswith("add"):
            scores = scores + torch.full((6, 6), -1e4 if KIND == "add_1e4" else FILLED).triu(DIAGONAL)
        elif KIND == "where":
            scores = torch.where(torch.ones(6, 6).tril().bool(), scores, torch.tensor(FILLED))
        else:
            scores = scores.masked_fill(torch.ones(6, 6).triu(DIAGONAL).bool(), FILLED)
        return torch.softmax(scores, -1) @ self.value(hidden)


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 6, 8)).square().mean().backward()
optimizer.step()
