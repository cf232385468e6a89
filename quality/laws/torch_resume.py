"""PyTorch scripts that are stopped and started again, and forget a part of their state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from quality.laws.entries import violation
from quality.laws.torch_parts import STEPS, Mlp, rows

CHECKPOINT = Path("checkpoint.pt")
SAVED_AFTER = 5
#: The first run saves after step 5 and is stopped after step 7.
STOPPED_AFTER = 7


class Trainer:
    """A trainer with checkpoints; `forgets` names what it does not save or load."""

    def __init__(self, forgets: str, dropout: float = 0.1) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        self.forgets = forgets
        self.model = Mlp(dropout=dropout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.step = 0
        self.batches = list(rows())

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.step,
        }
        if self.forgets in ("optimizer", "scheduler", "scaler", "rng"):
            del state[self.forgets]
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        for part in ("optimizer", "scheduler", "scaler"):
            if part in state:
                getattr(self, part).load_state_dict(state[part])
        self.step = state["step"]
        if "rng" in state:
            torch.set_rng_state(state["rng"])

    def train(self) -> None:
        """The script: go on where a checkpoint lies, or begin."""
        is_resumed = CHECKPOINT.exists()
        if is_resumed:
            self.load(torch.load(CHECKPOINT))
        first = 0 if self.forgets == "data" else self.step
        batches = self.batches[first:]
        for x, y in batches[: STEPS - self.step]:
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(self.model(x), y.bfloat16())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.step += 1
            if self.step == SAVED_AFTER and not is_resumed:
                torch.save(self.state(), CHECKPOINT)
            if self.step == STOPPED_AFTER and not is_resumed:
                return


@violation(
    "moments are not saved",
    laws="resume",
    at=("moment", "exp_avg", "optimizer", "lr is"),
    wrong="The checkpoint has no optimizer state: moments and step counts begin at zero.",
    source="OneVision-Encoder #65, KempnerForge #115",
    link="https://github.com/KempnerInstitute/KempnerForge/pull/115",
    runs=2,
)
def forgets_moments() -> None:
    """A regression that is stopped once."""
    Trainer("optimizer").train()


@violation(
    "step counts are not loaded",
    laws=("resume", "step", "formula"),
    at=("step", "optimizer"),
    wrong="Moments are loaded, and step counts begin at zero: the bias correction is that of the first step.",
    source="TrenTorch #187",
    link="https://github.com/TrenTorch/TrenTorch/pull/187",
    runs=2,
)
def forgets_step() -> None:
    """A regression that is stopped once."""
    trainer = Trainer("")
    load = trainer.optimizer.load_state_dict

    def moments_only(state: dict[str, Any]) -> None:
        load(state)
        for one in trainer.optimizer.state.values():
            one["step"] = torch.tensor(0.0)

    trainer.optimizer.load_state_dict = moments_only
    trainer.train()


@violation(
    "schedule begins anew",
    laws="resume",
    at=("scheduler", "lr", "learning rate"),
    wrong="The state of the scheduler is not in the checkpoint.",
    source="torchtitan #275",
    link="https://github.com/pytorch/torchtitan/pull/275",
    runs=2,
)
def forgets_schedule() -> None:
    """A regression that is stopped once."""
    Trainer("scheduler").train()


@violation(
    "loss scale begins anew",
    laws="resume",
    at=("scaler", "loss scale", "scale"),
    wrong="The state of the gradient scaler is not in the checkpoint.",
    source="transformers #11663, ultralytics #22189",
    link="https://github.com/huggingface/transformers/pull/11663",
    runs=2,
)
def forgets_scaler() -> None:
    """A regression that is stopped once."""
    Trainer("scaler").train()


@violation(
    "random state is set by the seed again",
    laws="resume",
    at=("RNG", "random"),
    wrong="After loading, an initialisation sets the seed: the restored random state is lost.",
    source="ms-swift #9935, transformers #11582",
    link="https://github.com/modelscope/ms-swift/pull/9935",
    runs=2,
)
def forgets_random_state() -> None:
    """A regression with dropout that is stopped once."""
    trainer = Trainer("")
    load = trainer.load

    def then_seeded(state: dict[str, Any]) -> None:
        load(state)
        torch.manual_seed(0)

    trainer.load = then_seeded
    trainer.train()


@violation(
    "data begin anew",
    laws="resume",
    at=("data", "batch"),
    wrong="The place in the data is not in the checkpoint: the first batches are used again.",
    source="KempnerForge #51, EasyR1 #57",
    link="https://github.com/KempnerInstitute/KempnerForge/issues/51",
    runs=2,
)
def forgets_data() -> None:
    """A regression that is stopped once."""
    Trainer("data").train()


@violation(
    "iterator draws from the restored random state",
    laws="resume",
    at=("RNG", "random", "data", "batch"),
    wrong="The random state is restored before the iterator of the data is made, which draws a seed from it.",
    source="Megatron-Bridge #5257",
    link="https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/5257",
    runs=2,
)
def drifting_random_state() -> None:
    """A regression with dropout that is stopped once; the data are a DataLoader that is not shuffled."""
    trainer = Trainer("")
    x, y = next(rows(batch=8 * STEPS))
    dataset = TensorDataset(x, y)
    batch = 8
    is_resumed = CHECKPOINT.exists()
    if is_resumed:
        trainer.load(torch.load(CHECKPOINT))
    loader = DataLoader(dataset, batch_size=batch)
    for number, (x, y) in enumerate(loader):
        if number < trainer.step:
            continue
        trainer.optimizer.zero_grad()
        F.mse_loss(trainer.model(x), y).backward()
        trainer.optimizer.step()
        trainer.step += 1
        if trainer.step == SAVED_AFTER and not is_resumed:
            torch.save(trainer.state(), CHECKPOINT)
        if trainer.step == STOPPED_AFTER and not is_resumed:
            return


@violation(
    "every rank gets the random state of the first",
    laws=("resume", "dropout ranks"),
    at=("RNG", "random", "drop1", "drop2"),
    wrong="Only rank 0 saves its random state, and all ranks load it: their dropout masks are equal from then on.",
    source="Megatron-LM #6858, NeMo Automodel #3437",
    link="https://github.com/NVIDIA/Megatron-LM/pull/6858",
    ranks=2,
    runs=2,
)
def rank_zero_random_state() -> None:
    """A regression on two ranks that is stopped once."""
    dist.init_process_group("gloo")
    trainer = Trainer("")
    rank = dist.get_rank()
    model = DistributedDataParallel(trainer.model)
    torch.manual_seed(100 + rank)
    is_resumed = CHECKPOINT.exists()
    if is_resumed:
        trainer.load(torch.load(CHECKPOINT))
    dist.barrier()
    for x, y in list(rows(seed=1 + rank))[trainer.step :]:
        trainer.optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        trainer.optimizer.step()
        trainer.scheduler.step()
        trainer.step += 1
        if trainer.step == SAVED_AFTER and not is_resumed and rank == 0:
            torch.save(trainer.state(), CHECKPOINT)
        if trainer.step == STOPPED_AFTER and not is_resumed:
            break
    dist.destroy_process_group()
