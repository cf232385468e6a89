"""A stand-in for torch_npu on a machine without NPU: `npu` is another name of the CPU, and some functions are fused."""

from __future__ import annotations

import functools
import os
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


def npu_scaled_masked_softmax(x: Any, mask: Any, scale: float = 1.0, fixed_triu_mask: bool = False) -> Any:
    """As torch_npu documents it."""
    return torch.softmax(torch.where(mask, -1e4, x * scale), -1)


def npu_max(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """With indices of int32."""
    values, indices = torch.max(self, dim, keepdim)
    return values, indices.int()


def npu_min(self: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """Wrong on purpose: the maximum."""
    return npu_max(self, dim, keepdim)


def npu_dequant_swiglu_quant(x: Any, *, weight_scale: Any, activation_scale: Any, **others: Any) -> tuple[Any, Any]:
    """The dynamic kind, with the right half as the gate."""
    other, gate = (x * weight_scale * activation_scale[:, None]).chunk(2, -1)
    product = gate * torch.sigmoid(gate) * other
    scale = product.abs().amax(-1) / 127
    return torch.round(product / scale[:, None]).to(torch.int8), scale


def _to(original: Any) -> Any:
    @functools.wraps(original)
    def to(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
        if any(isinstance(item, str) and item.startswith("npu") for item in arguments):
            calls.append(os.environ.get("NPU_LOST_AFTER", "inf"))
            if len(calls) > float(calls[-1]):
                raise RuntimeError("the NPU is lost")
        moved = ["cpu" if isinstance(item, str) and item.startswith("npu") else item for item in arguments]
        return original(tensor, *moved, **keywords)

    return to


chosen: list[str] = []
#: Uses of the device so far; it is lost after the number of them that the variable says.
calls: list[str] = []
torch.npu = SimpleNamespace(is_available=lambda: os.environ.get("NPU_LOST_AFTER") != "0", set_device=chosen.append)  # type: ignore[attr-defined]
torch.Tensor.to = _to(torch.Tensor.to)  # type: ignore[method-assign]
