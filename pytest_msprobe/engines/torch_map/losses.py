"""Losses of MindSpore, with the gradients that MindSpore defines. Reached through `adapters`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import T, long


def kl_div(x: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    """PyTorch warns about the reduction `mean`, which is the mean over all elements in both."""
    if reduction == "mean":
        return functional.kl_div(x, target, reduction="none", log_target=log_target).mean()
    return functional.kl_div(x, target, reduction=reduction, log_target=log_target)


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """The weight too has a gradient in MindSpore, and label smoothing is only in PyTorch's cross_entropy."""
    if not label_smoothing and (weight is None or not weight.requires_grad):
        return functional.nll_loss(x, long(target), weight, ignore_index=ignore_index, reduction=reduction)
    return _smoothed(x, long(target), weight, ignore_index, reduction, label_smoothing)


def cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """Targets are classes or probabilities, as in PyTorch; the weight too has a gradient in MindSpore."""
    if weight is not None and weight.requires_grad and not target.is_floating_point():
        logarithms = functional.log_softmax(x, min(x.dim() - 1, 1))
        return _smoothed(logarithms, long(target), weight, ignore_index, reduction, label_smoothing)
    return functional.cross_entropy(
        x, long(target), weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def _smoothed(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Tensor:
    """The formulas of torch.nn.CrossEntropyLoss on log-probabilities; the mean is over the weights of the targets."""
    channel = min(x.dim() - 1, 1)
    classes = torch.ones(x.shape[channel], dtype=x.dtype, device=x.device) if weight is None else weight
    is_counted = target != ignore_index
    index = torch.where(is_counted, target, 0)
    share = classes[index] * is_counted
    loss = -x.gather(channel, index.unsqueeze(channel)).squeeze(channel) * share
    if label_smoothing:
        spread = -(x * classes.reshape(-1, *[1] * (x.dim() - 1 - channel))).sum(channel) * is_counted
        loss = (1 - label_smoothing) * loss + label_smoothing / x.shape[channel] * spread
    if reduction == "none":
        return loss
    return loss.sum() / share.sum() if reduction == "mean" else loss.sum()


def softmax_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(loss per row, its gradient with respect to the logits).

    MindSpore passes no gradient through the second output, nor to the labels (seen on CPU).
    """
    gradient = functional.softmax(logits, -1) - labels
    return -(labels.detach() * functional.log_softmax(logits, -1)).sum(-1), gradient.detach()


def l2_loss(x: Tensor) -> Tensor:
    """Half the sum of squares."""
    return x.square().sum() / 2


def detached(value: T) -> T | Tensor:
    """An argument that MindSpore gives no gradient, or a zero one."""
    return value.detach() if isinstance(value, Tensor) else value
