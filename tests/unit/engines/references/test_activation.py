"""Activations against the documented formulas, closed-form gradients and real MindSpore where it has a kernel."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional

from pytest_msprobe.engines.references.small import fast_gelu, npu_gelu, scaled_masked_softmax, swiglu


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def mindspore() -> ModuleType:
    module: ModuleType = pytest.importorskip("mindspore")
    module.runtime.launch_blocking()
    return module


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_swiglu_and_its_closed_form_gradient(dim: int) -> None:
    x = drawn(4, 6, 2).requires_grad_()
    found = swiglu(x, dim)
    a, b = x.detach().chunk(2, dim)
    torch.testing.assert_close(found, functional.silu(a) * b)
    incoming = drawn(*found.shape, seed=1)
    (gradient,) = torch.autograd.grad(found, x, incoming)
    s = 1 / (1 + (-a).exp())
    torch.testing.assert_close(gradient, torch.cat([incoming * b * s * (1 + a * (1 - s)), incoming * a * s], dim))


def test_swiglu_stays_float64() -> None:
    x = torch.tensor([0.1, 1.0], dtype=torch.float64)
    assert swiglu(x).item() == pytest.approx(0.1 / (1 + math.exp(-0.1)), rel=1e-15)


def test_fast_gelu_is_the_documented_formula_and_mindspores() -> None:
    x = drawn(50) * 4
    documented = x / (1 + (-1.702 * x.abs()).exp()) * (0.851 * (x - x.abs())).exp()
    torch.testing.assert_close(fast_gelu(x), documented)


def test_fast_gelu_as_mindspore_computes_it(mindspore: ModuleType) -> None:
    x = np.linspace(-6, 6, 50, dtype=np.float32)
    theirs = mindspore.ops.fast_gelu(mindspore.Tensor(x)).asnumpy()
    np.testing.assert_allclose(theirs, fast_gelu(torch.from_numpy(x).double()), rtol=2e-6, atol=2e-7)


FORMULAS = {
    "none": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("approximate", FORMULAS)
def test_npu_gelu(approximate: str) -> None:
    x = drawn(20).requires_grad_()
    expected = [FORMULAS[approximate](item) for item in x.tolist()]
    np.testing.assert_allclose(npu_gelu(x, approximate).detach(), expected, rtol=1e-14, atol=1e-16)
    assert torch.autograd.gradcheck(lambda x: npu_gelu(x, approximate), x)


@pytest.mark.parametrize("approximate", FORMULAS)
def test_npu_gelu_takes_the_limits_at_the_infinities(approximate: str) -> None:
    x = torch.tensor([-math.inf, math.inf, math.nan], dtype=torch.float64, requires_grad=True)
    found = npu_gelu(x, approximate)
    assert found.tolist()[:2] == [0.0, math.inf]
    assert math.isnan(found.tolist()[2])
    (gradient,) = torch.autograd.grad(found, x, torch.full((3,), 2.0, dtype=torch.float64))
    assert gradient.tolist()[:2] == [0.0, 2.0]


def test_gradients() -> None:
    assert torch.autograd.gradcheck(fast_gelu, drawn(5).requires_grad_())
    assert torch.autograd.gradcheck(swiglu, drawn(2, 4).requires_grad_())


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_masked_softmax_and_its_closed_form_gradient(is_fixed: bool) -> None:
    x = drawn(2, 3, 4).requires_grad_()
    mask = drawn(2, 1, 4, seed=1) > 0.3
    found = scaled_masked_softmax(x, mask.expand(2, 3, 4), 0.5, is_fixed)
    weights = drawn(2, 3, 4, seed=2)
    (gradient,) = torch.autograd.grad((found * weights).sum(), x)
    for batch in range(2):
        for row in range(3):
            hidden = [column > row for column in range(4)] if is_fixed else mask[batch, 0].tolist()
            parts = [0.0 if h else math.exp(0.5 * v) for h, v in zip(hidden, x[batch, row].tolist())]
            expected = [part / sum(parts) for part in parts]
            assert found[batch, row].tolist() == pytest.approx(expected, rel=1e-12)
            inner = sum(e * w for e, w in zip(expected, weights[batch, row].tolist()))
            closed = [0.5 * e * (w - inner) for e, w in zip(expected, weights[batch, row].tolist())]
            assert gradient[batch, row].tolist() == pytest.approx(closed, rel=1e-9, abs=1e-12)


def test_a_row_that_is_masked_as_a_whole_is_uniform() -> None:
    found = scaled_masked_softmax(drawn(1, 4), torch.ones(1, 4, dtype=torch.bool), 2.0)
    assert found.tolist() == [[0.25] * 4]


def test_half_precision_is_computed_in_float32() -> None:
    x, mask = drawn(3, 64).half(), torch.zeros(3, 64, dtype=torch.bool)
    found = scaled_masked_softmax(x, mask, 3.0)
    assert found.dtype == torch.float16
    assert torch.equal(found, (x.float() * 3).softmax(-1).half())
