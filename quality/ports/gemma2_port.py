"""Gemma 2 as functions of dictionaries of weights: fused projections, rms_norm, masks as numbers to add."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn

BUG = sys.argv[1]


def norm(x, gain):
    return F.rms_norm(x, (32,), gain if BUG in ("unit", "folded") else gain + 1.0, 1e-6)  # bug: unit


def rope(x):
    half = x.shape[-1] // 2
    rates = torch.tensor([10000.0 ** (-place / half) for place in range(half)])
    angle = torch.einsum("t,c->tc", torch.arange(x.shape[-2], dtype=torch.float32), rates).repeat(1, 2)
    other = torch.cat((x[..., half:].neg(), x[..., :half]), dim=-1)
    return torch.addcmul(x * angle.cos(), other, angle.sin())


def past(time, window):
    query, key = torch.arange(time)[:, None], torch.arange(time)[None]
    if BUG == "window":
        window += 1
    hidden = (key > query) | (key <= query - window)  # bug: window
    return torch.zeros(time, time).masked_fill(hidden, float("-inf"))  # bug: window


def attention(x, w, window):
    batch, time, _ = x.shape
    qkv = F.linear(x, w["qkv"]).view(batch, time, 8, 16).permute(0, 2, 1, 3)
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    k, v = (part.repeat_interleave(2, 1) for part in (rope(k), v))
    scores = rope(q) @ k.mT * (16 if BUG == "scalar" else 24) ** -0.5  # bug: scalar
    mask = past(time, window)
    if BUG == "cap":
        scores = scores + mask  # bug: cap
    scores = 5 * torch.tanh(scores / 5)  # bug: cap
    if BUG != "cap":
        scores = scores + mask  # bug: window
    return F.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, time, 64), w["out"])


def layer(x, w, window):
    mixed = attention(norm(x, w["gain1"]), w, window)
    x = norm(x + mixed, w["gain2"]) if BUG == "post" else x + norm(mixed, w["gain2"])  # bug: post
    gate, up = F.linear(norm(x, w["gain3"]), w["wide"]).chunk(2, dim=-1)
    return x + norm(F.linear(F.gelu(gate, approximate="tanh") * up, w["down"]), w["gain4"])


class Decoder(nn.Module):
    def __init__(self, words, layers, gain):
        super().__init__()
        self.words, self.gain = nn.Parameter(words), nn.Parameter(gain)
        self.layers = nn.ModuleList(nn.ParameterDict(w) for w in layers)

    def forward(self, tokens):
        x = F.embedding(tokens, self.words)  # bug: embed
        if BUG != "embed":
            x = x * 32**0.5
        for number, w in enumerate(self.layers):
            x = layer(x, w, 100 if number % 2 else 4)
        logits = F.linear(norm(x, self.gain), self.words)  # bug: final
        return logits if BUG == "final" else 3 * (logits / 3).tanh()


weights, batch = kept()
names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
layers = []
for number in range(2):
    old = f"model.layers.{number}."
    w = {f"gain{place}": weights[f"{old}{name}_layernorm.weight"] for place, name in enumerate(names, 1)}
    w["qkv"] = torch.cat([weights[f"{old}self_attn.{name}_proj.weight"] for name in "qkv"])
    w["wide"] = torch.cat([weights[f"{old}mlp.{name}_proj.weight"] for name in ("gate", "up")])
    w |= {"out": weights[f"{old}self_attn.o_proj.weight"], "down": weights[f"{old}mlp.down_proj.weight"]}
    layers.append(w)
decoder = Decoder(weights["model.embed_tokens.weight"], layers, weights["model.norm.weight"])
if BUG == "folded":
    with torch.no_grad():
        for value in decoder.parameters():
            value.add_(value.ndim == 1)
optimizer = torch.optim.SGD(decoder.parameters(), 0.05, momentum=0.9, foreach=True)
logits = decoder(batch["tokens"])
loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())  # bug: final
loss.backward()
optimizer.step()
show(loss.item(), decoder.parameters())
