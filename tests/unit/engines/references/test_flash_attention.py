"""Attention of training against loops over single scores, against PyTorch's own attention, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fact_lines import of_line
from torch.nn import functional

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references import attention_core
from pytest_msprobe.engines.references.attention import flash_attention_score

speed_fusion_attention = of_line("Functional.speed_fusion_attention")
B, N1, N2, S1, S2, D = 2, 4, 2, 5, 8, 3
SCALE = 0.7
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

Removed = Callable[[int, int, int, int], bool]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv(queries: int = S1, keys: int = S2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return drawn(B, N1, queries, D, seed=1), drawn(B, N2, keys, D, seed=2), drawn(B, N2, keys, D, seed=3)


def looped(
    q: Any,
    k: Any,
    v: Any,
    removed: Removed = lambda b, n, i, j: False,
    *,
    scale: float = SCALE,
    score: Callable[[float, int, int, int, int], float] | None = None,
    weight: Callable[[int, int, int, int], float] = lambda b, n, i, j: 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output, maxima and sums, one score at a time. All tensors (B, N, S, D)."""
    q, k, v = (np.asarray(x) for x in (q, k, v))
    output, maxima, sums = np.zeros(q.shape), np.full(q.shape[:3], -np.inf), np.zeros(q.shape[:3])
    for b, n, i in np.ndindex(*q.shape[:3]):
        head = n // (q.shape[1] // k.shape[1])
        scores = {}
        for j in range(k.shape[2]):
            if not removed(b, n, i, j):
                product = float(sum(x * y for x, y in zip(q[b, n, i], k[b, head, j])))
                scores[j] = scale * product if score is None else score(product, b, n, i, j)
        if scores:
            maxima[b, n, i] = max(scores.values())
            sums[b, n, i] = sum(np.exp(value - maxima[b, n, i]) for value in scores.values())
        for j, value in scores.items():
            share = np.exp(value - maxima[b, n, i]) / sums[b, n, i]
            output[b, n, i] += share * weight(b, n, i, j) * v[b, head, j]
    return output, maxima, sums


LAYOUTS = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_with_fewer_key_heads(layout: str) -> None:
    q, k, v = qkv()
    arrange = LAYOUTS[layout]
    found = flash_attention_score(arrange(q), arrange(k), arrange(v), N1, scalar_value=SCALE, input_layout=layout)
    torch.testing.assert_close(found, arrange(torch.from_numpy(looped(q, k, v)[0])))


def test_the_defaults_are_those_of_mindspore() -> None:
    q, k, v = (x.transpose(1, 2).flatten(2) for x in qkv())
    expected = looped(*qkv(), scale=1.0)[0].transpose(0, 2, 1, 3).reshape(q.shape)
    np.testing.assert_allclose(flash_attention_score(q, k, v, N1), expected)


GIVEN = torch.rand(B, 1, S1, S2, generator=generator()) < 0.4
CORNER = S2 - S1
MODES: list[tuple[str, dict[str, Any], Removed]] = [
    ("0 without mask, tokens ignored", {"pre_tokens": 0, "next_tokens": 0}, lambda b, n, i, j: False),
    ("0 with mask", {"attn_mask": GIVEN}, lambda b, n, i, j: bool(GIVEN[b, 0, i, j])),
    (
        "0 with mask and band",
        {"attn_mask": GIVEN, "pre_tokens": 2, "next_tokens": 1},
        lambda b, n, i, j: bool(GIVEN[b, 0, i, j]) or not i - 2 <= j <= i + 1,
    ),
    (
        "1, tokens ignored",
        {"attn_mask": GIVEN[0, 0].to(torch.uint8), "pre_tokens": 0, "sparse_mode": 1},
        lambda b, n, i, j: bool(GIVEN[0, 0, i, j]),
    ),
    ("2", {"attn_mask": TRIANGLE, "sparse_mode": 2}, lambda b, n, i, j: j > i),
    ("3", {"attn_mask": TRIANGLE, "sparse_mode": 3}, lambda b, n, i, j: j > i + CORNER),
    (
        "4",
        {"attn_mask": TRIANGLE, "pre_tokens": 2, "next_tokens": -1, "sparse_mode": 4},
        lambda b, n, i, j: not i + CORNER - 2 <= j <= i + CORNER - 1,
    ),
    (
        "5",
        {"attn_mask": torch.zeros(B, 1, S1, S2, dtype=torch.bool), "prefix": (0, 6), "sparse_mode": 5},
        lambda b, n, i, j: j > i + CORNER and j >= (0, 6)[b],
    ),
]


@pytest.mark.parametrize(("keywords", "removed"), [mode[1:] for mode in MODES], ids=[mode[0] for mode in MODES])
def test_sparse_modes(keywords: dict[str, Any], removed: Removed) -> None:
    q, k, v = qkv()
    found = flash_attention_score(q, k, v, N1, scalar_value=SCALE, input_layout="BNSD", **keywords)
    np.testing.assert_allclose(found, looped(q, k, v, removed)[0])


@pytest.mark.parametrize("queries", [S2 - 2, S2, S2 + 2])
def test_causal_as_pytorch_has_it(queries: int) -> None:
    q, k, v = qkv(queries)
    kept = torch.ones(queries, S2, dtype=torch.bool).tril(S2 - queries)
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept, scale=SCALE, enable_gqa=True)
    found = flash_attention_score(q, k, v, N1, scalar_value=SCALE, input_layout="BNSD", sparse_mode=3)
    torch.testing.assert_close(found, expected.nan_to_num(0.0))


def test_a_row_without_keys_gives_zero_and_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    mask = torch.zeros(S1, S2, dtype=torch.bool)
    mask[2] = True
    found = flash_attention_score(q, k, v, N1, attn_mask=mask, input_layout="BNSD")
    assert found[:, :, 2].abs().max() == 0
    (gradient,) = torch.autograd.grad(found.sum(), q)
    assert gradient[:, :, 2].abs().max() == 0
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(B, N1, S1, S2), (1, N1, S1, S2), (B, 1, S1, S2)])
def test_real_shift_is_added_after_the_scale(shape: tuple[int, ...]) -> None:
    q, k, v = qkv()
    shift = drawn(*shape, seed=5)
    full = shift.expand(B, N1, S1, S2)
    found = flash_attention_score(q, k, v, N1, real_shift=shift, scalar_value=SCALE, input_layout="BNSD")
    expected = looped(q, k, v, score=lambda product, b, n, i, j: SCALE * product + float(full[b, n, i, j]))
    np.testing.assert_allclose(found, expected[0])


def packed(kept: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.packbits(kept, axis=-1, bitorder="little"))


def test_dropout_mask_has_a_bit_for_each_weight() -> None:
    q, k, v = qkv()
    kept = np.random.default_rng(1).random((B, N1, S1, S2)) < 0.6
    found = flash_attention_score(
        q, k, v, N1, drop_mask=packed(kept), keep_prob=0.6, scalar_value=SCALE, input_layout="BNSD"
    )
    np.testing.assert_allclose(found, looped(q, k, v, weight=lambda *place: kept[place] / 0.6)[0])


def test_ragged_batches_of_layout_tnd() -> None:
    q, k, v = drawn(7, N1, D, seed=1), drawn(9, N2, D, seed=2), drawn(9, N2, D, seed=3)
    kept = np.random.default_rng(2).random(N1 * (3 * 4 + 4 * 5)) < 0.5
    found = flash_attention_score(
        q,
        k,
        v,
        N1,
        attn_mask=TRIANGLE,
        actual_seq_qlen=(3, 7),
        actual_seq_kvlen=torch.tensor([4, 9]),
        scalar_value=SCALE,
        input_layout="TND",
        sparse_mode=3,
        keep_prob=0.5,
        drop_mask=torch.from_numpy(np.packbits(kept, bitorder="little")),
    )
    used = 0
    for rows, keys in ((slice(0, 3), slice(0, 4)), (slice(3, 7), slice(4, 9))):
        part = [x[where].transpose(0, 1)[None] for x, where in ((q, rows), (k, keys), (v, keys))]
        shape = (1, N1, part[0].shape[2], part[1].shape[2])
        here = kept[used : used + np.prod(shape)].reshape(shape)
        used += int(np.prod(shape))
        expected = looped(
            *part,
            lambda b, n, i, j, d=shape[3] - shape[2]: j > i + d,
            weight=lambda *place, here=here: here[place] / 0.5,
        )
        np.testing.assert_allclose(found[rows].transpose(0, 1)[None], expected[0], atol=1e-15)


def test_rows_past_the_last_length_give_zero() -> None:
    q, k = drawn(4, N1, D), drawn(4, N2, D, seed=1)
    found = flash_attention_score(
        q, k, k, N1, actual_seq_qlen=(1, 3), actual_seq_kvlen=(1, 4), input_layout="TND", sparse_mode=0
    )
    assert found.shape == q.shape
    assert found[3].abs().max() == 0
    assert found[2].abs().max() > 0


@pytest.mark.parametrize("is_shift_scaled", [False, True])
@pytest.mark.parametrize("shift_heads", [1, N1])
def test_gradients_of_queries_keys_values_and_position_code(is_shift_scaled: bool, shift_heads: int) -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    shift = drawn(1, shift_heads, S1, S2, seed=6).requires_grad_()
    if is_shift_scaled:

        def attention(q: Any, k: Any, v: Any, shift: Any) -> Any:
            return speed_fusion_attention(q, k, v, N1, "BNSD", pse=shift, scale=SCALE, sparse_mode=3)[0]
    else:
        bits = packed(np.random.default_rng(1).random((B, N1, S1, S2)) < 0.6)

        def attention(q: Any, k: Any, v: Any, shift: Any) -> Any:
            return flash_attention_score(
                q, k, v, N1, shift, bits, None, GIVEN, scalar_value=SCALE, keep_prob=0.6, input_layout="BNSD"
            )

    assert torch.autograd.gradcheck(attention, (q, k, v, shift), fast_mode=True)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def outputs_and_gradients() -> list[torch.Tensor]:
        q, k, v = (x.requires_grad_() for x in qkv())
        shift = drawn(B, 1, S1, S2, seed=6).requires_grad_()
        output, maximum, total, *_ = speed_fusion_attention(q, k, v, N1, "BNSD", pse=shift, sparse_mode=2)
        gradients = torch.autograd.grad((output * drawn(*output.shape, seed=9)).sum(), (q, k, v, shift))
        return [output.detach(), maximum, total, *gradients]

    whole = outputs_and_gradients()
    monkeypatch.setattr(attention_core, "_SCORES_PER_BLOCK", 2 * N1 * S2)
    for found, expected in zip(outputs_and_gradients(), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("pse_type", [0, 1])
def test_speed_fusion_attention_returns_statistics(pse_type: int) -> None:
    q, k, v = qkv()
    shift = drawn(B, N1, S1, S2, seed=5)
    output, maximum, total, *rest = speed_fusion_attention(
        q, k, v, N1, "BNSD", pse=shift, scale=SCALE, pse_type=pse_type
    )
    expected = looped(
        q,
        k,
        v,
        score=lambda product, b, n, i, j: (
            SCALE * (product + float(shift[b, n, i, j])) if pse_type else SCALE * product + float(shift[b, n, i, j])
        ),
    )
    for found, wanted in zip((output, maximum[..., 0], total[..., 7]), expected, strict=True):
        np.testing.assert_allclose(found, wanted)
    assert maximum.shape == total.shape == (B, N1, S1, 8)
    assert rest == [None] * 4


def test_statistics_of_layout_tnd_are_rows_first() -> None:
    q, k = drawn(5, N1, D), drawn(6, N2, D, seed=1)
    keywords: dict[str, Any] = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 6], "scale": SCALE}
    output, maximum, total, *_ = speed_fusion_attention(q, k, k, N1, "TND", **keywords)
    assert output.shape == (5, N1, D)
    assert maximum.shape == total.shape == (5, N1, 8)
    expected = looped(*(x[None].transpose(1, 2) for x in (q[2:], k[2:], k[2:])))
    np.testing.assert_allclose(maximum[2:, :, 0].T[None], expected[1])


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"keep_prob": 0.9}, "dropout is random"),
        ({"sparse_mode": 6}, "sparse_mode 6"),
        ({"sparse_mode": 1}, "needs attn_mask"),
        ({"sparse_mode": 5, "attn_mask": GIVEN}, "needs prefix"),
        ({"sparse_mode": 2, "attn_mask": GIVEN}, "2048 x 2048"),
        ({"sparse_mode": 2, "attn_mask": ~TRIANGLE}, "not the upper triangle"),
        ({"real_shift": torch.zeros(1, N1, 4, S2)}, "compressed ALiBi"),
        ({"keep_prob": 0.5, "drop_mask": torch.zeros(3, dtype=torch.uint8)}, "fewer than"),
        ({"input_layout": "NBSD"}, "input_layout NBSD"),
        ({"input_layout": "TND", "actual_seq_qlen": (5, 3), "actual_seq_kvlen": (2, 8)}, "not cumulative"),
        ({"input_layout": "TND"}, "actual_seq_qlen is None"),
    ],
)
def test_what_cannot_be_computed_is_refused(keywords: dict[str, Any], reason: str) -> None:
    q, k, v = qkv()
    with pytest.raises(Unsupported, match=reason):
        flash_attention_score(q, k, v, N1, **{"input_layout": "BNSD", **keywords})


def test_half_precision_keeps_float32_inside() -> None:
    q, k, v = (x.bfloat16() for x in qkv())
    found = flash_attention_score(q, k, v, N1, input_layout="BNSD")
    expected = flash_attention_score(q.float(), k.float(), v.float(), N1, input_layout="BNSD")
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), rtol=0, atol=0)
    output, maximum, *_ = speed_fusion_attention(q, k, v, N1, "BNSD")
    assert (output.dtype, maximum.dtype) == (torch.bfloat16, torch.float32)
