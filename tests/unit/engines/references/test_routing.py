"""Expert routing against loops and the examples in MindSpore's documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.experts import (
    fused_add_topk_div,
    moe_compute_expert_tokens,
    moe_finalize_routing,
    moe_gating_top_k_softmax,
    moe_init_routing,
    moe_init_routing_v2,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_gating_is_a_softmax_and_a_top_k_with_the_lower_expert_first() -> None:
    x = torch.tensor([[0.1, 0.2, 0.1, 0.1], [0.2, 0.2, 0.4, 0.2], [0.3, 0.3, 0.1, 0.3]], dtype=torch.float64)
    values, experts, rows = moe_gating_top_k_softmax(x, torch.tensor([False, False, True]), 3)
    for r, row in enumerate(x.tolist()):
        order = sorted(range(4), key=lambda e, row=row: (-row[e], e))[:3]
        torch.testing.assert_close(values[r], torch.softmax(x[r], 0)[order])
        assert experts[r].tolist() == (order if r < 2 else [4, 4, 4])
        assert rows[r].tolist() == [k * 3 + r for k in range(3)]
    assert experts.dtype == rows.dtype == torch.int32


def test_the_example_of_gating_in_mindspore() -> None:
    x = torch.tensor([[0.1, 0.2, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1]])
    values, *_ = moe_gating_top_k_softmax(x, None, 4)
    expected = torch.tensor([[0.2693, 0.2437, 0.2437, 0.2437], [0.378, 0.2074, 0.2074, 0.2074]])
    torch.testing.assert_close(values, expected, rtol=0, atol=2e-4)


EXPERTS = torch.tensor([[2, 0], [1, 2], [0, 0]], dtype=torch.int32)


@pytest.mark.parametrize("active", [2, 9])
def test_init_routing_takes_the_entries_of_the_gating(active: int) -> None:
    x = drawn(3, 4)
    row_idx = torch.arange(6, dtype=torch.int32).reshape(2, 3).T
    expanded, places, experts = moe_init_routing(x, row_idx, EXPERTS, active)
    entries = sorted((int(EXPERTS[t, k]), t * 2 + k, k * 3 + t) for t in range(3) for k in range(2))
    assert experts.tolist() == [expert for expert, _, _ in entries]
    assert [int(places[entry]) for _, _, entry in entries] == list(range(6))
    assert torch.equal(expanded, torch.stack([x[entry % 3] for _, _, entry in entries])[: min(3, active) * 2])


def test_init_routing_v2_gives_the_example_of_mindspore() -> None:
    x = torch.tensor([[0.1, 0.2, 0.3], [0.2, 0.7, 0.8], [0.3, 0.3, 0.5]])
    experts = torch.tensor([[0, 1, 1], [2, 1, 1], [0, 0, 0]])
    expanded, places, counts = moe_init_routing_v2(x, experts, 3, 2, 3, 1, 0, True)
    assert torch.equal(expanded, torch.stack([x[[0, 2]], x[[0, 0]], torch.stack([x[1], torch.zeros(3)])]))
    assert places.tolist() == [0, 2, 3, 4, -1, -1, 1, -1, -1]
    assert counts.tolist() == [4, 4, 1]


@pytest.mark.parametrize("active", [0, 4])
@pytest.mark.parametrize(("flag", "expected"), [(0, None), (1, [3, 4, 6]), (2, [3, 1, 2])])
def test_init_routing_v2_without_dropping(active: int, flag: int, expected: list[int] | None) -> None:
    x = drawn(3, 4)
    expanded, places, *counts = moe_init_routing_v2(x, EXPERTS, active, 0, 3, 0, flag, False)
    order = sorted(range(6), key=lambda entry: (int(EXPERTS.flatten()[entry]), entry))
    assert torch.equal(expanded, x[[entry // 2 for entry in order]][: active or 6])
    assert places[order].tolist() == list(range(6))
    assert [item.tolist() for item in counts] == ([] if expected is None else [expected])


def test_the_examples_of_counting_and_finalising_in_mindspore() -> None:
    assert moe_compute_expert_tokens(torch.tensor([0, 0, 1, 2, 2], dtype=torch.int32), 5).tolist() == [2, 3, 5, 5, 5]
    rows = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])[:, None].expand(6, 4)
    found = moe_finalize_routing(
        rows,
        torch.tensor([1.0, 0.2, 0.3])[:, None].expand(3, 4),
        None,
        torch.tensor([0.1, 0.2, 0.3, 0.4])[:, None].expand(4, 4),
        torch.tensor([[0.7, 0.3], [0.8, 0.2], [0.8, 0.2]]),
        torch.tensor([2, 3, 1, 0, 5, 4]),
        torch.tensor([[0, 1], [0, 2], [1, 3]]),
    )
    torch.testing.assert_close(found, torch.tensor([1.37, 0.48, 0.74])[:, None].expand(3, 4))


def test_finalising_without_scales_and_bias_sums() -> None:
    expanded, x1, x2 = drawn(6, 4), drawn(3, 4, seed=1), drawn(3, 4, seed=2)
    places = torch.tensor([5, 1, 0, 3, 4, 2])
    found = moe_finalize_routing(expanded, x1, x2, expanded_row_idx=places)
    for i in range(3):
        torch.testing.assert_close(found[i], x1[i] + x2[i] + expanded[places[i]] + expanded[places[i + 3]])
    with pytest.raises(Unsupported, match="missing"):
        moe_finalize_routing(expanded, x1, bias=expanded, expanded_row_idx=places)


@pytest.mark.parametrize("is_norm", [True, False])
def test_add_topk_div_one_row_at_a_time(is_norm: bool) -> None:
    x, bias = drawn(5, 8), drawn(8, seed=1)
    weights, experts = fused_add_topk_div(x, bias, 4, 2, 2, 3, 0, is_norm, 2.5)
    for row in range(5):
        probabilities = [1 / (1 + torch.exp(-value)).item() for value in x[row]]
        scores = [p + b for p, b in zip(probabilities, bias.tolist(), strict=True)]
        groups = [scores[2 * g : 2 * g + 2] for g in range(4)]
        best = sorted(range(4), key=lambda g: -sum(sorted(groups[g])[-2:]))[:2]
        left = [score if e // 2 in best else 0.0 for e, score in enumerate(scores)]
        chosen = sorted(range(8), key=lambda e: (-left[e], e))[:3]
        assert experts[row].tolist() == chosen
        picked = [probabilities[e] for e in chosen]
        expected = [2.5 * p / sum(picked) for p in picked] if is_norm else picked
        torch.testing.assert_close(weights[row], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("keywords", "reason"), [({"enable_expert_mapping": True}, "at random"), ({"activate_type": 1}, "activate_type 1")]
)
def test_undocumented_gates_are_refused(keywords: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        fused_add_topk_div(drawn(2, 8), drawn(8), 4, 2, 2, 3, **keywords)


def test_gradients() -> None:
    x = drawn(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: moe_gating_top_k_softmax(x, None, 2)[0], x)
    assert torch.autograd.gradcheck(lambda x: moe_init_routing_v2(x, EXPERTS, 0, 1, 3, 1, 0, False)[0], x)
    assert torch.autograd.gradcheck(
        lambda x: moe_init_routing(x, EXPERTS.new_tensor([[0, 3], [1, 4], [2, 5]]), EXPERTS, 3)[0], x
    )
    scales = drawn(3, 2, seed=1).requires_grad_()
    expanded = drawn(6, 4, seed=2).requires_grad_()
    places = torch.tensor([5, 1, 0, 3, 4, 2])
    assert torch.autograd.gradcheck(
        lambda *args: moe_finalize_routing(args[0], args[1], scales=args[2], expanded_row_idx=places),
        (expanded, x, scales),
    )
