"""Two steps of a training, and whether they leave the same bits with a collector and without."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tools.architectures.networks import Architecture, Built

SEED = 11
STEPS = 2

Collect = Callable[[Any], AbstractContextManager[Any]]


def trained(architecture: Architecture, collect: Collect) -> list[bytes]:
    """Losses of two steps, then parameters and buffers, as bytes; `collect(network)` is around forward and backward."""
    random.seed(SEED)
    np.random.seed(SEED)
    return (_in_pytorch if architecture.framework == "pytorch" else _in_mindspore)(architecture.build, collect)


def _in_pytorch(build: Callable[[], Built], collect: Collect) -> list[bytes]:
    import torch

    torch.manual_seed(SEED)
    network, loss_of = build()
    network.train()
    optimizer, left = torch.optim.AdamW(network.parameters(), 1e-3), []
    for _ in range(STEPS):
        with collect(network):
            loss = loss_of()
            loss.backward()
        left.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
    return [_bytes(value) for value in (*left, *network.state_dict().values())]


def _bytes(value: Any) -> bytes:
    held: bytes = value.detach().contiguous().numpy().tobytes()
    return held


def _in_mindspore(build: Callable[[], Built], collect: Collect) -> list[bytes]:
    import mindspore
    from mindspore import nn

    mindspore.set_seed(SEED)
    network, loss_of = build()
    network.set_train(True)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-3)
    step, left = mindspore.value_and_grad(loss_of, None, optimizer.parameters), []
    for _ in range(STEPS):
        with collect(network):
            loss, gradients = step()
        left.append(loss.asnumpy().tobytes())
        optimizer(gradients)
    return [*left, *(parameter.asnumpy().tobytes() for parameter in network.get_parameters())]
