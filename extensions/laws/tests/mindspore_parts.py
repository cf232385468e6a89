"""Networks and data that the MindSpore scripts of the catalogue share."""

from __future__ import annotations

from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

STEPS = 10
LENGTH = 12
WORDS = 32

ms.set_context(device_target="CPU")  # unlike set_device also allowed when kernels have run


class Mlp(nn.Cell):
    """Three dense layers; with `dropout`, one between each two."""

    def __init__(self, width: int = 8, hidden: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.Dense(width, hidden)
        self.hidden = nn.Dense(hidden, hidden)
        self.head = nn.Dense(hidden, 1)
        self.drop1 = nn.Dropout(p=dropout)
        self.drop2 = nn.Dropout(p=dropout)

    def construct(self, x: Tensor) -> Tensor:
        """One number per row."""
        x = self.drop1(ops.tanh(self.encoder(x)))
        x = self.drop2(ops.tanh(self.hidden(x)))
        return self.head(x.astype(self.head.weight.dtype))


class Language(nn.Cell):
    """A causal language model of running means, the head of which may be tied to the embedding."""

    def __init__(self, width: int = 16, is_tied: bool = False) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        table = (generator.standard_normal((WORDS, width)) * 0.1).astype(np.float32)
        self.embedding = Parameter(Tensor(table), name="embedding")
        self.up = nn.Dense(width, 2 * width)
        self.down = nn.Dense(2 * width, width)
        self.is_tied = is_tied
        if is_tied:
            self.head = self.embedding
        else:
            self.head = Parameter(Tensor(table[::-1].copy()), name="head")

    def construct(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = ops.gather(self.embedding, tokens, 0)
        places = Tensor(1.0 / np.arange(1, tokens.shape[1] + 1)[None, :, None].astype(np.float32))
        x = x + ops.cumsum(x, 1) * places
        x = x + self.down(ops.gelu(self.up(x)))
        return ops.matmul(x, self.head.T)


def rows(steps: int = STEPS, batch: int = 8, width: int = 8, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of (x, y) of a regression."""
    generator = np.random.default_rng(seed)
    truth = generator.standard_normal((width, 1))
    for _ in range(steps):
        x = generator.standard_normal((batch, width))
        yield Tensor(x.astype(np.float32)), Tensor(np.sin(x @ truth).astype(np.float32))


def sentences(steps: int = STEPS, batch: int = 4, length: int = LENGTH + 1, seed: int = 1) -> Iterator[Tensor]:
    """Batches of token ids."""
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        start = generator.integers(WORDS, size=(batch, 1))
        noise = generator.integers(3, size=(batch, length))
        yield Tensor(((start + 2 * np.arange(length) + noise) % WORDS).astype(np.int32))


def squared(network: nn.Cell, x: Tensor, y: Tensor) -> Tensor:
    """The mean squared error."""
    return ops.mean((network(x) - y) ** 2)


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """The mean cross entropy of tokens 1, 2, ... from the logits of places 0, 1, ..."""
    return ops.cross_entropy(logits[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
