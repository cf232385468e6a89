"""PyTorch trainings that are right and unusual, written without the code of the laws."""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations, prune
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from quality.laws.entries import clean
from quality.laws.torch_parts import STEPS, Gpt, Mlp, next_token_loss, rows, sentences


def _network(dropout: float = 0.0) -> Mlp:
    torch.manual_seed(0)
    return Mlp(dropout=dropout)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@clean("Wasserstein GAN with clipped weights")
def wasserstein() -> nn.Module:
    """Three steps of the critic for one of the generator; weights of the critic are clipped after its steps."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    for number, (real, _) in enumerate(rows(12)):
        for_critic.zero_grad()
        (critic(generator(torch.randn(8, 4)).detach()).mean() - critic(real).mean()).backward()
        for_critic.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.05, 0.05)
        if number % 3 == 2:
            for_generator.zero_grad()
            (-critic(generator(torch.randn(8, 4))).mean()).backward()
            for_generator.step()
    return critic


@clean("GAN with spectral norm and an averaged generator")
def spectral() -> nn.Module:
    """The critic has spectral norm, the generator is averaged for evaluation."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    layers = [nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1)]
    critic = nn.Sequential(
        *[parametrizations.spectral_norm(one) if isinstance(one, nn.Linear) else one for one in layers]
    )
    average = copy.deepcopy(generator).eval().requires_grad_(False)
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for_critic = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
    for real, _ in rows():
        fake = generator(torch.randn(8, 4))
        for_critic.zero_grad()
        (F.relu(1 - critic(real)) + F.relu(1 + critic(fake.detach()))).mean().backward()
        for_critic.step()
        critic.requires_grad_(False)
        for_generator.zero_grad()
        (-critic(fake).mean()).backward()
        for_generator.step()
        critic.requires_grad_(True)
        with torch.no_grad():
            for mine, its in zip(average.parameters(), generator.parameters()):
                mine.lerp_(its, 1 - 0.95)
            for mine, its in zip(average.buffers(), generator.buffers()):
                mine.copy_(its)
            average(torch.randn(8, 4))
    return generator


@clean("layers thaw from the head down, with groups that are added")
def gradual() -> nn.Module:
    """ULMFiT: what thaws gets a group with a smaller learning rate."""
    model = _network()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(rows(12)):
        if number in (4, 8):
            layer = model.hidden if number == 4 else model.encoder
            layer.requires_grad_(True)
            optimizer.add_param_group({"params": layer.parameters(), "lr": 1e-2 / 2.6 ** (number // 4)})
        _step(model, optimizer, x, y)
    return model


@clean("early layers are frozen at the end")
def freeze_out() -> nn.Module:
    """FreezeOut: the first layer is frozen for good, then the second one."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number, (x, y) in enumerate(rows(12)):
        if number in (6, 9):
            layer = model.encoder if number == 6 else model.hidden
            layer.requires_grad_(False)
            for parameter in layer.parameters():
                parameter.grad = None
        _step(model, optimizer, x, y)
    return model


class Lookahead:
    """Slow weights beside an optimizer (arXiv 1907.08610)."""

    def __init__(self, optimizer: torch.optim.Optimizer, every: int = 4, alpha: float = 0.5) -> None:
        self.optimizer, self.every, self.alpha, self.count = optimizer, every, alpha, 0
        self.slow = [[value.detach().clone() for value in group["params"]] for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """As the optimizer."""
        self.optimizer.zero_grad()

    @torch.no_grad()
    def step(self) -> None:
        """One step; every fourth goes back half of the way."""
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.optimizer.param_groups, self.slow):
                for fast, old in zip(group["params"], slow):
                    old.lerp_(fast, self.alpha)
                    fast.copy_(old)


@clean("Lookahead")
def lookahead() -> nn.Module:
    """Around AdamW."""
    model = _network()
    optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2))
    for x, y in rows(12):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@clean("Lookahead whose momentum begins anew")
def lookahead_reset() -> nn.Module:
    """Each synchronisation sets the momentum of the fast weights to zero, in place."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    slow = [value.detach().clone() for value in model.parameters()]
    for number, (x, y) in enumerate(rows(12)):
        _step(model, optimizer, x, y)
        if number % 4 == 3:
            with torch.no_grad():
                for old, fast in zip(slow, model.parameters()):
                    old.lerp_(fast, 0.5)
                    fast.copy_(old)
                    optimizer.state[fast]["momentum_buffer"].zero_()
    return model


class Normed(nn.Module):
    """Two layers with batch norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.head(torch.relu(self.norm(self.encoder(x))))


@clean("SWA with its own schedule and statistics taken anew")
def swa() -> nn.Module:
    """The average begins late; batch norm of the average is computed in training mode without gradients."""
    torch.manual_seed(0)
    model = Normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = AveragedModel(model)
    scheduler, constant = StepLR(optimizer, 1, 0.9), SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    x, y = next(rows(1, batch=32))
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    for epoch in range(5):
        for inputs, goals in loader:
            _step(model, optimizer, inputs, goals)
        if epoch >= 2:
            average.update_parameters(model)
            constant.step()
        else:
            scheduler.step()
    update_bn(loader, average)
    average.eval()
    with torch.no_grad():
        average(x)
    return average


class Average:
    """A moving average of parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Follow."""
        for name, value in model.named_parameters():
            self.shadow[name] -= (1 - self.decay) * (self.shadow[name] - value)


@clean("two averages, one of them every third step")
def two_averages() -> nn.Module:
    """A fast and a slow average."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fast, slow = Average(model, 0.9), Average(model, 0.99)
    for number, (x, y) in enumerate(rows(12)):
        _step(model, optimizer, x, y)
        fast.update(model)
        if number % 3 == 2:
            slow.update(model)
    return model


@clean("accumulation with a shorter last group")
def uneven() -> nn.Module:
    """Ten microbatches by four: the last step has two, and its own mean."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(3):
        batches = list(rows(10, seed=epoch))
        for first in range(0, 10, 4):
            group = batches[first : first + 4]
            for x, y in group:
                (F.mse_loss(model(x), y) / len(group)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model


@clean("accumulation as a sum that is divided before the step")
def summed() -> nn.Module:
    """Gradients of a sum of losses are divided by the number of rows."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = 0
    for number, (x, y) in enumerate(rows(12)):
        x, y = x[: 4 + number % 3], y[: 4 + number % 3]
        F.mse_loss(model(x), y, reduction="sum").backward()
        count += len(x)
        if number % 4 == 3:
            for parameter in model.parameters():
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0
    return model


class Lora(nn.Module):
    """A linear layer with a low-rank addition that can be merged."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.is_merged = False

    @torch.no_grad()
    def merge(self, is_merged: bool) -> None:
        """Add to the base, or take away again."""
        if is_merged != self.is_merged:
            self.base.weight.add_(self.b @ self.a, alpha=1.0 if is_merged else -1.0)
            self.is_merged = is_merged

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return self.base(x) if self.is_merged else self.base(x) + x @ self.a.T @ self.b.T


@clean("LoRA that is merged for evaluation")
def lora_merged() -> nn.Module:
    """Merged, evaluated, and taken apart again."""
    model = _network()
    model.requires_grad_(False)
    model.encoder, model.hidden = Lora(model.encoder), Lora(model.hidden)
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-2)
    for number, (x, y) in enumerate(rows(12)):
        _step(model, optimizer, x, y)
        if number % 5 == 4:
            model.encoder.merge(True)
            model.hidden.merge(True)
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            model.encoder.merge(False)
            model.hidden.merge(False)
    return model


@clean("ReLoRA")
def relora() -> nn.Module:
    """Low-rank additions are merged and begin anew, and so do their moments (arXiv 2307.05695)."""
    model = _network()
    model.requires_grad_(False)
    model.hidden = Lora(model.hidden)
    optimizer = torch.optim.AdamW([model.hidden.a, model.hidden.b], lr=1e-2)
    for number, (x, y) in enumerate(rows(12)):
        _step(model, optimizer, x, y)
        if number % 5 == 4:
            with torch.no_grad():
                model.hidden.base.weight.add_(model.hidden.b @ model.hidden.a)
                model.hidden.a.normal_(std=0.1)
                model.hidden.b.zero_()
            optimizer.state.clear()
    return model


@clean("steps by hand")
def by_hand() -> nn.Module:
    """SGD without an optimizer for one part, Adam for the rest."""
    model = _network()
    optimizer = torch.optim.Adam([*model.hidden.parameters(), *model.head.parameters()], lr=1e-2)
    for x, y in rows():
        model.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.encoder.parameters():
                parameter -= 0.05 * parameter.grad
    return model


@clean("L-BFGS with a line search")
def lbfgs() -> nn.Module:
    """Many evaluations of one batch in each step."""
    model = _network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    x, y = next(rows(1, batch=32))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    return model


@clean("warm restarts by parts of an epoch")
def restarts() -> nn.Module:
    """The scheduler is told the epoch as a fraction in each step."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2)
    for epoch in range(3):
        for number, (x, y) in enumerate(rows(4, seed=epoch)):
            _step(model, optimizer, x, y)
            scheduler.step(epoch + (number + 1) / 4)
    return model


@clean("one schedule per step and one per epoch")
def two_schedules() -> nn.Module:
    """Warm-up by steps and then a plateau by epochs, whose loss is that of the evaluation."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm = LinearLR(optimizer, 0.1, 1.0, 4)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    test = next(rows(1, seed=9))
    for epoch in range(4):
        for x, y in rows(4, seed=epoch):
            _step(model, optimizer, x, y)
            if epoch == 0:
                warm.step()
        model.eval()
        with torch.no_grad():
            loss = F.mse_loss(model(test[0]), test[1])
        model.train()
        plateau.step(loss)
    return model


@clean("schedules one after the other, a step each time that gradients add up")
def sequential() -> nn.Module:
    """The schedule counts steps of the optimizer, not microbatches."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parts = [LinearLR(optimizer, 0.01, 1.0, 3), LambdaLR(optimizer, lambda step: 0.8**step)]
    scheduler = SequentialLR(optimizer, parts, milestones=[3])
    for number, (x, y) in enumerate(rows(2 * STEPS)):
        (F.mse_loss(model(x), y) / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return model


@clean("policy that learns three times from each batch")
def reused() -> nn.Module:
    """Proximal policy optimisation: minibatches of one rollout come again in other orders."""
    torch.manual_seed(0)
    policy, value = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), nn.Linear(8, 1)
    optimizer = torch.optim.Adam(itertools.chain(policy.parameters(), value.parameters()), lr=3e-3, eps=1e-5)
    for states, reward in rows(3, batch=16):
        with torch.no_grad():
            log = policy(states).log_softmax(-1)
            action = torch.multinomial(log.exp(), 1)
            old, gain = log.gather(1, action), reward - value(states)
        for _ in range(3):
            for part in torch.randperm(16).chunk(2):
                ratio = (policy(states[part]).log_softmax(-1).gather(1, action[part]) - old[part]).exp()
                clipped = torch.minimum(ratio * gain[part], ratio.clamp(0.8, 1.2) * gain[part])
                optimizer.zero_grad()
                (F.mse_loss(value(states[part]), reward[part]) - clipped.mean()).backward()
                nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
                optimizer.step()
    return policy


@clean("Q-learning from a memory, with a target that is copied now and then")
def q_learning() -> nn.Module:
    """Batches are drawn with replacement; the target network is copied every fourth step."""
    torch.manual_seed(0)
    rng = random.Random(0)
    online = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-2)
    memory: deque[tuple[Tensor, Tensor]] = deque(maxlen=6)
    for number, (x, y) in enumerate(rows(14, batch=4)):
        memory.append((x, y))
        states, reward = (torch.cat(parts) for parts in zip(*[rng.choice(memory) for _ in range(2)]))
        goal = reward + 0.9 * target(states.roll(1, 0)).amax(1, keepdim=True)
        loss = F.smooth_l1_loss(online(states)[:, :1], goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 1.0)
        optimizer.step()
        if number % 4 == 3:
            target.load_state_dict(online.state_dict())
    return online


@clean("soft targets of actor and critic")
def soft_targets() -> nn.Module:
    """Two critics, targets that follow slowly, the actor every second step."""
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2), nn.Tanh())
    critics = nn.ModuleList(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
    targets = copy.deepcopy(nn.ModuleList([actor, critics])).requires_grad_(False)
    for_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    for number, (x, reward) in enumerate(rows(12)):
        with torch.no_grad():
            later = torch.cat([x.roll(1, 0), targets[0](x.roll(1, 0))], 1)
            goal = reward + 0.9 * torch.minimum(targets[1][0](later), targets[1][1](later))
            now = torch.cat([x, actor(x) + 0.1 * torch.randn(8, 2)], 1)
        for_critics.zero_grad()
        sum(F.mse_loss(critic(now), goal) for critic in critics).backward()
        for_critics.step()
        if number % 2:
            for_actor.zero_grad()
            (-critics[0](torch.cat([x, actor(x)], 1)).mean()).backward()
            for_actor.step()
            with torch.no_grad():
                for mine, its in zip(targets.parameters(), [*actor.parameters(), *critics.parameters()]):
                    mine.mul_(0.95).add_(its, alpha=0.05)
    return actor


@clean("curriculum of longer sentences")
def curriculum() -> nn.Module:
    """Sentences grow, and short ones come again."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    every = list(sentences(6))
    for length in (5, 9, 13):
        for tokens in every[: 2 + length // 4]:
            optimizer.zero_grad()
            next_token_loss(model(tokens[:, :length]), tokens[:, :length]).backward()
            optimizer.step()
    return model


@clean("data echoing")
def echoed() -> nn.Module:
    """Each batch is used for two steps, one after the other, with other noise."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in rows(6):
        for _ in range(2):
            _step(model, optimizer, x + 0.05 * torch.randn_like(x), y)
    return model


@clean("pruning step by step")
def pruned() -> nn.Module:
    """Masks of PyTorch, which put the parameter of before behind a product; the optimizer is made anew."""
    model = _network()
    for share in (0.2, 0.3):
        for layer in (model.encoder, model.hidden):
            prune.l1_unstructured(layer, "weight", share)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for x, y in rows(6, seed=int(10 * share)):
            _step(model, optimizer, x, y)
    for layer in (model.encoder, model.hidden):
        prune.remove(layer, "weight")
    return model


@clean("masks by hand after each step")
def masked() -> nn.Module:
    """Weights below a threshold are set to zero after each step, with their momentum."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mask = model.hidden.weight.detach().abs() > 0.1
    for x, y in rows():
        _step(model, optimizer, x, y)
        with torch.no_grad():
            model.hidden.weight.mul_(mask)
            optimizer.state[model.hidden.weight]["momentum_buffer"].mul_(mask)
    return model


@clean("mixup")
def mixup() -> nn.Module:
    """Rows are mixed with the rows of the same batch in another order."""
    model = _network(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        part, order = torch.distributions.Beta(0.4, 0.4).sample(), torch.randperm(len(x))
        optimizer.zero_grad()
        out = model(part * x + (1 - part) * x[order])
        (part * F.mse_loss(out, y) + (1 - part) * F.mse_loss(out, y[order])).backward()
        optimizer.step()
    return model


@clean("model-agnostic meta-learning")
def maml() -> nn.Module:
    """Gradients of an inner step, with torch.func.functional_call."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for task in range(5):
        (x, y), (x2, y2) = rows(2, seed=task)
        weights = dict(model.named_parameters())
        loss = F.mse_loss(functional_call(model, weights, (x,)), y)
        steps = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        inner = {name: value - 0.05 * step for (name, value), step in zip(weights.items(), steps)}
        optimizer.zero_grad()
        F.mse_loss(functional_call(model, inner, (x2,)), y2).backward()
        optimizer.step()
    return model


@clean("Reptile")
def reptile() -> nn.Module:
    """Weights go a part of the way to those of a copy that has trained for some steps."""
    model = _network()
    for task in range(4):
        fast = copy.deepcopy(model)
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.05)
        for x, y in rows(3, seed=task):
            _step(fast, optimizer, x, y)
        with torch.no_grad():
            for mine, its in zip(model.parameters(), fast.parameters()):
                mine.lerp_(its, 0.3)
    return model


@clean("sharpness-aware minimisation")
def sam() -> nn.Module:
    """Two backward passes a step; weights are moved up and brought back before the step."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([value.grad.norm() for value in model.parameters()]).norm()
            moves = [0.05 * value.grad / norm for value in model.parameters()]
            for value, move in zip(model.parameters(), moves):
                value.add_(move)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for value, move in zip(model.parameters(), moves):
                value.sub_(move)
        optimizer.step()
    return model


class Lion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675) for lists of tensors."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step."""
        for group in self.param_groups:
            some = [value for value in group["params"] if value.grad is not None]
            grads = [value.grad for value in some]
            for value in some:
                self.state[value].setdefault("exp_avg", torch.zeros_like(value))
            moments = [self.state[value]["exp_avg"] for value in some]
            beta1, beta2 = group["betas"]
            torch._foreach_mul_(some, 1 - group["lr"] * group["weight_decay"])
            updates = torch._foreach_mul(moments, beta1)
            torch._foreach_add_(updates, grads, alpha=1 - beta1)
            torch._foreach_add_(some, torch._foreach_sign(updates), alpha=-group["lr"])
            torch._foreach_mul_(moments, beta2)
            torch._foreach_add_(moments, grads, alpha=1 - beta2)


@clean("own Lion with lists and layer-wise rates")
def lion() -> nn.Module:
    """Layers near the input have smaller learning rates."""
    model = _network()
    layers = [model.encoder, model.hidden, model.head]
    groups = [{"params": layer.parameters(), "lr": 1e-3 * 0.7 ** (2 - depth)} for depth, layer in enumerate(layers)]
    optimizer = Lion(groups)
    for x, y in rows():
        _step(model, optimizer, x, y)
    return model


@clean("Adafactor with decay on matrices alone")
def adafactor() -> nn.Module:
    """A language model whose head is its embedding."""
    torch.manual_seed(0)
    model = Gpt(is_tied=True, dropout=0.1)
    parameters = list(model.parameters())
    groups = [
        {"params": [value for value in parameters if value.dim() > 1], "weight_decay": 0.1},
        {"params": [value for value in parameters if value.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adafactor(groups, lr=1e-2)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return model


class FrozenNorm(Normed):
    """Batch norm that keeps its statistics whatever the mode."""

    def train(self, mode: bool = True) -> FrozenNorm:
        """All but batch norm."""
        super().train(mode)
        self.norm.eval()
        return self


@clean("batch norm that keeps its statistics")
def frozen_norm() -> nn.Module:
    """Detection networks do so; batch norm is told in train(), and its weights are frozen."""
    torch.manual_seed(0)
    model = FrozenNorm().train()
    model.norm.requires_grad_(False)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.05)
    for number, (x, y) in enumerate(rows()):
        _step(model, optimizer, x, y)
        if number == 5:
            model.eval()
            model.train()
    return model


@clean("stochastic depth")
def stochastic_depth() -> nn.Module:
    """Layers are left out at random in each step, and have no gradient then."""
    torch.manual_seed(0)
    rng = random.Random(0)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    head = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-2)
    for x, y in rows(12):
        for layer in layers:
            if rng.random() < 0.7:
                x = x + torch.tanh(layer(x)) / 0.7
        optimizer.zero_grad()
        F.mse_loss(head(x), y).backward()
        optimizer.step()
    return layers


@clean("gradients of each row, clipped and with noise")
def private() -> nn.Module:
    """DP-SGD with torch.func: gradients of rows are clipped, added, and get noise."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    for x, y in rows():
        weights = {name: value.detach() for name, value in model.named_parameters()}
        grads = each(weights, x, y)
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in grads.values()]).norm(dim=0)
        factor = (1.0 / norms).clamp(max=1.0)
        for name, value in model.named_parameters():
            total = torch.einsum("b,b...->...", factor, grads[name])
            value.grad = (total + 0.1 * torch.randn_like(total)) / len(x)
        optimizer.step()
    return model


@clean("a scaler that meets Inf, two optimizers and clipping")
def scaler_with_inf() -> nn.Module:
    """Float32 overflows at the first scales; one schedule that waits for steps that were taken."""
    model = _network()
    body = torch.optim.AdamW([*model.encoder.parameters(), *model.hidden.parameters()], lr=1e-2)
    head = torch.optim.SGD(model.head.parameters(), lr=1e-2)
    scheduler = LambdaLR(body, lambda step: 0.9**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4, backoff_factor=2.0**-3)
    for x, y in rows(14):
        body.zero_grad()
        head.zero_grad()
        scaler.scale(F.mse_loss(model(x), 100 * y)).backward()
        scaler.unscale_(body)
        scaler.unscale_(head)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(body)
        scaler.step(head)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
    return model


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise of PyTorch and of Python's random, one of three kinds at random."""

    def __init__(self) -> None:
        self.x, self.y = next(rows(1, batch=32))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        x = self.x[number]
        kind = random.randrange(3)
        if kind == 0:
            x = x + 0.1 * torch.randn(8)
        elif kind == 1:
            x = x * random.uniform(0.8, 1.2)
        return x, self.y[number]


def _seeded(worker: int) -> None:
    random.seed(torch.initial_seed() % 2**32)


@clean("augmentation in workers that stay")
def augmented() -> nn.Module:
    """Workers live over all epochs; Python's random is seeded with PyTorch's seed."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Noisy(), 4, shuffle=True, num_workers=2, worker_init_fn=_seeded, persistent_workers=True)
    for _ in range(3):
        for x, y in loader:
            _step(model, optimizer, x, y)
    return model


@clean("rows drawn with replacement by their weights")
def weighted() -> nn.Module:
    """Rare rows are drawn again and again."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = next(rows(1, batch=12))
    sampler = WeightedRandomSampler([1.0] * 10 + [20.0] * 2, 24)
    for _ in range(2):
        for inputs, goals in DataLoader(TensorDataset(x, y), 2, sampler=sampler):
            _step(model, optimizer, inputs, goals)
    return model


@clean("evaluation with fixed noise in each epoch")
def fixed_evaluation() -> nn.Module:
    """The evaluation sets the seed, so that it is the same each time, and gives the random state back."""
    model = _network(0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    test = next(rows(1, seed=9))
    for epoch in range(3):
        for x, y in rows(4, seed=epoch):
            _step(model, optimizer, x + 0.1 * torch.randn_like(x), y)
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            model(test[0] + 0.1 * torch.randn_like(test[0]))
        model.train()
    return model


@clean("dropout that stays on to estimate uncertainty")
def uncertain() -> nn.Module:
    """The model is evaluated with its dropout in training mode, ten times on the same rows."""
    model = _network(0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    test, _ = next(rows(1, seed=9))
    for number, (x, y) in enumerate(rows()):
        _step(model, optimizer, x, y)
        if number == 5:
            model.eval()
            for part in model.modules():
                if isinstance(part, nn.Dropout):
                    part.train()
            with torch.no_grad():
                torch.stack([model(test) for _ in range(10)]).std(0)
            model.train()
    return model


@clean("distillation from a larger teacher")
def distilled() -> nn.Module:
    """The teacher has been trained, is frozen and in evaluation mode; layers are matched by a projection."""
    torch.manual_seed(0)
    teacher = Mlp(hidden=24, dropout=0.2)
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=1e-2)
    for x, y in rows(5):
        _step(teacher, optimizer, x, y)
    teacher.eval().requires_grad_(False)
    student, projection = Mlp(hidden=8, dropout=0.1), nn.Linear(8, 24)
    optimizer = torch.optim.AdamW([*student.parameters(), *projection.parameters()], lr=1e-2)
    for x, y in rows(seed=2):
        out, matched = student(x), projection(torch.tanh(student.encoder(x)))
        with torch.no_grad():
            goal, inner = teacher(x), torch.tanh(teacher.encoder(x))
        optimizer.zero_grad()
        (F.mse_loss(out, goal) + F.mse_loss(out, y) + 0.1 * F.mse_loss(matched, inner)).backward()
        optimizer.step()
    return student


@clean("a resumed training with schedule, average and scaler", runs=2)
def resumed() -> nn.Module:
    """All of them are saved and loaded, and the random state."""
    model = _network(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = StepLR(optimizer, 4, 0.5)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=6)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "average": average, "scaler": scaler}
    file, seed = Path("last.pt"), 1
    if file.exists():
        states, seed = torch.load(file), 2
        for name, part in parts.items():
            part.load_state_dict(states[name])
        torch.set_rng_state(states["random"])
    for x, y in rows(seed=seed):
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"random": torch.get_rng_state()}, file)
    return model


@clean("fine-tuning of a checkpoint with a new optimizer", runs=2)
def finetuned() -> nn.Module:
    """The second run takes the weights alone, on purpose: another task, another optimizer, a new head."""
    model = _network()
    file = Path("weights.pt")
    if not file.exists():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for x, y in rows():
            _step(model, optimizer, x, y)
        torch.save(model.state_dict(), file)
        return model
    weights = {name: value for name, value in torch.load(file).items() if not name.startswith("head")}
    model.load_state_dict(weights, strict=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for x, y in rows(seed=5):
        _step(model, sgd, x, y)
    return model


@clean("gradients of two tasks that are projected")
def projected() -> nn.Module:
    """PCGrad: each task has its backward pass, and what contradicts is taken out of the gradient."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    parameters = list(model.parameters())
    for x, y in rows():
        out = model(x)
        first = torch.autograd.grad(F.mse_loss(out, y), parameters, retain_graph=True)
        second = torch.autograd.grad(F.l1_loss(out, -y), parameters)
        for value, a, b in zip(parameters, first, second):
            inner = (a * b).sum()
            value.grad = a + b - (inner / b.square().sum() * b if inner < 0 else 0)
        optimizer.step()
    return model


@clean("gradients are centred and get noise")
def centred() -> nn.Module:
    """Hooks centre gradients of matrices; noise that falls with the steps is added before the step."""
    model = _network()
    for value in model.parameters():
        if value.dim() > 1:
            value.register_hook(lambda gradient: gradient - gradient.mean(1, keepdim=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for value in model.parameters():
            value.grad.add_(torch.randn_like(value.grad), alpha=0.01 / (1 + number) ** 0.55)
        optimizer.step()
    return model


@clean("two masks for one batch")
def two_masks() -> nn.Module:
    """R-Drop: each batch goes through twice, and both answers are drawn together."""
    model = _network(0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        first, second = model(x), model(x)
        optimizer.zero_grad()
        (F.mse_loss(first, y) + F.mse_loss(second, y) + 0.1 * F.mse_loss(first, second)).backward()
        optimizer.step()
    return model


@clean("one mask over all steps of a sequence")
def variational() -> nn.Module:
    """Dropout of recurrent networks: a mask is drawn once a sequence and used at each place, by hand."""
    torch.manual_seed(0)
    cell, head = nn.GRUCell(8, 16), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-2)
    for x, y in rows():
        state, mask = torch.zeros(8, 16), F.dropout(torch.ones(8, 16), 0.3)
        for _ in range(4):
            state = cell(x, state) * mask
        optimizer.zero_grad()
        F.mse_loss(head(state), y).backward()
        optimizer.step()
    return cell


@clean("backward through parts of a sequence")
def truncated() -> nn.Module:
    """The state of the part before is detached and goes on."""
    torch.manual_seed(0)
    model, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = torch.optim.RMSprop([*model.parameters(), *head.parameters()], lr=1e-2)
    series = torch.sin(torch.arange(41)[None, :, None] * torch.rand(2, 1, 4))
    state = None
    for first in range(0, 40, 5):
        out, state = model(series[:, first : first + 5], state)
        state = tuple(value.detach() for value in state)
        optimizer.zero_grad()
        F.mse_loss(head(out), series[:, first + 1 : first + 6]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    return model


@clean("an encoder that follows by momentum, and a queue")
def queue() -> nn.Module:
    """MoCo: keys of an encoder that follows, with keys of earlier batches."""
    torch.manual_seed(0)
    query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    key = copy.deepcopy(query).requires_grad_(False)
    keys = F.normalize(torch.randn(24, 8), dim=1)
    optimizer = torch.optim.SGD(query.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for x, _ in rows():
        q = F.normalize(query(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            for mine, its in zip(key.parameters(), query.parameters()):
                mine.data = mine.data * 0.99 + its.data * 0.01
            k = F.normalize(key(x + 0.1 * torch.randn_like(x)), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ keys.T], 1) / 0.2
        optimizer.zero_grad()
        F.cross_entropy(logits, torch.zeros(8, dtype=torch.long)).backward()
        optimizer.step()
        keys = torch.cat([keys[8:], k])
    return query


@clean("sparse embeddings with an optimizer of their own")
def sparse() -> nn.Module:
    """SparseAdam for the embedding, Adam for the head."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(32, 8, sparse=True), nn.Linear(8, 32)
    for_embedding = torch.optim.SparseAdam(embedding.parameters(), lr=1e-2)
    for_head = torch.optim.Adam(head.parameters(), lr=1e-2)
    for tokens in sentences():
        for_embedding.zero_grad()
        for_head.zero_grad()
        F.cross_entropy(head(embedding(tokens[:, 0])), tokens[:, 1]).backward()
        for_embedding.step()
        for_head.step()
    return head


class Rounded(nn.Linear):
    """A linear layer with weights of 4 bits, whose gradient passes through."""

    def forward(self, x: Tensor) -> Tensor:
        """With rounded weights."""
        scale = self.weight.detach().abs().amax() / 7
        weight = self.weight + ((self.weight / scale).round() * scale - self.weight).detach()
        return F.linear(x, weight, self.bias)


@clean("training of weights with 4 bits")
def rounded() -> nn.Module:
    """Quantisation-aware, with gradients that pass through the rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(Rounded(8, 16), nn.ReLU(), Rounded(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for x, y in rows():
        _step(model, optimizer, x, y)
    return model


@clean("weights of losses that are learned")
def learned_weights() -> nn.Module:
    """Two losses with uncertainties of their own, parameters beside the model."""
    model = _network()
    spread = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": [spread], "weight_decay": 0.0}], lr=1e-2)
    for x, y in rows():
        out = model(x)
        losses = torch.stack([F.mse_loss(out, y), F.l1_loss(out, y)])
        optimizer.zero_grad()
        ((-spread).exp() * losses + spread).sum().backward()
        optimizer.step()
    return model


@clean("a head that begins anew in each round")
def new_head() -> nn.Module:
    """Continual learning: each task replaces the head, in place, and forgets its moments."""
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for task in range(3):
        if task:
            model.head.reset_parameters()
            for parameter in model.head.parameters():
                optimizer.state.pop(parameter)
        for x, y in rows(4, seed=task):
            _step(model, optimizer, x, y)
    return model


@clean("one batch over and over")
def overfit() -> nn.Module:
    """The check whether a model can learn one batch by heart."""
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = next(rows(1))
    for _ in range(STEPS):
        _step(model, optimizer, x, y)
    return model


@clean("ranks that average weights now and then", ranks=2)
def local_sgd() -> nn.Module:
    """Local SGD: ranks train apart and average their weights every fourth step."""
    dist.init_process_group("gloo")
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, (x, y) in enumerate(rows(12, seed=1 + dist.get_rank())):
        _step(model, optimizer, x, y)
        if number % 4 == 3:
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= 2
    dist.destroy_process_group()
    return model


@clean("two ranks with half of the hidden units each", ranks=2)
def tensor_parallel() -> nn.Module:
    """Tensor parallelism by hand: same data, parts of the weights, partial sums that are added."""
    dist.init_process_group("gloo")
    torch.manual_seed(10 + dist.get_rank())
    up, down = nn.Linear(8, 8), nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.05)
    for x, y in rows():
        partial = down(torch.tanh(up(x)))
        total = partial.detach().clone()
        dist.all_reduce(total)
        optimizer.zero_grad()
        F.mse_loss(total + partial - partial.detach(), y).backward()
        optimizer.step()
    dist.destroy_process_group()
    return up
