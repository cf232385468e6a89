"""Steps of optimizers that Ascend computes in one kernel, and what torch.amp.GradScaler calls, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused

#: (parameter, first moment, second moment).
State = tuple[Tensor, Tensor, Tensor]


@fused()
def apply_adam(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    use_nesterov: bool | None,
    out: State,
) -> State:
    """The state after one step of Adam: epsilon is added to the root of the second moment as it is, not corrected.

    The powers are those of this step. Source: torch_npu.npu_apply_adam for the arguments, the ApplyAdam of TensorFlow,
    whose name and arguments CANN's operator has, for the formula.
    """
    parameter, first, second = out
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad.square()
    direction = beta1 * first + (1 - beta1) * grad if use_nesterov else first
    rate = lr * (1 - beta2_power) ** 0.5 / (1 - beta1_power)
    return parameter - rate * direction / (second.sqrt() + epsilon), first, second


@fused()
def apply_adam_w(
    beta1_power: float,
    beta2_power: float,
    lr: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    out: State,
) -> State:
    """The state after one step of AdamW. The powers are those of the step before. Source: CANN aclnnApplyAdamW.

    Raises:
        Unsupported: `amsgrad` is set, but the largest second moment so far, `max_grad_norm`, is not given.
    """
    parameter, first, second = out
    grad = -grad if maximize else grad
    first = beta1 * first + (1 - beta1) * grad
    second = beta2 * second + (1 - beta2) * grad.square()
    largest = second
    if amsgrad:
        if max_grad_norm is None:
            raise Unsupported("amsgrad without max_grad_norm, the largest second moment so far")
        largest = torch.maximum(max_grad_norm, second)
    corrected = first / (1 - beta1_power * beta1)
    spread = (largest / (1 - beta2_power * beta2)).sqrt() + epsilon
    return parameter * (1 - lr * weight_decay) - lr * corrected / spread, first, second


def unscale(gradients: Sequence[Tensor], found_infinite: Tensor, inverse_scale: Tensor) -> None:
    """Multiply `gradients` by `inverse_scale`; `found_infinite` becomes 1 where one of them holds NaN or infinity.

    Source: documentation of torch.amp.GradScaler.unscale_.
    """
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        found_infinite.fill_(1)
    for gradient in gradients:
        gradient.mul_(inverse_scale)


def update_scale(
    scale: Tensor, growth_tracker: Tensor, found_infinite: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """`scale` times `backoff` after infinities, times `growth` after `interval` steps without any; given back.

    Source: documentation of torch.amp.GradScaler.
    """
    if bool(found_infinite.any()):
        scale.mul_(backoff)
        growth_tracker.zero_()
    elif int(growth_tracker) + 1 < interval:
        growth_tracker.add_(1)
    else:
        scale.mul_(growth if bool(torch.isfinite((scale * growth).float()).all()) else 1)
        growth_tracker.zero_()
    return scale
