"""Some steps of a training, and whether they leave the same bits with a collector and without."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from quality.architectures.networks import Architecture, Built

SEED = 11

Collect = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    Attributes:
        steps: how many, of AdamW.
        rate: its learning rate.
        dtype: of what is computed: `float32`; `bfloat16` by PyTorch's autocast; `float16` by MindSpore's `to_float`.
    """

    steps: int = 2
    rate: float = 1e-3
    dtype: str = "float32"


def trained(architecture: Architecture, collect: Collect, training: Training = Training()) -> list[bytes]:
    """Losses of the steps, then parameters and buffers, as bytes; `collect(network)` is around forward and backward."""
    random.seed(SEED)
    np.random.seed(SEED)
    run = _in_pytorch if architecture.framework == "pytorch" else _in_mindspore
    return run(architecture.build, collect, training)


def _in_pytorch(build: Callable[[], Built], collect: Collect, training: Training) -> list[bytes]:
    import torch

    torch.manual_seed(SEED)
    network, loss_of = build()
    network.train()
    optimizer, left = torch.optim.AdamW(network.parameters(), training.rate), []
    for _ in range(training.steps):
        with collect(network):
            with torch.autocast("cpu", torch.bfloat16, enabled=training.dtype == "bfloat16"):
                loss = loss_of()
            loss.backward()
        left.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
    return [_bytes(value) for value in (*left, *network.state_dict().values())]


def _bytes(value: Any) -> bytes:
    import torch

    held: bytes = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return held


def _in_mindspore(build: Callable[[], Built], collect: Collect, training: Training) -> list[bytes]:
    import mindspore
    from mindspore import nn

    mindspore.set_seed(SEED)
    network, loss_of = build()
    network.set_train(True)
    if training.dtype == "float16":
        network.to_float(mindspore.float16)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), training.rate)
    step, left = mindspore.value_and_grad(loss_of, None, optimizer.parameters), []
    for _ in range(training.steps):
        with collect(network):
            loss, gradients = step()
        left.append(loss.asnumpy().tobytes())
        optimizer(gradients)
    return [*left, *(parameter.asnumpy().tobytes() for parameter in network.get_parameters())]
