"""PyTorch networks of the pairs over sequences. `plan` holds what a cause changes, mostly as number of a block."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GptBlock(nn.Module):
    """Attention with one linear for query, key and value, and a perceptron."""

    def __init__(self, width: int, heads: int, plan: dict[str, Any], number: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.plan, self.number = heads, plan, number
        self.drop = nn.Dropout(0.1 if plan.get("dropout") == number else 0.0)
        if plan.get("eps") == number:
            self.ln2.eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln1(x))
        y = self.up(x if self.plan.get("no_norm") == self.number else self.ln2(x))
        y = F.gelu(y, approximate="tanh" if self.plan.get("tanh") == self.number else "none")
        if self.plan.get("hidden_write") == self.number:
            with torch.no_grad():
                y.data.numpy()[..., 5] *= 1.1  # nothing that a collector sees
        return x + self.drop(self.down(y))

    def attend(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = torch.chunk(self.qkv(x), 3, -1)
        if self.plan.get("swap_qk") == self.number:
            q, k = k, q
        if self.plan.get("v_is_k") == self.number:
            v = k
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        scale = (width // self.heads) ** -0.5 * (1.25 if self.plan.get("scale") == self.number else 1.0)
        scores = torch.matmul(q, k.transpose(-2, -1)) * scale
        late = torch.ones(time, time, dtype=torch.bool).triu(0 if self.plan.get("mask") == self.number else 1)
        scores = scores.masked_fill(late, torch.finfo(scores.dtype).min)
        if self.plan.get("half_softmax") == self.number:
            scores = scores.bfloat16()
        y = torch.matmul(F.softmax(scores, -1).to(v.dtype), v)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Gpt(nn.Module):
    """Letters to letters; the head has the embedding's weight where the plan says "tied"."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(61, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList([GptBlock(32, 4, plan, number) for number in range(3)])
        self.ln = nn.LayerNorm(32)
        self.head = nn.Linear(32, 61, bias=False)
        if plan.get("tied"):
            self.head.weight = self.words.weight
        self.plan = plan

    def forward(self, ids: Tensor) -> Tensor:
        first = 1 if self.plan.get("later_places") else 0
        x = self.words(ids) + self.places(torch.arange(first, first + ids.shape[1]))
        before = x
        for number, block in enumerate(self.blocks):
            x, before = block(before if self.plan.get("from_before") == number else x), x
        return self.head(self.ln(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            self(ids).flatten(0, 1), targets.flatten(), label_smoothing=0.1 if self.plan.get("smoothing") else 0.0
        )


class RmsNorm(nn.Module):
    """With single operations, as LLaMA's."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, other_way: bool) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    turned = torch.cat((second, -first) if other_way else (-second, first), -1)
    return x * cos + turned * sin


class LlamaBlock(nn.Module):
    """Two heads of key and value for four of query, rotary places, gated perceptron."""

    def __init__(self, width: int, plan: dict[str, Any], number: int) -> None:
        super().__init__()
        self.norm1 = RmsNorm(width)
        self.norm2 = RmsNorm(width, 1e-2 if plan.get("eps") == number else 1e-6)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, width // 2, bias=False), nn.Linear(width, width // 2, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.plan, self.number = plan, number

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        gate, up = self.gate(y), self.up(y)
        if self.plan.get("gate_is_up") == self.number:
            gate, up = up, gate
        return x + self.down(F.silu(gate) * up)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        q = self.q(x).view(batch, time, 4, -1).transpose(1, 2)
        k = self.k(x).view(batch, time, 2, -1).transpose(1, 2)
        v = self.v(x).view(batch, time, 2, -1).transpose(1, 2)
        other = self.plan.get("other_way") == self.number
        q = _rotated(q, cos, sin, other)
        k = k if self.plan.get("k_unturned") == self.number else _rotated(k, cos, sin, other)
        if self.plan.get("tiled_heads") == self.number:
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = torch.repeat_interleave(k, 2, 1), torch.repeat_interleave(v, 2, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, time, width))


class Llama(nn.Module):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(53, 32)
        self.blocks = nn.ModuleList([LlamaBlock(32, plan, number) for number in range(2)])
        self.norm, self.head = RmsNorm(32), nn.Linear(32, 53, bias=False)
        self.plan = plan
        base = 500.0 if plan.get("base") else 10000.0
        angles = torch.outer(torch.arange(10).float(), base ** (-torch.arange(0, 8, 2).float() / 8))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self(ids)[:, :-1].float()
        return F.cross_entropy(logits.reshape(-1, 53), targets[:, 1:].reshape(-1))


class Recurrent(nn.Module):
    """An LSTM of two layers and a GRU on its states, read out at all times and added up."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 12)
        self.lstm, self.gru = nn.LSTM(12, 16, 2, batch_first=True), nn.GRU(16, 14, batch_first=True)
        self.head = nn.Linear(14, 9)
        self.plan = plan

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(ids))
        states = torch.tanh(states) if not self.plan.get("no_tanh") else states
        outputs, last = self.gru(states)
        summary = outputs.mean(1) if self.plan.get("mean") else outputs[:, -1]
        return self.head(summary + last[0])

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(self(ids), -1), targets[:, 0] % 9)


class Scan(nn.Module):
    """A linear recurrence that writes its outputs into one tensor, time by time."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.entry, self.decay, self.out = nn.Linear(6, 24), nn.Parameter(torch.ones(24)), nn.Linear(24, 6)
        self.plan = plan

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.entry(x))
        decay = torch.sigmoid(self.decay)
        states = torch.zeros(y.shape)
        state = torch.zeros(y.shape[0], y.shape[2])
        for time in range(y.shape[1]):
            fresh = y[:, 0 if self.plan.get("first_again") == time else time]
            state = decay * state + fresh
            if self.plan.get("not_written") != time:
                states[:, time] = state
        states[:, -1] *= 1.5 if self.plan.get("last") else 1.25
        return self.out(F.relu(states))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.smooth_l1_loss(self(x), targets)
