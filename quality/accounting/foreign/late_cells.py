"""Networks of MindSpore of the third part: none is in the first two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from quality.accounting.foreign.cells import Built, Linear, image_loss, images
from quality.accounting.foreign.watching import spot

_WORDS, _WIDTH, _LENGTH = 30, 16, 6


def _drawn(*shape: int, size: float = 1.0) -> Tensor:
    return Tensor((size * np.random.standard_normal(shape)).astype(np.float32))


class Layer(nn.Cell):
    """A layer of an encoder, normalised behind its sums; Cells and their Primitives, and dropout."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(_WIDTH, _WIDTH) for _ in range(3))
        self.out, self.up, self.down = nn.Dense(_WIDTH, _WIDTH), nn.Dense(_WIDTH, 28), nn.Dense(28, _WIDTH)
        self.first, self.second = nn.LayerNorm([_WIDTH]), nn.LayerNorm([_WIDTH], epsilon=1e-6)
        self.dropout, self.product, self.at = nn.Dropout(p=0.1), ops.BatchMatMul(transpose_b=True), at

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        with spot(f"q and k exchanged {self.at}") as wrong:
            scores = self.product(k, q) if wrong else self.product(q, k)
        with spot(f"scale {self.at}") as wrong:
            scores = scores * (_WIDTH**-0.5 * (1.1 if wrong else 1.0))
        weights = ops.softmax(scores, -1)
        with spot(f"values are the keys {self.at}") as wrong:
            y = ops.bmm(weights, k if wrong else v)
        y = self.dropout(self.out(y))
        with spot(f"skip of the queries {self.at}") as wrong:
            x = y + (q if wrong else x)
        x = self.first(x)
        y = self.up(x)
        with spot(f"other activation {self.at}") as wrong:
            y = ops.relu(y) if wrong else ops.elu(y)
        with spot(f"step through bfloat16 {self.at}") as wrong:
            y = y.astype(ms.bfloat16).astype(ms.float32) if wrong else y
        return self.second(x + self.down(y))


class Encoder(nn.Cell):
    """Layers that are normalised behind, with places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Dense(_WIDTH, _WORDS)
        self.places = Parameter(_drawn(_LENGTH, _WIDTH, size=0.3), name="places")
        self.layers = nn.CellList([Layer(at) for at in range(3)])

    def construct(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Couplings(nn.Cell):
    """A normalising flow by functions of mint."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.CellList([Linear(3, 14) for _ in range(3)])
        self.second = nn.CellList([Linear(14, 6) for _ in range(3)])

    def construct(self, x: Tensor) -> Tensor:
        total = mint.zeros((x.shape[0],))
        for at, (first, second) in enumerate(zip(self.first, self.second)):
            kept, moved = mint.chunk(x, 2, 1)
            size, shift = mint.split(second(mint.tanh(first(kept))), 3, 1)
            with spot(f"scale and shift exchanged {at}") as wrong:
                size, shift = (shift, size) if wrong else (size, shift)
                size = ops.softplus(size)
            with spot(f"scale squared {at}") as wrong:
                grown = mint.square(size) if wrong else mint.exp(size)
            moved = mint.mul(moved, grown)
            with spot(f"scale and shift exchanged {at}"):
                moved = mint.add(moved, shift)
            total = mint.add(total, mint.sum(size, 1))
            with spot(f"halves not exchanged {at}") as wrong:
                x = mint.cat([kept, moved] if wrong else [moved, kept], 1)
        near = mint.sum(mint.square(x), 1)
        with spot("half of the square") as wrong:
            near = mint.mul(near, 0.4 if wrong else 0.5)
        return mint.mean(mint.sub(near, total))


class Nodes(nn.Cell):
    """Messages along edges, added up at nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.message, self.update = Linear(5, _WIDTH), Linear(2 * _WIDTH, _WIDTH), Linear(_WIDTH, _WIDTH)
        self.head = Linear(_WIDTH, 4)

    def construct(self, nodes: Tensor, source: Tensor, goal: Tensor) -> Tensor:
        x = F.relu(self.inlet(nodes))
        for at in range(2):
            with spot(f"ends of edges exchanged {at}") as wrong:
                ends = [ops.gather(x, one, 0) for one in ((goal, source) if wrong else (source, goal))]
                told = mint.cat(ends, 1)
            told = ops.leaky_relu(self.message(told), 0.2)
            with spot(f"sum at sources {at}") as wrong:
                got = ops.unsorted_segment_sum(told, source if wrong else goal, 6)
            with spot(f"other activation {at}") as wrong:
                got = mint.tanh(got) if wrong else mint.erf(got)
            x = mint.add(x, self.update(got))
        return self.head(x)


class Skips(nn.Cell):
    """A U-Net of pictures: convolutions, a transposed one, skips that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.CellList([nn.Conv2d(n, m, 3, has_bias=True) for n, m in ((3, 6), (6, 8))])
        self.up = nn.Conv2dTranspose(8, 6, 2, stride=2, has_bias=True)
        self.last, self.norm = nn.Conv2d(12, 6, 1), nn.BatchNorm2d(6)
        self.pool, self.head = nn.AvgPool2d(2, 2), nn.Dense(6, 5)

    def construct(self, pixels: Tensor) -> Tensor:
        kept = ops.silu(self.down[0](pixels))
        with spot("max for mean") as wrong:
            x = ops.max_pool2d(kept, 2, 2) if wrong else self.pool(kept)
        x = self.up(ops.selu(self.down[1](x)))
        with spot("order of a cat") as wrong:
            x = ops.cat((kept, x) if wrong else (x, kept), 1)
        x = ops.relu6(self.norm(self.last(x)))
        with spot("sum for mean") as wrong:
            x = x.sum((2, 3)) if wrong else x.mean((2, 3))
        return self.head(x)


class Codes(nn.Cell):
    """An autoencoder with noise that the batch holds."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.code, self.uncode, self.leave = Linear(9, 16), Linear(16, 8), Linear(4, 16), Linear(16, 9)

    def construct(self, x: Tensor, noise: Tensor) -> Tensor:
        middle, width = mint.chunk(self.code(F.silu(self.enter(x))), 2, -1)
        with spot("mean and width exchanged") as wrong:
            middle, width = (width, middle) if wrong else (middle, width)
            z = mint.add(middle, mint.mul(noise, mint.exp(mint.mul(width, 0.5))))
            far = mint.sub(mint.add(mint.square(middle), mint.exp(width)), width)
        far = mint.mean(far)
        with spot("beta") as wrong:
            far = mint.mul(far, 0.5 if wrong else 0.2)
        off = mint.sub(self.leave(F.silu(self.uncode(z))), x)
        with spot("absolute for square") as wrong:
            near = mint.abs(off) if wrong else mint.square(off)
        return mint.add(mint.mean(near), far)


class Sentences(nn.Cell):
    """Convolutions over words, the largest of each, gates between them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Parameter(_drawn(_WORDS, _WIDTH), name="table")
        self.wide = nn.CellList([nn.Conv1d(_WIDTH, 10, size, pad_mode="same", has_bias=True) for size in (1, 3, 5)])
        self.gate, self.head = Linear(30, 30), Linear(30, 4)

    def construct(self, ids: Tensor) -> Tensor:
        x = ops.gather(self.table, ids, 0).swapaxes(1, 2)
        found = [mint.amax(ops.relu(wide(x)), 2) for wide in self.wide]
        with spot("order of convolutions") as wrong:
            y = mint.cat(found[::-1] if wrong else found, 1)
        gate = self.gate(y)
        with spot("tanh for sigmoid") as wrong:
            gate = mint.tanh(gate) if wrong else mint.sigmoid(gate)
        return self.head(mint.add(mint.mul(gate, y), y))


def _loss_of_classes(*names: str) -> Callable[[Any, dict[str, Any]], Any]:
    def loss(net: Any, batch: dict[str, Any]) -> Any:
        found = net(*(batch[name] for name in names))
        return ops.cross_entropy(found.reshape((-1, found.shape[-1])).astype(ms.float32), batch["labels"])

    return loss


def _text(labels: int, classes: int) -> dict[str, Any]:
    ids, wanted = np.random.randint(0, _WORDS, (3, _LENGTH)), np.random.randint(0, classes, labels)
    return {"ids": Tensor(ids, ms.int32), "labels": Tensor(wanted, ms.int32)}


def _encoder() -> Built:
    return Encoder(), _text(3 * _LENGTH, _WORDS), _loss_of_classes("ids")


def _sentences() -> Built:
    return Sentences(), _text(3, 4), _loss_of_classes("ids")


def _couplings() -> Built:
    return Couplings(), {"x": _drawn(5, 6)}, lambda net, batch: net(batch["x"])


def _codes() -> Built:
    return Codes(), {"x": _drawn(4, 9), "noise": _drawn(4, 4)}, lambda net, batch: net(batch["x"], batch["noise"])


def _nodes() -> Built:
    ends = np.random.randint(0, 6, (2, 13))
    batch = {"nodes": _drawn(6, 5), "source": Tensor(ends[0], ms.int32), "goal": Tensor(ends[1], ms.int32)}
    batch["labels"] = Tensor(np.random.randint(0, 4, 6), ms.int32)
    return Nodes(), batch, _loss_of_classes("nodes", "source", "goal")


def _skips() -> Built:
    return Skips(), images(8), image_loss


def _poolformer() -> Any:
    from mindcv.models.poolformer import PoolFormer

    return PoolFormer(layers=(1, 1, 1, 1), embed_dims=(8, 12, 16, 20), mlp_ratios=(2, 2, 2, 2), num_classes=5)


def _regnet() -> Any:
    from mindcv.models.regnet import RegNet

    return RegNet(8.0, 8, 2.0, 3, 8, stem_w=8, num_classes=5, se_r=0.25)


def _pit() -> Any:
    from mindcv.models.pit import PoolingTransformer

    return PoolingTransformer(32, 8, 4, [8, 8], [1, 1], [2, 4], 2.0, num_classes=5)


def _pictures(make: Callable[[], Any], size: int = 32) -> Built:
    return make(), images(size), image_loss


#: What builds each network.
LATE_NETWORKS: dict[str, Callable[[], Built]] = {
    "encoder": _encoder,
    "couplings": _couplings,
    "nodes": _nodes,
    "skips": _skips,
    "codes": _codes,
    "sentences": _sentences,
    "mindcv poolformer": partial(_pictures, _poolformer, 64),
    "mindcv regnet": partial(_pictures, _regnet),
    "mindcv pit": partial(_pictures, _pit),
}
