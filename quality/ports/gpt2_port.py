"""GPT-2 in plain PyTorch: Linear for Conv1D, one call for attention."""

import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]
EPS = 1e-6 if BUG == "eps" else 1e-5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32, EPS), nn.LayerNorm(32, EPS)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def attend(self, x):
        batch, time, _ = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, 4, 8).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(time, time, dtype=torch.bool).tril(1 if BUG == "mask" else 0)  # bug: mask
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)  # bug: mask
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.out(mixed)  # bug: transpose

    def forward(self, x):
        normed = self.norm1(x)  # bug: eps
        mixed = self.attend(normed)
        x = (normed if BUG == "residual" else x) + mixed  # bug: residual
        wide = self.up(self.norm2(x))
        wide = F.gelu(wide, approximate="none" if BUG == "act" else "tanh")  # bug: act
        return x + self.down(wide)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(64, 32), nn.Embedding(32, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(32, EPS)
        if BUG == "tied":
            self.head = nn.Parameter(torch.zeros(64, 32))

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        if BUG == "position":
            places = places + 1  # bug: position
        x = self.tokens(tokens)
        x = x + self.places(places)  # bug: position
        x = self.norm(self.blocks(x))
        return F.linear(x, self.head if BUG == "tied" else self.tokens.weight)  # bug: tied


weights, batch = kept()
names = {"attn.c_attn": "qkv", "attn.c_proj": "out", "mlp.c_fc": "up", "mlp.c_proj": "down"}
state = {"tokens.weight": weights["transformer.wte.weight"], "places.weight": weights["transformer.wpe.weight"]}
for kind in ("weight", "bias"):
    state[f"norm.{kind}"] = weights[f"transformer.ln_f.{kind}"]
    for layer in range(2):
        old, new = f"transformer.h.{layer}.", f"blocks.{layer}."
        for their, our in (("ln_1", "norm1"), ("ln_2", "norm2"), *names.items()):
            value = weights[f"{old}{their}.{kind}"]
            is_as_it_is = BUG == "transpose" and our == "out"
            state[f"{new}{our}.{kind}"] = value if is_as_it_is or value.ndim == 1 else value.T.contiguous()
if BUG == "tied":
    state["head"] = state["tokens.weight"].clone()
network = Network()
network.load_state_dict(state)
optimizer = torch.optim.SGD(network.parameters(), 0.1)
logits = network(batch["tokens"])
loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())
print(loss.item())
loss.backward()
optimizer.step()
