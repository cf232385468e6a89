"""Train a decoder, as its original or as a port of it: `port.py original|port [WAY]`.

A way is another right one (eager, checkpointed, bfloat16), or a bug that ports have (eps, theta, interleaved, repeat,
scale, gelu, tied, half).
"""

import sys

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

IS_PORT, WAY = sys.argv[1] == "port", sys.argv[2] if len(sys.argv) > 2 else ""
EPS = 1e-5 if WAY == "eps" else 1e-6
THETA = 1e6 if WAY == "theta" else 1e4
WIDTH, HEADS, GROUPS, LENGTH = 32, 4, 2, 12


def drawn(*shape):
    return torch.nn.Parameter(torch.randn(shape) * shape[-1] ** -0.5)


class Original(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.first, self.last = drawn(40, WIDTH), drawn(WIDTH), drawn(WIDTH)
        self.q, self.k, self.v = drawn(WIDTH, WIDTH), drawn(WIDTH // 2, WIDTH), drawn(WIDTH // 2, WIDTH)
        self.o, self.gate, self.up = drawn(WIDTH, WIDTH), drawn(2 * WIDTH, WIDTH), drawn(2 * WIDTH, WIDTH)
        self.down = drawn(WIDTH, 2 * WIDTH)

    def norm(self, x, weight):
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))

    def turn(self, x):
        angles = torch.arange(LENGTH)[:, None] * THETA ** (-torch.arange(0, 8, 2) / 8)
        cosine, sine = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()
        a, b = x.chunk(2, -1)
        return (x * cosine + torch.cat([-b, a], -1) * sine).to(x.dtype)

    def attention(self, x):
        q, k, v = (F.linear(x, part).unflatten(2, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (part.repeat_interleave(HEADS // GROUPS, 1) for part in (self.turn(k), v))
        if WAY == "eager":
            scores = self.turn(q) @ k.transpose(2, 3) / 8**0.5
            later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(later, torch.finfo(scores.dtype).min).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.o)

    def wide(self, x):
        return F.linear(F.silu(F.linear(x, self.gate)) * F.linear(x, self.up), self.down)

    def forward(self, tokens):
        x = F.embedding(tokens, self.words)
        x = x + self.attention(self.norm(x, self.first))
        x = x + (checkpoint(self.wide, x, use_reentrant=False) if WAY == "checkpointed" else self.wide(x))
        return F.linear(self.norm(x, self.last), self.words)


class Port(Original):
    def __init__(self, original):
        super().__init__()
        for name, weight in original.named_parameters():
            getattr(self, name).data.copy_(weight)
        self.qkv = torch.nn.Parameter(torch.cat([self.q.data, self.k.data, self.v.data]))
        self.inner = torch.nn.Parameter(torch.cat([self.gate.data, self.up.data]))
        self.head = torch.nn.Parameter(self.words.data.clone()) if WAY == "tied" else self.words
        del self.q, self.k, self.v, self.gate, self.up

    def norm(self, x, weight):
        return F.rms_norm(x, (WIDTH,), weight, EPS)

    def turn(self, x):
        frequencies = torch.outer(torch.arange(LENGTH).float(), THETA ** (-torch.arange(4) / 4))
        turns = torch.polar(torch.ones_like(frequencies), frequencies)
        pairs = x.unflatten(-1, (4, 2)) if WAY == "interleaved" else torch.stack(x.chunk(2, -1), -1)
        turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
        return turned.flatten(-2) if WAY == "interleaved" else torch.cat(turned.unbind(-1), -1)

    def attention(self, x):
        q, k, v = F.linear(x, self.qkv).split((WIDTH, WIDTH // 2, WIDTH // 2), -1)
        q = self.turn(q.unflatten(2, (HEADS, 8)).transpose(1, 2)).unflatten(1, (GROUPS, -1))
        k, v = (part.unflatten(2, (GROUPS, 8)).transpose(1, 2)[:, :, None] for part in (k, v))
        k = self.turn(k)
        if WAY == "repeat":
            q = q.flatten(1, 2).unflatten(1, (-1, GROUPS)).transpose(1, 2)
        scores = torch.einsum("bgihd,bgjkd->bgihk", q, k) * (8**-0.25 if WAY == "scale" else 8**-0.5)
        later = torch.arange(LENGTH)[None] > torch.arange(LENGTH)[:, None]
        scores = scores.masked_fill(later, float("-inf"))
        shares = scores.half().softmax(-1).float() if WAY == "half" else scores.softmax(-1)
        mixed = torch.einsum("bgihk,bgjkd->bgihd", shares, v)
        if WAY == "repeat":
            mixed = mixed.transpose(1, 2).flatten(1, 2).unflatten(1, (GROUPS, -1))
        return F.linear(mixed.flatten(1, 2).transpose(1, 2).flatten(2), self.o)

    def wide(self, x):
        gate, up = F.linear(x, self.inner).chunk(2, -1)
        opened = F.gelu(gate) if WAY == "gelu" else gate * torch.sigmoid(gate)
        return F.linear(opened * up, self.down)

    def forward(self, tokens):
        x = self.words[tokens]
        x = x + self.attention(self.norm(x, self.first))
        return self.norm(x + self.wide(x), self.last) @ self.head.T


torch.manual_seed(0)
model = Original()
tokens = torch.randint(0, 40, (2, LENGTH))
model = Port(model) if IS_PORT else model
if WAY == "bfloat16":
    model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
print(loss.item())
loss.backward()
optimizer.step()
