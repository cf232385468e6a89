"""PyTorch trainings that were written after the laws: three violations and three right ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quality.laws.entries import clean, violation
from quality.laws.torch_parts import Gpt, Mlp, next_token_loss, rows, sentences


class Experts(nn.Module):
    """A router whose choice is made with numbers that have no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        with torch.no_grad():
            weights = self.router(x).softmax(-1)
        return self.head(sum(weights[:, i, None] * expert(x) for i, expert in enumerate(self.experts)))


@violation(
    "router without a graph",
    laws="no gradient",
    at=("router.weight", "router.bias"),
    wrong="The probabilities of the router are computed without gradients: the router is never trained.",
    source="NeMo Automodel #2995",
    link="https://github.com/NVIDIA-NeMo/Automodel/pull/2995",
)
def untrained_router() -> None:
    """A mixture of two experts."""
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "first moment belongs to another layer",
    laws=("moments", "formula", "shared state"),
    at=("blocks.0.proj.weight", "blocks.1.proj.weight"),
    wrong="States that were loaded by position go to another layer of the same shape.",
)
def exchanged_moments() -> None:
    """A language model whose optimizer mixes up two states in the middle of the training."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(sentences()):
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        if step == 4:
            one, other = (optimizer.state[model.blocks[i].proj.weight] for i in (0, 1))
            one["exp_avg"], other["exp_avg"] = other["exp_avg"], one["exp_avg"]


@violation(
    "BatchNorm and dropout stay in evaluation mode",
    laws="frozen",
    at=("Dropped", "model"),
    wrong="After the first evaluation train() is not called again.",
    source="torchtune #1049",
    link="https://github.com/meta-pytorch/torchtune/pull/1049",
)
def stays_in_evaluation() -> None:
    """A regression, evaluated in the middle."""
    torch.manual_seed(0)

    class Dropped(Mlp):
        """A network with dropout."""

    model = Dropped(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if step == 4:
            model.eval()
            with torch.no_grad():
                model(x)


@clean("policy gradient with a value head and a target network")
def policy() -> None:
    """Several steps on one batch, a copied target network, entropy, two groups."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
    policy_head, value_head = nn.Linear(16, 4), nn.Linear(16, 1)
    target = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).requires_grad_(False)
    groups = [
        {"params": [*body.parameters(), *policy_head.parameters()]},
        {"params": value_head.parameters(), "lr": 5e-3, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for x, y in rows():
        hidden = body(x)
        chosen = torch.distributions.Categorical(logits=policy_head(hidden))
        advantage = (y[:, 0] - target(x)[:, 0]).detach()
        loss = -(chosen.log_prob(chosen.sample()) * advantage).mean() - 0.01 * chosen.entropy().mean()
        loss = loss + F.mse_loss(value_head(hidden), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.5)
        optimizer.step()
        with torch.no_grad():
            target[0].load_state_dict(body[0].state_dict())
            target[2].load_state_dict(value_head.state_dict())


class Distilled(nn.Module):
    """An encoder with a detached momentum encoder inside the same model, and tied halves."""

    def __init__(self) -> None:
        super().__init__()
        self.student = Mlp(dropout=0.1)
        self.teacher = Mlp(dropout=0.1).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs of both."""
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


@clean("self-distillation with a teacher inside the model")
def distilled() -> None:
    """The teacher follows by an average; its dropout is off."""
    torch.manual_seed(0)
    model = Distilled()
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for x, y in rows():
        model.train()
        model.teacher.eval()
        given, wanted = model(x)
        optimizer.zero_grad()
        (F.mse_loss(given, y) + 0.5 * F.mse_loss(given, wanted)).backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for average, param in zip(model.teacher.parameters(), model.student.parameters()):
                average.mul_(0.95).add_(param, alpha=0.05)


@clean("sequences of other lengths with checkpointing and accumulation")
def lengths() -> None:
    """Three microbatches a step, of other lengths, weighted by their tokens; every second block is checkpointed."""
    torch.manual_seed(0)
    model = Gpt(dropout=0.1, is_tied=True)
    second = model.blocks[1].forward
    model.blocks[1].forward = lambda x: checkpoint(second, x, use_reentrant=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-6)
    batches = list(sentences(30))
    for step in range(10):
        parts = [batches[3 * step + i][:, : 9 + i] for i in range(3)]
        total = sum(part.shape[0] * (part.shape[1] - 1) for part in parts)
        for part in parts:
            share = part.shape[0] * (part.shape[1] - 1) / total
            (next_token_loss(model(part), part) * share).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()
