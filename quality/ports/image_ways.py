"""A small convolutional network that computes the same in other ways: `image_ways.py WAY`; `plain` is the reference."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WAY = sys.argv[1]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.norm, self.groups, self.head = nn.BatchNorm2d(16), nn.GroupNorm(4, 32), nn.Linear(32, 5)

    def first(self, x):
        if WAY == "padded":
            return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.stem.weight, self.stem.bias)
        if WAY == "unfolded":
            columns = F.unfold(x, 3, padding=1)
            return (self.stem.weight.flatten(1) @ columns + self.stem.bias[:, None]).unflatten(2, x.shape[2:])
        return self.stem(x)

    def second(self, x):
        if WAY == "padded":
            return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.deep.weight, self.deep.bias, stride=2)
        if WAY == "taps":
            x, weight = F.pad(x, (1, 1, 1, 1)), self.deep.weight
            size = (x.shape[2] - 1) // 2
            parts = [(row, column) for row in range(3) for column in range(3)]
            summands = [
                torch.einsum("oi,bihw->bohw", weight[:, :, r, c], x[:, :, r : r + 2 * size : 2, c : c + 2 * size : 2])
                for r, c in parts
            ]
            return sum(summands) + self.deep.bias[:, None, None]
        return self.deep(x)

    def third(self, x):
        if WAY == "split":
            weights, biases = self.grouped.weight.chunk(4), self.grouped.bias.chunk(4)
            parts = zip(x.chunk(4, 1), weights, biases, strict=True)
            return torch.cat([F.conv2d(part, weight, bias, padding=1) for part, weight, bias in parts], 1)
        return self.grouped(x)

    def normed(self, x):
        if WAY == "by_hand":
            mean = x.mean((0, 2, 3), keepdim=True)
            scale = self.norm.weight[:, None, None] / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
            return (x - mean) * scale + self.norm.bias[:, None, None]
        return self.norm(x)

    def grouped_norm(self, x):
        if WAY == "by_hand":
            parts = x.unflatten(1, (4, 8))
            centred = parts - parts.mean((2, 3, 4), keepdim=True)
            parts = centred / (centred.pow(2).mean((2, 3, 4), keepdim=True) + 1e-5).sqrt()
            return parts.flatten(1, 2) * self.groups.weight[:, None, None] + self.groups.bias[:, None, None]
        return self.groups(x)

    def forward(self, x):
        x = F.silu(self.normed(self.first(x)))
        x = self.second(x)
        x = x + F.relu(self.grouped_norm(self.third(x)))
        if WAY == "pooled":
            return self.head(F.avg_pool2d(x, x.shape[2:]).squeeze((2, 3)))
        return self.head(x.mean((2, 3)))


torch.manual_seed(0)
network = Network()
pixels, labels = torch.randn(4, 3, 16, 16), torch.tensor([3, 1, 0, 2])
if WAY == "channels_last":
    network, pixels = network.to(memory_format=torch.channels_last), pixels.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(network.parameters(), 0.05)
with torch.autocast("cpu", torch.bfloat16, enabled=WAY == "autocast"):
    loss = F.cross_entropy(network(pixels), labels)
print(loss.item())
loss.backward()
optimizer.step()
