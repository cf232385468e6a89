"""Networks of MindSpore of the fourth part: none is in the other three."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from quality.accounting.foreign.cells import Built, Linear
from quality.accounting.foreign.late_cells import _drawn, _loss_of_classes, _pictures, _text
from quality.accounting.foreign.watching import spot

_WORDS, _WIDTH, _LENGTH = 30, 16, 6


class Matching(nn.Cell):
    """Points are matched with points, by rows and columns that are normalised in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Linear(5, 8), Linear(5, 8)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        left, right = mint.tanh(self.one(x)), mint.sin(self.other(y))
        far = mint.sub(mint.unsqueeze(left, 1), mint.unsqueeze(right, 0))
        cost = mint.sum(mint.square(far), -1)
        with spot("heat") as wrong:
            plan = mint.div(cost, -1.5 if wrong else -2.0)
        for at in range(3):
            with spot(f"columns twice {at}") as wrong:
                total = ops.logsumexp(plan, 0 if wrong else 1, True)
            plan = mint.sub(plan, total)
            with spot(f"rows by their largest {at}") as wrong:
                total = mint.amax(plan, 0, True) if wrong else ops.logsumexp(plan, 0, True)
            with spot(f"added to the plan {at}") as wrong:
                plan = mint.add(plan, total) if wrong else mint.sub(plan, total)
        share = mint.exp(plan)
        with spot("matched with themselves") as wrong:
            matched = mint.matmul(share, left if wrong else right)
        off = mint.sub(matched, left)
        return mint.add(mint.mean(mint.mul(share, cost)), mint.mean(mint.square(off)))


class Capsules(nn.Cell):
    """Small vectors that agree on larger ones, in two rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Conv2d(3, 8, 3, 2, pad_mode="valid", has_bias=True)
        self.weight = Parameter(_drawn(2, 4, 15, size=0.3), name="weight")

    def construct(self, pixels: Tensor) -> Tensor:
        x = ops.hardsigmoid(self.inlet(pixels))
        small = ops.reshape(x, (x.shape[0], 2, 4, -1)).transpose(0, 1, 3, 2)
        told = ops.matmul(small, self.weight)
        told = ops.reshape(told, (x.shape[0], -1, 5, 3))
        scores = ops.zeros(told.shape[:3], ms.float32)
        found = told
        for at in range(2):
            with spot(f"softmax over the small ones {at}") as wrong:
                share = ops.softmax(scores, 1 if wrong else 2)
            part = ops.mul(told, ops.expand_dims(share, -1))
            with spot(f"mean for sum {at}") as wrong:
                found = part.mean(1) if wrong else part.sum(1)
            square = ops.square(found).sum(-1, keepdims=True)
            with spot(f"squashed by another constant {at}") as wrong:
                longer = ops.add(square, 0.5 if wrong else 1.0)
            found = ops.mul(found, ops.sqrt(ops.add(square, 1e-6)) / longer)
            agreed = ops.mul(told, ops.expand_dims(found, 1)).sum(-1)
            with spot(f"scores taken off {at}") as wrong:
                scores = ops.sub(scores, agreed) if wrong else ops.add(scores, agreed)
        return ops.norm(found, dim=-1)


class Adapted(nn.Cell):
    """Layers with adapters of few ranks and gates between two tables of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_LENGTH, _WIDTH)
        self.layers = nn.CellList([nn.Dense(_WIDTH, _WIDTH) for _ in range(3)])
        self.lower = nn.CellList([nn.Dense(_WIDTH, 4, has_bias=False) for _ in range(3)])
        self.upper = nn.CellList([nn.Dense(4, _WIDTH, has_bias=False) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm([_WIDTH]), nn.Dense(_WIDTH, _WORDS)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(ops.arange(_LENGTH))
        for at in range(3):
            low = ops.mish(self.lower[at](x))
            low, straight = self.upper[at](low), self.layers[at](x)
            with spot(f"weight of the adapter {at}") as wrong:
                low = low * (1.5 if wrong else 2.0)
            with spot(f"adapter of the layer before {at}") as wrong:
                y = ops.add(x if wrong else straight, low)
            y = ops.hardswish(y)
            with spot(f"skip turned round {at}") as wrong:
                x = ops.sub(x, y) if wrong else ops.add(x, y)
        x = self.norm(x)
        with spot("head through float16") as wrong:
            x = x.astype(ms.float16).astype(ms.float32) if wrong else x
        return self.head(x)


class Chosen(nn.Cell):
    """Each row goes to two of four experts, by weights of a softmax; all are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.judge, self.inlet = Linear(7, 4), Linear(7, _WIDTH)
        self.up = Parameter(_drawn(4, _WIDTH, 20, size=0.3), name="up")
        self.down = Parameter(_drawn(4, 20, _WIDTH, size=0.3), name="down")
        self.head = Linear(_WIDTH, 4)

    def construct(self, x: Tensor) -> Tensor:
        scores = F.softmax(self.judge(x), -1)
        best, where = ops.topk(scores, 2, -1)
        both = mint.sum(best, -1, True)
        with spot("shares not normalised") as wrong:
            best = mint.mul(best, 1.0) if wrong else mint.div(best, both)
        taken = mint.eq(mint.unsqueeze(where, -1), ops.arange(4)).astype(scores.dtype)
        share = mint.sum(mint.mul(taken, mint.unsqueeze(best, -1)), 1)
        x = ops.gelu(self.inlet(x))
        wide = mint.bmm(mint.broadcast_to(mint.unsqueeze(x, 0), (4, *x.shape)), self.up)
        with spot("other activation") as wrong:
            wide = mint.tanh(wide) if wrong else F.silu(wide)
        made = mint.bmm(wide, self.down)
        share = mint.unsqueeze(mint.transpose(share, 0, 1), -1)
        with spot("shares of another expert") as wrong:
            share = mint.flip(share, (0,)) if wrong else share
            made = mint.mul(made, share)
        with spot("largest for sum") as wrong:
            y = mint.amax(made, 0) if wrong else mint.sum(made, 0)
        return self.head(mint.add(x, y))


class Steps(nn.Cell):
    """A recurrent cell with two heads; its step is taken by hand, with a clip and what is left of the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.kinds, self.size = nn.GRUCell(5, _WIDTH), nn.Dense(_WIDTH, 4), nn.Dense(_WIDTH, 1)

    def construct(self, x: Tensor, kinds: Tensor, size: Tensor) -> Tensor:
        state = ops.zeros((x.shape[0], _WIDTH), ms.float32)
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        told = self.kinds(state)
        with spot("label smoothing") as wrong:
            told = ops.cross_entropy(told, kinds, label_smoothing=0.1 if wrong else 0.0)
        off = self.size(state).squeeze(-1)
        with spot("threshold of the loss") as wrong:
            off = ops.smooth_l1_loss(off, size, 0.3 if wrong else 0.6, reduction="mean")
        with spot("weight of the second head") as wrong:
            off = off * (0.7 if wrong else 0.5)
        return told + off

    def finish(self, gradients: Any) -> None:
        """A step with all gradients."""
        clipped = ops.clip_by_global_norm(gradients, 0.5)
        for number, (value, step) in enumerate(zip(self.trainable_params(), clipped)):
            with spot(f"share of the step {number}") as wrong:
                step = ops.mul(step, 0.02 if wrong else 0.01)
            ops.assign_sub(value, step)


def _matching() -> Built:
    return Matching(), {"x": _drawn(6, 5), "y": _drawn(6, 5)}, lambda net, batch: net(batch["x"], batch["y"])


def _chosen() -> Built:
    batch = {"x": _drawn(5, 7), "labels": Tensor(np.random.randint(0, 4, 5), ms.int32)}
    return Chosen(), batch, _loss_of_classes("x")


def _steps() -> Built:
    batch = {"x": _drawn(4, 5, 5), "kinds": Tensor(np.random.randint(0, 4, 4), ms.int32), "size": _drawn(4)}
    return Steps(), batch, lambda net, batch: net(batch["x"], batch["kinds"], batch["size"])


def _adapted() -> Built:
    return Adapted(), _text(3 * _LENGTH, _WORDS), _loss_of_classes("ids")


def _convnext() -> Any:
    from mindcv.models.convnext import ConvNeXt

    return ConvNeXt(3, 5, [1, 1, 1, 1], [8, 12, 16, 20])


def _vit() -> Any:
    from mindcv.models.vit import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5)


def _of_mindcv(name: str) -> Any:
    import mindcv

    return mindcv.create_model(name, num_classes=5)


#: What builds each network.
FOURTH_NETWORKS: dict[str, Callable[[], Built]] = {
    "matching": _matching,
    "capsules": partial(_pictures, Capsules, 8),
    "adapted": _adapted,
    "chosen": _chosen,
    "steps": _steps,
    "mindcv convnext": partial(_pictures, _convnext, 64),
    "mindcv vit": partial(_pictures, _vit),
    "mindcv shufflenet_v2": partial(_pictures, partial(_of_mindcv, "shufflenet_v2_x0_5")),
}
