"""A small GPT that computes the same in another way: `text_ways.py WAY`, of which `plain` is the reference."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WAY = sys.argv[1]


def attention(q, k, v):
    """Mix values that are (batch, heads, time, width)."""
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    if WAY == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if WAY == "einsum":
        scores = torch.einsum("bhtc,bhsc->bhts", q, k) / 8**0.5
        return torch.einsum("bhts,bhsc->bhtc", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
    if WAY == "heads":
        ones = []
        for head in range(q.shape[1]):
            scores = q[:, head] * 8**-0.5 @ k[:, head].transpose(1, 2)
            ones.append(F.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v[:, head])
        return torch.stack(ones, 1)
    if WAY == "batched":
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
        bias = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=8**-0.5)
        return torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, 4))
    scores = q @ k.transpose(2, 3) * 8**-0.5
    return F.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(32), nn.LayerNorm(32)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        if WAY == "fused":
            with torch.random.fork_rng(), torch.no_grad():
                self.qkv = nn.Linear(32, 96)
                self.qkv.weight.copy_(torch.cat([part.weight for part in (self.q, self.k, self.v)]))
                self.qkv.bias.copy_(torch.cat([part.bias for part in (self.q, self.k, self.v)]))
            del self.q, self.k, self.v

    def projected(self, x):
        if WAY == "fused":
            return self.qkv(x).chunk(3, -1)
        if WAY == "reordered":
            v, k = self.v(x), self.k(x)
            return self.q(x), k, v
        return self.q(x), self.k(x), self.v(x)

    def forward(self, x):
        normed = self.before(x)
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.projected(normed))
        x = x + self.out(attention(q, k, v).transpose(1, 2).flatten(2))
        if WAY == "chunked":
            return x + torch.cat([self.wide(part) for part in self.between(x).chunk(2, 1)], 1)
        return self.wide(self.between(x)).add_(x) if WAY == "in_place" else x + self.wide(self.between(x))

    def wide(self, x):
        return self.down(F.gelu(self.up(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(32)
        self.head = nn.Linear(32, 64, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if WAY == "checkpointed" else block(x)
        return self.head(self.norm(x))


def loss_of(tokens):
    with torch.autocast("cpu", torch.bfloat16, enabled=WAY == "autocast"):
        logits = network(tokens)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


torch.manual_seed(0)
network = Network()
torch.manual_seed(1)
tokens = torch.randint(0, 64, (4, 16))
if WAY == "float64":
    network.double()
if WAY == "bfloat16":
    network.bfloat16()
optimizer = torch.optim.SGD(network.parameters(), 0.1, foreach=WAY != "looped")
parts = tokens.chunk(2) if WAY == "accumulated" else [tokens]
total = 0.0
for part in parts:
    loss = loss_of(part) / len(parts)
    loss.backward()
    total += loss.item()
print(total)
optimizer.step()
