"""Arguments that do not fit a function, and errors that only sound like it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pytest_msprobe.engines.torch_bindings import is_misfit


def shaped(x: Any, dim: int = 0) -> Any:
    return x


def broken(x: Any) -> Any:
    return shaped(x, axis=1)  # type: ignore[call-arg]  # a fault inside


def raised(function: Any, arguments: Any, keywords: Any) -> bool:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # what kind is judged below
        function(*arguments, **keywords)
    return is_misfit(caught.value, partial(function, *arguments, **keywords))


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1, 2, 3), {}), ((), {}), ((1,), {"axis": 0}), ((1,), {"x": 2}), ((1, 2), {"dim": 1})]
)
def test_a_function_that_does_not_take_them(arguments: Any, keywords: Any) -> None:
    assert raised(shaped, arguments, keywords)


def test_a_fault_inside_of_a_function_is_none_of_the_arguments() -> None:
    assert not raised(broken, (1,), {})
    assert not raised(lambda x: x + "a", (1,), {})
    assert not is_misfit(RuntimeError("got an unexpected keyword argument 'x'"), shaped)


@pytest.mark.needs("torch")
def test_the_ways_of_torch() -> None:
    import torch
    from torch.nn import functional

    x = torch.ones(2)
    cases: list[tuple[Any, Any, Any]] = [
        (torch.add, (x, x), {"foo": 1}),
        (torch.add, (x,), {}),
        (torch.sum, (x,), {"foo": 0}),
        (torch.unsqueeze, (x,), {}),
        (torch.Tensor.unsqueeze, (x, 0, 1), {}),
        (torch.zeros, ("a",), {}),
        (functional.linear, (x, x, None, 3), {}),
        (functional.softmax, (x,), {"axis": 0}),
        (functional.scaled_dot_product_attention, (x, x, x), {"foo": 1}),
    ]
    assert [raised(*case) for case in cases] == [True] * len(cases)
    assert not raised(torch.matmul, (x, torch.ones(3)), {})


@pytest.mark.needs("mindspore")
def test_the_ways_of_mindspore() -> None:
    from mindspore import Tensor, mint, ops

    x = Tensor([1.0, 2.0])
    cases: list[tuple[Any, Any, Any]] = [
        (mint.add, (x, x), {"foo": 1}),
        (mint.add, (x,), {}),
        (mint.sum, (x,), {"axis": 0}),
        (mint.nn.functional.gelu, (x,), {"approx": 1}),
        (mint.zeros, ("a",), {}),
        (mint.cumsum, (x, 0), {"out": x}),
        (ops.MatMul(), (x, x, x), {}),
        (Tensor.sum, (x,), {"foo": 0}),
        (Tensor.add, (x, x, x, x), {}),
    ]
    assert [raised(*case) for case in cases] == [True] * len(cases)
