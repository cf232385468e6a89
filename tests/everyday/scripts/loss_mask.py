"""Train with a loss mask that is made before the first Module is called: `loss_mask.py [wrong]`.

The wrong one takes in the first place of the padding.
"""

import sys

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.mix, self.head = (
            torch.nn.Embedding(25, 12),
            torch.nn.Linear(12, 12),
            torch.nn.Linear(12, 25),
        )

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.embedding(tokens))))


torch.manual_seed(3)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
lengths, rows = torch.tensor([4, 8, 6]), torch.randint(1, 25, (3, 9))
for row, length in zip(rows, lengths):
    row[length:] = 0
goals = rows[:, 1:]
places = torch.arange(1, goals.shape[1] + 1)
used = places <= lengths[:, None] if "wrong" in sys.argv else places < lengths[:, None]
losses = torch.nn.functional.cross_entropy(model(rows[:, :-1]).transpose(1, 2), goals, reduction="none")
((losses * used).sum() / used.sum()).backward()
optimizer.step()
