"""A stand-in for torch_npu on a machine without NPU: `npu` is a second name of the CPU, and two functions are fused."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch


def npu_rms_norm(self: Any, gamma: Any, epsilon: float = 1e-6) -> tuple[Any, Any]:
    """As torch_npu documents it."""
    rstd = torch.rsqrt(self.square().mean(-1, keepdim=True) + epsilon)
    return self * rstd * gamma, rstd


def npu_swiglu(self: Any, dim: int = -1) -> Any:
    """Wrong on purpose: the gate is not passed through the sigmoid."""
    gate, value = self.chunk(2, dim)
    return gate * value


def _to(original: Any) -> Any:
    @functools.wraps(original)
    def to(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        moved = ["cpu" if isinstance(item, str) and item.startswith("npu") else item for item in arguments]
        return original(tensor, *moved, **keywords)

    return to


chosen: list[str] = []
torch.npu = SimpleNamespace(is_available=lambda: True, set_device=chosen.append)  # type: ignore[attr-defined]
torch.Tensor.to = _to(torch.Tensor.to)  # type: ignore[method-assign]
