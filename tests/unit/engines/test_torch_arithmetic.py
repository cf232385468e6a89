"""Monte Carlo arithmetic: what is moved, by how much, and what stays exact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_msprobe.engines.torch_arithmetic import RoundedArithmetic  # noqa: E402

UNIT = 2.0**-24


def run(function: Callable[..., Any], *arguments: Any, roundoff: float = UNIT, seed: int = 1) -> Any:
    with RoundedArithmetic(roundoff, seed) if roundoff else nullcontext():
        return function(*arguments)


def relative_change(function: Callable[..., Any], *arguments: Any, roundoff: float = UNIT) -> Any:
    exact = function(*arguments)
    return ((run(function, *arguments, roundoff=roundoff) - exact) / exact).abs()


@pytest.fixture
def x() -> Any:
    return torch.linspace(0.5, 3.0, 1000, dtype=torch.float64)


def test_equal_seeds_give_equal_results_and_others_do_not(x: Any) -> None:
    assert torch.equal(run(torch.exp, x), run(torch.exp, x))
    assert not torch.equal(run(torch.exp, x), run(torch.exp, x, seed=2))


@pytest.mark.parametrize("function", [torch.square, torch.sqrt, lambda x: x + x, lambda x: x / 3])
def test_one_operation_is_off_by_one_rounding(function: Callable[..., Any], x: Any) -> None:
    change = relative_change(function, x)
    assert 0.9 * UNIT < change.square().mean().sqrt() < 1.1 * UNIT
    assert change.max() < 2 * UNIT


def test_the_change_scales_with_the_roundoff(x: Any) -> None:
    exact = torch.exp(x)
    large, small = run(torch.exp, x) - exact, run(torch.exp, x, roundoff=UNIT / 4096) - exact
    torch.testing.assert_close(small * 4096, large, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "function",
    [torch.floor, torch.neg, lambda x: x[::2], lambda x: x.reshape(10, 100).T, torch.relu, lambda x: x.max()],
)
def test_what_computes_nothing_stays_exact(function: Callable[..., Any], x: Any) -> None:
    assert torch.equal(run(function, x), function(x))


def test_rounding_inside_a_kernel_that_cancels_is_shown() -> None:
    far_out = torch.full((100,), -5.0, dtype=torch.float64)
    assert relative_change(torch.nn.functional.gelu, far_out).max() > 1000 * UNIT


def test_confident_rows_of_log_softmax_lose_their_digits() -> None:
    logits = torch.zeros(64, 10, dtype=torch.float64)
    logits[:, 0] = 20.0
    change = relative_change(lambda x: torch.log_softmax(x, -1)[:, 0], logits)
    assert change.max() > 1000 * UNIT


def test_a_sum_is_off_by_what_adding_one_by_one_leaves() -> None:
    terms = torch.ones(1_000_000, dtype=torch.float64)
    # The partial sums are rounded a million times, each by a rounding of itself.
    assert 10 * UNIT < relative_change(torch.sum, terms) < 1000 * UNIT
    assert relative_change(torch.sum, terms[:10]) < 5 * UNIT
    terms[::2] = -1
    # 0 exactly; the terms are not.
    assert 10 * UNIT < run(torch.sum, terms).abs() < 1e6 * UNIT


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.linalg.svdvals, torch.linalg.det])
def test_factorisations_round_each_element_many_times(function: Callable[..., Any]) -> None:
    matrix = torch.eye(64, dtype=torch.float64) + 0.01
    assert 2 * UNIT < relative_change(function, matrix).max() < 1000 * UNIT


def test_rows_of_an_embedding_that_meet_are_a_sum() -> None:
    """Each of 10,000 terms is off by 30 roundings where all meet in one place, and by one where each has its own."""

    def error(indices: Any) -> float:
        table = torch.zeros(10_000, 1, dtype=torch.float64, requires_grad=True)
        found = torch.nn.functional.embedding(indices, table)
        with RoundedArithmetic(UNIT, 1):
            (gradient,) = torch.autograd.grad(found.sum(), table)
        places = torch.bincount(indices, minlength=10_000)[:, None]
        return float((gradient - places).norm())

    together, apart = error(torch.zeros(10_000, dtype=torch.int64)), error(torch.arange(10_000))
    assert together > 5 * apart > 0


def test_gradients_are_computed_in_the_mode_too(x: Any) -> None:
    x = x.requires_grad_()
    mode = RoundedArithmetic(UNIT, 1)
    with mode:
        y = torch.tanh(x).sum()
    with mode:
        (moved,) = torch.autograd.grad(y, x)
    (exact,) = torch.autograd.grad(torch.tanh(x).sum(), x)
    change = ((moved - exact) / exact).abs()
    assert 0.1 * UNIT < change.max() < 1e4 * UNIT


def test_inputs_are_left_alone_and_in_place_operations_work(x: Any) -> None:
    kept = x.clone()
    run(lambda: (x @ x, x.reshape(10, 100).T @ x.reshape(10, 100)))
    assert torch.equal(x, kept)
    moved = run(lambda: x.clone().reshape(10, 100).T.add_(1.0).mul_(2.0))
    torch.testing.assert_close(moved, (kept.reshape(10, 100).T + 1) * 2, rtol=10 * UNIT, atol=0)
    assert not torch.equal(moved, (kept.reshape(10, 100).T + 1) * 2)


def test_other_dtypes_and_empty_tensors_stay_as_they_are() -> None:
    assert torch.equal(run(lambda: torch.arange(5) + 1), torch.arange(5) + 1)
    half = torch.ones(4, dtype=torch.float16)
    assert torch.equal(run(lambda: half + half), half + half)
    assert run(lambda: torch.zeros(0, dtype=torch.float64) + 1).shape == (0,)


def test_errors_of_the_operation_come_through() -> None:
    with pytest.raises(RuntimeError, match=r"same dtype|size"):
        run(lambda: torch.nn.functional.layer_norm(torch.ones(4, 4, dtype=torch.float64), (3,)))


F = torch.nn.functional
DECOMPOSED = {
    "softmax": lambda x, w: F.softmax(x, -1),
    "log_softmax": lambda x, w: F.log_softmax(x, 0),
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w, w),
    "layer_norm, two axes": lambda x, w: F.layer_norm(x, (6, 8)),
    "group_norm": lambda x, w: F.group_norm(x.reshape(2, 8, 3), 4, w, w),
    "var": lambda x, w: x.var(),
    "var of a row": lambda x, w: x.var(dim=1, correction=0, keepdim=True),
    "std": lambda x, w: x.std(dim=0),
    "var_mean": lambda x, w: torch.stack(torch.var_mean(x, dim=1)),
    "vector_norm": lambda x, w: torch.linalg.vector_norm(x, dim=1),
    "norm of order 3": lambda x, w: torch.linalg.vector_norm(x, ord=3),
    "weight_norm": lambda x, w: torch._weight_norm(x, w.reshape(1, 8), 1),
    "weight_norm of rows": lambda x, w: torch._weight_norm(x, w[:6].reshape(6, 1), 0),
    "cross_entropy": lambda x, w: F.cross_entropy(x, torch.tensor([0, 7, 3, -100, 1, 2]), w.detach().abs()),
    "cross_entropy of a row": lambda x, w: F.cross_entropy(x, torch.arange(6), reduction="none"),
    "sum of losses": lambda x, w: F.nll_loss(x, torch.arange(6), reduction="sum"),
    "gelu": lambda x, w: F.gelu(x),
    "silu": lambda x, w: F.silu(x),
    "mse_loss": lambda x, w: F.mse_loss(x, x.detach() + 1),
}


@pytest.mark.parametrize("function", DECOMPOSED.values(), ids=DECOMPOSED.keys())
def test_a_decomposed_kernel_computes_what_the_kernel_computes(function: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, generator=generator, dtype=torch.float64, requires_grad=True)

    def results(roundoff: float | None) -> list[Any]:
        with RoundedArithmetic(roundoff, 1) if roundoff is not None else nullcontext():
            output = function(x, weight)
            found = torch.autograd.grad(output.square().sum(), (x, weight), allow_unused=True)
        return [output.detach(), *(gradient for gradient in found if gradient is not None)]

    kernel, decomposed = results(None), results(0.0)
    assert [value.shape for value in decomposed] == [value.shape for value in kernel]
    for one, other in zip(decomposed, kernel):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_a_total_in_a_narrow_dtype_moves_what_is_left_of_a_class_that_stands_out() -> None:
    """bfloat16 kernels of PyTorch give 0 for -1.7e-4: they keep 1.00017 as 1."""
    x = torch.full((4, 10), -12.0, dtype=torch.float64)
    x[:, 0], x[:, 1] = 0.0, -9.0
    exact = torch.log_softmax(x, -1)
    with RoundedArithmetic(UNIT, 1):
        fine = (torch.log_softmax(x, -1) - exact)[:, 0].abs().max()
    with RoundedArithmetic(UNIT, 1, totals=2.0**-9):
        coarse = (torch.log_softmax(x, -1) - exact)[:, 0].abs().max()
        other_sums = x.sum(-1)
    assert fine < 1e-6
    assert 2.0**-12 < coarse < 2.0**-7
    torch.testing.assert_close(other_sums, x.sum(-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 50])
def test_linspace_is_a_sum_of_two_products(steps: int) -> None:
    exact = torch.linspace(-2.0, 1.0, steps, dtype=torch.float64)
    with RoundedArithmetic(0.0, 1):
        torch.testing.assert_close(torch.linspace(-2.0, 1.0, steps, dtype=torch.float64), exact, rtol=0, atol=1e-15)
    with RoundedArithmetic(2.0**-24, 1):
        moved = (torch.linspace(-2.0, 1.0, steps, dtype=torch.float64) - exact).abs() * 2**24
    assert steps < 7 or 0.1 < moved.median() < 2  # of what the terms are as large as, not of the smaller result


def test_no_compiler_is_imported() -> None:
    """PyTorch's compiler and SymPy are 800 modules, 2 to 5 s in a process that needs one moved run."""
    script = """
import sys, torch
from pytest_msprobe.engines.torch_arithmetic import RoundedArithmetic
F = torch.nn.functional
x = torch.ones(4, 8, dtype=torch.float64, requires_grad=True)
heavy = lambda: {name for name in ("sympy", "torch._dynamo") if name in sys.modules}
before = heavy()
with RoundedArithmetic(2.0**-24, 1):
    for y in (x @ x.T, F.silu(x), F.gelu(x), F.softmax(x, 1), F.layer_norm(x, (8,)), F.group_norm(x, 2), x.std(),
              x.norm(), F.cross_entropy(x, torch.arange(4)), F.rms_norm(x, (8,))):
        y.sum().backward()
print(*heavy() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == []


def attended(**how: Any) -> Callable[..., Any]:
    return lambda *inputs: torch.nn.functional.scaled_dot_product_attention(*inputs, **how)


@pytest.mark.parametrize(
    "how",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()}],
    ids=lambda how: next(iter(how), "plain"),
)
def test_attention_and_its_gradients_are_decomposed(how: dict[str, Any]) -> None:
    inputs = [torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    incoming = torch.randn(2, 3, 6, 8, dtype=torch.float64)

    def results(mode: Any) -> list[Any]:
        with mode:
            output = attended(**how)(*inputs)
        with mode:
            return [output.detach(), *torch.autograd.grad(output, inputs, incoming)]

    exact, unmoved = results(nullcontext()), results(RoundedArithmetic(1e-300, 1))
    for mine, theirs, moved in zip(exact, unmoved, results(RoundedArithmetic(UNIT, 1)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)
        assert 1e-9 < (moved - mine).abs().max() < 1e-4


@pytest.mark.parametrize("is_aligned", [True, False])
def test_positions_of_an_interpolation_are_rounded(is_aligned: bool) -> None:
    """The error grows with the distance from the first element."""
    x = torch.randn(1, 1, 4000, 1, dtype=torch.float64)

    def larger(x: Any, size: tuple[int, int] = (9000, 1)) -> Any:
        return torch.nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=is_aligned)

    few = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    torch.testing.assert_close(run(larger, few, (14, 3), roundoff=1e-300), larger(few, (14, 3)), rtol=0, atol=1e-13)
    change = (run(larger, x) - larger(x)).abs().reshape(3, -1).square().mean(dim=1).sqrt()
    assert change[2] > 3 * change[0] > 30 * UNIT


def test_a_sum_is_off_by_the_rounding_of_its_partial_sums() -> None:
    """Terms that leave and return are off by more than the same terms in turn."""
    away = torch.cat([torch.ones(2048), -torch.ones(2048)]).double()
    in_turn = torch.ones(4096).double()
    in_turn[1::2] = -1
    off = [[abs(float(run(torch.sum, x, seed=seed))) for seed in range(20)] for x in (away, in_turn)]
    assert max(off[0]) > 100 * max(off[1]) > 0
