"""One assertion on a kernel: what passes, what fails and with which words, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_msprobe import Rounding, UnusableReference, assert_rounding_only, rounding_of  # noqa: E402


def drawn(*shape: int, dtype: Any = torch.float32, grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x.float()).to(x.dtype)


def with_row(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def kernel(x: Any) -> Any:
        y = softmax(x.float())
        return torch.cat([y[:3], change(y[3:4]), y[4:]]).to(x.dtype)

    return kernel


def failure(*arguments: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_rounding_only(*arguments, **options)
    return str(raised.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_right_kernel_passes_with_its_gradients(dtype: Any) -> None:
    found = rounding_of(in_float32(softmax), softmax, drawn(8, 40, dtype=dtype, grad=True))
    assert found
    assert [row.label for row in found.outputs] == ["output.0", "gradient.0"]
    assert (found.text, found.status) == ("", "pass")


def test_a_failure_says_what_and_where_first_and_how_to_repeat_it() -> None:
    text = failure(with_row(lambda row: row * 1.02), softmax, drawn(8, 512))
    first, *_, last = text.splitlines()
    assert first == "kernel is off by more than rounding: 1.02 x too large, row 3"
    assert last == "inputs: (float32[8, 512]), seed=0"
    assert "least tolerance that passes: " in text


@pytest.mark.parametrize(
    ("kernel", "pattern"),
    [
        (lambda x: softmax(x) * 0, "all zero"),
        (with_row(torch.zeros_like), "zero, row 3"),
        (with_row(lambda row: row * math.nan), "NaN where finite, row 3"),
        (lambda x: softmax(x).to(torch.bfloat16).float(), "matches bfloat16"),
    ],
    ids=["zeros", "row", "nan", "bfloat16"],
)
def test_patterns_come_first(kernel: Callable[..., Any], pattern: str) -> None:
    assert failure(kernel, softmax, drawn(8, 40)).startswith(
        f"{kernel.__name__} is off by more than rounding: {pattern}"
    )


def test_a_result_is_judged_as_a_kernel_is_and_keeps_its_graph() -> None:
    x = drawn(8, 40, grad=True)
    y = torch.softmax(x, -1)
    assert_rounding_only(y, torch.softmax, x, dim=-1)
    y.sum().backward()
    assert "1.01 x too large" in failure(y.detach() * 1.01, torch.softmax, x.detach(), dim=-1)


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    """x * 2, with the gradient of x * 3."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, incoming: Any) -> Any:
        return incoming * 3


def test_gradients_are_judged_where_inputs_require_them() -> None:
    x = drawn(4, 5, grad=True)
    text = failure(Doubled.apply, lambda x: x * 2, x)
    assert "gradient.0 Float32 (4, 5): " in text
    assert "1.5 x too large" in text.splitlines()[0]
    assert_rounding_only(Doubled.apply, lambda x: x * 2, x, gradients=False)
    assert_rounding_only(Doubled.apply, lambda x: x * 2, x.detach())
    assert "gradient.0" in failure(Doubled.apply, lambda x: x * 2, x.detach(), gradients=True)
    assert x.grad is None
    assert "gives no gradient" in failure(lambda x: x.detach() * 2, lambda x: x * 2, x)


def test_nested_outputs_keywords_and_plain_values() -> None:
    def kernel(x: Any, *, scale: list[Any]) -> Any:
        return {"a": x * scale[0], "b": [x > 0, 3, (x * scale[1]).long()]}

    found = rounding_of(kernel, kernel, drawn(4, 5), scale=[drawn(5), 2.0])
    assert found
    assert [row.label for row in found.outputs] == ["output.0.a", "output.0.b.0", "output.0.b.1", "output.0.b.2"]
    text = failure(lambda x: x.long() + 1, lambda x: x.long(), drawn(4, 5))
    assert "too large by 1" in text.splitlines()[0]


def test_indices_are_judged_by_what_they_select() -> None:
    ties = torch.zeros(4, 5)

    def reference(x: Any) -> Any:
        return (x * 2).topk(2)

    assert_rounding_only(lambda x: (x[:, :2], torch.tensor([[4, 3]] * 4)), reference, ties)
    assert "occurs twice" in failure(lambda x: (x[:, :2], torch.tensor([[4, 4]] * 4)), reference, ties)
    assert "selects another value" in failure(lambda x: x.argmin(-1), lambda x: x.argmax(-1), drawn(4, 5))


def test_what_is_written_into_arguments_is_judged() -> None:
    def add_one(x: Any) -> None:
        x.add_(1)

    x = drawn(4, 5)
    before = x.clone()
    assert_rounding_only(add_one, add_one, x)
    assert torch.equal(x, before)
    assert "equals input 0" in failure(lambda x: None, add_one, x)
    assert "output.changed.0" in failure(lambda x: (x.mul_(2), x / 2)[1], lambda x: x.clone(), x)
    out = torch.empty(4, 5)
    assert_rounding_only(lambda x, out: torch.exp(x, out=out), lambda x, out: torch.exp(x, out=out), x, out=out)

    def write(x: Any, out: Any) -> None:
        out.copy_(x.exp())

    assert_rounding_only(write, lambda x, out: torch.exp(x), x, out)
    assert_rounding_only(write, lambda x, out: torch.exp(x), x, torch.exp(x))  # which holds the right result before


def test_a_kernel_gets_the_strides_of_the_input() -> None:
    x = drawn(16, 32)[:, ::2]
    assert_rounding_only(lambda x: x * 1, lambda x: x * 1, x)
    assert failure(lambda x: x.as_strided(x.shape, (16, 1)) * 1, lambda x: x * 1, x)


def test_a_kernel_gets_the_offset_of_the_input() -> None:
    x = drawn(16, 32)[2:]
    assert_rounding_only(lambda x: x * 1, lambda x: x * 1, x)
    assert failure(lambda x: x.as_strided(x.shape, x.stride(), 0) * 1, lambda x: x * 1, x)


@pytest.mark.parametrize("is_told", [True, False])
def test_the_second_incoming_gradient_is_not_contiguous(is_told: bool) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, incoming: Any) -> Any:  # type: ignore[override]
            if is_told and not incoming.is_contiguous():
                raise ValueError("contiguous ones alone")
            return incoming.as_strided(incoming.shape, (incoming.shape[-1], 1)) * 2

    x = drawn(8, 40, grad=True)
    if is_told:
        assert_rounding_only(Double.apply, lambda x: x * 2, x)
    else:
        text = failure(Double.apply, lambda x: x * 2, x)
        assert "the second with an incoming gradient that is not contiguous: " in text.splitlines()[0]


def test_gradients_of_a_largest_element_leave_others_their_tolerance() -> None:
    def kernel(x: Any) -> tuple[Any, Any]:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True)), x.amax(-1)

    for seed in range(12):
        x = torch.randn(3, 7, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        assert_rounding_only(kernel, kernel, x, seed=seed)


def test_results_of_a_dict_are_compared_by_their_keys() -> None:
    x = drawn(4, 5, grad=True)
    assert_rounding_only(lambda x: {"a": x * 2, "b": x * 3}, lambda x: {"b": x * 3, "a": x * 2}, x)


def test_sums_in_a_narrow_dtype_pass_where_they_are_allowed() -> None:
    def kernel(a: Any, b: Any) -> Any:
        total = torch.zeros(8, 4, dtype=torch.bfloat16)
        for step in range(a.shape[1]):
            total = (total.float() + a[:, step, None].float() * b[None, step].float()).to(torch.bfloat16)
        return total

    a, b = drawn(8, 1024, dtype=torch.bfloat16), drawn(1024, 4, dtype=torch.bfloat16)
    text = failure(kernel, torch.matmul, a, b)
    assert "as accumulates='bfloat16' explains" in text.splitlines()[1]
    assert_rounding_only(kernel, torch.matmul, a, b, accumulates="bfloat16")
    assert_rounding_only(kernel, torch.matmul, a, b, accumulates="same")


def tf32(x: Any) -> Any:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_reduced_operands_pass_where_they_are_allowed() -> None:
    a, b = drawn(8, 64), drawn(64, 8)

    def kernel(a: Any, b: Any) -> Any:
        return tf32(a) @ tf32(b)

    text = failure(kernel, torch.matmul, a, b)
    assert text.splitlines()[1] == "as reduced='tf32' explains, with which it passes"
    assert_rounding_only(kernel, lambda a, b: a @ b, a, b, reduced="tf32")


def test_another_kernel_may_be_the_measure() -> None:
    def coarse(x: Any) -> Any:
        return softmax(x.to(torch.bfloat16)).float()

    x = drawn(8, 40)
    assert_rounding_only(coarse, softmax, x, no_worse_than=coarse)
    assert "second opinion" in failure(coarse, softmax, x, no_worse_than=softmax)


def test_random_kernels_draw_with_the_seed() -> None:
    def dropout(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5)

    state = torch.get_rng_state()
    assert_rounding_only(dropout, dropout, drawn(8, 40, grad=True), seed=7)
    assert torch.equal(torch.get_rng_state(), state)


def test_storage_formats_are_exact() -> None:
    weight = drawn(16, 4).to(torch.float8_e4m3fn)
    x = drawn(3, 16, dtype=torch.bfloat16)

    def kernel(x: Any, weight: Any) -> Any:
        return (x.float() @ weight.float()).to(x.dtype)

    def reference(x: Any, weight: Any) -> Any:
        return x @ weight.to(x.dtype)

    assert_rounding_only(kernel, reference, x, weight)
    assert failure(lambda x, weight: kernel(x, weight) * 1.05, reference, x, weight)


def test_unwritten_elements_are_named() -> None:
    def kernel(x: Any) -> Any:
        y = torch.empty_like(x)
        y[:, :-5] = softmax(x)[:, :-5]
        return y

    text = failure(kernel, softmax, drawn(16, 64))
    assert text.startswith("kernel is off by more than rounding: columns 59 to 63: not written")


def test_calls_that_differ_are_told_as_that() -> None:
    calls: list[int] = []

    def kernel(x: Any) -> Any:
        calls.append(1)
        y = softmax(x)
        y[2] *= 1 + (len(calls) == 2)
        return y

    assert "two calls with the same inputs differ: " in failure(kernel, softmax, drawn(8, 40))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x: torch.softmax(x.float(), -1), "rounds to float32 at test_own_kernels.py:"),
        (lambda x: softmax(x).to(torch.bfloat16), "rounds to bfloat16 at test_own_kernels.py:"),
        (lambda x: x @ drawn(40, 2), "expected m1 and m2 to have the same dtype"),
        (lambda x: x.no_such_method(), "no_such_method"),
    ],
    ids=["inside", "at the end", "weights", "missing"],
)
def test_a_reference_that_is_not_float64_is_refused(reference: Callable[..., Any], words: str) -> None:
    with pytest.raises(UnusableReference, match="the reference ") as raised:
        rounding_of(softmax, reference, drawn(8, 40))
    assert words in str(raised.value)


def test_a_reference_without_gradients_is_no_all_clear() -> None:
    x = drawn(4, 5, grad=True)
    with pytest.raises(UnusableReference, match="the reference has no gradient"):
        rounding_of(lambda x: x * 2, lambda x: x.detach() * 2, x)
    assert_rounding_only(lambda x: x * 2, lambda x: x.detach() * 2, x, gradients=False)


def test_the_second_call_is_judged_where_it_differs() -> None:
    calls: list[int] = []

    def kernel(x: Any) -> Any:
        calls.append(1)
        y = x.clone()
        y[0, 0] *= 1 + (len(calls) == 2)  # as little as another order of adding leaves of the largest element
        return y

    x = drawn(4, 5)
    x[0, 0] = 1e-6
    text = failure(kernel, lambda x: x * 1, x)
    assert "one element at [0, 0]" in text.splitlines()[0]


def test_casts_that_change_nothing_are_no_rounding() -> None:
    assert_rounding_only(lambda x: x * 2.0, lambda x: x.float().double() * 2, drawn(4, 5, dtype=torch.bfloat16))


def test_a_module_may_be_the_reference() -> None:
    module = torch.nn.Linear(40, 3)
    assert_rounding_only(module, module, drawn(8, 40))
    assert module.weight.dtype is torch.float32


def test_what_is_no_judgement_is_said() -> None:
    x = drawn(8, 40)
    assert "Shapes differ" in failure(lambda x: x.sum(0), lambda x: x.sum(1), x)
    assert "2 outputs tested, but the benchmark has 1" in failure(lambda x: (x, x), lambda x: x * 1, x)
    assert "NaN everywhere" in failure(lambda x: x * math.nan, lambda x: x * math.nan, x)

    def broken(x: Any) -> Any:
        raise ValueError("no kernel image")

    assert failure(broken, softmax, x).startswith("broken raised ValueError: no kernel image (test_own_kernels.py:")
    with pytest.raises(ValueError, match="return nothing"):
        rounding_of(lambda x: None, lambda x: None, x)
    with pytest.raises(TypeError, match="must be a function, not Tensor"):
        rounding_of(softmax, softmax(x), x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the reference does not take these arguments: missing"):
        rounding_of(softmax(x), softmax)
    with pytest.raises(TypeError, match="no_worse_than=2: must be a function"):
        rounding_of(softmax, softmax, x, no_worse_than=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed='a': must be an integer"):
        rounding_of(softmax, softmax, x, seed="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="accumulates='float8'"):
        rounding_of(softmax, softmax, x, accumulates="float8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reduced='bf16'"):
        rounding_of(softmax, softmax, x, reduced="bf16")  # type: ignore[arg-type]


def test_sizes_of_one_and_none() -> None:
    assert_rounding_only(softmax, softmax, drawn(1, 1, grad=True))
    assert_rounding_only(softmax, softmax, drawn(0, 4, grad=True))


def test_figures_in_types_of_json() -> None:
    found = rounding_of(lambda x: x.exp() * 1.5, torch.exp, drawn(4, 5))
    assert isinstance(found, Rounding)
    row = found.row
    assert (row["kernel"], row["output"], row["pattern"]) == ("<lambda>", "output.0", "1.5 x too large")
    assert row["of its tolerance"] > 100


def test_importing_loads_no_framework_and_no_suite() -> None:
    code = (
        "import sys; from pytest_msprobe import assert_rounding_only\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'mindspore', 'numpy', 'pytest')"
        " or name.startswith(('pytest_msprobe.suites', 'pytest_msprobe.numerics'))))\n"
        "print(len([name for name in sys.modules if name.startswith(('pytest_msprobe', 'msprobe_collector'))]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "2"]
