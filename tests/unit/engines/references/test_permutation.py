"""Permuting tokens by expert and back, against loops and the examples of MindSpore."""

from __future__ import annotations

import pytest
import torch

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.experts import moe_token_permute, moe_token_unpermute


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


INDICES = torch.tensor([[2, 0], [1, 2], [0, 0], [1, 1]])


def test_the_example_of_mindspore() -> None:
    tokens = torch.tensor([[1.0], [7], [2], [1], [2], [3]])
    permuted, places = moe_token_permute(tokens, torch.tensor([5, 0, 3, 1, 2, 4]))
    assert permuted[:, 0].tolist() == [7, 1, 2, 2, 3, 1]
    assert places.tolist() == [5, 0, 3, 1, 2, 4]
    assert places.dtype == torch.int32


@pytest.mark.parametrize("kept", [None, 0, 5])
def test_tokens_by_expert_in_their_own_order(kept: int | None) -> None:
    tokens = drawn(4, 3)
    permuted, places = moe_token_permute(tokens, INDICES, kept)
    entries = sorted((int(expert), t * 2 + k) for t, row in enumerate(INDICES) for k, expert in enumerate(row))
    assert torch.equal(permuted, torch.stack([tokens[entry // 2] for _, entry in entries][: kept or 8]))
    assert [int(places[entry]) for _, entry in entries] == list(range(8))


@pytest.mark.parametrize("kept", [None, 5])
def test_unpermuting_sums_with_probabilities_and_dropped_tokens_add_nothing(kept: int | None) -> None:
    tokens, probs = drawn(4, 3), drawn(4, 2, seed=1)
    permuted, places = moe_token_permute(tokens, INDICES, kept)
    found = moe_token_unpermute(permuted, places, probs)
    for t in range(4):
        expected = torch.zeros(3, dtype=torch.float64)
        for k in range(2):
            if places[2 * t + k] < permuted.shape[0]:
                expected += probs[t, k] * permuted[places[2 * t + k]]
        torch.testing.assert_close(found[t], expected)


def test_without_probabilities_permuting_is_undone() -> None:
    tokens = drawn(4, 3)
    assert torch.equal(moe_token_unpermute(*moe_token_permute(tokens, INDICES[:, 0])), tokens)


def test_closed_form_gradients() -> None:
    tokens, probs = drawn(4, 3).requires_grad_(), drawn(4, 2, seed=1).requires_grad_()
    permuted, places = moe_token_permute(tokens, INDICES, 5)
    incoming = drawn(5, 3, seed=2)
    (gradient,) = torch.autograd.grad(permuted, tokens, incoming)
    for t in range(4):
        kept = [int(places[2 * t + k]) for k in range(2) if places[2 * t + k] < 5]
        torch.testing.assert_close(gradient[t], incoming[kept].sum(0))
    assert torch.autograd.gradcheck(lambda tokens: moe_token_permute(tokens, INDICES, 5)[0], tokens)
    rows = drawn(8, 3, seed=3).requires_grad_()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(4))
    assert torch.autograd.gradcheck(lambda rows, probs: moe_token_unpermute(rows, order, probs), (rows, probs))


def test_padded_mode_is_refused() -> None:
    with pytest.raises(Unsupported, match="padded_mode"):
        moe_token_permute(drawn(4, 3), INDICES, padded_mode=True)
    with pytest.raises(Unsupported, match="padded_mode"):
        moe_token_unpermute(drawn(4, 3), torch.arange(4), padded_mode=True)
