"""Weights and batch of a pair: the reference writes them into the working folder, the port reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch


def keep(weights: Mapping[str, torch.Tensor], **batch: torch.Tensor) -> None:
    """Write both, as arrays that every framework reads."""
    np.savez("weights.npz", **{name: value.detach().numpy() for name, value in weights.items()})
    np.savez("batch.npz", **{name: value.numpy() for name, value in batch.items()})


def kept() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return weights and batch, as tensors of PyTorch."""
    files = (np.load(f"{name}.npz") for name in ("weights", "batch"))
    weights, batch = ({name: torch.from_numpy(file[name]) for name in file.files} for file in files)
    return weights, batch


def move(model: torch.nn.Module, by: float = 0.1) -> None:
    """Add noise to all parameters, so that no two of them are equal and no bias is 0."""
    with torch.no_grad():
        for value in model.parameters():
            value.add_(by * torch.randn_like(value))


def show(loss: float, parameters: Iterable[torch.Tensor]) -> None:
    """Print the loss, and the sizes of all gradients and of all weights, after the step."""
    weights = list(parameters)
    gradients = [value.grad for value in weights if value.grad is not None]
    sizes = [sum(float((value.detach().double() ** 2).sum()) for value in part) ** 0.5 for part in (gradients, weights)]
    print(f"{loss:.7f} {sizes[0]:.7f} {sizes[1]:.7f}")
