"""Fused optimizer steps against PyTorch's own optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.optimizers import apply_adam, apply_adam_w

LR, BETA1, BETA2, DECAY = 0.05, 0.8, 0.95, 0.1


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stepped(kind: Any, steps: int, **options: Any) -> Any:
    """(state before the last step, its gradient, state after it) of PyTorch's optimizer; a state ends with the largest
    second moment."""
    parameter = drawn(0).requires_grad_()
    optimizer = kind([parameter], lr=LR, betas=(BETA1, BETA2), **options)
    held = [torch.zeros_like(parameter)] * 3
    for step in range(steps):
        before = [parameter.detach().clone(), *(value.clone() for value in held)]
        parameter.grad = drawn(step + 1)
        optimizer.step()
        state = optimizer.state[parameter]
        held = [state["exp_avg"], state["exp_avg_sq"], state.get("max_exp_avg_sq", held[2])]
    return before, parameter.grad, [parameter.detach(), *held]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("amsgrad", "maximize"), [(False, False), (True, False), (False, True)])
def test_adam_w_is_pytorchs(steps: int, amsgrad: bool, maximize: bool) -> None:
    options = {"eps": 1e-3, "weight_decay": DECAY, "amsgrad": amsgrad, "maximize": maximize}
    before, grad, after = stepped(torch.optim.AdamW, steps, **options)
    powers = BETA1 ** (steps - 1), BETA2 ** (steps - 1)
    found = apply_adam_w(
        *powers, LR, DECAY, BETA1, BETA2, 1e-3, grad, before[3], amsgrad, maximize, (before[0], before[1], before[2])
    )
    torch.testing.assert_close(list(found), after[:3])


def test_adam_w_needs_the_largest_moment_for_amsgrad() -> None:
    with pytest.raises(Unsupported, match="without max_grad_norm"):
        apply_adam_w(1.0, 1.0, LR, 0.0, BETA1, BETA2, 1e-3, drawn(1), None, True, False, (drawn(2),) * 3)


@pytest.mark.parametrize("steps", [1, 3])
def test_adam_is_pytorchs_where_epsilon_is_nothing(steps: int) -> None:
    before, grad, after = stepped(torch.optim.Adam, steps, eps=0.0)
    state = before[0], before[1], before[2]
    found = apply_adam(BETA1**steps, BETA2**steps, LR, BETA1, BETA2, 0.0, grad, False, state)
    torch.testing.assert_close(list(found), after[:3])


def test_adam_adds_epsilon_to_the_moment_as_it_is_and_nesterov_looks_ahead() -> None:
    grad = torch.tensor([2.0], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    parameter, first, second = apply_adam(0.8, 0.95, 0.1, 0.8, 0.95, 1.0, grad, True, (zero, zero, zero))
    assert first.item() == pytest.approx(0.4)
    assert second.item() == pytest.approx(0.2)
    rate = 0.1 * 0.05**0.5 / 0.2
    assert parameter.item() == pytest.approx(-rate * (0.8 * 0.4 + 0.2 * 2) / (0.2**0.5 + 1))
