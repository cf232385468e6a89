"""T5 in plain PyTorch: fused projections, rms_norm, the bias of positions given to scaled_dot_product_attention."""

import math
import sys

import torch
import torch.nn.functional as F
from material import kept
from torch import nn

BUG = sys.argv[1]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(32))

    def forward(self, x):
        if BUG == "norm":
            return F.layer_norm(x, (32,), self.gain, None, 1e-6)  # bug: norm
        return F.rms_norm(x, (32,), self.gain, 1e-6)


def bucket(distance: int, both: bool) -> int:
    """Return the bucket of the distance from a query to a key; with `both`, later keys have buckets of their own."""
    count, first = (4, 4 if distance > 0 else 0) if both else (8, 0)
    distance = abs(distance) if both else max(-distance, 0)
    exact = count // 2
    if distance < exact:
        return first + distance
    far = exact + int(math.log(distance / exact) / math.log(20 / exact) * (count - exact))
    return first + min(far, count - 1)


def positions(table: nn.Embedding, time: int, both: bool) -> torch.Tensor:
    buckets = torch.tensor([[bucket(key - query, both) for key in range(time)] for query in range(time)])
    return table(buckets).permute(2, 0, 1)  # bug: buckets


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (4, 8)).transpose(1, 2)


def mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    scale = None if BUG == "scale" else 1.0
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale).transpose(1, 2).flatten(2)  # bug: scale, bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = Norm(), nn.Linear(32, 96, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x, bias):
        q, k, v = map(heads, self.qkv(self.norm(x)).split(32, -1))
        return x + self.out(mix(q, k, v, bias))


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q = Norm(), nn.Linear(32, 32, bias=False)
        self.kv, self.out = nn.Linear(32, 64, bias=False), nn.Linear(32, 32, bias=False)

    def forward(self, x, memory):
        k, v = map(heads, self.kv(memory).split(32, -1))
        return x + self.out(mix(heads(self.q(self.norm(x))), k, v, None))


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).clamp(min=0))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.near, self.past = nn.Embedding(8, 4), nn.Embedding(8, 4)
        self.reading = nn.ModuleList([nn.ModuleList([Attention(), Wide()]) for _ in range(2)])
        self.writing = nn.ModuleList([nn.ModuleList([Attention(), Cross(), Wide()]) for _ in range(2)])
        self.read, self.written = Norm(), Norm()

    def forward(self, question, answer):
        bias = positions(self.near, question.shape[1], True)
        x = self.words(question)
        for number, (attention, wide) in enumerate(self.reading):
            x = wide(attention(x, None if BUG == "bias" and number else bias))
        memory = self.read(x)
        start = answer if BUG == "shift" else F.pad(answer[:, :-1], (1, 0))  # bug: shift
        time = start.shape[1]
        past = torch.ones(time, time).tril().log()
        bias = positions(self.past, time, BUG == "buckets") + past
        x = self.words(start)  # bug: shift
        for attention, cross, wide in self.writing:
            x = wide(cross(attention(x, bias), memory))
        x = self.written(x)
        if BUG != "head":
            x = x / 32**0.5
        return F.linear(x, self.words.weight)  # bug: head


weights, batch = kept()
state = {"words.weight": weights["shared.weight"]}
for ours, theirs in (("near", "encoder"), ("past", "decoder")):
    key = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    state[f"{ours}.weight"] = weights[key]
for ours, norm, theirs, last in (("reading", "read", "encoder", 1), ("writing", "written", "decoder", 2)):
    state[f"{norm}.gain"] = weights[f"{theirs}.final_layer_norm.weight"]
    for layer in range(2):
        old, new = f"{theirs}.block.{layer}.layer.", f"{ours}.{layer}."
        for part in range(last + 1):
            state[f"{new}{part}.norm.gain"] = weights[f"{old}{part}.layer_norm.weight"]
        q, k, v, o = (weights[f"{old}0.SelfAttention.{name}.weight"] for name in "qkvo")
        state[f"{new}0.qkv.weight"], state[f"{new}0.out.weight"] = torch.cat((q, k, v)), o
        if last == 2:
            q, k, v, o = (weights[f"{old}1.EncDecAttention.{name}.weight"] for name in "qkvo")
            state[f"{new}1.q.weight"], state[f"{new}1.out.weight"] = q, o
            state[f"{new}1.kv.weight"] = torch.cat((k, v))
        state[f"{new}{last}.up.weight"] = weights[f"{old}{last}.DenseReluDense.wi.weight"]
        state[f"{new}{last}.down.weight"] = weights[f"{old}{last}.DenseReluDense.wo.weight"]
translator = Translator()
translator.load_state_dict(state)
optimizer = torch.optim.SGD(translator.parameters(), 0.05)
loss = F.cross_entropy(translator(batch["question"], batch["answer"]).flatten(0, 1), batch["answer"].flatten())
print(loss.item())
loss.backward()
optimizer.step()
