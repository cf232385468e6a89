"""Right kernels in Triton, which run on CPUs under TRITON_INTERPRET=1; none where Triton is missing or may not run."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from quality.kernels import references as exact, right
from quality.kernels.entries import Kernel

KERNELS: list[Kernel] = []
try:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise ImportError
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def _softmax(x: Any, y: Any, size: Any, block: tl.constexpr) -> None:
        row, columns = tl.program_id(0), tl.arange(0, block)
        values = tl.load(x + row * size + columns, mask=columns < size, other=-float("inf")).to(tl.float32)
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(y + row * size + columns, powers / tl.sum(powers, axis=0), mask=columns < size)

    @triton.jit
    def _rms_norm(x: Any, weight: Any, y: Any, size: Any, epsilon: Any, block: tl.constexpr) -> None:
        row, columns = tl.program_id(0), tl.arange(0, block)
        inside = columns < size
        values = tl.load(x + row * size + columns, mask=inside, other=0.0).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(values * values, axis=0) / size + epsilon)
        weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * size + columns, values * scale * weights, mask=inside)

    @triton.jit
    def _matmul(a: Any, b: Any, c: Any, m: Any, n: Any, k: Any, block: tl.constexpr) -> None:
        rows = tl.program_id(0) * block + tl.arange(0, block)
        columns = tl.program_id(1) * block + tl.arange(0, block)
        steps = tl.arange(0, block)
        total = tl.zeros((block, block), dtype=tl.float32)
        for start in range(0, k, block):
            deep = start + steps
            left_mask = (rows[:, None] < m) & (deep[None, :] < k)
            right_mask = (deep[:, None] < k) & (columns[None, :] < n)
            left = tl.load(a + rows[:, None] * k + deep[None, :], mask=left_mask, other=0.0).to(tl.float32)
            other = tl.load(b + deep[:, None] * n + columns[None, :], mask=right_mask, other=0.0).to(tl.float32)
            total += tl.sum(left[:, :, None] * other[None, :, :], axis=1)
        place = c + rows[:, None] * n + columns[None, :]
        tl.store(place, total, mask=(rows[:, None] < m) & (columns[None, :] < n))

    @triton.jit
    def _silu_and_mul(x: Any, y: Any, half: Any, block: tl.constexpr) -> None:
        row, columns = tl.program_id(0), tl.arange(0, block)
        inside = columns < half
        gate = tl.load(x + row * 2 * half + columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * half + half + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * half + columns, gate / (1 + tl.exp(-gate)) * up, mask=inside)

    def softmax(x: Tensor) -> Tensor:
        """Softmax, a program a row."""
        y = torch.empty_like(x)
        _softmax[(x.shape[0],)](x, y, x.shape[1], block=triton.next_power_of_2(x.shape[1]))
        return y

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm, a program a row."""
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        _rms_norm[(x.shape[0],)](x, weight, y, x.shape[1], exact.EPSILON, block=block)
        return y

    def matmul(a: Tensor, b: Tensor) -> Tensor:
        """Product, a program a tile."""
        c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        grid = (triton.cdiv(a.shape[0], 4), triton.cdiv(b.shape[1], 4))
        _matmul[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], block=4)
        return c

    def silu_and_mul(x: Tensor) -> Tensor:
        """SiLU and product, a program a row."""
        half = x.shape[1] // 2
        y = torch.empty(x.shape[0], half, dtype=x.dtype)
        _silu_and_mul[(x.shape[0],)](x, y, half, block=triton.next_power_of_2(half))
        return y

    FORWARD = {"gradients": False}
    KERNELS = [
        Kernel("Triton softmax", exact.softmax, softmax, right.large, ((3, 7), (2, 16), (1, 1)), FORWARD),
        Kernel("Triton rms_norm", exact.rms_norm, rms_norm, right.of_rms, right.NORMS, FORWARD),
        Kernel("Triton matmul", exact.matmul, matmul, right.of_matmul, right.MATRICES[:3], FORWARD),
        Kernel("Triton silu_and_mul", exact.silu_and_mul, silu_and_mul, right.one, ((3, 8), (1, 2)), FORWARD),
    ]
