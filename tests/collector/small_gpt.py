"""The two-layer GPT of tests/dumps (RMS norm, attention, gated MLP), as a model to collect from."""

from __future__ import annotations

import math

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

WIDTH, HEADS, SEQUENCE, BATCH, VOCABULARY = 32, 2, 16, 2, 64


class RMS(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones(WIDTH), ms.float32), name="w")

    def construct(self, x):
        v = mint.mean(mint.square(x), -1, True)
        return mint.mul(mint.mul(x, mint.rsqrt(mint.add(v, 1e-6))), self.w)


class Attn(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv = mint.nn.Linear(WIDTH, 3 * WIDTH)
        self.o = mint.nn.Linear(WIDTH, WIDTH)

    def construct(self, x, mask):
        b, t = x.shape[:2]
        heads = (b, t, HEADS, WIDTH // HEADS)
        q, k, v = mint.chunk(self.qkv(x), 3, -1)
        q = mint.transpose(mint.reshape(q, heads), 1, 2)
        k = mint.transpose(mint.reshape(k, heads), 1, 2)
        v = mint.transpose(mint.reshape(v, heads), 1, 2)
        a = mint.matmul(q, mint.transpose(k, -1, -2)) / math.sqrt(WIDTH // HEADS)
        a = F.softmax(mint.where(mask, a, Tensor(-1e4, a.dtype)), dim=-1)
        y = mint.reshape(mint.transpose(mint.matmul(a, v), 1, 2), (b, t, WIDTH))
        return self.o(y)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.n1, self.a, self.n2 = RMS(), Attn(), RMS()
        self.g, self.u = mint.nn.Linear(WIDTH, 4 * WIDTH), mint.nn.Linear(WIDTH, 4 * WIDTH)
        self.d = mint.nn.Linear(4 * WIDTH, WIDTH)

    def construct(self, x, mask):
        x = x + self.a(self.n1(x), mask)
        h = self.n2(x)
        return mint.add(x, self.d(mint.mul(F.silu(self.g(h)), self.u(h))))


class Gpt(nn.Cell):
    def __init__(self, *, blocks: int = 2, dropout: float = 0.0):
        super().__init__()
        self.e = Parameter(Tensor(np.zeros((VOCABULARY, WIDTH)), ms.float32), name="e")
        self.bs = nn.CellList([Block() for _ in range(blocks)])
        self.n = RMS()
        self.head = mint.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.dropout = dropout

    def construct(self, ids, mask):
        x = ops.gather(self.e, ids, 0).astype(ms.float32)
        if self.dropout:
            x = ops.dropout(x, self.dropout, self.training)  # mint has no CPU kernel for it
        for b in self.bs:
            x = b(x, mask)
        return self.head(self.n(x))


class Training:
    """A model with its batch and the function that gives loss and gradients. The same at every start."""

    def __init__(self, *, blocks: int = 2, dropout: float = 0.0):
        ms.set_seed(1)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        self.net = Gpt(blocks=blocks, dropout=dropout)
        self.net.set_train()
        rng = np.random.default_rng(0)
        for parameter in self.net.trainable_params():
            if parameter.ndim > 1:
                parameter.set_data(Tensor(rng.standard_normal(parameter.shape) * 0.2, ms.float32))
        self.ids = Tensor(rng.integers(0, VOCABULARY, (BATCH, SEQUENCE)), ms.int64)
        self.labels = Tensor(np.eye(VOCABULARY, dtype=np.float32)[rng.integers(0, VOCABULARY, BATCH * SEQUENCE)])
        self.mask = Tensor(np.tril(np.ones((SEQUENCE, SEQUENCE), bool)))
        self.loss_and_gradients = ms.value_and_grad(self.loss, None, self.net.trainable_params())
        self.optimizer = nn.SGD(self.net.trainable_params(), 0.1)

    def loss(self, ids, labels):
        logits = mint.reshape(self.net(ids, self.mask), (-1, VOCABULARY)).astype(ms.float32)
        total = mint.log(mint.sum(mint.exp(logits), -1))
        return mint.mean(mint.sub(total, mint.sum(mint.mul(logits, labels), -1)))

    def step(self) -> list[np.ndarray]:
        """Forward and backward; the loss and every gradient."""
        loss, self.gradients = self.loss_and_gradients(self.ids, self.labels)
        return [loss.asnumpy().copy(), *(gradient.asnumpy().copy() for gradient in self.gradients)]

    def update(self) -> None:
        """Let the optimizer apply the gradients of the last step."""
        self.optimizer(self.gradients)
