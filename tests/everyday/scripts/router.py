"""Train a router that sends each token to two of four experts."""

import torch


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(6, 4)

    def forward(self, tokens):
        weights, experts = self.gate(tokens).softmax(-1).topk(2, -1)
        return weights.sum() + 0 * experts.sum()


torch.manual_seed(0)
model = Router()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 6)).backward()
optimizer.step()
