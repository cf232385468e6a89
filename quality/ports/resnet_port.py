"""ResNet in plain PyTorch: 1 x 1 convolutions as products, batch norm by hand, padding before pooling."""

import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]


class Normed(nn.Module):
    """A convolution without bias, then batch norm."""

    def __init__(self, inputs, outputs, size=1, step=1):
        super().__init__()
        self.kernel, self.step = nn.Parameter(torch.zeros(outputs, inputs, size, size)), step
        self.gamma, self.beta = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))

    def convolve(self, x):
        size = self.kernel.shape[-1]
        if size == 1:
            x = x[:, :, :: self.step, :: self.step]  # bug: stride
            return torch.einsum("oi,bihw->bohw", self.kernel[:, :, 0, 0], x)  # bug: stride
        if BUG == "padding" and self.step == 2 and size == 3:
            return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.kernel, stride=2)  # bug: padding
        return F.conv2d(x, self.kernel, stride=self.step, padding=size // 2)  # bug: stride

    def forward(self, x):
        x = self.convolve(x)
        mean = x.mean((0, 2, 3), keepdim=True)  # bug: eps, variance
        variance = x.var((0, 2, 3), correction=BUG == "variance", keepdim=True)  # bug: variance
        x = (x - mean) * torch.rsqrt(variance + (1e-3 if BUG == "eps" else 1e-5))  # bug: eps, variance
        return x * self.gamma[:, None, None] + self.beta[:, None, None]  # bug: eps, variance


class Bottleneck(nn.Module):
    def __init__(self, inputs, outputs, step):
        super().__init__()
        inner = outputs // 4
        early, late = (step, 1) if BUG == "stride" else (1, step)
        self.a, self.b = Normed(inputs, inner, 1, early), Normed(inner, inner, 3, late)
        self.c = Normed(inner, outputs)
        self.side = Normed(inputs, outputs, 1, step) if inputs != outputs else None

    def forward(self, x):
        side = x if self.side is None else self.side(x)
        x = self.a(x).relu()  # bug: stride
        x = self.b(x).relu()  # bug: stride
        x = self.c(x)
        return x.relu() + side if BUG == "residual" else torch.relu(x + side)  # bug: residual


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Normed(3, 8, 7, 2)
        self.blocks = nn.ModuleList([Bottleneck(8, 16, 1), Bottleneck(16, 32, 2), Bottleneck(32, 32, 1)])
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.avg_pool2d(x, 3, 2, 1) if BUG == "pool" else F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)  # bug: pool
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


weights, batch = kept()
places = {"stem": "embedder.embedder"}
for new, old in enumerate(("0.layers.0", "1.layers.0", "1.layers.1")):
    for number, name in enumerate("abc"):
        places[f"blocks.{new}.{name}"] = f"encoder.stages.{old}.layer.{number}"
    if new < 2:
        places[f"blocks.{new}.side"] = f"encoder.stages.{old}.shortcut"
state = {f"head.{kind}": weights[f"classifier.1.{kind}"] for kind in ("weight", "bias")}
for ours, theirs in places.items():
    theirs = f"resnet.{theirs}"
    state[f"{ours}.kernel"] = weights[f"{theirs}.convolution.weight"]
    state[f"{ours}.gamma"] = weights[f"{theirs}.normalization.weight"]
    state[f"{ours}.beta"] = weights[f"{theirs}.normalization.bias"]
network = Network()
network.load_state_dict(state)
optimizer = torch.optim.SGD(network.parameters(), 0.05)
loss = F.cross_entropy(network(batch["pixels"]), batch["labels"])
print(loss.item())
loss.backward()
optimizer.step()
