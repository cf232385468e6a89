"""Quantised products against exact integers in Python, quantising against one value at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fact_lines import of_line

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.matmul_quantisation import (
    dequant_swiglu_quant,
    dynamic_quant_ext,
    npu_dequant_swiglu_quant,
    quant_batch_matmul,
    quant_v2,
    weight_quant_batch_matmul,
)

quant_matmul = of_line("Functional.quant_matmul")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def int8(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def exact(x1: torch.Tensor, x2: torch.Tensor) -> np.ndarray:
    """The product in Python's integers."""
    left, right = x1.tolist(), x2.T.tolist()
    return np.array([[sum(a * b for a, b in zip(row, column, strict=True)) for column in right] for row in left])


def half_even(value: float) -> int:
    return max(-128, min(127, round(value)))


@pytest.mark.parametrize("smooth", [None, drawn(7, seed=3)])
def test_dynamic_quantisation_row_by_row(smooth: torch.Tensor | None) -> None:
    x = drawn(4, 7)
    x[2] = 0
    values, scale = dynamic_quant_ext(x, smooth)
    for r in range(4):
        row = (x[r] if smooth is None else x[r] * smooth).tolist()
        expected = max(abs(item) for item in row) / 127
        assert scale[r].item() == pytest.approx(expected, rel=1e-15)
        assert values[r].tolist() == [half_even(item / expected) if expected else 0 for item in row]
    assert values.dtype == torch.int8


@pytest.mark.parametrize("sqrt_mode", [False, True])
def test_quantising_rounds_half_to_even_and_saturates(sqrt_mode: bool) -> None:
    x = torch.tensor([100.0, 150.0, 0.5, 1.5, -2.5], dtype=torch.float64)
    scale, offset = torch.tensor([80.0, 40, 1, 1, 1]).double(), torch.tensor([0.0, 2, 0, 0, 0]).double()
    assert quant_v2(x, scale, offset, sqrt_mode, "Round").tolist() == [127, 127, 0, 2, -2]
    with pytest.raises(Unsupported, match="FLOOR"):
        quant_v2(x, scale, offset, False, "FLOOR")


X1, X2 = int8(3, 40), int8(40, 5, seed=1)
SCALE, ROWS = drawn(5, seed=2), drawn(3, seed=3)


def test_products_are_exact_before_they_are_scaled() -> None:
    bias = int8(5, seed=4).int()
    found = quant_batch_matmul(X1, X2, SCALE, None, bias, ROWS, dtype=torch.float64)
    expected = (exact(X1, X2) + bias.numpy()) * SCALE.numpy() * ROWS.numpy()[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_a_float_bias_and_an_offset_are_added_after_scaling() -> None:
    bias, offset = drawn(5, seed=4), drawn(5, seed=5)
    found = quant_batch_matmul(X1.T, X2.T, SCALE, offset, bias, None, True, True, torch.float64)
    np.testing.assert_allclose(found, exact(X1, X2) * SCALE.numpy() + bias.numpy() + offset.numpy(), rtol=1e-13)


def test_int8_output_is_rounded_and_saturated() -> None:
    found = quant_batch_matmul(X1, X2, SCALE / 500, dtype=torch.int8)
    expected = [[half_even(value) for value in row] for row in (exact(X1, X2) * (SCALE / 500).numpy()).tolist()]
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_a_scale_packed_into_integers_is_unpacked(dtype: type) -> None:
    scale = SCALE.float().numpy()
    integers = scale.view(np.uint32).astype(np.uint64) | np.uint64(1 << 46)
    found = quant_batch_matmul(X1, X2, torch.from_numpy(integers.astype(dtype)), dtype=torch.float64)
    np.testing.assert_allclose(found, exact(X1, X2) * scale.astype(np.float64), rtol=1e-15)


def test_the_default_output_is_float16_outside_the_benchmark() -> None:
    found = quant_batch_matmul(X1, X2, SCALE.float() / 1000)
    assert found.dtype == torch.float16
    assert quant_batch_matmul(X1, X2, SCALE / 1000).dtype == torch.float64
    assert quant_matmul(X1, X2, SCALE.float() / 1000).dtype == torch.bfloat16


def test_quant_matmul_of_float8() -> None:
    x1, x2 = drawn(3, 4).to(torch.float8_e4m3fn), drawn(4, 5, seed=1).to(torch.float8_e4m3fn)
    found = quant_matmul(x1, x2, SCALE[:1], pertoken_scale=ROWS, output_dtype=torch.float64)
    expected = torch.einsum("mk,kn->mn", x1.double(), x2.double()) * SCALE[:1] * ROWS[:, None]
    torch.testing.assert_close(found, expected)
    with pytest.raises(Unsupported, match=r"^group_sizes: packed formats"):
        quant_matmul(x1, x2, SCALE, group_sizes=(1, 1, 32))


@pytest.mark.parametrize("group", [0, 2])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_quantised_weights(group: int, is_transposed: bool) -> None:
    x, weight, bias = drawn(3, 6), int8(6, 5), drawn(5, seed=1)
    shape = (3, 5) if group else (1, 5)
    scale, offset = drawn(*shape, seed=2), drawn(*shape, seed=3)
    given = [item.T for item in (x, weight, scale, offset)] if is_transposed else [x, weight, scale, offset]
    found = weight_quant_batch_matmul(
        *given,
        bias=bias,
        transpose_x=is_transposed,
        transpose_weight=is_transposed,
        antiquant_group_size=group,
    )
    for n in range(5):
        column = sum(
            x[:, k]
            * (weight[k, n].double() + offset[k // group if group else 0, n])
            * scale[k // group if group else 0, n]
            for k in range(6)
        )
        torch.testing.assert_close(found[:, n], column + bias[n])


def test_quantised_weights_with_a_quantised_output() -> None:
    x, weight = drawn(3, 6), int8(6, 5)
    plain = weight_quant_batch_matmul(x, weight, SCALE)
    found = weight_quant_batch_matmul(x, weight, SCALE, quant_scale=SCALE, quant_offset=SCALE)
    expected = [[half_even(item) for item in row] for row in (plain * SCALE + SCALE).tolist()]
    assert found.tolist() == expected


def test_gradients_reach_the_activations_of_quantised_weights() -> None:
    x = drawn(2, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: weight_quant_batch_matmul(x, int8(6, 5), SCALE), x)


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("sizes", [None, [2, 0, 1]])
def test_dequantise_swiglu_quantise_row_by_row(is_left: bool, mode: str, sizes: list[int] | None) -> None:
    x = torch.randint(-9, 10, (4, 6), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    weight_scale = drawn(6, seed=1) if sizes is None else drawn(3, 6, seed=1)
    rows, factor = drawn(4, 1, seed=2), drawn(1, 3, seed=3) if mode == "dynamic" and sizes is None else None
    group = None if sizes is None else torch.tensor(sizes)
    values, scale = dequant_swiglu_quant(x, weight_scale, rows, None, factor, None, group, is_left, mode)
    for r, g in enumerate([0] * 4 if sizes is None else [0, 0, 2]):
        wide = x[r].double() * (weight_scale if sizes is None else weight_scale[g]) * rows[r]
        gate, other = (wide[:3], wide[3:]) if is_left else (wide[3:], wide[:3])
        product = gate / (1 + torch.exp(-gate)) * other * (1 if factor is None else factor[0])
        largest = product.abs().max().item() / 127
        assert scale[r].item() == pytest.approx(largest if mode == "dynamic" else 0, rel=1e-12)
        divisor = largest if mode == "dynamic" else 1.0
        assert values[r].tolist() == [half_even(item / divisor) for item in product.tolist()]
    if sizes is not None:
        assert not values[3].any()


@pytest.mark.parametrize("keywords", [{"bias": SCALE}, {"quant_offset": SCALE}, {"quant_scale": SCALE}])
def test_what_documents_disagree_on_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="documents disagree"):
        dequant_swiglu_quant(torch.ones(2, 6), torch.ones(6), torch.ones(2, 1), **keywords)


def test_groups_larger_than_the_rows_are_refused() -> None:
    with pytest.raises(Unsupported, match="group_index"):
        dequant_swiglu_quant(torch.ones(2, 6), torch.ones(1, 6), torch.ones(2, 1), group_index=torch.tensor([3]))


def test_torch_npu_names_the_mode_by_a_number_and_has_scales_of_1() -> None:
    x, scale = drawn(3, 6, seed=1), drawn(2, 6, seed=2)
    sizes = torch.tensor([1, 2])
    for number, mode in enumerate(("static", "dynamic")):
        found = npu_dequant_swiglu_quant(x, scale, None, None, None, None, sizes, True, number)
        expected = dequant_swiglu_quant(x, scale, torch.ones(3, 1), None, None, None, sizes, True, mode)
        assert all(map(torch.equal, found, expected))
    bare = npu_dequant_swiglu_quant(x, None, None, None, None, None, None, False, 1)
    assert all(map(torch.equal, bare, dequant_swiglu_quant(x, torch.ones(6), torch.ones(3, 1), quant_mode="dynamic")))


def test_rows_that_the_kernel_does_not_write_are_refused() -> None:
    with pytest.raises(Unsupported, match="not written"):
        npu_dequant_swiglu_quant(drawn(3, 6), None, None, None, None, None, torch.tensor([1, 1]), True, 1)
