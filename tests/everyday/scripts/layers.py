"""Train two steps of a network whose layers are named as those of a ResNet are: `layers.py SEED`."""

import sys

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(8, 8)

    def forward(self, hidden):
        return torch.relu(self.dense(hidden)) + hidden


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(4, 8)
        self.layer1 = torch.nn.Sequential(Block(), Block())
        self.layer2 = torch.nn.Sequential(Block(), Block())

    def forward(self, inputs):
        return self.layer2(self.layer1(self.stem(inputs)))


torch.manual_seed(int(sys.argv[1]))
network = Network()
optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
inputs = torch.linspace(-1, 1, 12).reshape(3, 4)
for _ in range(2):
    network(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
