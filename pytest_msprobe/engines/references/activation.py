"""mindspore.ops.swiglu, fast_gelu and mindspore.mint.npu_gelu; the masked softmax of torch_npu."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """SiLU of the first half along `dim` times the second half. Source: mindspore.ops.swiglu 2.10."""
    first, second = input.chunk(2, dim)
    return first * first.sigmoid() * second


@fused()
def fast_gelu(x: Tensor) -> Tensor:
    """The value x * sigmoid(1.702 x).

    Source: mindspore.ops.fast_gelu 2.10, as x / (1 + exp(-1.702 |x|)) * exp(0.851 (x - |x|)), which is the same.
    """
    return x * torch.sigmoid(1.702 * x)


@fused()
def npu_gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """The value x * Phi(x), or its tanh approximation. Source: mindspore.mint.nn.functional.gelu 2.10.

    At the infinities Ascend takes the limits where the formula gives NaN: value 0 and gradient 0 at -inf, value inf and
    gradient 1 at inf.
    """
    limited = torch.where(input.isinf(), 0, input)
    finite = functional.gelu(limited, approximate=approximate)
    return torch.where(input == torch.inf, input, torch.where(input == -torch.inf, 0, finite))


@fused()
def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    """The softmax along the last axis of scale * x, with -10000 where `mask` is true.

    With `fixed_triu_mask` true is what lies above the diagonal of the last two axes, whatever `mask` holds. A row that
    is masked as a whole is uniform. Source: op-plugin's documentation and test of npu_scaled_masked_softmax.
    """
    hidden = torch.ones_like(mask, dtype=torch.bool).triu(1) if fixed_triu_mask else mask.bool()
    return (x * scale).masked_fill(hidden, -10000.0).softmax(-1)
