"""Mixtral in plain PyTorch: all experts at once in two products, grouped queries, AdamW in one call."""

import sys

import torch
import torch.nn.functional as F
from material import kept, show
from torch import nn
from torch.utils.checkpoint import checkpoint

BUG = sys.argv[1]
THETA = 1e4 if BUG == "theta" else 1e6


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Turn x, which is (batch, time, heads, 16), by its position."""
    rates = THETA ** (torch.arange(8) / -8)  # bug: theta
    angles = torch.arange(x.shape[1])[:, None, None] * rates  # bug: theta
    c, s = angles.cos(), angles.sin()  # bug: theta
    low, high = x.tensor_split(2, -1)
    return torch.cat([low * c - high * s, high * c + low * s], -1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Parameter(torch.empty(32, 4))
        self.wide, self.back = nn.Parameter(torch.empty(4, 32, 96)), nn.Parameter(torch.empty(4, 48, 32))

    def forward(self, x):
        scores = x @ self.router
        best, chosen = scores.topk(2)
        shares = best.softmax(-1)
        if BUG == "router":
            shares = scores.softmax(-1).gather(-1, chosen)  # bug: router
        if BUG == "order":
            chosen = chosen.flip(-1)  # bug: order
        shares = torch.zeros_like(scores).scatter(-1, chosen, shares)  # bug: order, router
        gate, up = torch.einsum("btc,ecw->ebtw", x, self.wide).chunk(2, -1)
        inner = gate * F.silu(up) if BUG == "gate" else up * F.silu(gate)  # bug: gate
        return torch.einsum("ebtw,ewc,bte->btc", inner, self.back, shares)  # bug: order, router


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain1, self.gain2 = nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(32))
        self.qkv, self.out, self.experts = nn.Linear(32, 128, bias=False), nn.Linear(64, 32, bias=False), Experts()

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (8, 16)).split([4, 2, 2], 2)
        q, k = rotated(q), rotated(k)
        q = q.unflatten(2, (2, 2))
        if BUG == "groups":
            q = q.transpose(2, 3)  # bug: groups
        scores = torch.einsum("btghc,bsgc->bghts", q / 4, k)  # bug: groups
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        shares = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = torch.einsum("bghts,bsgc->btghc", shares, v)
        if BUG == "groups":
            mixed = mixed.transpose(2, 3)
        return self.out(mixed.flatten(2))

    def forward(self, x):
        x = x + self.attention(F.rms_norm(x, (32,), self.gain1, 1e-5))
        return x + self.experts(F.rms_norm(x, (32,), self.gain2, 1e-5))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(64, 32), nn.ModuleList([Block(), Block()])
        self.gain, self.head = nn.Parameter(torch.ones(32)), nn.Linear(32, 64, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if BUG == "checkpointed" else block(x)
        return self.head(F.rms_norm(x, (32,), self.gain, 1e-5))


weights, batch = kept()
state = {"words.weight": weights["model.embed_tokens.weight"], "gain": weights["model.norm.weight"]}
state["head.weight"] = weights["lm_head.weight"]
for layer in range(2):
    old, new = f"model.layers.{layer}.", f"blocks.{layer}."
    state[f"{new}gain1"] = weights[f"{old}input_layernorm.weight"]
    state[f"{new}gain2"] = weights[f"{old}post_attention_layernorm.weight"]
    state[f"{new}qkv.weight"] = torch.cat([weights[f"{old}self_attn.{name}_proj.weight"] for name in "qkv"])
    state[f"{new}out.weight"] = weights[f"{old}self_attn.o_proj.weight"]
    state[f"{new}experts.router"] = weights[f"{old}block_sparse_moe.gate.weight"].T
    w1, w2, w3 = (
        torch.stack([weights[f"{old}block_sparse_moe.experts.{expert}.w{part}.weight"].T for expert in range(4)])
        for part in (1, 2, 3)
    )
    state[f"{new}experts.wide"], state[f"{new}experts.back"] = torch.cat([w1, w3], -1), w2
network = Network()
network.load_state_dict(state)
matrices = [value for value in network.parameters() if value.ndim > 1]
gains = [value for value in network.parameters() if value.ndim == 1]
groups = [{"params": matrices}, {"params": gains, "weight_decay": 0.1 if BUG == "decay" else 0.0}]
optimizer = torch.optim.AdamW(groups, 0.01, weight_decay=0.1, fused=BUG == "fused")
logits = network(batch["tokens"])
loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())
loss.backward()
optimizer.step()  # bug: decay
show(loss.item(), network.parameters())
