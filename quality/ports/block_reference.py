"""A small decoder in PyTorch: two blocks of attention and dense layers."""

import torch
import torch.nn.functional as F
from material import keep, move, show
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.wide, self.narrow = nn.Linear(32, 96), nn.Linear(96, 32)

    def forward(self, x):
        h = self.ln_1(x)
        q, k, v = (part(h).view(*h.shape[:2], 4, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(48, 32), nn.Embedding(16, 32)
        self.blocks, self.ln, self.head = nn.Sequential(Block(), Block()), nn.LayerNorm(32), nn.Linear(32, 48)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.ln(self.blocks(x)))


torch.manual_seed(0)
model = Model()
move(model)
tokens = torch.randint(0, 48, (2, 10))
keep(model.state_dict(), tokens=tokens)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
logits = model(tokens)[:, :-1]
loss = F.cross_entropy(logits.reshape(-1, 48), tokens[:, 1:].reshape(-1))
loss.backward()
optimizer.step()
show(loss.item(), model.parameters())
