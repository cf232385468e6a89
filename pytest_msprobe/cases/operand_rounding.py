"""Matrix units that round float32 operands before they multiply: HF32 on Ascend, TF32 on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_msprobe.engines.protocol import Array, Call, LeafPath, map_leaves

#: Explicit bits of a significand, by the name of the mode of the device.
FORMATS = {"HF32": 11, "TF32": 10}

_PRODUCTS = frozenset(
    """
    addbmm addmm addmv baddbmm batch_mat_mul batchmatmul bmm chain_matmul dense dot einsum flash_attention_score inner
    linear mat_mul matmul mm multi_dot mv outer tensordot vdot
    """.split()
)


def has_rounded_operands(api: str, mode: str) -> bool:
    """Whether the API of this short name multiplies with rounded operands under a mode of --msprobe-hf32."""
    name = api.strip("_").lower()
    families = {"conv": "conv" in name, "matmul": name in _PRODUCTS}
    return any(families.values()) if mode == "all" else families.get(mode, False)


def operand_roundoff(format_name: str) -> float:
    """The largest relative error of rounding an operand: 2**-12 for HF32, 2**-11 for TF32."""
    return 2.0 ** -(FORMATS[format_name] + 1)


def with_rounded_operands(call: Call, format_name: str) -> Call:
    """`call` with its float32 tensors rounded to the bits of that format."""

    def rounded(path: LeafPath, value: Any) -> Any:
        return _rounded(value, format_name) if getattr(value, "dtype", None) == np.float32 else value

    arguments, keywords = map_leaves(call, rounded)
    return replace(call, arguments=tuple(arguments), keywords=keywords)


def rounded_incoming(incoming: Sequence[Array | None], format_name: str) -> tuple[Array | None, ...]:
    """The same for incoming gradients, which are operands of the products that make gradients."""
    return tuple(
        _rounded(array, format_name) if array is not None and array.dtype == np.float32 else array for array in incoming
    )


def _rounded(array: Array, format_name: str) -> Array:
    with np.errstate(all="ignore"):
        significand, exponent = np.frexp(array.astype(np.float64))
        bits = FORMATS[format_name] + 1
        found: Array = np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)
    return found
