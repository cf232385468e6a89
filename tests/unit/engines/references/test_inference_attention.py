"""Attention of inference against PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fact_lines import of_line
from torch.nn import functional

from pytest_msprobe.engines.protocol import Unsupported

prompt_flash_attention = of_line("Functional.prompt_flash_attention")
incre_flash_attention = of_line("Functional.incre_flash_attention")
fused_infer_attention_score = of_line("Functional.fused_infer_attention_score")

B, N1, N2, S1, S2, D = 2, 4, 2, 5, 6, 3
SCALE = 0.6


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(queries: int = S1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return drawn(B, N1, queries, D, seed=1), drawn(B, N2, S2, D, seed=2), drawn(B, N2, S2, D, seed=3)


def bsh(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=kept, scale=SCALE, enable_gqa=True)


def test_prompt_in_its_default_layout_is_not_causal_without_a_mask() -> None:
    q, k, v = qkv()
    found = prompt_flash_attention(bsh(q), bsh(k), bsh(v), num_heads=N1, scale_value=SCALE, num_key_value_heads=N2)
    torch.testing.assert_close(found, bsh(expected(q, k, v)))


def test_prompt_with_a_mask_is_cut_to_the_lower_triangle_by_its_default_next_tokens() -> None:
    q, k, v = qkv()
    mask = torch.rand(B, S1, S2, generator=torch.Generator().manual_seed(1)) < 0.3
    mask[:, :, 0] = False
    found = prompt_flash_attention(q, k, v, mask, num_heads=N1, scale_value=SCALE, input_layout="BNSD")
    kept = ~mask[:, None] & torch.ones(S1, S2, dtype=torch.bool).tril()
    torch.testing.assert_close(found, expected(q, k, v, kept))


def test_prompt_within_actual_lengths() -> None:
    q, k, v = qkv()
    found = prompt_flash_attention(
        q, k, v, None, (3, 5), [4, 6], num_heads=N1, scale_value=SCALE, input_layout="BNSD", sparse_mode=3
    )
    for b, (rows, keys) in enumerate(((3, 4), (5, 6))):
        kept = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
        part = expected(q[b : b + 1, :, :rows], k[b : b + 1, :, :keys], v[b : b + 1, :, :keys], kept)
        torch.testing.assert_close(found[b : b + 1, :, :rows], part)
        assert not found[b, :, rows:].any()


@pytest.mark.parametrize("shape", [(B, S2), (B, 1, S2), (B, 1, 1, S2)])
def test_incremental_attention_with_any_mask_shape_and_lengths_of_the_cache(shape: tuple[int, ...]) -> None:
    q, k, v = qkv(1)
    mask = torch.zeros(B, S2, dtype=torch.bool)
    mask[0, 1] = mask[1, 0] = True
    found = incre_flash_attention(
        bsh(q), [bsh(k)], [bsh(v)], mask.reshape(shape), torch.tensor([4, 6]), num_heads=N1, scale_value=SCALE
    )
    kept = ~mask[:, None, None] & (torch.arange(S2) < torch.tensor([4, 6])[:, None])[:, None, None]
    torch.testing.assert_close(found, bsh(expected(q, k, v, kept)))


def test_fused_inference_gives_the_log_of_the_sum_and_changes_the_layout() -> None:
    q, k, v = qkv()
    shift = drawn(1, N1, S1, S2, seed=4)
    keywords: dict[str, Any] = {"num_heads": N1, "scale": SCALE, "pse_shift": shift, "softmax_lse_flag": True}
    output, statistic = fused_infer_attention_score(q, k, v, input_layout="BNSD_BSND", **keywords)
    scores = SCALE * q @ k.repeat_interleave(2, 1).mT + shift
    torch.testing.assert_close(output, (scores.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2))
    torch.testing.assert_close(statistic, scores.logsumexp(-1, keepdim=True))


def test_fused_inference_of_one_query_ignores_the_sparse_mode() -> None:
    q, k, v = qkv(1)
    output, statistic = fused_infer_attention_score(
        q, (k,), (v,), num_heads=N1, scale=SCALE, input_layout="BNSD", sparse_mode=2, actual_seq_lengths=(0, 0)
    )
    torch.testing.assert_close(output, expected(q, k, v))
    assert statistic.tolist() == [0.0]


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"block_table": torch.zeros(1)}, "block_table: quantised values and paged or padded caches"),
        ({"quant_scale2": torch.ones(1), "antiquant_scale": torch.ones(1)}, "^quant_scale2, antiquant_scale: quant"),
        ({"actual_seq_lengths_kv": (1, 2, 3)}, "actual sequence lengths"),
        ({"actual_seq_lengths_kv": (1, 9)}, "actual sequence lengths"),
        ({"sparse_mode": 5, "atten_mask": torch.zeros(B, 1, S1, S2)}, "needs prefix"),
    ],
)
def test_what_has_no_reference_is_refused(keywords: dict[str, Any], reason: str) -> None:
    q, k, v = qkv()
    with pytest.raises(Unsupported, match=reason):
        fused_infer_attention_score(q, k, v, num_heads=N1, input_layout="BNSD", **keywords)


def test_integers_are_refused() -> None:
    x = torch.ones(1, 1, 2, 4, dtype=torch.int8)
    with pytest.raises(Unsupported, match="int8"):
        prompt_flash_attention(x, x, x, input_layout="BNSD")
    with pytest.raises(Unsupported, match="list of 2"):
        incre_flash_attention(x.double(), [x.double()] * 2, [x.double()] * 2, input_layout="BNSD")
