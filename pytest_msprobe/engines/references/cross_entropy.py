"""mindspore.ops.auto_generate.cross_entropy_loss, the fused one with its four outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused


@fused()
def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss (N,) or (1,), log probabilities (N, C), two unused outputs of size 0).

    loss[n] = -weight[target[n]] * log_softmax(input)[n, target[n]], 0 where the target is `ignore_index`; the mean
    divides by the sum of the weights that count. A negative `ignore_index` ignores the targets that equal it as well:
    the page says that it ignores none, but also allows no negative target. Source: its page in MindSpore 2.10.

    Raises:
        Unsupported: `label_smoothing`, `lse_square_scale_for_zloss` or `return_zloss` is set.
    """
    if label_smoothing or lse_square_scale_for_zloss or return_zloss:
        raise Unsupported("label_smoothing, lse_square_scale_for_zloss or return_zloss: MindSpore 2.10 takes none yet")
    log_probabilities = input - input.logsumexp(-1, keepdim=True)
    counts = target != ignore_index
    labels = torch.where(counts, target, 0).long()
    weights = counts.to(input.dtype) if weight is None else weight[labels].to(input.dtype) * counts
    losses = -weights * log_probabilities.gather(-1, labels[:, None])[:, 0]
    if reduction == "mean":
        losses = (losses.sum() / weights.sum()).reshape(1)
    elif reduction == "sum":
        losses = losses.sum().reshape(1)
    return losses, log_probabilities, input.new_zeros(0), input.new_zeros(0)
