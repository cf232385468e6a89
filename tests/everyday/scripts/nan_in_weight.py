"""Train a model of which one weight holds a NaN."""

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 12), torch.nn.Linear(12, 6)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


torch.manual_seed(0)
model = Model()
with torch.no_grad():
    model.blocks[1].up.weight[3, 4] = float("nan")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(16, 6)).square().mean().backward()
optimizer.step()
