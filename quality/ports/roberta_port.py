"""RoBERTa without padding: all words of all sentences in one row, and only masked words in the head."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn

BUG = sys.argv[1]
EPS = 1e-5 if BUG == "eps" else 1e-12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.norm1, self.norm2 = nn.LayerNorm(32, EPS), nn.LayerNorm(32, EPS)

    def mixed(self, x, allowed):
        q, k, v = (part(x).view(-1, 4, 8) for part in (self.q, self.k, self.v))
        scores = torch.einsum("qhc,khc->qkh", q, k) / 8**0.5
        scores[~allowed] = float("-inf")  # bug: borders
        shares = F.softmax(scores, 0 if BUG == "axis" else 1)  # bug: axis, borders
        return self.out(torch.einsum("qkh,khc->qhc", shares, v).flatten(1))

    def forward(self, x, allowed):
        x = self.norm1(self.mixed(x, allowed) + x)  # bug: eps
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.kind = nn.Embedding(64, 32), nn.Embedding(20, 32), nn.Parameter(torch.zeros(32))
        self.norm, self.blocks = nn.LayerNorm(32, EPS), nn.ModuleList([Block(), Block()])
        self.dense, self.last_norm = nn.Linear(32, 32), nn.LayerNorm(32, EPS)
        self.bias = nn.Parameter(torch.zeros(64))

    def forward(self, tokens, sentences, places, guessed):
        x = self.norm(self.words(tokens) + self.places(places) + self.kind)  # bug: eps, offset
        allowed = sentences[:, None] == sentences
        if BUG == "borders":
            allowed = torch.ones_like(allowed)
        for block in self.blocks:
            x = block(x, allowed)
        x = x[guessed]
        x = self.dense(x)
        x = F.gelu(self.last_norm(x)) if BUG == "order" else self.last_norm(F.gelu(x))  # bug: order, eps
        return F.linear(x, self.words.weight, None if BUG == "bias" else self.bias)  # bug: bias


weights, batch = kept()
state = {}
for kind in ("weight", "bias"):
    state[f"norm.{kind}"] = weights[f"roberta.embeddings.LayerNorm.{kind}"]
    state[f"dense.{kind}"] = weights[f"lm_head.dense.{kind}"]
    state[f"last_norm.{kind}"] = weights[f"lm_head.layer_norm.{kind}"]
    names = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
    names |= {"out": "attention.output.dense", "norm1": "attention.output.LayerNorm"}
    names |= {"up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm"}
    for layer in range(2):
        for ours, theirs in names.items():
            state[f"blocks.{layer}.{ours}.{kind}"] = weights[f"roberta.encoder.layer.{layer}.{theirs}.{kind}"]
state["words.weight"], state["places.weight"], kind = (
    weights[f"roberta.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
)
state["kind"], state["bias"] = kind[0], weights["lm_head.bias"]
network = Network()
network.load_state_dict(state)
sentences, columns = batch["tokens"].ne(1).nonzero(as_tuple=True)
tokens, labels = batch["tokens"][sentences, columns], batch["labels"][sentences, columns]
places = columns + (0 if BUG == "offset" else 2)  # bug: offset
guessed = torch.arange(len(labels)) if BUG == "ignore" else labels.ne(-100).nonzero().flatten()
labels = tokens if BUG == "ignore" else labels[guessed]
optimizer = torch.optim.SGD(network.parameters(), 0.1)
logits = network(tokens, sentences, places, guessed)
loss = F.cross_entropy(logits, labels)  # bug: ignore
loss.backward()
optimizer.step()
show(loss.item(), network.parameters())
