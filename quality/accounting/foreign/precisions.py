"""Networks and pairs of mixed precision: autocast, networks in a narrow dtype with islands, scaled losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quality.accounting.foreign.kernels import KERNEL, Fault
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.training import Training, Way


class Segments(nn.Module):
    """Convolutions to half the size and back, joined with what they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(24, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, count) for count in (8, 16, 16, 8))
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = functional.silu(self.norms[0](self.first(x)))
        x = functional.silu(self.norms[1](self.down(wide)))
        x = x + functional.silu(self.norms[2](self.middle(x)))
        x = functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        x = functional.silu(self.norms[3](self.up(torch.cat([x, wide], 1))))
        return self.last(x)  # type: ignore[no-any-return]  # Modules return Any


class Rms(nn.Module):
    """A norm that computes in float32 whatever it gets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width) + 0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.type_as(x)


class Rotary(nn.Module):
    """A decoder with rotary places, few keys for many queries, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(48, 32)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": Rms(32),
                    "query": nn.Linear(32, 32, bias=False),
                    "pair": nn.Linear(32, 32, bias=False),
                    "out": nn.Linear(32, 32, bias=False),
                    "second": Rms(32),
                    "gate": nn.Linear(32, 64, bias=False),
                    "up": nn.Linear(32, 64, bias=False),
                    "down": nn.Linear(64, 32, bias=False),
                }
            )
            for _ in range(2)
        )
        self.norm = Rms(32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        angles = torch.outer(torch.arange(ids.shape[1]).float(), 100 ** -(torch.arange(4).float() / 4))
        cosine, sine = (part.repeat(1, 2).to(x.dtype) for part in (angles.cos(), angles.sin()))
        for block in self.blocks:
            x = x + self._attention(block, block["first"](x), cosine, sine)  # type: ignore[index, operator]
            y = block["second"](x)  # type: ignore[index, operator]
            x = x + block["down"](functional.silu(block["gate"](y)) * block["up"](y))  # type: ignore[index, operator]
        return self.norm(x) @ self.words.weight.t()  # type: ignore[no-any-return]  # Modules return Any

    def _attention(self, block: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query = block["query"](x).unflatten(-1, (4, 8)).transpose(1, 2)
        key, value = block["pair"](x).unflatten(-1, (4, 8)).transpose(1, 2).split(2, 1)
        query, key = (_turned(part, cosine, sine) for part in (query, key))
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        scores = (query @ key.transpose(-1, -2)).float() / math.sqrt(8)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, torch.finfo(scores.dtype).min).softmax(-1).to(value.dtype)
        return block["out"]((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat([-right, left], -1) * sine


class Towers(nn.Module):
    """Pictures and texts of one space; likeness is computed in float32, outside of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Conv2d(3, 24, 4, stride=4), nn.EmbeddingBag(40, 24, mode="mean")
        self.norm, self.hidden = nn.LayerNorm(24), nn.Linear(24, 48)
        self.sides = nn.ModuleList(nn.Linear(48, 16) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        picture = functional.gelu(self.hidden(self.norm(self.patches(x).flatten(2).mean(-1))))
        text = torch.tanh(self.hidden(self.norm(self.words(ids))))
        with torch.autocast("cpu", enabled=False):
            both = (side(part.to(side.weight.dtype)) for side, part in zip(self.sides, (picture, text)))
            one, other = (functional.normalize(part.float(), dim=-1) for part in both)
            return self.scale.float().exp() * one @ other.t()


class Readings(nn.Module):
    """Readings in time: a recurrent cell, pooled by what each step is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.cell = nn.Linear(5, 16), nn.GRUCell(16, 20)
        self.worth, self.out = nn.Linear(20, 1), nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 20), nn.GELU())
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, state = [], torch.zeros(len(x), 20, dtype=x.dtype)
        for step in range(x.shape[1]):
            state = self.cell(torch.relu(self.given(x[:, step])), state)
            states.append(state)
        stacked = torch.stack(states, 1)
        weights = functional.softmax(self.worth(stacked), 1)
        return self.last(self.out((weights * stacked).sum(1)))  # type: ignore[no-any-return]  # Modules return Any


def _segments() -> Training:
    batch = {"x": torch.randn(2, 3, 12, 12), "labels": torch.randint(0, 2, (2, 12, 12))}
    return Training(Segments(), batch, lambda net, b: functional.cross_entropy(net(b["x"]).float(), b["labels"]))


def _rotary() -> Training:
    batch = {"ids": torch.randint(0, 48, (3, 10)), "labels": torch.randint(0, 48, (30,))}
    return Training(
        Rotary(), batch, lambda net, b: functional.cross_entropy(net(b["ids"]).flatten(0, 1).float(), b["labels"])
    )


def _likeness(net: Any, batch: dict[str, Tensor]) -> Tensor:
    found, wanted = net(batch["x"], batch["ids"]), torch.arange(len(batch["x"]))
    return (functional.cross_entropy(found, wanted) + functional.cross_entropy(found.t(), wanted)) / 2


def _towers() -> Training:
    return Training(Towers(), {"x": torch.randn(6, 3, 8, 8), "ids": torch.randint(0, 40, (6, 7))}, _likeness)


def _readings() -> Training:
    batch = {"x": torch.randn(7, 6, 5), "wanted": torch.randn(7, 3)}
    return Training(
        Readings(), batch, lambda net, b: functional.smooth_l1_loss(net(b["x"]).float(), b["wanted"].float())
    )


PRECISIONS: dict[str, Callable[[], Training]] = {
    "segments": _segments,
    "rotary": _rotary,
    "towers": _towers,
    "readings": _readings,
}

_NARROW = {"dtype": "bfloat16"}
_CAST = {"autocast": "bfloat16"}
_SCALED = {"autocast": "float16", "scale": 1024.0, "optimizer": "SGD"}
_OTHER: dict[str, Any] = {"is_reordered": True}
#: Of each network (operator, call) whose forward, and whose backward, is 5 % too large.
_KERNELS = {
    "segments": (("silu", 1), ("native_group_norm_backward", 1)),
    "rotary": (("bmm", 2), ("silu_backward", 1)),
    "towers": (("gelu", 0), ("tanh_backward", 0)),
    "readings": (("gelu", 0), ("native_layer_norm_backward", 0)),
}


def _clean() -> Iterator[Pair]:
    for network in PRECISIONS:
        for name, target, golden in (
            ("bfloat16 against float32", _NARROW, {}),
            ("autocast against float32", _CAST, {}),
            ("autocast, another order", {**_CAST, **_OTHER}, _CAST),
            ("GradScaler, another order", {**_SCALED, **_OTHER}, _SCALED),
        ):
            yield Pair(f"{network}: {name}", "clean", "pytorch", network, Way(**target), Way(**golden), "nothing")


def _scales() -> Iterator[Pair]:
    """Another scale of the loss is told where the scaler makes it, and no operation is blamed for what follows."""
    for network in PRECISIONS:
        ways = Way(**{**_SCALED, "scale": 4096.0}), Way(**_SCALED)
        yield Pair(f"{network}: another scale", "formula", "pytorch", network, *ways, expected=("Torch.full.0",))


def _planted() -> Iterator[Pair]:
    for network, wrong in _KERNELS.items():
        for (operator, call), phase in zip(wrong, ("forward", "backward")):
            fault = Fault(operator, call, "5 %", phase)
            for name, target, golden in (
                ("bfloat16 against float32", _NARROW, {}),
                ("autocast against float32", _CAST, {}),
                ("GradScaler", _SCALED, _SCALED),
            ):
                row = f"{network}: {operator} {call}, {name}"
                ways = Way(**target, fault=fault), Way(**golden)
                yield Pair(row, "kernel", "pytorch", network, *ways, place=KERNEL)


PAIRS = (*_clean(), *_scales(), *_planted())
