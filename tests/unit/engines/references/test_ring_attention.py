"""Two partial attentions, updated, are the attention over all keys."""

from __future__ import annotations

import pytest
import torch
from fact_lines import of_line

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.attention import ring_attention_update

speed_fusion_attention = of_line("Functional.speed_fusion_attention")

B, N, S, D = 2, 3, 4, 5


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_parts_of_the_keys_become_the_whole(layout: str) -> None:
    q, k, v = (drawn(B, N, length, D, seed=length) for length in (S, 6, 6))
    scores = q @ k.mT
    parts = []
    for keys in (slice(0, 2), slice(2, 6)):
        maximum = scores[..., keys].amax(-1, keepdim=True)
        weights = (scores[..., keys] - maximum).exp()
        total = weights.sum(-1, keepdim=True)
        parts.append((weights @ v[:, :, keys] / total, maximum.expand(-1, -1, -1, 8), total.expand(-1, -1, -1, 8)))
    whole = scores.softmax(-1) @ v

    def arranged(x: torch.Tensor, *, is_output: bool) -> torch.Tensor:
        if layout == "TND":
            return x.transpose(1, 2).flatten(0, 1)
        return x.permute(2, 0, 1, 3).flatten(2) if is_output else x

    arguments = [arranged(x, is_output=i == 0) for part in parts for i, x in enumerate(part)]
    output, maximum, total = ring_attention_update(*arguments, torch.tensor([0, B * S]), layout)
    torch.testing.assert_close(output, arranged(whole, is_output=True))
    statistic = arranged(scores.logsumexp(-1, keepdim=True).expand(-1, -1, -1, 8), is_output=False)
    torch.testing.assert_close(maximum + total.log(), statistic)


def test_it_fits_the_outputs_of_speed_fusion_attention() -> None:
    q, k = drawn(S, B, N * D, seed=1), drawn(6, B, N * D, seed=2)
    first = speed_fusion_attention(q, k[:2], k[:2], N, "SBH")[:3]
    second = speed_fusion_attention(q, k[2:], k[2:], N, "SBH")[:3]
    whole = speed_fusion_attention(q, k, k, N, "SBH")[:3]
    for found, expected in zip(ring_attention_update(*first, *second), whole, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(Unsupported, match="BSH"):
        ring_attention_update(*[torch.ones(1, 1, 1)] * 6, None, "BSH")
