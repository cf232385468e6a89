"""What torch.amp.GradScaler calls, in float64, which PyTorch's own functions refuse. Both write into arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
