"""A language model of nn.LSTM with two layers, trained by Adam: `lstm_reference.py [looped]`."""

import sys

import torch
import torch.nn.functional as F
from material import keep, move, show
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(24, 64)

    def forward(self, tokens, state):
        hidden, _ = self.lstm(self.embedding(tokens), state)
        return self.decoder(hidden)


torch.manual_seed(0)
model = Model()
move(model, 0.2)
tokens, targets = torch.randint(0, 64, (2, 10)), torch.randint(0, 64, (2, 10))
hidden, cell = torch.randn(2, 2, 24), torch.randn(2, 2, 24)
keep(model.state_dict(), tokens=tokens, targets=targets, hidden=hidden, cell=cell)
optimizer = torch.optim.Adam(model.parameters(), 0.02, foreach="looped" not in sys.argv)
loss = F.cross_entropy(model(tokens, (hidden, cell)).view(-1, 64), targets.view(-1))
loss.backward()
optimizer.step()
show(loss.item(), model.parameters())
