"""Norms against PyTorch's own and against their closed-form gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from pytest_msprobe.engines.references.small import add_layer_norm, add_rms_norm, group_norm_silu, rms_norm


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_rms_norm_over_the_trailing_axes_of_gamma(shape: tuple[int, ...]) -> None:
    x, gamma = drawn(2, 4, 6), drawn(*shape, seed=1)
    y, rstd = rms_norm(x, gamma, 1e-3)
    torch.testing.assert_close(y, functional.rms_norm(x, shape, gamma, 1e-3))
    assert rstd.shape == (2, *(4, 6)[: 2 - len(shape)], *[1] * len(shape))
    torch.testing.assert_close(x * rstd * gamma, y)


def test_the_default_epsilon_is_that_of_mindspore() -> None:
    assert rms_norm(torch.zeros(1, 2, dtype=torch.float64), torch.ones(2))[1].item() == pytest.approx(1e3, rel=1e-12)


def test_gradients_of_rms_norm_sum_gamma_over_all_rows() -> None:
    x, gamma, incoming = drawn(2, 4, 6).requires_grad_(), drawn(6, seed=1).requires_grad_(), drawn(2, 4, 6, seed=2)
    y, rstd = rms_norm(x, gamma)
    dx, dgamma = torch.autograd.grad(y, (x, gamma), incoming)
    h, g = (x * rstd).detach(), (incoming * gamma).detach()
    torch.testing.assert_close(dx, rstd * (g - h * (g * h).mean(-1, keepdim=True)))
    torch.testing.assert_close(dgamma, (incoming * h).sum((0, 1)))


def test_add_rms_norm_returns_the_sum_as_well() -> None:
    x1, x2, gamma = drawn(3, 6), drawn(3, 6, seed=1), drawn(6, seed=2)
    y, rstd, total = add_rms_norm(x1, x2, gamma)
    torch.testing.assert_close(y, functional.rms_norm(x1 + x2, (6,), gamma, 1e-6))
    torch.testing.assert_close(rstd, (x1 + x2).square().mean(-1, keepdim=True).add(1e-6).pow(-0.5))
    assert torch.equal(total, x1 + x2)


def test_add_layer_norm_is_pytorchs_layer_norm_of_the_sum() -> None:
    x1, x2, gamma, beta = drawn(3, 6), drawn(3, 6, seed=1), drawn(6, seed=2), drawn(6, seed=3)
    y, mean, rstd, total = add_layer_norm(x1, x2, gamma, beta, additional_output=True)
    expected = torch.native_layer_norm(x1 + x2, (6,), gamma, beta, 1e-5)
    for found, wanted in zip((y, mean, rstd), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert torch.equal(total, x1 + x2)
    assert add_layer_norm(x1, x2, gamma, beta)[3] is None


def test_group_norm_silu() -> None:
    x, weight, bias = drawn(2, 6, 3, 5), drawn(6, seed=1), drawn(6, seed=2)
    y, mean, rstd = group_norm_silu(x, weight, bias, 3, 1e-2)
    expected = torch.native_group_norm(x, weight, bias, 2, 6, 15, 3, 1e-2)
    for found, wanted in zip((y, mean, rstd), (functional.silu(expected[0]), *expected[1:]), strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(group_norm_silu(x, None, None, 2)[0], functional.silu(functional.group_norm(x, 2)))


def test_gradients() -> None:
    x1, x2, gamma, beta = (drawn(*shape, seed=9).requires_grad_() for shape in ((2, 4), (2, 4), (4,), (4,)))
    assert torch.autograd.gradcheck(rms_norm, (x1, gamma))
    assert torch.autograd.gradcheck(add_rms_norm, (x1, x2, gamma))
    assert torch.autograd.gradcheck(lambda *args: add_layer_norm(*args)[:3], (x1, x2, gamma, beta))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once_and_keeps_the_statistic_in_float32(dtype: torch.dtype) -> None:
    x, gamma = drawn(3, 64).to(dtype), drawn(64, seed=1).to(dtype)
    y, rstd = rms_norm(x, gamma)
    assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
    assert torch.equal(y, rms_norm(x.float(), gamma.float())[0].to(dtype))
