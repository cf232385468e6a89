"""Queries, keys and values in any layout as (B, N, S, D), and back."""

from __future__ import annotations

from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported

#: Axes of (B, N, S, D) in the order of each layout of four axes; H is N * D.
_ORDERS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}


def to_bnsd(x: Tensor, layout: str, *, head_size: int) -> Tensor:
    """`x` as (B, N, S, D); `head_size` is the D of layouts that do not show it."""
    order = _order(layout)
    split = x.reshape(*x.shape[:-1], -1, head_size) if layout.endswith("H") else x
    return split.permute([order.index(axis) for axis in range(4)])


def from_bnsd(x: Tensor, layout: str) -> Tensor:
    """(B, N, S, D) in `layout`."""
    moved = x.permute(_order(layout))
    return moved.flatten(-2) if layout.endswith("H") else moved


def head_size(query: Tensor, heads: int, layout: str) -> int:
    """D of a query in any layout."""
    return query.shape[-1] // heads if layout.endswith("H") else query.shape[-1]


def _order(layout: str) -> tuple[int, ...]:
    if layout not in _ORDERS:
        raise Unsupported(f"input_layout {layout}: only {', '.join(_ORDERS)} are known for this API")
    return _ORDERS[layout]
