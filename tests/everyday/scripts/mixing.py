"""Train a model that is compiled as a whole (`whole`), or calls a compiled function (`part`); or neither (`eager`)."""

import sys

import torch


def mix(hidden):
    return torch.tanh(hidden).cumsum(-1)


class Model(torch.nn.Module):
    def __init__(self, mixing):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
        self.mixing = mixing

    def forward(self, inputs):
        return self.last(self.mixing(self.first(inputs)))


torch.manual_seed(0)
model = Model(torch.compile(mix, backend="aot_eager") if sys.argv[1] == "part" else mix)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trained = torch.compile(model, backend="aot_eager") if sys.argv[1] == "whole" else model
trained(torch.randn(5, 6)).square().mean().backward()
optimizer.step()
