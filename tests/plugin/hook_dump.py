"""The dump that docs/hooks.md and the tests of hooks use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from dump_builder import DumpBuilder

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(11)
A = RANDOM.standard_normal((4, 8)).astype(np.float32)
B = RANDOM.standard_normal((8, 5)).astype(np.float32)
G = RANDOM.standard_normal((4, 5)).astype(np.float32)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def silu_gradient(x: Array) -> Array:
    sigmoid = 1 / (1 + np.exp(-x))
    return sigmoid * (1 + x * (1 - sigmoid))


def hook_dump(folder: Path) -> DumpBuilder:
    """A right Mint.matmul.0, a Mint.exp.0 that is off by 0.001, and a right Fused.silu_mul.0 that no engine knows."""
    wide = [array.astype(np.float64) for array in (A, B, G, X)]
    a, b, g, x = wide
    builder = DumpBuilder(folder)
    builder.call("Mint.matmul.0", [A, B], [narrow(a @ b)], incoming=[G], gradients=[narrow(g @ b.T), narrow(a.T @ g)])
    builder.call("Mint.exp.0", [X], [narrow(np.exp(x) + 1e-3)])
    builder.call(
        "Fused.silu_mul.0",
        [X, X],
        [narrow(silu(x) * x)],
        incoming=[X],
        gradients=[narrow(x * x * silu_gradient(x)), narrow(x * silu(x))],
    )
    return builder


def narrow(array: Array) -> Array:
    return array.astype(np.float32)
