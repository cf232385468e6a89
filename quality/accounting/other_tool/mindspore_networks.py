"""MindSpore networks of the pairs: three of the PyTorch ones, with the same names of parameters and plans."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


class GptBlock(nn.Cell):
    def __init__(self, width: int, heads: int, plan: dict[str, Any], number: int) -> None:
        super().__init__()
        eps = 1e-3 if plan.get("eps") == number else 1e-5
        self.ln1, self.ln2 = nn.LayerNorm((width,), epsilon=1e-5), nn.LayerNorm((width,), epsilon=eps)
        self.qkv, self.out = mint.nn.Linear(width, 3 * width), mint.nn.Linear(width, width)
        self.up, self.down = mint.nn.Linear(width, 4 * width), mint.nn.Linear(4 * width, width)
        self.heads, self.plan, self.number, self.width = heads, plan, number, width

    def construct(self, x: Tensor) -> Tensor:
        x = mint.add(x, self.attend(self.ln1(x)))
        y = self.up(x if self.plan.get("no_norm") == self.number else self.ln2(x))
        y = ops.gelu(y, approximate="tanh" if self.plan.get("tanh") == self.number else "none")
        if self.plan.get("half") == self.number:
            y = y.astype(ms.float16).astype(ms.float32)
        return mint.add(x, self.down(y))

    def parted(self, x: Tensor) -> Tensor:
        return mint.transpose(mint.reshape(x, (x.shape[0], x.shape[1], self.heads, -1)), 1, 2)

    def attend(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = mint.split(self.qkv(x), width, -1)
        if self.plan.get("swap_qk") == self.number:
            q, k = k, q
        if self.plan.get("v_is_k") == self.number:
            v = k
        q, k, v = self.parted(q), self.parted(k), self.parted(v)
        scale = (width // self.heads) ** -0.5 * (1.25 if self.plan.get("scale") == self.number else 1.0)
        scores = mint.mul(mint.matmul(q, mint.transpose(k, -2, -1)), scale)
        late = Tensor(np.triu(np.ones((time, time), bool), 1))
        scores = scores.masked_fill(late, float(np.finfo(np.float32).min))
        y = mint.matmul(F.softmax(scores, -1), v)
        return self.out(mint.reshape(mint.transpose(y, 1, 2), (batch, time, width)))


class Gpt(nn.Cell):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(61, 32), nn.Embedding(16, 32)
        self.blocks = nn.CellList([GptBlock(32, 4, plan, number) for number in range(3)])
        self.ln = nn.LayerNorm((32,), epsilon=1e-5)
        self.head = mint.nn.Linear(32, 61, bias=False)
        self.plan = plan

    def construct(self, ids: Tensor) -> Tensor:
        first = 1 if self.plan.get("later_places") else 0
        places = Tensor(np.arange(first, first + ids.shape[1]), ms.int32)
        x = mint.add(self.words(ids), self.places(places))
        before = x
        for number, block in enumerate(self.blocks):
            x, before = block(before if self.plan.get("from_before") == number else x), x
        return self.head(self.ln(x))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = mint.reshape(self(ids), (-1, 61))
        smoothing = 0.1 if self.plan.get("smoothing") else 0.0
        return ops.cross_entropy(logits, mint.reshape(targets, (-1,)).astype(ms.int32), label_smoothing=smoothing)


class Mixer(nn.Cell):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.entry = mint.nn.Linear(12, 20)
        self.tokens = nn.CellList([mint.nn.Linear(9, 9) for _ in range(3)])
        self.channels = nn.CellList([mint.nn.Linear(20, 20) for _ in range(3)])
        self.norms = nn.CellList([nn.LayerNorm((20,), epsilon=1e-5) for _ in range(6)])
        self.head, self.plan = mint.nn.Linear(20, 6), plan

    def construct(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for number in range(3):
            y = mint.transpose(self.norms[2 * number](x), 1, 2)
            y = mint.transpose(ops.hardswish(self.tokens[number](y)), 1, 2)
            x = mint.sub(x, y) if self.plan.get("minus") == number else mint.add(x, y)
            y = self.norms[2 * number + 1](x)
            y = self.channels[number](y)
            y = F.silu(y) if self.plan.get("silu") else ops.elu(y)
            if self.plan.get("gain") == number:
                y = mint.mul(y, 1.1)
            if self.plan.get("half") == number:
                y = y.astype(ms.float16).astype(ms.float32)
            x = mint.add(x, y)
        return self.head(mint.mean(x, 1))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        hot = Tensor(np.eye(6, dtype=np.float32)[targets.asnumpy() % 6])
        logits = self(x)
        logits = logits if logits.dtype == ms.float32 else logits.astype(ms.float32)
        return ops.kl_div(ops.log_softmax(logits, -1), hot, "batchmean")


class ResNet(nn.Cell):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1)
        self.convs = nn.CellList([nn.Conv2d(8, 8, 3, pad_mode="pad", padding=1) for _ in range(4)])
        eps = [1e-3 if plan.get("eps") == number else 1e-5 for number in range(5)]
        self.norms = nn.CellList([nn.BatchNorm2d(8, eps=each, momentum=0.9) for each in eps])
        self.head, self.plan = mint.nn.Linear(8, 10), plan

    def construct(self, x: Tensor) -> Tensor:
        x = stem = ops.max_pool2d(ops.relu(self.norms[0](self.stem(x))), 2, 2)
        for number in range(2):
            one, two = self.convs[2 * number], self.convs[2 * number + 1]
            y = ops.relu(self.norms[2 * number + 1](one(x)))
            y = self.norms[2 * number + 2](two(y))
            skip = stem if self.plan.get("skip_stem") == number else x
            x = ops.relu(y if self.plan.get("no_skip") == number else mint.add(y, skip))
        return self.head(mint.mean(x, (2, 3)))

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(self(x), targets.astype(ms.int32))


NETWORKS: dict[str, Any] = {"gpt": Gpt, "mixer": Mixer, "resnet": ResNet}
_TORCH_NAMES = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def torch_name(parameter: Parameter) -> str:
    """The name that PyTorch's network has for it."""
    head, _, last = parameter.name.rpartition(".")
    return f"{head}.{_TORCH_NAMES.get(last, last)}"
