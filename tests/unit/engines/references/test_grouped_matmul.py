"""Grouped products against one row at a time, and the examples in MindSpore's documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fact_lines import of_line

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.matmul_quantisation import gmm, grouped_matmul_add_, matmul_add_

grouped_matmul = of_line("Functional.grouped_matmul")
grouped_matmul_v2 = of_line("Functional.grouped_matmul_v2")
grouped_matmul_v4 = of_line("Functional.grouped_matmul_v4")
ENDS = (1, 3, 3, 6)
GROUP_OF_ROW = [0, 1, 1, 3, 3, 3]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def int8(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def by_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    rows = [torch.einsum("k,kn->n", x[i], weight[g]) for i, g in enumerate(GROUP_OF_ROW)]
    found = torch.stack(rows)
    return found if bias is None else found + bias[GROUP_OF_ROW]


X, W, BIAS = drawn(6, 4), drawn(4, 4, 2, seed=1), drawn(4, 2, seed=2)


@pytest.mark.parametrize(
    "groups", [{"group_list": torch.tensor(ENDS)}, {"group_list": torch.tensor([1, 2, 0, 3]), "group_list_type": 1}]
)
def test_row_groups(groups: dict[str, Any]) -> None:
    (found,) = gmm([X], [W], [BIAS], **groups)
    torch.testing.assert_close(found, by_row(X, W, BIAS))
    (found,) = grouped_matmul_v4([X], [W], [BIAS], split_item=3, group_type=0, **groups)
    torch.testing.assert_close(found, by_row(X, W, BIAS))


def test_a_list_of_ends_stays_ends_whatever_the_type_says() -> None:
    torch.testing.assert_close(gmm([X], [W], None, list(ENDS), 0, 1)[0], by_row(X, W))


def test_column_groups() -> None:
    (found,) = gmm([X], [W[:, :, 0].reshape(-1, 4)[:4]], None, (1, 4), 2)
    weight = W[:, :, 0].reshape(-1, 4)[:4]
    assert found.shape == (2, 6, 4)
    torch.testing.assert_close(found[0], torch.outer(X[:, 0], weight[0]))
    torch.testing.assert_close(found[1], sum((torch.outer(X[:, k], weight[k]) for k in (1, 2, 3)), torch.zeros(6, 4)))


def test_rows_past_the_last_group_give_zero() -> None:
    (found,) = gmm([X], [W], None, (1, 3, 3, 4), 0)
    torch.testing.assert_close(found[:4], by_row(X, W)[:4])
    assert not found[4:].any()


def test_the_example_of_mindspore() -> None:
    x = torch.tensor([0.0, 1, 2, 2, 1, 1])[:, None].expand(6, 4)
    weight = torch.arange(32.0).reshape(4, 4, 2)
    expected = [[0, 0], [44, 48], [88, 96], [152, 160], [108, 112], [108, 112]]
    for found in (
        grouped_matmul([x], [weight], group_list=torch.tensor([1, 3, 4, 6]), split_item=3, group_type=0),
        grouped_matmul_v2([x], [weight], group_list=torch.tensor([1, 3, 4, 6]), split_item=3, group_type=0),
        grouped_matmul_v4([x], [weight], group_list=torch.tensor([1, 2, 1, 2]), group_type=0, group_list_type=1),
    ):
        assert found[0].tolist() == expected


def test_pairs_without_groups_and_transposed_sides() -> None:
    xs, weights, biases = [X, drawn(2, 3, 5)], [W[0], drawn(5, 2, seed=3)], [BIAS[0], BIAS[1]]
    found = grouped_matmul(xs, weights, biases)
    turned = grouped_matmul([x.mT for x in xs], [w.mT for w in weights], biases, transpose_a=True, transpose_b=True)
    for product, again, x, weight, bias in zip(found, turned, xs, weights, biases, strict=True):
        torch.testing.assert_close(product, torch.einsum("...k,kn->...n", x, weight) + bias)
        torch.testing.assert_close(again, product)


def test_int8_weights_stand_for_shifted_and_scaled_ones() -> None:
    weight, scale, offset = int8(4, 4, 2), drawn(4, 2, seed=5), drawn(4, 2, seed=6)
    (found,) = grouped_matmul_v4(
        [X], [weight], None, None, None, [scale], [offset], group_list=torch.tensor(ENDS), group_type=0
    )
    torch.testing.assert_close(found, by_row(X, (weight.double() + offset[:, None]) * scale[:, None]))


def test_int8_products_are_exact_and_scaled_by_column_and_row() -> None:
    x, weight, bias = int8(6, 4), int8(4, 4, 2, seed=1), int8(4, 2, seed=2).int()
    scale, per_token = drawn(4, 2, seed=3), drawn(6, seed=4)
    (found,) = grouped_matmul_v4(
        [x], [weight], [bias], [scale], None, None, None, [per_token], torch.tensor(ENDS), group_type=0
    )
    exact = by_row(x.long(), weight.long(), bias.long())
    torch.testing.assert_close(found, exact * scale[GROUP_OF_ROW] * per_token[:, None], rtol=1e-15, atol=0)


def test_bfloat16_scale_gives_a_bfloat16_product() -> None:
    x, weight, scale = int8(6, 4), int8(4, 4, 2, seed=1), drawn(4, 2, seed=3).bfloat16()
    (found,) = grouped_matmul_v4([x], [weight], None, [scale], group_list=torch.tensor(ENDS), group_type=0)
    exact = by_row(x.long(), weight.long())
    assert torch.equal(found, (exact * scale.double()[GROUP_OF_ROW]).bfloat16())


@pytest.mark.parametrize("shape", [(4, 4, 3), (16, 3)])
def test_transposed_products_are_added_to_their_slice(shape: tuple[int, ...]) -> None:
    y, out = drawn(6, 3, seed=1), drawn(*shape, seed=2)
    found = grouped_matmul_add_(X, y, torch.tensor(ENDS), out).reshape(4, 4, 3)
    for g in range(4):
        rows = [i for i, group in enumerate(GROUP_OF_ROW) if group == g]
        added = sum((torch.outer(X[i], y[i]) for i in rows), torch.zeros(4, 3))
        torch.testing.assert_close(found[g], out.reshape(4, 4, 3)[g] + added)


def test_matmul_add_keeps_the_float32_of_its_sum() -> None:
    x, y, total = drawn(5, 2), drawn(5, 3, seed=1), drawn(2, 3, seed=2)
    torch.testing.assert_close(matmul_add_(x, y, total), total + torch.einsum("km,kn->mn", x, y))
    halves = matmul_add_(x.half(), y.half(), total.float())
    assert halves.dtype == torch.float32
    assert grouped_matmul_add_(X.half(), drawn(6, 3).half(), torch.tensor(ENDS), drawn(4, 4, 3).float()).dtype == (
        torch.float32
    )


def test_gradients() -> None:
    x, weight, bias = (item.clone().requires_grad_() for item in (X, W, BIAS))
    assert torch.autograd.gradcheck(lambda x, w, b: gmm([x], [w], [b], ENDS)[0], (x, weight, bias))
    y, out = drawn(6, 3, seed=1).requires_grad_(), drawn(4, 4, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *args: grouped_matmul_add_(*args[:2], torch.tensor(ENDS), args[2]), (x, y, out)
    )


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"group_list": torch.tensor([3, 1]), "group_type": 0}, "not cumulative lengths up to 6"),
        ({"group_list": torch.tensor([3, 9]), "group_type": 0}, "not cumulative lengths up to 6"),
        ({"group_type": 0}, "group_list is None"),
        ({"group_type": 2}, "group_type 2"),
        ({"offset": [X], "activation_input": [X]}, "^offset, activation_input: MindSpore 2.10"),
        ({"act_type": 1}, "act_type 1"),
    ],
)
def test_what_is_not_defined_is_refused(keywords: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        grouped_matmul_v4([X], [W], **keywords)
