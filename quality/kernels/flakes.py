"""Right kernels in the small form of public threads, whose tests with fixed tolerances fail now and then."""

from __future__ import annotations

import torch
from torch import Tensor

from quality.kernels import references as exact, right
from quality.kernels.entries import Draw, Kernel, Shape

wide = right.in_float32


def of_scores(draw: Draw, shape: Shape) -> tuple[Tensor, ...]:
    """Values of some tens, whose rounding to bfloat16 is more than 0.06."""
    return draw.normal(*shape, scale=16.0), draw.normal(*shape, scale=16.0)


def add(one: Tensor, other: Tensor) -> Tensor:
    """A single rounding."""
    return one + other


def of_tall(draw: Draw, shape: Shape) -> tuple[Tensor, ...]:
    """Matrices with a long k."""
    m, k, n = shape
    return draw.normal(m, k), draw.normal(k, n)


HALVES = (torch.bfloat16, torch.float16)
KERNELS = [
    Kernel("one rounding to bfloat16", add, wide(add), of_scores, ((16, 64),), dtypes=(torch.bfloat16,)),
    Kernel("split-K product", exact.matmul, wide(right.matmul_split_k), of_tall, ((4, 512, 8),)),
    Kernel(
        "online attention",
        exact.causal_attention,
        wide(right.attention_online_causal),
        right.of_attention,
        ((1, 2, 1, 17, 8),),
    ),
    Kernel("softmax of many columns", exact.softmax, wide(right.softmax_online), right.one, ((2, 512),)),
    Kernel(
        "rms_norm of a residual", exact.residual_norm, wide(right.residual_norm_fused), right.of_residual, ((4, 64),)
    ),
    Kernel("gated activation", exact.silu_and_mul, wide(right.silu_and_mul_fused), right.one, ((4, 64),)),
    Kernel(
        "int8 product",
        exact.dequantised_matmul,
        wide(right.dequantised_matmul_late),
        right.of_int8,
        ((4, 128, 8),),
        dtypes=HALVES,
    ),
    Kernel(
        "chunked cross entropy",
        exact.cross_entropy,
        wide(right.cross_entropy_chunked),
        right.of_cross_entropy,
        ((8, 101),),
    ),
    Kernel("gradient of an embedding", exact.embedding, right.Embedding.apply, right.of_embedding, ((4, 8, 64),)),
]
