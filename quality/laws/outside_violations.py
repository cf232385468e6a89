"""PyTorch scripts with mistakes of kinds that the rest of the catalogue has not, written without the code of the laws.

Each is a script that is right with `right`, and so is in the catalogue twice: as it is, and repaired.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from quality.laws.entries import planted
from quality.laws.torch_parts import STEPS, Gpt, Mlp, next_token_loss, rows, sentences

_MLP = tuple(name for name, _ in Mlp().named_parameters())


def _network() -> Mlp:
    torch.manual_seed(0)
    return Mlp()


def _fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> nn.Module:
    """Train as everybody does."""
    for x, y in rows(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


# Schedules


@planted(
    "a scheduler that moves twice a step",
    laws="schedule",
    at=("CosineAnnealingLR", "scheduler"),
    wrong="The trainer moves the scheduler, and so does the loop: the learning rate comes back in the second half.",
)
def scheduler_twice(right: bool = False) -> nn.Module:
    """A regression with a cosine over all steps."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = CosineAnnealingLR(optimizer, T_max=STEPS)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        if not right:
            scheduler.step()
    return model


@planted(
    "a scheduler that moves before the step",
    laws="schedule",
    at=("LambdaLR", "scheduler"),
    wrong="The scheduler moves before the optimizer: the first learning rate is skipped.",
)
def scheduler_first(right: bool = False) -> nn.Module:
    """A regression with a learning rate that halves."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if right:
            optimizer.step()
            scheduler.step()
        else:
            scheduler.step()
            optimizer.step()
    return model


@planted(
    "a scheduler of the optimizer before",
    laws="schedule",
    at=("StepLR", "scheduler"),
    wrong="The optimizer is made anew after the scheduler, which goes on with the learning rate of the old one.",
)
def scheduler_of_another(right: bool = False) -> nn.Module:
    """A regression whose optimizer is exchanged before it begins."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if not right:
        scheduler = StepLR(optimizer, 3, 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    if right:
        scheduler = StepLR(optimizer, 3, 0.1)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return model


@planted(
    "a scheduler that never moves",
    laws="schedule",
    at=("LambdaLR", "scheduler"),
    wrong="`scheduler.step` has no parentheses: the learning rate stays at the first one of the warm-up.",
)
def scheduler_stands(right: bool = False) -> nn.Module:
    """A regression with warm-up."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if right:
            scheduler.step()
        else:
            scheduler.step  # noqa: B018
    return model


@planted(
    "a learning rate below zero",
    laws=("hyper-parameters", "schedule"),
    at=("lr", "LambdaLR", "scheduler"),
    wrong="The linear decay does not end at 0: the last steps go uphill.",
)
def below_zero(right: bool = False) -> nn.Module:
    """A regression with a linear decay."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / (STEPS if right else 6))
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return model


@planted(
    "a learning rate of 0 in one group",
    laws="frozen",
    at=("encoder.weight", "encoder.bias"),
    wrong="The learning rate of the encoder is divided as whole numbers: it is 0 throughout.",
)
def rate_of_zero(right: bool = False) -> nn.Module:
    """A regression with a smaller learning rate for the encoder."""
    model = _network()
    part = 5 / 10 if right else 5 // 10
    groups = [
        {"params": model.encoder.parameters(), "lr": 1e-2 * part},
        {"params": [*model.hidden.parameters(), *model.head.parameters()]},
    ]
    return _fit(model, torch.optim.AdamW(groups, lr=1e-2))


# Averages


class Average:
    """A moving average of parameters."""

    def __init__(self, model: nn.Module, decay: float = 0.99, dtype: torch.dtype | None = None) -> None:
        self.decay = decay
        self.shadow = {name: value.detach().clone().to(dtype) for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float | None = None) -> None:
        """Follow."""
        decay = self.decay if decay is None else decay
        for name, value in model.named_parameters():
            self.shadow[name].mul_(decay).add_(value.to(self.shadow[name].dtype), alpha=1 - decay)


def _averaged(average_of: Callable[[nn.Module], Any], update: Callable[[Any, nn.Module], None]) -> Iterable[Tensor]:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = average_of(model)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        update(average, model)
    return average.shadow.values()


@planted(
    "an average with another decay than its own",
    laws="EMA",
    at=_MLP,
    wrong="The average declares a decay of 0.99, and is updated with 0.9.",
)
def other_decay(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""
    return _averaged(Average, lambda average, model: average.update(model, None if right else 0.9))


@planted(
    "an average that follows twice a step",
    laws="EMA",
    at=_MLP,
    wrong="A callback updates the average, and so does the loop: its decay is 0.98 in place of 0.99.",
)
def average_twice(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""

    def update(average: Average, model: nn.Module) -> None:
        for _ in range(1 if right else 2):
            average.update(model)

    return _averaged(Average, update)


@planted(
    "an average that follows before the step",
    laws="EMA",
    at=_MLP,
    wrong="The average is updated between backward and step: it always misses the last step.",
)
def average_first(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = Average(model)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if not right:
            average.update(model)
        optimizer.step()
        if right:
            average.update(model)
    return average.shadow.values()


class SharedAverage(Average):
    """An average whose first values are not copied."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.shadow = {name: value.detach() for name, value in model.named_parameters()}


@planted(
    "an average in the memory of the parameters",
    laws=("EMA", "shared state"),
    at=_MLP,
    wrong="The average is not copied when it is made: it is the parameters.",
)
def average_shared(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""
    return _averaged(Average if right else SharedAverage, lambda average, model: average.update(model))


@planted(
    "an average in bfloat16",
    laws=("EMA", "lost updates"),
    at=_MLP,
    wrong="The average has bfloat16, in which additions of a thousandth are lost.",
)
def average_rounded(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""
    dtype = torch.float32 if right else torch.bfloat16
    return _averaged(lambda model: Average(model, 0.999, dtype), lambda average, model: average.update(model))


@planted(
    "an average whose complement is that of another decay",
    laws="EMA",
    at=_MLP,
    wrong="The weight of the parameter is 0.1 beside a decay of 0.99: the average grows.",
)
def average_grows(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights."""

    @torch.no_grad()
    def update(average: Average, model: nn.Module) -> None:
        part = 1 - average.decay if right else 1 - 0.9
        for name, value in model.named_parameters():
            average.shadow[name] = average.decay * average.shadow[name] + part * value

    return _averaged(Average, update)


class Normed(nn.Module):
    """Two layers with batch norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.head(self.drop(torch.relu(self.norm(self.encoder(x)))))


@planted(
    "an averaged model with the statistics of the first step",
    laws=("EMA", "frozen"),
    at=("norm.running_mean", "norm.running_var", "running_mean", "running_var"),
    wrong="The averaged copy never gets the statistics of batch norm, with which it is evaluated.",
)
def average_without_buffers(right: bool = False) -> Iterable[Tensor]:
    """A network with batch norm that is evaluated with averaged weights."""
    torch.manual_seed(0)
    model = Normed()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in rows(batch=16):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(average.parameters(), model.parameters()):
                mine.mul_(0.9).add_(its, alpha=0.1)
            for mine, its in zip(average.buffers(), model.buffers()):
                if right:
                    mine.copy_(its)
    average.eval()
    with torch.no_grad():
        average(x)
    return average.buffers()


# Clipping and scaling


@planted(
    "clipping behind the step of a scaler",
    laws="clip norm",
    at=("clip", "encoder", "hidden", "head"),
    wrong="Gradients are unscaled and clipped after the step: what clipping leaves is set to zero.",
)
def clip_behind(right: bool = False) -> nn.Module:
    """A regression with a loss scale."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for x, y in rows():
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        if right:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        if not right:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    return model


@planted(
    "clipping with the list from before",
    laws=("clip norm", "stale gradient"),
    at=("head.weight", "head.bias"),
    wrong="The list for clipping was made before the head was exchanged: the new head is never clipped.",
)
def clip_list(right: bool = False) -> nn.Module:
    """A network that gets a new head before it is trained."""
    model = _network()
    parameters = list(model.parameters())
    model.head = nn.Linear(16, 1)
    if right:
        parameters = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), 3 * y).backward()
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
    return model


@planted(
    "clipping in the middle of an accumulation",
    laws="clip norm",
    at=_MLP,
    wrong="Gradients are clipped before the last microbatch is added: what reaches the step is not clipped.",
)
def clip_between(right: bool = False) -> nn.Module:
    """A regression of two microbatches a step."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(rows(2 * STEPS)):
        if number % 2 == 0:
            optimizer.zero_grad()
        (F.mse_loss(model(x), 3 * y) / 2).backward()
        if number % 2 == int(right):
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if number % 2:
            optimizer.step()
    return model


@planted(
    "another network is clipped",
    laws="clip norm",
    at=("critic", "generator", "0.weight", "0.bias", "2.weight", "2.bias"),
    wrong="Before the step of the critic the gradients of the generator are clipped.",
)
def clip_another(right: bool = False) -> nn.Module:
    """A GAN with clipped gradients."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    for_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
    for_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
    for real, _ in rows():
        for_critic.zero_grad()
        fake = generator(torch.randn(8, 4))
        (F.softplus(-critic(real)) + F.softplus(critic(fake.detach()))).mean().backward()
        nn.utils.clip_grad_norm_((critic if right else generator).parameters(), 0.05)
        for_critic.step()
        for_generator.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        nn.utils.clip_grad_norm_(generator.parameters(), 0.05)
        for_generator.step()
    return critic


@planted(
    "the scale is taken out twice",
    laws="unscaled",
    at=_MLP,
    wrong="Gradients are divided by the scale by hand, and scaler.step divides once more. Adam hides it.",
)
def unscaled_twice(right: bool = False) -> nn.Module:
    """A regression with a loss scale."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in rows():
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        if not right:
            for parameter in model.parameters():
                parameter.grad.div_(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return model


@planted(
    "one of two optimizers without the scaler",
    laws="unscaled",
    at=("head.weight", "head.bias"),
    wrong="The optimizer of the head is stepped without the scaler: its gradients have the scale.",
)
def scaled_head(right: bool = False) -> nn.Module:
    """A body and a head with optimizers of their own, and a loss scale."""
    model = _network()
    body = torch.optim.Adam([*model.encoder.parameters(), *model.hidden.parameters()], lr=1e-2)
    head = torch.optim.SGD(model.head.parameters(), lr=0.005)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for x, y in rows():
        body.zero_grad()
        head.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.step(body)
        if right:
            scaler.step(head)
        else:
            head.step()
        scaler.update()
    return model


# Gradients


@planted(
    "zero_grad between backward and step",
    laws=("no update", "stale gradient", "no gradient"),
    at=(*_MLP, "SGD", "optimizer"),
    wrong="zero_grad stands behind backward: no step gets a gradient.",
)
def zeroed_between(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in rows():
        if right:
            optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        if not right:
            optimizer.zero_grad()
        optimizer.step()
    return model


@planted(
    "gradients set to numbers of 0 before the step",
    laws=("no update", "stale gradient", "no gradient"),
    at=(*_MLP, "AdamW", "optimizer"),
    wrong="zero_grad(set_to_none=False) stands behind backward: steps decay weights, and do nothing else.",
)
def zeros_between(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        if right:
            optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        if not right:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    return model


@planted(
    "zero_grad in each microbatch",
    laws=("stale gradient", "no update"),
    at=_MLP,
    wrong="Gradients are set to zero before each microbatch: those of three in four reach no step.",
)
def zeroed_microbatches(right: bool = False) -> nn.Module:
    """A regression of four microbatches a step."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(rows(4 * STEPS)):
        if not right or number % 4 == 0:
            optimizer.zero_grad()
        (F.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
    return model


@planted(
    "zero_grad of one of two optimizers",
    laws="stale gradient",
    at=("encoder.weight", "encoder.bias"),
    wrong="Only the optimizer of hidden and head sets gradients to zero: those of the encoder add up.",
)
def zeroed_half(right: bool = False) -> nn.Module:
    """An encoder with an optimizer of its own."""
    model = _network()
    slow = torch.optim.SGD(model.encoder.parameters(), lr=0.01)
    fast = torch.optim.SGD([*model.hidden.parameters(), *model.head.parameters()], lr=0.1)
    for x, y in rows():
        fast.zero_grad()
        if right:
            slow.zero_grad()
        F.mse_loss(model(x), y).backward()
        fast.step()
        slow.step()
    return model


@planted(
    "divided twice by the number of microbatches",
    laws="accumulation",
    at=_MLP,
    wrong="The loss is divided by 4, and so are the gradients that add up.",
)
def divided_twice(right: bool = False) -> nn.Module:
    """A regression of four microbatches a step."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(rows(4 * STEPS)):
        if number % 4 == 0:
            optimizer.zero_grad()
        (F.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 3:
            for parameter in model.parameters():
                if not right:
                    parameter.grad.div_(4)
            optimizer.step()
    return model


class Auxiliary(nn.Module):
    """Two heads on one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)
        self.auxiliary = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both answers."""
        x = torch.tanh(self.encoder(x))
        return self.head(x), self.auxiliary(x)


@planted(
    "an auxiliary loss that is added as a number",
    laws=("no gradient", "frozen"),
    at=("auxiliary.weight", "auxiliary.bias"),
    wrong="The loss of the auxiliary head is added with .item(): the head is never trained.",
)
def auxiliary_number(right: bool = False) -> nn.Module:
    """A network with an auxiliary head."""
    torch.manual_seed(0)
    model = Auxiliary()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        first, second = model(x)
        other = F.mse_loss(second, y.square())
        optimizer.zero_grad()
        (F.mse_loss(first, y) + 0.5 * (other if right else other.item())).backward()
        optimizer.step()
    return model


class Cached(nn.Module):
    """Two layers, the first of which can be told to compute without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)
        self.has_graph = True

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        with torch.set_grad_enabled(self.has_graph):
            x = torch.tanh(self.encoder(x))
        return self.head(x)


@planted(
    "an encoder below no_grad after the first evaluation",
    laws=("no gradient", "frozen"),
    at=("encoder.weight", "encoder.bias"),
    wrong="The evaluation turns the graph of the encoder off, and nobody turns it on again.",
)
def no_grad_stays(right: bool = False) -> nn.Module:
    """A regression, evaluated in the middle."""
    torch.manual_seed(0)
    model = Cached()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if number == 4:
            model.has_graph = False
            with torch.no_grad():
                model(x)
            model.has_graph = right
    return model


# What an optimizer is made of


@planted(
    "weight norm that is put on behind the list of parameters",
    laws="no optimizer",
    at=("parametrizations", "hidden.weight", "original0", "original1"),
    wrong="The weight is parametrized after the list for the optimizer was made, which has the weight of before.",
)
def parametrized_later(right: bool = False) -> nn.Module:
    """A regression with weight norm in one layer."""
    model = _network()
    parameters = list(model.parameters())
    nn.utils.parametrizations.weight_norm(model.hidden)
    if right:
        parameters = list(model.parameters())
    return _fit(model, torch.optim.SGD(parameters, lr=0.1))


@planted(
    "a parameter that neither group takes",
    laws="no optimizer",
    at=("positions.weight",),
    wrong="Groups are made by names, and that of the positions is in neither.",
)
def neither_group(right: bool = False) -> nn.Module:
    """A language model with decay on matrices alone."""
    torch.manual_seed(0)
    model = Gpt()
    words = ("qkv", "proj", "up", "down", "head", "embedding") + (("positions",) if right else ())
    decayed = [value for name, value in model.named_parameters() if value.dim() > 1 and any(w in name for w in words)]
    plain = [value for value in model.parameters() if value.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return model


class Listed(nn.Module):
    """Layers in a list."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        layers = [nn.Linear(16, 16) for _ in range(2)]
        self.middle = nn.ModuleList(layers) if right else layers
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        x = self.encoder(x)
        for layer in self.middle:
            x = x + torch.tanh(layer(x))
        return self.head(x)


@planted(
    "layers in a Python list",
    laws="no optimizer",
    at=("middle", "Linear"),
    wrong="Layers in a list are no parameters of the network: no optimizer has them.",
)
def listed(right: bool = False) -> Iterable[Tensor]:
    """A regression."""
    torch.manual_seed(0)
    model = Listed(right)
    _fit(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return [value for layer in model.middle for value in layer.parameters()]


@planted(
    "an optimizer made anew in each step",
    laws=("moments", "step", "no update", "two optimizers"),
    at=(*_MLP, "AdamW", "optimizer"),
    wrong="The optimizer is made in the loop: each step is the first one.",
)
def made_anew(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        if not right:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@planted(
    "an optimizer that goes back to its first state in each epoch",
    laws=("moments", "step", "resume"),
    at=_MLP,
    wrong="Each epoch loads the state of the optimizer that was saved at the beginning.",
)
def goes_back(right: bool = False) -> nn.Module:
    """A regression of three epochs."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = None
    for epoch in range(3):
        for number, (x, y) in enumerate(rows(4, seed=epoch)):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if epoch == number == 0:
                first = copy.deepcopy(optimizer.state_dict())
        if not right:
            optimizer.load_state_dict(first)
    return model


@planted(
    "a frozen base that momentum moves",
    laws="frozen",
    at=("encoder.weight", "encoder.bias"),
    wrong="Gradients of the frozen encoder are 0 and not None: momentum and decay go on moving it.",
)
def frozen_moves(right: bool = False) -> nn.Module:
    """A regression whose encoder is frozen after some steps."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for number, (x, y) in enumerate(rows()):
        if number == 4:
            model.encoder.requires_grad_(False)
            if right:
                for parameter in model.encoder.parameters():
                    parameter.grad = None
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@planted(
    "tied by .data",
    laws=("tied", "shared state", "two optimizers", "formula", "storage"),
    at=("embedding.weight", "head.weight"),
    wrong="Head and embedding are two parameters in one memory, which each step moves twice.",
)
def tied_by_data(right: bool = False) -> nn.Module:
    """A language model whose head is the embedding."""
    torch.manual_seed(0)
    model = Gpt()
    if right:
        model.head.weight = model.embedding.weight
    else:
        model.head.weight.data = model.embedding.weight.data
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return model


# Optimizers that a script brings along


class AdamW(torch.optim.Optimizer):
    """AdamW, with a fault that is no hyper-parameter."""

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0, fault: str = "") -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": weight_decay, "amsgrad": False}
        super().__init__(params, defaults)
        self.fault = fault

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                factor = {"decay without rate": 1 - decay, "decay grows": 1 + lr * decay}.get(
                    self.fault, 1 - lr * decay
                )
                parameter.mul_(factor)
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                first = 1 - beta1 ** state["step"].item()
                second = 1 - (beta1 if self.fault == "first beta" else beta2) ** state["step"].item()
                squares = state["exp_avg_sq"] / second
                eps = group["eps"]
                below = (squares + eps).sqrt() if self.fault == "eps inside" else squares.sqrt() + eps
                parameter.addcdiv_(state["exp_avg"], below, value=-lr / first)


def _with_adamw(right: bool, fault: str, decay: float = 0.0, lr: float = 1e-2) -> nn.Module:
    model = _network()
    return _fit(model, AdamW(model.parameters(), lr, decay, "" if right else fault))


@planted(
    "own AdamW whose decay is not times the learning rate",
    laws=("decay", "formula"),
    at=_MLP,
    wrong="Weights are multiplied by 1 - decay in place of 1 - lr x decay.",
)
def decay_without_rate(right: bool = False) -> nn.Module:
    """A regression."""
    return _with_adamw(right, "decay without rate", 0.01)


@planted(
    "own AdamW whose decay has the other sign",
    laws=("decay", "formula"),
    at=_MLP,
    wrong="Weights are multiplied by 1 + lr x decay.",
)
def decay_grows(right: bool = False) -> nn.Module:
    """A regression."""
    return _with_adamw(right, "decay grows", 0.1)


@planted(
    "own AdamW with one beta in both corrections",
    laws="formula",
    at=_MLP,
    wrong="The second moment is corrected with the first beta.",
)
def first_beta(right: bool = False) -> nn.Module:
    """A regression."""
    return _with_adamw(right, "first beta")


@planted(
    "own AdamW with eps below the root",
    laws="formula",
    at=_MLP,
    wrong="eps is added to the second moment before the root is taken: 1e-4 in place of 1e-8.",
)
def eps_inside(right: bool = False) -> nn.Module:
    """A regression."""
    return _with_adamw(right, "eps inside")


class Lion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675), with a fault that is no hyper-parameter."""

    def __init__(self, params: Iterable[Any], lr: float, fault: str = "") -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})
        self.fault = fault

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            beta1, beta2 = reversed(group["betas"]) if self.fault == "betas" else group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * beta1 + parameter.grad * (1 - beta1)
                parameter.add_(update if self.fault == "sign" else update.sign(), alpha=-group["lr"])
                state["exp_avg"].lerp_(parameter.grad, 1 - beta2)


@planted(
    "own Lion without the sign",
    laws="formula",
    at=_MLP,
    wrong="The interpolation itself is added, not its sign.",
)
def without_sign(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    return _fit(model, Lion(model.parameters(), 1e-3, "" if right else "sign"))


@planted(
    "own Lion with exchanged betas",
    laws=("formula", "moments"),
    at=_MLP,
    wrong="The update has the beta of the moment, and the other way round.",
)
def exchanged_betas(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    return _fit(model, Lion(model.parameters(), 1e-3, "" if right else "betas"))


class SGD(torch.optim.Optimizer):
    """SGD, with a fault that is no hyper-parameter."""

    def __init__(self, params: Iterable[Any], lr: float, fault: str = "", **settings: Any) -> None:
        defaults = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
        super().__init__(params, {"lr": lr} | defaults | settings)
        self.fault = fault

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                grad = -parameter.grad if group["maximize"] and self.fault != "maximize" else parameter.grad
                decay = -group["weight_decay"] if self.fault == "decay" else group["weight_decay"]
                grad = grad.add(parameter, alpha=decay)
                if group["momentum"]:
                    state = self.state[parameter]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = grad.clone()
                    else:
                        part = 1.0 if self.fault == "dampening" else 1 - group["dampening"]
                        state["momentum_buffer"].mul_(group["momentum"]).add_(grad, alpha=part)
                    grad = state["momentum_buffer"]
                parameter.add_(grad, alpha=-group["lr"])


@planted(
    "own SGD whose decay has the other sign",
    laws=("decay", "formula", "moments"),
    at=_MLP,
    wrong="The decay is subtracted from the gradient: weights grow.",
)
def sgd_grows(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    return _fit(model, SGD(model.parameters(), 0.05, "" if right else "decay", weight_decay=0.05))


@planted(
    "own SGD that does not look at maximize",
    laws="formula",
    at=_MLP,
    wrong="The option maximize is accepted and ignored: a reward is minimised.",
)
def not_maximized(right: bool = False) -> nn.Module:
    """A regression, as a reward."""
    model = _network()
    optimizer = SGD(model.parameters(), 0.05, "" if right else "maximize", maximize=True)
    for x, y in rows():
        optimizer.zero_grad()
        (-F.mse_loss(model(x), y)).backward()
        optimizer.step()
    return model


@planted(
    "own SGD that does not look at dampening",
    laws=("moments", "formula"),
    at=_MLP,
    wrong="The option dampening is accepted and ignored: the momentum is twice too large.",
)
def not_dampened(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    fault = "" if right else "dampening"
    return _fit(model, SGD(model.parameters(), 0.05, fault, momentum=0.9, dampening=0.5))


class Adagrad(torch.optim.Adagrad):
    """Adagrad whose sum is the last square."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] += 1
                    state["sum"].copy_(parameter.grad.square())
                    below = state["sum"].sqrt() + group["eps"]
                    parameter.addcdiv_(parameter.grad, below, value=-group["lr"])


@planted(
    "own Adagrad that forgets",
    laws=("moments", "formula"),
    at=_MLP,
    wrong="The sum of squares is overwritten by the last square.",
)
def forgets(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    kind = torch.optim.Adagrad if right else Adagrad
    return _fit(model, kind(model.parameters(), lr=1e-2))


class RMSprop(torch.optim.RMSprop):
    """RMSprop that divides by the square."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state |= {"step": torch.tensor(0.0), "square_avg": torch.zeros_like(parameter)}
                    state["step"] += 1
                    state["square_avg"].mul_(group["alpha"]).addcmul_(
                        parameter.grad, parameter.grad, value=1 - group["alpha"]
                    )
                    below = state["square_avg"] + group["eps"]
                    parameter.addcdiv_(parameter.grad, below, value=-group["lr"])


@planted(
    "own RMSprop without the root",
    laws="formula",
    at=_MLP,
    wrong="Gradients are divided by the mean square, not by its root.",
)
def without_root(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    kind = torch.optim.RMSprop if right else RMSprop
    return _fit(model, kind(model.parameters(), lr=1e-4, eps=1e-3))


class Adamax(torch.optim.Adamax):
    """Adamax whose norm never decays."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            beta1, _ = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_inf")}
                    state["step"] += 1
                    state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                    torch.maximum(state["exp_inf"], parameter.grad.abs() + group["eps"], out=state["exp_inf"])
                    rate = group["lr"] / (1 - beta1 ** state["step"].item())
                    parameter.addcdiv_(state["exp_avg"], state["exp_inf"], value=-rate)


@planted(
    "own Adamax whose norm does not decay",
    laws=("moments", "formula"),
    at=_MLP,
    wrong="The infinity norm is a maximum over all steps: the second beta is not looked at.",
)
def never_decays(right: bool = False) -> nn.Module:
    """A regression."""
    model = _network()
    kind = torch.optim.Adamax if right else Adamax
    return _fit(model, kind(model.parameters(), lr=1e-2, betas=(0.9, 0.5)))


class Choosing(nn.Module):
    """Three experts, of which each batch uses two."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, left_out: int) -> Tensor:
        """One number per row."""
        for number, expert in enumerate(self.experts):
            if number != left_out:
                x = x + torch.tanh(expert(x))
        return self.head(x)


class ListedAdam(torch.optim.Adam):
    """Adam that makes lists of what has a gradient, and takes the moments from lists of all."""

    def __init__(self, params: Iterable[Any], lr: float, right: bool) -> None:
        super().__init__(params, lr=lr)
        self.right = right
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {"step": torch.tensor(0.0)}
            self.state[parameter] |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        group = self.param_groups[0]
        weights = [value for value in group["params"] if value.dim() > 1 and value.shape[0] == 8]
        for some in (weights, [value for value in group["params"] if all(value is not one for one in weights)]):
            with_gradient = [value for value in some if value.grad is not None]
            states = [self.state[value] for value in (with_gradient if self.right else some)]
            for parameter, state in zip(with_gradient, states):
                if state["exp_avg"].shape != parameter.shape:
                    state = self.state[parameter]
                state["step"] += 1
                (beta1, beta2), steps = group["betas"], state["step"].item()
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                below = (state["exp_avg_sq"] / (1 - beta2**steps)).sqrt() + group["eps"]
                parameter.addcdiv_(state["exp_avg"], below, value=-group["lr"] / (1 - beta1**steps))


@planted(
    "own Adam whose lists are out of step",
    laws=("moments", "step", "formula"),
    at=("experts", "head.bias", "head.weight"),
    wrong="Where an expert has no gradient, those behind it get the moments of the expert before.",
)
def out_of_step(right: bool = False) -> nn.Module:
    """Three experts, one of which is left out in turn."""
    torch.manual_seed(0)
    model = Choosing()
    optimizer = ListedAdam(model.parameters(), 1e-2, right)
    for number, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x, number % 3), y).backward()
        optimizer.step()
    return model


# Modes and random numbers


@planted(
    "a training in evaluation mode from the start",
    laws="frozen",
    at=("Normed", "drop", "norm", "model", "eval"),
    wrong="The network was loaded in evaluation mode, and train() is never called.",
)
def evaluation_mode(right: bool = False) -> nn.Module:
    """A network with batch norm and dropout that goes on with loaded weights."""
    torch.manual_seed(0)
    model = Normed().eval()
    if right:
        model.train()
    return _fit(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


@planted(
    "batch norm left in evaluation mode",
    laws="frozen",
    at=("norm", "Normed", "BatchNorm1d"),
    wrong="After the evaluation train() is called on the parts with parameters in a list that misses batch norm.",
)
def norm_in_evaluation(right: bool = False) -> nn.Module:
    """A network with batch norm, evaluated in the middle."""
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if number == 4:
            model.eval()
            with torch.no_grad():
                model(x)
            if right:
                model.train()
            model.training = True
            for part in (model.encoder, model.drop, model.head):
                part.train()
    return model


class Hidden(nn.Module):
    """Dropout in a list that eval does not reach."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        drops = [nn.Dropout(0.5)]
        self.drops = nn.ModuleList(drops) if right else drops
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.head(self.drops[0](torch.tanh(self.encoder(x))))


@planted(
    "dropout in a list that eval does not reach",
    laws="dropout in eval",
    at=("Dropout", "drops", "Hidden"),
    wrong="Dropout stands in a Python list: it drops in evaluation too.",
)
def hidden_dropout(right: bool = False) -> Iterable[Tensor]:
    """A network with dropout, evaluated in the middle."""
    torch.manual_seed(0)
    model = Hidden(right)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs.append(model(x))
        model.train()
    return outputs


@planted(
    "the seed is set in each step",
    laws="dropout layers",
    at=("drop1", "drop2", "Dropout"),
    wrong="The seed is set at the beginning of each step: masks of all steps are the same.",
)
def seeded_steps(right: bool = False) -> nn.Module:
    """A regression with dropout."""
    torch.manual_seed(0)
    model = Mlp(dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in rows():
        if not right:
            torch.manual_seed(0)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@planted(
    "the seed is set in each epoch",
    laws=("dropout layers", "same batch", "data workers"),
    at=("drop1", "drop2", "Dropout", "batch", "epoch", "RandomSampler"),
    wrong="The seed is set at the beginning of each epoch: order and masks of all epochs are the same.",
)
def seeded_epochs(right: bool = False) -> nn.Module:
    """A regression with dropout and shuffled data, three epochs."""
    torch.manual_seed(0)
    model = Mlp(dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = next(rows(1, batch=32))
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    for _ in range(3):
        if not right:
            torch.manual_seed(1)
        for inputs, goals in loader:
            optimizer.zero_grad()
            F.mse_loss(model(inputs), goals).backward()
            optimizer.step()
    return model


# Data


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise of `draw`."""

    def __init__(self, draw: Callable[[], Tensor]) -> None:
        self.draw = draw
        self.x, self.y = next(rows(1, batch=32))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number] + 0.1 * self.draw(), self.y[number]


def _augmented(dataset: Dataset[Any], init: Callable[[int], None] | None, epochs: int = 2) -> nn.Module:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(epochs):
        for x, y in DataLoader(dataset, 4, shuffle=True, num_workers=2, worker_init_fn=init):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    return model


def _python_noise() -> Tensor:
    return torch.tensor([random.gauss(0, 1) for _ in range(8)])


def _numpy_noise() -> Tensor:
    return torch.from_numpy(np.random.randn(8).astype("float32"))


def _torch_noise() -> Tensor:
    return torch.randn(8)


def _python_seed(worker: int) -> None:
    random.seed(7)


def _torch_seed(worker: int) -> None:
    torch.manual_seed(7)


def _seed_of_worker(worker: int) -> None:
    np.random.seed(worker)


@planted(
    "workers with one seed of Python's random",
    laws="data workers",
    at=("worker", "augment", "random"),
    wrong="Each worker begins with random.seed(7): images differ, what is added to them does not.",
)
def python_workers(right: bool = False) -> nn.Module:
    """A regression on rows with noise."""
    return _augmented(Augmented(_python_noise), None if right else _python_seed)


@planted(
    "workers with one seed of PyTorch",
    laws="data workers",
    at=("worker", "augment", "random"),
    wrong="Each worker begins with torch.manual_seed(7): images differ, what is added to them does not.",
)
def torch_workers(right: bool = False) -> nn.Module:
    """A regression on rows with noise."""
    return _augmented(Augmented(_torch_noise), None if right else _torch_seed)


@planted(
    "the same augmentation in each epoch",
    laws="data workers",
    at=("worker", "augment", "random", "epoch"),
    wrong="Workers are seeded by their number alone: each epoch begins with the same draws.",
)
def same_each_epoch(right: bool = False) -> nn.Module:
    """A regression on rows with noise, three epochs."""
    return _augmented(Augmented(_numpy_noise), None if right else _seed_of_worker, 3)


class OwnGenerator(Augmented):
    """Rows with noise of a generator that is made with the dataset."""

    def __init__(self) -> None:
        self.generator = np.random.RandomState(5)
        super().__init__(lambda: torch.from_numpy(self.generator.randn(8).astype("float32")))


@planted(
    "a generator that each worker has a copy of",
    laws="data workers",
    at=("worker", "augment", "random"),
    wrong="The dataset has a generator for what it adds, and each worker gets a copy of it.",
)
def copied_generator(right: bool = False) -> nn.Module:
    """A regression on rows with noise."""
    return _augmented(Augmented(_numpy_noise) if right else OwnGenerator(), None)


@planted(
    "the same order in each epoch",
    laws="same batch",
    at=("epoch", "batch", "RandomSampler", "shuffle"),
    wrong="The loader is made in each epoch, with a generator of the same seed: it shuffles once and for all.",
)
def same_order(right: bool = False) -> nn.Module:
    """A regression of three epochs."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = next(rows(1, batch=32))
    for epoch in range(3):
        generator = torch.Generator().manual_seed(epoch if right else 0)
        for inputs, goals in DataLoader(TensorDataset(x, y), 8, shuffle=True, generator=generator):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), goals).backward()
            optimizer.step()
    return model


@planted(
    "set_epoch left out",
    laws="same batch",
    at=("epoch", "batch", "DistributedSampler", "shuffle"),
    wrong="set_epoch of the sampler is never called: each epoch has the order of the first.",
    ranks=2,
)
def no_epoch(right: bool = False) -> nn.Module:
    """A regression of three epochs on two ranks."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = next(rows(1, batch=32))
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, shuffle=True)
    for epoch in range(3):
        if right:
            sampler.set_epoch(epoch)
        for inputs, goals in DataLoader(dataset, 4, sampler=sampler):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), goals).backward()
            optimizer.step()
    dist.destroy_process_group()
    return model


@planted(
    "labels are moved the wrong way",
    laws="labels",
    at=("labels", "target", "cross_entropy"),
    wrong="Each place learns the token before: inputs from 1 on, targets up to the last but one.",
)
def moved_back(right: bool = False) -> nn.Module:
    """A language model."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        logits = model(tokens)
        if right:
            logits, labels = logits[:, :-1], tokens[:, 1:]
        else:
            logits, labels = logits[:, 1:], tokens[:, :-1]
        optimizer.zero_grad()
        F.cross_entropy(logits.reshape(-1, 32), labels.reshape(-1)).backward()
        optimizer.step()
    return model


# Copies of a network


@planted(
    "a target network that is copied from itself",
    laws=("EMA", "target"),
    at=("target", "0.weight", "0.bias", "2.weight", "2.bias"),
    wrong="The target network gets its own weights every third step: it stays as it was made.",
)
def own_target(right: bool = False) -> Iterable[Tensor]:
    """Q-learning with a target network."""
    torch.manual_seed(0)
    online = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(rows(12)):
        action = torch.randint(3, (8, 1))
        goal = y + 0.9 * target(x.roll(1, 0)).amax(1, keepdim=True)
        optimizer.zero_grad()
        F.mse_loss(online(x).gather(1, action), goal).backward()
        optimizer.step()
        if number % 3 == 2:
            target.load_state_dict((online if right else target).state_dict())
    return list(target.parameters())


@planted(
    "a teacher in the memory of its student",
    laws=("EMA", "shared state", "storage", "target"),
    at=("encoder", "hidden", "head", "teacher"),
    wrong="The teacher is given the memory of the student, not a copy: both are one network.",
)
def shared_teacher(right: bool = False) -> Iterable[Tensor]:
    """A student and the average of it."""
    torch.manual_seed(0)
    student, teacher = Mlp(), Mlp()
    for mine, its in zip(teacher.parameters(), student.parameters()):
        mine.requires_grad_(False)
        mine.data = its.data.clone() if right else its.data
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, y in rows():
        optimizer.zero_grad()
        out = student(x)
        (F.mse_loss(out, y) + 0.1 * F.mse_loss(out, teacher(x + 0.1).detach())).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(teacher.parameters(), student.parameters()):
                mine.mul_(0.9).add_(its, alpha=0.1)
    return list(teacher.parameters())


# Ranks


def _reduced(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@planted(
    "ranks that begin with other weights",
    laws="replicas",
    at=_MLP,
    wrong="Each rank seeds its weights by its number; gradients are averaged, weights never were.",
    ranks=2,
)
def other_weights(right: bool = False) -> nn.Module:
    """A regression on two ranks without a wrapper."""
    dist.init_process_group("gloo")
    torch.manual_seed(0 if right else dist.get_rank())
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        _reduced(model)
        optimizer.step()
    dist.destroy_process_group()
    return model


@planted(
    "one rank with another learning rate",
    laws="replicas",
    at=(*_MLP, "lr"),
    wrong="The second rank reads another learning rate.",
    ranks=2,
)
def other_rate(right: bool = False) -> nn.Module:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(_network())
    rate = 0.05 if right or dist.get_rank() == 0 else 0.06
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()
    return model


@planted(
    "no_sync around the last microbatch",
    laws="replicas",
    at=_MLP,
    wrong="Gradients are averaged in the first microbatch and not in the last: ranks have other sums.",
    ranks=2,
)
def sync_first(right: bool = False) -> nn.Module:
    """A regression on two ranks, two microbatches a step."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(rows(2 * STEPS, seed=1 + dist.get_rank())):
        if number % 2 == int(not right):
            with model.no_sync():
                (F.mse_loss(model(x), y) / 2).backward()
        else:
            (F.mse_loss(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    return model


@planted(
    "moments that the first rank alone loads",
    laws=("replicas", "resume"),
    at=(*_MLP, "exp_avg", "state"),
    wrong="The first rank goes on with the moments of the checkpoint, the other one begins anew.",
    ranks=2,
    runs=2,
)
def moments_of_one(right: bool = False) -> nn.Module:
    """A regression on two ranks that is stopped once."""
    dist.init_process_group("gloo")
    network = _network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    file = Path("state.pt")
    seed = 1
    if file.exists():
        state = torch.load(file)
        network.load_state_dict(state["model"])
        if right or dist.get_rank() == 0:
            optimizer.load_state_dict(state["optimizer"])
        seed = 11
    model = DistributedDataParallel(network)
    for x, y in rows(seed=seed + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.barrier()
    if seed == 1 and dist.get_rank() == 0:
        torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, file)
    dist.destroy_process_group()
    return network


@planted(
    "all ranks read the same rows",
    laws="rank data",
    at=("batch", "rank", "DataLoader", "data"),
    wrong="There is no sampler for the ranks: each of them reads the same rows in the same order.",
    ranks=2,
)
def same_rows(right: bool = False) -> nn.Module:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = next(rows(1, batch=40))
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset, shuffle=False) if right else None
    for inputs, goals in DataLoader(dataset, 4, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), goals).backward()
        optimizer.step()
    dist.destroy_process_group()
    return model


# Resuming


@planted(
    "an average that begins anew",
    laws=("resume", "EMA"),
    at=("shadow", "average", "ema", "averag", *_MLP),
    wrong="The average is not in the checkpoint: the resumed run makes it of the weights of then.",
    runs=2,
)
def average_anew(right: bool = False) -> Iterable[Tensor]:
    """A regression with averaged weights that is stopped once."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = Average(model, 0.9)
    file, seed = Path("state.pt"), 1
    if file.exists():
        state, seed = torch.load(file), 2
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average = Average(model, 0.9)
        if right:
            average.shadow = state["average"]
    for x, y in rows(seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        average.update(model)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | ({"average": average.shadow} if right else {}), file)
    return average.shadow.values()


class Even(nn.Module):
    """Four layers of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.sum(1, keepdim=True)


@planted(
    "moments in another order of parameters",
    laws=("resume", "moments"),
    at="layers",
    wrong="The resumed run gives the optimizer its layers from last to first: moments belong to other layers.",
    runs=2,
)
def other_order(right: bool = False) -> nn.Module:
    """A regression that is stopped once."""
    torch.manual_seed(0)
    model = Even()
    file = Path("state.pt")
    layers = list(model.layers)
    if file.exists() and not right:
        layers = layers[::-1]
    optimizer = torch.optim.AdamW([value for layer in layers for value in layer.parameters()], lr=1e-2)
    seed = 1
    if file.exists():
        state, seed = torch.load(file), 2
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for x, y in rows(seed=seed):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return model
