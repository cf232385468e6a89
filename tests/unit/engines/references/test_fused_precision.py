"""Half precision goes in as float32 and comes out rounded once."""

from __future__ import annotations

import inspect

import torch

from pytest_msprobe.engines.references.fused_precision import fused


@fused(float32_outputs=(1,))
def inspected(x: torch.Tensor, others: list[torch.Tensor], *, k: torch.Tensor | None = None) -> tuple[object, ...]:
    """Doubled, and the dtypes that arrived."""
    arrived = tuple(str(item.dtype) for item in (x, *others, *([] if k is None else [k])))
    return x * 2, x.sum(), x > 0, arrived


def test_halves_are_raised_wherever_they_stand() -> None:
    half = torch.ones(2, dtype=torch.bfloat16)
    output, statistic, is_positive, arrived = inspected(half, [half, torch.ones(1, dtype=torch.int8)], k=half)
    assert arrived == ("torch.float32", "torch.float32", "torch.int8", "torch.float32")
    assert isinstance(output, torch.Tensor)
    assert isinstance(statistic, torch.Tensor)
    assert isinstance(is_positive, torch.Tensor)
    assert (output.dtype, statistic.dtype, is_positive.dtype) == (torch.bfloat16, torch.float32, torch.bool)


def test_wider_tensors_pass_unchanged() -> None:
    for dtype in (torch.float32, torch.float64):
        output, statistic, _, arrived = inspected(torch.ones(2, dtype=dtype), [])
        assert isinstance(output, torch.Tensor)
        assert isinstance(statistic, torch.Tensor)
        assert output.dtype == statistic.dtype == dtype
        assert arrived == (str(dtype),)


def test_the_signature_is_the_functions_own() -> None:
    assert list(inspect.signature(inspected).parameters) == ["x", "others", "k"]
