"""One forward, one backward: the microbatches of a step through the stages of a hand-made pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from quality.sharded.layout import Group
from quality.sharded.network import WIDTH, Gpt


class Pipeline:
    """A stage with its neighbours.

    Attributes:
        model: the stage.
        losses: of the microbatches, on the last stage.
    """

    def __init__(self, model: Gpt, microbatches: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.model, self.group = model, model.layout.pp
        self.count, self._microbatches = len(microbatches), microbatches
        self._open: list[tuple[Tensor, Tensor]] = []
        self._forwards = 0
        self.losses: list[Tensor] = []

    def run(self) -> None:
        """All forwards and backwards of the step."""
        ahead = min(self.group.size - self.group.index - 1, self.count)
        arrived = None
        for _ in range(ahead):
            self._send(self._forward(self._receive(-1)), 1)
        steady = self.count - ahead
        if steady:
            arrived = self._receive(-1)
        for at in range(steady):
            grad = self._swap(self._forward(arrived), 1)
            passed_back = self._backward(grad)
            if at < steady - 1:
                arrived = self._swap(passed_back, -1)
            else:
                self._send(passed_back, -1)
        for _ in range(ahead):
            self._send(self._backward(self._receive(1)), -1)

    def _forward(self, arrived: Tensor | None) -> Tensor:
        number = self._forwards
        self._forwards += 1
        tokens, labels = self._microbatches[number]
        x = tokens if arrived is None else arrived.requires_grad_()
        out = self.model(x, labels)
        if self.model.is_last:
            self.losses.append(out.detach())
            out = out / self.count
        self._open.append((x, out))
        return out

    def _backward(self, grad: Tensor | None) -> Tensor | None:
        x, out = self._open.pop(0)
        torch.autograd.backward(out, grad)
        return x.grad

    def _neighbour(self, step: int) -> int | None:
        at = self.group.index + step
        return self.group.ranks[at] if 0 <= at < self.group.size else None

    def _empty(self) -> Tensor:
        rows, length = self._microbatches[0][0].shape
        layout = self.model.layout
        length //= layout.tp.size if layout.sequence_parallel else 1
        return torch.empty(rows, length, WIDTH, dtype=self.model.settings.dtype)

    def _send(self, x: Tensor | None, step: int) -> None:
        _exchange(self.group, x, None, self._neighbour(step))

    def _receive(self, step: int) -> Tensor | None:
        return _exchange(self.group, None, self._empty(), self._neighbour(step))

    def _swap(self, x: Tensor | None, step: int) -> Tensor | None:
        """Send `x` to the neighbour, and receive what goes the other way."""
        return _exchange(self.group, x, self._empty(), self._neighbour(step))


def _exchange(group: Group, sent: Tensor | None, arrived: Tensor | None, peer: int | None) -> Tensor | None:
    if peer is None:
        return None
    operations = []
    if sent is not None:
        operations.append(dist.P2POp(dist.isend, sent.detach().contiguous(), peer, group.process_group))
    if arrived is not None:
        operations.append(dist.P2POp(dist.irecv, arrived, peer, group.process_group))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return arrived
