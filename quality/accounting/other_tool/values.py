"""Weights and batches of the pairs, the same numbers in every framework and process."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: Shape of the inputs by network; of integers below the number behind it.
_INPUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "gpt": ((2, 12), 61),
    "llama": ((2, 10), 53),
    "recurrent": ((3, 7), 40),
    "scan": ((3, 6, 6), 0),
    "resnet": ((4, 3, 12, 12), 0),
    "vit": ((3, 3, 12, 12), 0),
    "mixer": ((4, 9, 12), 0),
    "unet": ((2, 2, 16, 16), 0),
    "diffusion": ((3, 3, 8, 8), 0),
    "gan": ((6, 12), 0),
    "rnn": ((3, 5), 30),
}


@dataclass
class Run:
    """One side of a pair.

    Attributes:
        network: see the modules of networks.
        plan: what is changed of the network, by name.
        kernel: (operator, number of its call or None for all, number of the output, fault): a wrong kernel.
        data: what is changed of weights and batch: `weight NAME`, `pixel`, `token`, `targets`, `checkpoint`,
            `samples` (swapped), `seed` (another batch), `nudged` (the batch by a rounding).
        ways: `other-device`, `threads`, `channels-last`, `bfloat16`, `autocast`, `scaler`, `clip`, `adamw`, `sgd`,
            `accumulate`, `stop-late` (the optimizer's step is collected), `mkldnn-off`, and `float16` of MindSpore.
        level: of the dump.
        tool: `existing` or `ours`: whose collector.
    """

    network: str
    plan: dict[str, Any] = field(default_factory=dict)
    kernel: tuple[str, int | None, int, str] | None = None
    data: str = ""
    ways: tuple[str, ...] = ()
    level: str = "mix"
    tool: str = "existing"


def weight(name: str, shape: tuple[int, ...], run: Run) -> Array:
    """The initial value of a parameter."""
    random = np.random.default_rng(zlib.crc32(f"{run.network} {name}".encode()))
    value = random.standard_normal(shape) * (0.5 / max(1, shape[-1]) ** 0.5 if len(shape) > 1 else 0.1)
    if len(shape) == 1 and name.endswith("weight"):
        value += 1.0
    if run.data == "checkpoint":
        value = value * 1.01 + 0.002 * np.random.default_rng(len(name)).standard_normal(shape)
    elif run.data == f"weight {name}":
        value.reshape(-1)[min(5, value.size - 1)] += 0.5
    return value.astype(np.float32)


def batch(run: Run, number: int = 0) -> tuple[Array, Array]:
    """(inputs, targets) of micro-batch `number`."""
    shape, letters = _INPUTS[run.network]
    random = np.random.default_rng(7 + number + (100 if run.data == "seed" else 0))
    if letters:
        inputs = random.integers(0, letters, shape)
        targets = np.roll(inputs, -1, 1)
    else:
        inputs = random.standard_normal(shape).astype(np.float32)
        targets = random.integers(0, 10, shape[:1])
    if run.network == "scan":
        targets = np.roll(inputs, 1, 1)
    if run.data == "pixel":
        inputs.reshape(-1)[31] += 2.0
    elif run.data == "token":
        inputs[1, 4] = (inputs[1, 4] + 11) % letters
    elif run.data == "targets":
        targets = np.roll(targets, 1, 0)
    elif run.data == "nudged":
        inputs = np.where(inputs > 0, np.nextafter(inputs, np.float32(9)), inputs)
    elif run.data == "samples":
        inputs = inputs[[1, 0, *range(2, len(inputs))]].copy()
    return inputs, targets
