"""One step of a hand-made training: gradients, their reduction over ranks, clipping, the optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quality.sharded.layout import Group, Layout, layout_of
from quality.sharded.network import VOCABULARY, Gpt, Settings, initialise
from quality.sharded.pipeline import Pipeline

#: Of the random numbers of dropout.
RANDOM_SEED = 7


class Training:
    """A hand-made run, ready for its step.

    Attributes:
        model, layout, settings: what is trained, where.
        microbatches: tokens and labels of this rank.
        optimizers: those of `split_parameters`.
        loss: after the step, the mean over the batch, as this rank would print it.
        norm: the norm that gradients were clipped by.
    """

    def __init__(self, settings: Settings, sizes: dict[str, int], *, sp: bool = False, zigzag: bool = False) -> None:
        self.settings, self.layout = settings, layout_of(sizes, sequence_parallel=sp, zigzag=zigzag)
        self.model = Gpt(self.layout, settings)
        initialise(self.model)
        self.owners = Owners(self.model) if settings.zero2 and sizes else None
        owned = self.owners.optimizer() if self.owners is not None else None
        self.optimizers = [owned] if owned else [made(self.model) for made in OPTIMIZERS[settings.optimizer]]
        count = settings.microbatches
        tokens, labels = (map(self.layout.local_batch, each.chunk(count)) for each in batch_of(settings))
        self.microbatches = list(zip(tokens, labels))
        self.loss = self.norm = torch.zeros(())

    def step(self) -> None:
        """One optimizer step on the batch."""
        restore_random_state(self.layout)
        losses = self._accumulated()
        if self.owners is None:
            finalise_gradients(self.model)
        else:
            self.owners.give_gradients()
        self.loss = sum(losses) / len(losses) if losses else self.loss
        if self.settings.max_norm:
            self.norm = clip(self.model, self.settings.max_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        if self.owners is not None:
            self.owners.broadcast()

    def _accumulated(self) -> list[Tensor]:
        if self.layout.pp.size > 1:
            pipeline = Pipeline(self.model, self.microbatches)
            pipeline.run()
            return pipeline.losses
        losses = []
        for x, y in self.microbatches:
            loss = self.model(x, y)
            (loss / len(self.microbatches)).backward()
            losses.append(loss.detach())
            if self.owners is not None:
                self.owners.take_gradients()
        return losses


def batch_of(settings: Settings) -> tuple[Tensor, Tensor]:
    """Tokens and labels (batch, sequence) of all ranks; the first rows have most of the ignored labels."""
    generator = torch.Generator().manual_seed(1)
    shape = (settings.batch, settings.sequence)
    tokens, labels = (torch.randint(VOCABULARY, shape, generator=generator) for _ in range(2))
    labels.view(-1)[: settings.ignored] = -100
    return tokens, labels


def restore_random_state(layout: Layout) -> None:
    """Take up the random numbers where the checkpoint left them: the same on all tensor parallel ranks."""
    torch.set_rng_state(saved_random_state(layout))


def saved_random_state(layout: Layout) -> Tensor:
    """What the checkpoint has for this rank."""
    return torch.Generator().manual_seed(RANDOM_SEED + layout.dp.index).get_state()


class Owners:
    """ZeRO, stage 2: each gradient, and what the optimizer keeps of it, is on one data parallel rank.

    Attributes:
        kept: gradients of this rank's parameters so far.
    """

    def __init__(self, model: Gpt) -> None:
        self.group, self._parameters = model.layout.dp, list(model.parameters())
        self.kept: dict[int, Tensor] = {}

    def optimizer(self) -> torch.optim.Optimizer:
        """Of the parameters of this rank."""
        return torch.optim.AdamW([one for _, one in self._own()], lr=1e-2, weight_decay=0.1)

    def take_gradients(self) -> None:
        """Sum the gradients of a microbatch on their owners and forget them elsewhere."""
        for number, one in enumerate(self._parameters):
            self.group.sum(one.grad)
            if number % self.group.size == self.group.index:
                self.kept[number] = accumulated(self.kept.get(number), one.grad)
            one.grad = None

    def give_gradients(self) -> None:
        """To the optimizer: the mean over ranks."""
        for number, one in self._own():
            one.grad = self.kept[number] / self.group.size

    def broadcast(self) -> None:
        """The new parameters, from their owners to all ranks."""
        for number, one in enumerate(self._parameters):
            dist.broadcast(one.data, self.group.ranks[number % self.group.size], group=self.group.process_group)

    def _own(self) -> list[tuple[int, nn.Parameter]]:
        numbered = enumerate(self._parameters)
        return [(number, one) for number, one in numbered if number % self.group.size == self.group.index]


def accumulated(before: Tensor | None, grad: Tensor) -> Tensor:
    """The sum of the gradients of microbatches."""
    return grad.clone() if before is None else before + grad


def finalise_gradients(model: Gpt) -> None:
    """Make the gradients those of the whole batch and of all uses of a parameter."""
    layout = model.layout
    for one in model.parameters():
        if one.grad is None:
            continue
        if one.is_summed:
            sum_over_tp(one, layout)
        reduce_over_data(one, layout)
    reduce_tied(model)


def sum_over_tp(one: nn.Parameter, layout: Layout) -> None:
    """The sum of the parts that tensor parallel ranks have."""
    layout.tp.sum(one.grad)


def reduce_over_data(one: nn.Parameter, layout: Layout) -> None:
    """The mean over the ranks with other tokens; a rank of an expert has seen the tokens of all of them."""
    spread = one.expert_of
    if spread is not None and spread.sees_all_tokens(layout):
        one.grad /= expert_divisor(layout)
        return
    layout.cp.sum(layout.dp.sum(one.grad)).div_(layout.averaged)


def expert_divisor(layout: Layout) -> int:
    """How often the loss of a token is counted in the gradient of an expert that is on one rank."""
    return layout.averaged


def reduce_tied(model: Gpt) -> None:
    """First and last stage each have a copy of a tied embedding, and each a part of its gradient."""
    if not model.settings.tied or model.layout.pp.size == 1:
        return
    pp = model.layout.pp
    ends = embedding_group(pp)
    if model.is_first or model.is_last:
        ends.sum((model.emb if model.is_first else model.head).weight.grad)


def embedding_group(pp: Group) -> Group:
    """The ranks that have a copy; with two stages all of them."""
    return pp


def clip(model: Gpt, max_norm: float) -> Tensor:
    """Scale the gradients to at most this norm, over all ranks; the norm before."""
    layout = model.layout
    ours = [one for one in model.parameters() if one.grad is not None]
    if layout.tp.size * layout.pp.size == 1 and not model.settings.zero2 and not any(one.expert_of for one in ours):
        return nn.utils.clip_grad_norm_(ours, max_norm)
    total = squared(ours, model)
    norm = total.sqrt()
    nn.utils.clip_grads_with_norm_(ours, max_norm, norm)
    return norm


def squared(ours: list[nn.Parameter], model: Gpt) -> Tensor:
    """Squared norm of all gradients, each of which counts once."""
    layout, total = model.layout, torch.zeros(())
    for group, members in counted_once(ours, model):
        own = sum((one.grad.float().square().sum() for one in members), torch.zeros(()))
        total = total + (own if group is None else group.sum(own))
    total = layout.dp.sum(total) if model.settings.zero2 else total
    return layout.pp.sum(total)


def counted_once(ours: list[nn.Parameter], model: Gpt) -> Iterable[tuple[Group | None, list[nn.Parameter]]]:
    """Parameters that are divided over the ranks of a group, and those that are not divided and count on one rank."""
    kept = [one for one in ours if not is_second_copy(one, model)]
    groups = {id(group): group for group in map(divided_over, kept)}
    for group in groups.values():
        yield group, [one for one in kept if divided_over(one) is group]


def divided_over(one: nn.Parameter) -> Group | None:
    """The group whose ranks have other parts of a parameter."""
    if one.shard is not None:
        return one.shard.group
    return one.expert_of.experts if one.expert_of is not None else None


def is_second_copy(one: nn.Parameter, model: Gpt) -> bool:
    """Whether another stage counts a tied embedding."""
    tied = model.settings.tied and not model.is_first and model.is_last
    return tied and one is model.head.weight


def is_embedding(name: str) -> bool:
    """Whether a parameter is the embedding or the head, which a matrix optimizer leaves to another one."""
    return name.split(".")[0] in ("emb", "head")


def _matrices(model: Gpt) -> dict[str, nn.Parameter]:
    return {name: one for name, one in model.named_parameters() if one.dim() == 2 and not is_embedding(name)}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Of all parameters."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Of all parameters, with momentum."""
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def muon(model: Gpt) -> torch.optim.Optimizer:
    """Of the matrices of blocks."""
    return torch.optim.Muon(list(_matrices(model).values()), lr=1e-2)


def adamw_beside_muon(model: Gpt) -> torch.optim.Optimizer:
    """Of all other parameters."""
    matrices = _matrices(model)
    rest = [one for name, one in model.named_parameters() if name not in matrices]
    return torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.1)


OPTIMIZERS: dict[str, tuple[Any, ...]] = {
    "adamw": (adamw,),
    "sgd": (sgd,),
    "muon": (muon, adamw_beside_muon),
}
