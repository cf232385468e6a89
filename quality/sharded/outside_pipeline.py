"""Trainings whose ranks have other layers, with microbatches; and their bugs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from quality.sharded.outside_parts import (
    LENGTH,
    WIDTH,
    WORDS,
    Block,
    Local,
    Run,
    adamw,
    cross_entropy,
    fill,
    sentences,
)

ROWS, MICROBATCHES = 8, 4


class Stage(nn.Module):
    """Some layers of a language model, under the names of the whole one.

    Attributes:
        is_tied: whether the head has the weight of the embedding, which both ends of the pipeline then have.
    """

    def __init__(self, own: list[int], *, is_first: bool, is_last: bool, is_tied: bool = False) -> None:
        super().__init__()
        self.is_first, self.is_last, self.is_tied = is_first, is_last, is_tied
        if is_first or (is_last and is_tied):
            self.words = nn.Embedding(WORDS, WIDTH)
        if is_first:
            self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block(Local(), WIDTH, 0.0) for number in own})
        if is_last:
            self.norm = nn.LayerNorm(WIDTH)
        if is_last and not is_tied:
            self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Activations, or logits."""
        if self.is_first:
            x = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks.values():
            x = block(x)
        if not self.is_last:
            return x
        x = self.norm(x)
        return F.linear(x, self.words.weight) if self.is_tied else self.head(x)


def chunk_of(model: Stage, numbers: list[int], *, is_first: bool, is_last: bool) -> Stage:
    """What a virtual stage has of the layers of its rank."""
    chunk = Stage([], is_first=is_first, is_last=is_last)
    chunk.blocks = nn.ModuleDict({str(number): model.blocks[str(number)] for number in numbers})
    for name in ("words", "places", "norm", "head"):
        if hasattr(chunk, name):
            setattr(chunk, name, getattr(model, name))
    return chunk


class ScheduledRun(Run):
    """PyTorch's own schedules, of one stage or of two on each rank."""

    def __init__(self, sizes: dict[str, int], *, schedule: str = "", blocks: int = 2, max_norm: float = 0.0) -> None:
        super().__init__(sizes)
        self.schedule, self.max_norm = schedule, max_norm
        turns = 2 if schedule == "interleaved" else 1
        count = self.world * turns
        stages = range(self.rank, count, self.world)
        own = [blocks_of(stage, count, blocks) for stage in stages]
        ends = {"is_first": self.rank == 0, "is_last": self.rank == self.world - 1}
        self.model = Stage([number for numbers in own for number in numbers], **ends)
        self.take(self.model, fill(Stage(list(range(blocks)), is_first=True, is_last=True)))
        self.optimizer = adamw(self.model)
        self.stages = []
        for number, numbers in zip(stages, own) if sizes else ():
            chunk = chunk_of(self.model, numbers, is_first=number == 0, is_last=number == count - 1)
            self.stages.append(PipelineStage(chunk, number, count, torch.device("cpu"), group=self.group("pp")))

    def step(self) -> None:
        """Forward, backward, clipping and optimizer."""
        clear(self)
        self.gradients()
        if self.max_norm:
            self.norm = clip(self)
        self.optimizer.step()
        self.number += 1

    def gradients(self) -> None:
        """Of the mean over all rows."""
        tokens, labels = sentences(ROWS, LENGTH, self.number)
        if not self.sizes:
            loss = cross_entropy(self.model(tokens), labels)
            loss.backward()
            self.loss = loss.detach()
            return
        kinds: dict[str, Any] = {"interleaved": ScheduleInterleaved1F1B, "1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
        stages = self.stages if self.schedule == "interleaved" else self.stages[0]
        schedule = kinds[self.schedule](stages, MICROBATCHES, loss_fn=cross_entropy, scale_grads=scales())
        losses: list[Tensor] = []
        last = {"target": labels, "losses": losses} if self.rank == self.world - 1 else {}
        schedule.step(*([tokens] if self.rank == 0 else []), **last)
        self.loss = torch.stack([one.detach() for one in losses]).mean() if losses else self.loss


def blocks_of(stage: int, count: int, blocks: int) -> list[int]:
    """The blocks of a virtual stage."""
    each = blocks // count
    return list(range(stage * each, (stage + 1) * each))


def scales() -> bool:
    """Whether gradients are divided by the number of microbatches, of which each has its own mean."""
    return True


def clear(run: ScheduledRun) -> None:
    """Forget the gradients of the step before."""
    run.optimizer.zero_grad()


def clip(run: ScheduledRun) -> Tensor:
    """Scale gradients by the norm over all stages."""
    square = torch.stack([one.grad.square().sum() for one in run.model.parameters()]).sum()
    if run.sizes:
        dist.all_reduce(square)
    for parameter in run.model.parameters():
        parameter.grad *= (run.max_norm / square.sqrt()).clamp(max=1.0)
    return square.sqrt()


class TiedRun(Run):
    """One forward, one backward by hand; the first and the last stage have the words."""

    def __init__(self, sizes: dict[str, int], *, blocks: int = 2) -> None:
        super().__init__(sizes)
        own = blocks_of(self.rank, self.world, blocks)
        self.model = Stage(own, is_first=self.rank == 0, is_last=self.rank == self.world - 1, is_tied=True)
        self.take(self.model, fill(Stage(list(range(blocks)), is_first=True, is_last=True, is_tied=True)))
        start_tied(self)
        self.optimizer = adamw(self.model)
        self.ends = dist.new_group([0, self.world - 1]) if sizes else None
        self.open: dict[int, tuple[Tensor, Tensor]] = {}
        self.sent: list[Any] = []

    def gradients(self) -> None:
        """Of the mean over all rows."""
        tokens, labels = sentences(ROWS, LENGTH, self.number)
        if not self.sizes:
            loss = cross_entropy(self.model(tokens), labels)
            loss.backward()
            self.loss = loss.detach()
            return
        self.loss = torch.zeros(())
        parts = tokens.chunk(MICROBATCHES), labels.chunk(MICROBATCHES)
        ahead = self.world - 1 - self.rank
        for number in range(MICROBATCHES + ahead):
            if number < MICROBATCHES:
                self.forward(number, *parts)
            if number >= ahead:
                self.backward(number - ahead)
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()
        sum_tied(self)

    def forward(self, number: int, tokens: Any, labels: Any) -> None:
        """Of a microbatch."""
        x = tokens[number]
        if self.rank > 0:
            x = self.received(self.rank - 1).requires_grad_()
        out = self.model(x)
        if self.rank == self.world - 1:
            out = share(cross_entropy(out, labels[label_of(number)]))
            self.loss = self.loss + out.detach()
        else:
            self.send(out.detach(), self.rank + 1)
        self.open[number] = x, out

    def backward(self, number: int) -> None:
        """Of a microbatch."""
        if self.rank == self.world - 1:
            x, out = self.open.pop(number)
            out.backward()
        else:
            gradient = self.received(self.rank + 1)
            x, out = self.open.pop(output_of(number))
            out.backward(gradient)
        if self.rank > 0:
            self.send(x.grad, self.rank - 1)

    def received(self, rank: int) -> Tensor:
        """From a neighbour."""
        out = torch.empty(ROWS // MICROBATCHES, LENGTH, WIDTH)
        dist.recv(out, rank)
        return out

    def send(self, x: Tensor, rank: int) -> None:
        """To a neighbour."""
        self.sent.append((dist.isend(x, rank), x))


def start_tied(run: TiedRun) -> None:
    """Both copies begin with the same values, which `take` has seen to."""


def share(loss: Tensor) -> Tensor:
    """Of a microbatch in the mean."""
    return loss / MICROBATCHES


def label_of(number: int) -> int:
    """The labels that belong to a microbatch."""
    return number


def output_of(number: int) -> int:
    """The output that a gradient belongs to."""
    return number


def sum_tied(run: TiedRun) -> None:
    """Add up the gradients of both copies of the words."""
    if run.rank in (0, run.world - 1):
        dist.all_reduce(run.model.words.weight.grad, group=run.ends)


# The bugs.


def blocks_in_a_row(stage: int, count: int, blocks: int) -> list[int]:
    """Each rank has blocks that follow each other, though its stages do not."""
    return _blocks_of(stage // 2 + stage % 2 * 2, count, blocks) if count == 4 else _blocks_of(stage, count, blocks)


_blocks_of = blocks_of


def unscaled() -> bool:
    """Each microbatch counts as the batch."""
    return False


def clear_first_stage(run: ScheduledRun) -> None:
    """Other stages add to the gradients of the step before."""
    if run.rank == 0:
        run.optimizer.zero_grad()


def clip_by_own_stage(run: ScheduledRun) -> Tensor:
    """Scale gradients by the norm of the stage."""
    return nn.utils.clip_grad_norm_(run.model.parameters(), run.max_norm)


def start_apart(run: TiedRun) -> None:
    """The last stage draws the words anew."""
    if run.rank > 0:
        with torch.no_grad():
            run.model.words.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(5))


def share_of_all(loss: Tensor) -> Tensor:
    """Each microbatch counts as the batch."""
    return loss * 1.0


def labels_exchanged(number: int) -> int:
    """Labels of microbatches 1 and 2 are exchanged."""
    return {1: 2, 2: 1}.get(number, number)


def gradients_exchanged(number: int) -> int:
    """Gradients that arrive for microbatches 1 and 2 are exchanged."""
    return {1: 2, 2: 1}.get(number, number)


def leave_tied(run: TiedRun) -> None:
    """Each copy keeps the gradient of its end."""
