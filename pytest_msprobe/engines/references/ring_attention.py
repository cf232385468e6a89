"""mindspore.ops.ring_attention_update: two attentions over different keys become one."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.fused_precision import fused


@fused(float32_outputs=(1, 2))
def ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    actual_seq_qlen: Tensor | None = None,
    layout: str = "SBH",
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, maxima, sums) over both sets of keys.

    With m = max(m1, m2) and l = l1 exp(m1 - m) + l2 exp(m2 - m), the output is
    (o1 l1 exp(m1 - m) + o2 l2 exp(m2 - m)) / l. Outputs are (S, B, H) with statistics (B, N, S, 8), or (T, N, D) with
    (T, N, 8). Source: definition of the softmax; the page of CANN that leaves out l1 and l2 is wrong.

    Raises:
        Unsupported: `layout` is neither SBH nor TND.
    """
    if layout not in ("SBH", "TND"):
        raise Unsupported(f"layout {layout}: only SBH and TND are documented")
    maximum = torch.maximum(prev_softmax_max, cur_softmax_max)
    first = prev_softmax_sum * (prev_softmax_max - maximum).exp()
    second = cur_softmax_sum * (cur_softmax_max - maximum).exp()
    total = first + second
    shares = [_like_output(part / total, prev_attn_out, layout) for part in (first, second)]
    return prev_attn_out * shares[0] + cur_attn_out * shares[1], maximum, total


def _like_output(statistic: Tensor, output: Tensor, layout: str) -> Tensor:
    single = statistic[..., :1]
    if layout == "TND":
        return single
    count, heads = single.shape[:2]
    spread = single.expand(-1, -1, -1, output.shape[-1] // heads)
    return spread.permute(2, 0, 1, 3).reshape(-1, count, output.shape[-1])
