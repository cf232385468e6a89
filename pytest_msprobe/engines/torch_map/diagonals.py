"""Bands of diagonals in stacks of matrices: matrix_diag, matrix_diag_part, matrix_set_diag. Reached through `adapters`.

`k` is one diagonal or (lowest, highest), 0 the main one, positive above it. The diagonals of a band stand in rows from
the highest down, each filled up to the longest on the side that `align` says: RIGHT_LEFT pushes those above the main
diagonal to the right and those below to the left (docs of mindspore.ops.matrix_diag).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Diagonals = int | Sequence[int] | Tensor


def matrix_diag(x: Tensor, k: Diagonals, rows: object, columns: object, padding: object, align: str) -> Tensor:
    """Matrices with the band `x`; -1 rows or columns mean as few as hold it, both a square."""
    lowest, highest = _bounds(k)
    band = x.unsqueeze(-2) if lowest == highest else x
    least = (band.shape[-1] - min(highest, 0), band.shape[-1] + max(lowest, 0))
    given = (int(rows), int(columns))  # type: ignore[call-overload]  # a number or a one-element Tensor
    size = [max(least)] * 2 if given == (-1, -1) else [have if have != -1 else low for have, low in zip(given, least)]
    blank = torch.full((*band.shape[:-2], *size), float(padding), dtype=x.dtype, device=x.device)  # type: ignore[arg-type]
    return matrix_set_diag(blank, x, k, align)


def matrix_set_diag(x: Tensor, diagonal: Tensor, k: Diagonals, align: str) -> Tensor:
    """`x` with its band replaced."""
    lowest, highest = _bounds(k)
    band = diagonal.unsqueeze(-2) if lowest == highest else diagonal
    for row, offset, start, count in _places(x, lowest, highest, align):
        x = torch.diagonal_scatter(x, band[..., row, start : start + count], offset, -2, -1)
    return x


def matrix_diag_part(x: Tensor, k: Diagonals, padding: object, align: str) -> Tensor:
    """The band of `x`, filled up with `padding`."""
    lowest, highest = _bounds(k)
    places = list(_places(x, lowest, highest, align))
    longest = max(count for _, _, _, count in places)
    band = []
    for _, offset, start, count in places:
        line = torch.diagonal(x, offset, -2, -1)
        fill = float(padding)  # type: ignore[arg-type]  # a number or a one-element Tensor
        band.append(torch.nn.functional.pad(line, (start, longest - count - start), value=fill))
    return band[0] if lowest == highest else torch.stack(band, -2)


def _bounds(k: Diagonals) -> tuple[int, int]:
    values = k.reshape(-1).tolist() if isinstance(k, Tensor) else [k] if isinstance(k, int) else list(k)
    return int(values[0]), int(values[-1])


def _places(x: Tensor, lowest: int, highest: int, align: str) -> Iterator[tuple[int, int, int, int]]:
    """(row in the band, diagonal, first place in the row, length) from the highest down."""
    rows, columns = x.shape[-2:]
    lengths = {k: min(rows + min(k, 0), columns - max(k, 0)) for k in range(lowest, highest + 1)}
    above, below = align.upper().split("_")
    for row, k in enumerate(range(highest, lowest - 1, -1)):
        side = above if k >= 0 else below
        yield row, k, max(lengths.values()) - lengths[k] if side == "RIGHT" else 0, lengths[k]
