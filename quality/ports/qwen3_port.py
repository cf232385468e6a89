"""Qwen3 in plain PyTorch: positions as complex factors, weights by heads, grouped queries inside one call."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn

BUG = sys.argv[1]


class Norm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.float()
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.gain


def turned(x: torch.Tensor) -> torch.Tensor:
    """Turn x, which is (batch, heads, time, 16), as complex numbers of its halves."""
    angles = torch.outer(torch.arange(x.shape[2]), 1e6 ** -(torch.arange(8) / 8))
    if BUG == "half":
        angles = angles.bfloat16().float()  # bug: half
    factors = torch.polar(torch.ones_like(angles), angles)  # bug: half
    z = torch.complex(x[..., :8], x[..., 8:]) * factors
    return torch.cat((z.real, z.imag), -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.back = nn.Parameter(torch.empty(8, 16, 32)), nn.Parameter(torch.empty(4, 16, 32))
        self.q_norm, self.k_norm = Norm(16), Norm(16)

    def normed(self, q, k):
        if BUG == "whole":
            mean = q.square().mean((1, 3), keepdim=True)  # bug: whole
            return q * (mean + 1e-6).rsqrt() * self.q_norm.gain, self.k_norm(k)  # bug: whole
        return self.q_norm(q), self.q_norm(k) if BUG == "shared" else self.k_norm(k)  # bug: shared

    def forward(self, x):
        q, k, v = torch.einsum("btc,hdc->bhtd", x, self.into).split([4, 2, 2], 1)
        if BUG == "late":
            q, k = self.normed(turned(q), turned(k))  # bug: late
        else:
            q, k = self.normed(q, k)
            q, k = turned(q), turned(k)
        scale = 8**-0.5 if BUG == "scale" else None
        mixed = F.scaled_dot_product_attention(  # bug: scale
            q, k, v.float(), is_causal=True, scale=scale, enable_gqa=True
        )
        return torch.einsum("bhtd,hdc->btc", mixed, self.back)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(32), Attention(), Norm(32)
        self.up, self.down = nn.Linear(32, 96, bias=False), nn.Linear(48, 32, bias=False)

    def forward(self, x):
        x = self.attention(self.norm1(x)) + x
        gate, value = self.up(self.norm2(x)).split(48, -1)
        return self.down(value * gate * gate.sigmoid()) + x


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.empty(64, 32))
        self.body = nn.Sequential(Block(), Block(), Norm(32))

    def forward(self, tokens):
        return self.body(self.table[tokens]) @ self.table.T


weights, batch = kept()
state = {"table": weights["model.embed_tokens.weight"], "body.2.gain": weights["model.norm.weight"]}
for layer in range(2):
    old, new = f"model.layers.{layer}.", f"body.{layer}."
    q, k, v, o = (weights[f"{old}self_attn.{name}_proj.weight"] for name in "qkvo")
    state[f"{new}attention.into"] = torch.cat([q, k, v]).unflatten(0, (8, 16))
    state[f"{new}attention.back"] = o.T.unflatten(0, (4, 16))
    for name in ("q_norm", "k_norm"):
        state[f"{new}attention.{name}.gain"] = weights[f"{old}self_attn.{name}.weight"]
    state[f"{new}norm1.gain"] = weights[f"{old}input_layernorm.weight"]
    state[f"{new}norm2.gain"] = weights[f"{old}post_attention_layernorm.weight"]
    state[f"{new}up.weight"] = torch.cat([weights[f"{old}mlp.{name}_proj.weight"] for name in ("gate", "up")])
    state[f"{new}down.weight"] = weights[f"{old}mlp.down_proj.weight"]
network = Network()
network.load_state_dict(state)
optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
total = 0.0
parts = batch["tokens"].split(1) if BUG == "accumulated" else [batch["tokens"]]
for tokens in parts:
    with torch.autocast("cpu", torch.bfloat16, enabled=BUG == "autocast"):
        logits = network(tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()) / len(parts)
    loss.backward()
    total += loss.item()
if BUG != "clip":
    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
optimizer.step()  # bug: clip
show(total, network.parameters())
