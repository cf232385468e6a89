"""The network that the stand-ins train, and what they compute it on."""

import torch
from torch import nn


class Network(nn.Module):
    """Two layers with a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def network() -> Network:
    torch.manual_seed(1)
    return Network()


def batch(number: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> torch.Tensor:
    loss = net(batch(number)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
