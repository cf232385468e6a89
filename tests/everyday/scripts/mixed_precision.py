"""Train one step in each of the ways that are right and look unusual: `mixed_precision.py KIND`."""

import sys

import torch
from torch.utils.checkpoint import checkpoint

KIND = sys.argv[1]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mix, self.down = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)

    def inner(self, hidden):
        return torch.nn.functional.gelu(self.mix(hidden))

    def forward(self, inputs):
        hidden = self.up(inputs)
        hidden = checkpoint(self.inner, hidden, use_reentrant=False) if KIND == "checkpointing" else self.inner(hidden)
        if KIND == "masks":
            hidden = hidden.masked_fill(torch.ones(16, 8).triu(1).bool(), float("-inf")).softmax(-1)
        if KIND == "zero_gradients":
            hidden = hidden * 0
        return self.down(hidden)


torch.manual_seed(0)
model = Model()
inputs, goals = torch.randn(16, 6), torch.randint(5, (16,))
if KIND == "bfloat16":
    model, inputs = model.bfloat16(), inputs.bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled=KIND == "autocast")
with torch.autocast("cpu", dtype=torch.float16, enabled=KIND == "autocast"):
    loss = torch.nn.functional.cross_entropy(model(inputs), goals)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
