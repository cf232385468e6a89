"""Attention to chosen keys against loops over queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.sparse_attention import (
    lightning_indexer,
    nsa_compress,
    nsa_select_attention,
    sparse_flash_attention,
)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


B, S1, S2, N1, D = 2, 3, 7, 4, 5


@pytest.mark.parametrize("sparse_mode", [0, 3])
@pytest.mark.parametrize("count", [3, 9])
def test_indexer_scores(sparse_mode: int, count: int) -> None:
    query, key, weights = drawn(B, S1, N1, D), drawn(B, S2, 1, D, seed=1), drawn(B, S1, N1, seed=2)
    nothing, found = lightning_indexer(
        query,
        key,
        weights,
        actual_seq_lengths_key=torch.tensor([5, 7]),
        sparse_count=count,
        sparse_mode=sparse_mode,
        return_value=True,
    )
    assert nothing is None
    for b, i in np.ndindex(B, S1):
        keys = (5, 7)[b]
        last = keys - S1 + i + 1 if sparse_mode == 3 else keys
        scores = [
            sum(weights[b, i, n].item() * max(0.0, (query[b, i, n] @ key[b, j, 0]).item()) for n in range(N1))
            for j in range(last)
        ]
        expected = sorted(scores, reverse=True)[:count]
        np.testing.assert_allclose(found[b, i, 0], expected + [-np.inf] * (count - len(expected)), rtol=1e-12)


def test_indexer_of_ragged_batches_and_what_it_refuses() -> None:
    query, key, weights = drawn(5, N1, D), drawn(6, 1, D, seed=1), drawn(5, N1, seed=2)
    ragged: dict[str, Any] = {"layout_query": "TND", "layout_key": "TND", "return_value": True, "sparse_count": 2}
    lengths = {"actual_seq_lengths_query": torch.tensor([2, 5]), "actual_seq_lengths_key": torch.tensor([2, 6])}
    _, found = lightning_indexer(query, key, weights, **lengths, **ragged)
    _, second = lightning_indexer(query[None, 2:], key[None, 2:], weights[None, 2:], sparse_count=2, return_value=True)
    torch.testing.assert_close(found[2:], second[0])
    with pytest.raises(Unsupported, match="indices"):
        lightning_indexer(query, key, weights)
    with pytest.raises(Unsupported, match="paged caches"):
        lightning_indexer(query, key, weights, **{**ragged, "layout_key": "PA_BSND"})


def attended(query: Any, key: Any, value: Any, chosen: set[int], scale: float) -> tuple[Any, float, float]:
    scores = {j: scale * (query @ key[j]).item() for j in sorted(chosen)}
    if not scores:
        return torch.zeros(value.shape[-1], dtype=torch.float64), -np.inf, 0.0
    largest = max(scores.values())
    total = sum(np.exp(score - largest) for score in scores.values())
    return sum(np.exp(score - largest) / total * value[j] for j, score in scores.items()), largest, total


@pytest.mark.parametrize("sparse_mode", [0, 3])
def test_sparse_attention_with_rotary_parts(sparse_mode: int) -> None:
    query, key, value = drawn(B, S1, N1, D), drawn(B, S2, 1, D, seed=1), drawn(B, S2, 1, D, seed=2)
    query_rope, key_rope = drawn(B, S1, N1, 2, seed=3), drawn(B, S2, 1, 2, seed=4)
    indices = torch.tensor([[[0, 2, -1], [1, 3, 0], [2, 0, 1]], [[3, -1, -1], [0, 1, 3], [-1, -1, -1]]])[:, :, None]
    output, maximum, total = sparse_flash_attention(
        query,
        key,
        value,
        indices,
        0.4,
        query_rope=query_rope,
        key_rope=key_rope,
        sparse_block_size=2,
        sparse_mode=sparse_mode,
        attention_mode=2,
        return_softmax_lse=True,
    )
    assert maximum is not None
    assert total is not None
    assert maximum.shape == total.shape == (B, 1, S1, N1)
    for b, i, n in np.ndindex(B, S1, N1):
        blocks = [block for block in indices[b, i, 0].tolist() if block >= 0]
        chosen = {j for block in blocks for j in (2 * block, 2 * block + 1) if j < S2}
        if sparse_mode == 3:
            chosen = {j for j in chosen if j <= i + S2 - S1}
        joined = (torch.cat([query, query_rope], -1)[b, i, n], torch.cat([key, key_rope], -1)[b, :, 0])
        expected = attended(*joined, value[b, :, 0], chosen, 0.4)
        torch.testing.assert_close(output[b, i, n], expected[0])
        np.testing.assert_allclose([maximum[b, 0, i, n], total[b, 0, i, n]], expected[1:], rtol=1e-12)
    assert sparse_flash_attention(query, key, value, indices, 0.4)[1:] == (None, None)


def test_queries_past_their_length_give_zero_and_ragged_statistics_are_by_key_head() -> None:
    query, key = drawn(B, S1, N1, D), drawn(B, S2, 1, D, seed=1)
    indices = torch.arange(S2, dtype=torch.int32).expand(B, S1, 1, S2)
    output, *_ = sparse_flash_attention(
        query, key, key, indices, 1.0, actual_seq_lengths_query=torch.tensor([1, 3]), sparse_mode=0
    )
    assert not output[0, 1:].any()
    flat = sparse_flash_attention(
        query.flatten(0, 1),
        key.flatten(0, 1),
        key.flatten(0, 1),
        indices.flatten(0, 1),
        1.0,
        actual_seq_lengths_query=torch.tensor([3, 6]),
        actual_seq_lengths_kv=torch.tensor([7, 14]),
        layout_query="TND",
        layout_kv="TND",
        sparse_mode=0,
        return_softmax_lse=True,
    )
    torch.testing.assert_close(flat[0][3:], output[1])
    assert flat[1] is not None
    assert flat[1].shape == (1, B * S1, N1)


def test_compressed_windows_stay_within_their_segment() -> None:
    x, weight = drawn(11, 2, 3), drawn(4, 2, seed=1)
    found = nsa_compress(x, weight, 4, 2, (3, 9, 11))
    windows = [x[3:7], x[5:9]]
    expected = [sum(weight[i, :, None] * window[i] for i in range(4)) for window in windows]
    torch.testing.assert_close(found, torch.stack(expected))
    assert nsa_compress(x[:3], weight, 4, 2, (3,)).shape == (0, 2, 3)


def test_selected_blocks() -> None:
    query, key, value = drawn(5, N1, D), drawn(9, 2, D, seed=1), drawn(9, 2, 3, seed=2)
    indices = torch.tensor([[[0, 1], [1, 1]]] * 2 + [[[1, 0], [0, 0]]] * 3)
    ends = {"actual_seq_qlen": (2, 5), "actual_seq_kvlen": (4, 9)}
    output, maximum, total = nsa_select_attention(query, key, value, indices, 0.5, N1, 3, 2, **ends)
    assert output.shape == (5, N1, 3)
    assert maximum.shape == total.shape == (5, N1, 8)
    for t, n in np.ndindex(5, N1):
        start, last = (0, 4) if t < 2 else (4, 9)
        blocks = indices[t, n // 2].tolist()
        chosen = {j for block in blocks for j in range(3 * block, 3 * block + 3) if j < last - start}
        expected = attended(query[t, n], key[start:last, n // 2], value[start:last, n // 2], chosen, 0.5)
        torch.testing.assert_close(output[t, n], expected[0])
        np.testing.assert_allclose([maximum[t, n, 3], total[t, n, 5]], expected[1:], rtol=1e-12)
    with pytest.raises(Unsupported, match="atten_mask"):
        nsa_select_attention(query, key, value, indices, 0.5, N1, 3, 2, atten_mask=indices, **ends)


def test_gradients() -> None:
    query, key, value = (x.requires_grad_() for x in (drawn(2, 2, 3), drawn(4, 1, 3, seed=1), drawn(4, 1, 2, seed=2)))
    indices = torch.tensor([[[0]], [[1]]])
    assert torch.autograd.gradcheck(
        lambda *qkv: nsa_select_attention(*qkv, indices, 0.5, 2, 2, 1, None, (2,), (4,))[0], (query, key, value)
    )
    assert torch.autograd.gradcheck(
        lambda x, weight: nsa_compress(x, weight, 2, 1, (4,)), (key, drawn(2, 1).requires_grad_())
    )
