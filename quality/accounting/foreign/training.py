"""One training step of PyTorch with one batch, collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from debugger_fixtures import collected
from torch import Tensor, nn

from quality.accounting.foreign.kernels import Device, Fault
from quality.accounting.foreign.watching import Watch

SEED = 20


@dataclass
class Training:
    """A network, its batch, and a step.

    Attributes:
        net: the network.
        batch: tensors by name.
        loss_of: what is minimised, from both.
        step: forward and backward; by default of `loss_of`.
    """

    net: nn.Module
    batch: dict[str, Tensor]
    loss_of: Callable[[Any, dict[str, Tensor]], Tensor]
    step: Callable[[Training, Way], None] = field(default=lambda training, way: way.step(training))

    def layers(self, kind: str) -> list[nn.Module]:
        """The Modules whose class has that name, in order."""
        return [module for module in self.net.modules() if type(module).__name__ == kind]


#: What is changed around a step.
Change = Callable[[Training, Watch], AbstractContextManager[None]]


@dataclass(frozen=True)
class Way:
    """How one run computes.

    Attributes:
        planted: place of a script that goes wrong, see `spot`.
        fault: a wrong kernel.
        change: what else is wrong, from before the collector starts.
        patch: the same from when it has started: it looks up names of functions then.
        is_reordered: sums are made in another order.
        dtype: of parameters and batch.
        autocast: dtype of autocast; None for none.
        scale: of the loss by a GradScaler, with an optimizer; None for none.
        memory_format: `channels_last` or "".
        threads: of PyTorch.
        attention: backend of scaled_dot_product_attention; "" for its own choice.
        level: of the dump.
        optimizer: whether clipping and an optimizer are part of the step.
    """

    planted: str = ""
    fault: Fault | None = None
    change: Change | None = None
    patch: Change | None = None
    is_reordered: bool = False
    dtype: str = "float32"
    autocast: str = ""
    scale: float | None = None
    memory_format: str = ""
    threads: int = 1
    attention: str = ""
    level: str = "mix"
    optimizer: str = ""

    def step(self, training: Training) -> None:
        """Forward, backward, and what follows."""
        with self.casting():
            loss = training.loss_of(training.net, training.batch)
        if not self.optimizer:
            loss.backward()
            return
        chosen = getattr(torch.optim, self.optimizer)(training.net.parameters(), lr=1e-3)
        if self.scale is None:
            loss.backward()
            nn.utils.clip_grad_norm_(training.net.parameters(), 0.5)
            chosen.step()
            return
        scaler = torch.amp.GradScaler("cpu", init_scale=self.scale)
        scaler.scale(loss).backward()
        scaler.unscale_(chosen)
        nn.utils.clip_grad_norm_(training.net.parameters(), 0.5)
        scaler.step(chosen)
        scaler.update()

    def casting(self) -> AbstractContextManager[Any]:
        """The autocast of the forward."""
        return torch.autocast("cpu", getattr(torch, self.autocast)) if self.autocast else nullcontext()

    def prepare(self, training: Training) -> None:
        """Bring network and batch into the form that this run computes with."""
        dtype = getattr(torch, self.dtype)
        if self.dtype != "float32":
            training.net.to(dtype)
            floats = {name: value.to(dtype) for name, value in training.batch.items() if value.is_floating_point()}
            training.batch.update(floats)
        if self.memory_format:
            form = getattr(torch, self.memory_format)
            training.net.to(memory_format=form)
            images = {name: value.to(memory_format=form) for name, value in training.batch.items() if value.dim() == 4}
            training.batch.update(images)

    @contextmanager
    def around(self, training: Training, watch: Watch) -> Iterator[Device]:
        """The device of this run, and what is wrong in it."""
        threads = torch.get_num_threads()
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)
            torch.set_num_threads(self.threads)
            if self.attention:
                backend = getattr(torch.nn.attention.SDPBackend, self.attention)
                stack.enter_context(torch.nn.attention.sdpa_kernel(backend))
            if self.change is not None:
                stack.enter_context(self.change(training, watch))
            device = Device(watch, self.fault, is_reordered=self.is_reordered)
            stack.enter_context(device)
            yield device


def collect(build: Callable[[], Training], way: Way, folder: Path, **keys: Any) -> tuple[Path, Watch]:
    """(dump.json, the watch) of one step; `keys` as for `collected`.

    Raises:
        ValueError: what should be wrong did not happen, or changed nothing.
    """
    from msprobe_collector.pytorch import PrecisionDebugger

    _seed()
    training = build()
    training.net.train()
    way.prepare(training)
    watch = Watch(way.planted)
    with (
        collected(PrecisionDebugger, folder, **{"level": way.level, **keys}) as debugger,
        watch.watching(),
        way.around(training, watch) as device,
    ):
        _seed()
        debugger.start(training.net)
        with way.patch(training, watch) if way.patch is not None else nullcontext():
            training.step(training, way)
        debugger.stop()
        debugger.step()
    if way.fault is not None and not device.is_done:
        raise ValueError(f"{way.fault} did not happen, or changed nothing; there were {dict(device.seen)}")
    (path,) = folder.glob("step0/*/dump.json")
    return path, watch


def _seed() -> None:
    import random

    import numpy as np

    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
