"""BERT in plain PyTorch: einsum, softmax in steps, layer norm by hand, one projection for keys and values."""

import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]
EPS = 1e-5 if BUG == "eps" else 1e-12


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(32)), nn.Parameter(torch.zeros(32))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + EPS) * self.scale + self.shift  # bug: eps


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(32, 32)
        self.inner, self.outer = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm_a, self.norm_b = Norm(), Norm()

    def forward(self, x, absent):
        q = self.q(x).reshape(*x.shape[:2], 4, 8) * 8**-0.5
        k, v = (part.reshape(*x.shape[:2], 4, 8) for part in self.kv(x).chunk(2, -1))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)  # bug: softmax, padding
        if BUG != "padding":
            scores = scores.masked_fill(absent, torch.finfo(scores.dtype).min)
        shares = torch.softmax(scores, dim=-2 if BUG == "softmax" else -1)  # bug: softmax, padding
        mixed = self.o(torch.einsum("bhqk,bkhd->bqhd", shares, v).flatten(2))
        x = x + self.norm_a(mixed) if BUG == "residual" else self.norm_a(x + mixed)  # bug: residual
        wide = F.gelu(self.inner(x), approximate="tanh" if BUG == "act" else "none")  # bug: act
        return self.norm_b(x + self.outer(wide))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place, self.segment = nn.Embedding(64, 32), nn.Embedding(32, 32), nn.Embedding(2, 32)
        self.norm, self.layers = Norm(), nn.ModuleList([Layer(), Layer()])
        self.pool, self.head = nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, tokens, present, segments):
        places = self.place.weight[: tokens.shape[1]]
        x = self.word(tokens) + places  # bug: segments
        if BUG != "segments":
            x = x + self.segment(segments)
        x = self.norm(x)  # bug: segments
        if BUG == "dropout":
            x = F.dropout(x, 0.1)  # bug: dropout
        absent = present[:, None, None, :] == 0
        for layer in self.layers:
            x = layer(x, absent)
        first = x.mean(1) if BUG == "pool" else x[:, 0]  # bug: pool
        return self.head(torch.tanh(self.pool(first)))


weights, batch = kept()
state = {}
for their, our in (("word", "word"), ("position", "place"), ("token_type", "segment")):
    state[f"{our}.weight"] = weights[f"bert.embeddings.{their}_embeddings.weight"]
norms = {"norm": "bert.embeddings.LayerNorm"}
linears = {"pool": ["bert.pooler.dense"], "head": ["classifier"]}
for layer in range(2):
    old, new = f"bert.encoder.layer.{layer}.", f"layers.{layer}."
    norms[new + "norm_a"], norms[new + "norm_b"] = old + "attention.output.LayerNorm", old + "output.LayerNorm"
    linears[new + "q"] = [old + "attention.self.query"]
    linears[new + "kv"] = [old + "attention.self.key", old + "attention.self.value"]
    linears[new + "o"] = [old + "attention.output.dense"]
    linears[new + "inner"], linears[new + "outer"] = [old + "intermediate.dense"], [old + "output.dense"]
for our, their in norms.items():
    state[f"{our}.scale"], state[f"{our}.shift"] = weights[f"{their}.weight"], weights[f"{their}.bias"]
for our, theirs in linears.items():
    for kind in ("weight", "bias"):
        state[f"{our}.{kind}"] = torch.cat([weights[f"{their}.{kind}"] for their in theirs])
classifier = Classifier()
classifier.load_state_dict(state)
torch.manual_seed(1)
optimizer = torch.optim.SGD(classifier.parameters(), 0.1)
loss = F.cross_entropy(classifier(batch["tokens"], batch["present"], batch["segments"]), batch["labels"])
print(loss.item())
loss.backward()
optimizer.step()
