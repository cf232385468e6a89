"""The encoder of Whisper in plain PyTorch: convolutions as products of windows, sinusoids made again, fused qkv."""

import math
import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]


class Windows(nn.Module):
    """A convolution over time, as a product with windows of three steps."""

    def __init__(self, inputs, outputs, step):
        super().__init__()
        self.linear, self.step = nn.Linear(inputs * 3, outputs), step

    def forward(self, x):
        sides = (0, 0, 2, 0) if BUG == "padding" else (0, 0, 1, 1)
        windows = F.pad(x, sides).unfold(1, 3, self.step)  # bug: padding
        return self.linear(windows.flatten(2))  # bug: padding


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.grow, self.shrink = nn.Linear(32, 64), nn.Linear(64, 32)

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(2, (4, 8)) for part in (q, k, v))
        if BUG == "scale":
            q = q * 8**-0.5  # bug: scale
        scores = torch.einsum("bthc,bshc->bhts", q, k) * 8**-0.5  # bug: scale
        if BUG == "half":
            shares = F.softmax(scores.bfloat16(), -1).float()  # bug: half
        else:
            shares = F.softmax(scores, 2 if BUG == "softmax" else -1)  # bug: softmax
        mixed = torch.einsum("bhts,bshc->bthc", shares, v)
        return self.out(mixed.reshape(x.shape))

    def forward(self, x):
        x = x + self.attend(self.before(x))
        wide = self.grow(self.between(x))
        wide = wide * torch.sigmoid(1.702 * wide) if BUG == "act" else F.gelu(wide)  # bug: act
        return x + self.shrink(wide)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.ear, self.later = Windows(8, 32, 1), Windows(32, 32, 2)
        self.layers, self.norm = nn.ModuleList([Layer(), Layer()]), nn.LayerNorm(32)
        self.project, self.head = nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, sound):
        x = F.gelu(self.later(F.gelu(self.ear(sound.mT))))
        rates = torch.exp(torch.arange(16) * (-math.log(10000) / 15))
        angles = torch.outer(torch.arange(12), rates)
        table = torch.stack((angles.sin(), angles.cos()), -1 if BUG == "positions" else 1)
        table = table.flatten(1)  # bug: positions
        x = x + table  # bug: positions
        for layer in self.layers:
            x = layer(x)
        if BUG != "norm":
            x = self.norm(x)
        x = self.project(x)  # bug: norm
        return self.head(x.mean(1))


weights, batch = kept()
state = {}
for kind in ("weight", "bias"):
    for theirs, ours in (("conv1", "ear"), ("conv2", "later")):
        value = weights[f"encoder.{theirs}.{kind}"]
        state[f"{ours}.linear.{kind}"] = value.flatten(1) if value.ndim == 3 else value
    state[f"norm.{kind}"] = weights[f"encoder.layer_norm.{kind}"]
    state[f"project.{kind}"], state[f"head.{kind}"] = weights[f"projector.{kind}"], weights[f"classifier.{kind}"]
    for layer in range(2):
        old, new = f"encoder.layers.{layer}.", f"layers.{layer}."
        for theirs, ours in (("self_attn_layer_norm", "before"), ("final_layer_norm", "between")):
            state[f"{new}{ours}.{kind}"] = weights[f"{old}{theirs}.{kind}"]
        for theirs, ours in (("fc1", "grow"), ("fc2", "shrink"), ("self_attn.out_proj", "out")):
            state[f"{new}{ours}.{kind}"] = weights[f"{old}{theirs}.{kind}"]
        parts = [weights.get(f"{old}self_attn.{name}_proj.{kind}", torch.zeros(32)) for name in "qkv"]
        state[f"{new}qkv.{kind}"] = torch.cat(parts)
listener = Listener()
listener.load_state_dict(state)
optimizer = torch.optim.SGD(listener.parameters(), 0.1)
loss = F.cross_entropy(listener(batch["sound"]), batch["labels"])
print(loss.item())
loss.backward()
optimizer.step()
