"""Mamba in plain PyTorch: the scan as one product with the decay between each two steps, channels last."""

import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(32))
        self.x_and_gate, self.back = nn.Linear(32, 128, bias=False), nn.Linear(64, 32, bias=False)
        self.taps, self.taps_bias = nn.Parameter(torch.zeros(64, 4)), nn.Parameter(torch.zeros(64))
        self.rates, self.direct = nn.Parameter(torch.zeros(64, 4)), nn.Parameter(torch.zeros(64))
        self.chosen, self.step = nn.Linear(64, 12, bias=False), nn.Linear(4, 64)

    def scan(self, x):
        low, into, out = self.chosen(x).split([4, 4, 4], -1)
        step = F.softplus(F.linear(low, self.step.weight, None if BUG == "bias" else self.step.bias))  # bug: bias
        rates = -self.rates.exp()
        decays = torch.einsum("btc,cn->btcn", step, rates)
        total = decays.cumsum(1)  # bug: offset
        between = total[:, :, None] - total[:, None]  # bug: offset
        order = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        past = order.tril(-1 if BUG == "offset" else 0)[..., None, None]  # bug: offset
        kernel = between.masked_fill(~past, float("-inf")).exp()  # bug: offset
        if BUG == "discrete":
            step = torch.ones_like(step)
        driven = torch.einsum("btc,btn->btcn", step * x, into)  # bug: discrete
        states = torch.einsum("btscn,bscn->btcn", kernel, driven)  # bug: offset
        y = torch.einsum("btcn,btn->btc", states, out)  # bug: offset
        return y if BUG == "skip" else y + self.direct * x

    def forward(self, x):
        normed = F.rms_norm(x, (32,), self.gain, 1e-6 if BUG == "eps" else 1e-5)  # bug: eps
        inner, gate = self.x_and_gate(normed).chunk(2, -1)  # bug: order
        if BUG == "order":
            inner, gate = gate, inner
        sides = (0, 0, 1, 2) if BUG == "padding" else (0, 0, 3, 0)
        windows = F.pad(inner, sides).unfold(1, 4, 1)  # bug: padding, order
        inner = F.silu((windows * self.taps).sum(-1) + self.taps_bias)  # bug: padding, order
        y = self.scan(inner)
        gated = y * gate.sigmoid() if BUG == "gate" else y * F.silu(gate)  # bug: gate, skip
        return x + self.back(gated)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.mixers = nn.Embedding(64, 32), nn.Sequential(Mixer(), Mixer())
        self.gain, self.head = nn.Parameter(torch.ones(32)), nn.Linear(32, 64, bias=False)

    def forward(self, tokens):
        x = self.mixers(self.words(tokens))
        return self.head(F.rms_norm(x, (32,), self.gain, 1e-6 if BUG == "eps" else 1e-5))


weights, batch = kept()
state = {"words.weight": weights["backbone.embeddings.weight"], "gain": weights["backbone.norm_f.weight"]}
state["head.weight"] = weights["lm_head.weight"]
names = {"norm.weight": "gain", "mixer.in_proj.weight": "x_and_gate.weight", "mixer.out_proj.weight": "back.weight"}
names |= {"mixer.conv1d.weight": "taps", "mixer.conv1d.bias": "taps_bias", "mixer.A_log": "rates", "mixer.D": "direct"}
names |= {"mixer.x_proj.weight": "chosen.weight"}
names |= {f"mixer.dt_proj.{kind}": f"step.{kind}" for kind in ("weight", "bias")}
for layer in range(2):
    for theirs, ours in names.items():
        state[f"mixers.{layer}.{ours}"] = weights[f"backbone.layers.{layer}.{theirs}"].squeeze()
network = Network()
network.load_state_dict(state)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
logits = network(batch["tokens"])
loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())
print(loss.item())
loss.backward()
optimizer.step()
