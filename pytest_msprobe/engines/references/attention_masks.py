"""Which scores an attention removes: the sparse modes of Ascend's attention operators.

Source: description of sparseMode in CANN's aclnnFlashAttentionScore and mindspore.ops.flash_attention_score 2.10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported

#: Side of the compressed mask that modes 2, 3 and 4 take: the kernel cuts what it needs from this triangle.
_COMPRESSED = 2048

IntList = Tensor | Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """The mask arguments of an attention. i is a query, j a key, D the number of keys minus that of queries.

    - mode 0: nothing without a mask; else the mask and what lies outside ``i - pre_tokens <= j <= i + next_tokens``
    - mode 1: the mask
    - mode 2: ``j > i``; mode 3: ``j > i + D``
    - mode 4: outside ``i + D - pre_tokens <= j <= i + D + next_tokens`` (the band hangs in the lower right corner)
    - mode 5: ``j > i + D`` unless ``j < prefix[batch]``, and the mask

    Attributes:
        sparse_mode: 0 to 5.
        given: the mask as passed; not 0 is removed.
        pre_tokens: see above.
        next_tokens: see above.
        prefix: keys that every query of a batch element sees, in mode 5.
    """

    sparse_mode: int = 0
    given: Tensor | None = None
    pre_tokens: int = 2**31 - 1
    next_tokens: int = 2**31 - 1
    prefix: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        mode, given = self.sparse_mode, self.given
        if mode not in range(6):
            raise Unsupported(f"sparse_mode {mode}: only 0 to 5 are defined for this API")
        if mode in (1, 5) and given is None:
            raise Unsupported(f"sparse_mode {mode} needs attn_mask, which the dump does not have")
        if mode == 5 and self.prefix is None:
            raise Unsupported("sparse_mode 5 needs prefix, which the dump does not have")
        if mode in (2, 3, 4) and given is not None:
            _check_compressed(given, mode)

    def removed(self, batch: int, queries: int, keys: int, *, device: torch.device) -> _Removed:
        """A function as `Scoring.removed` wants it, for one batch element."""
        given = None if self.given is None or self.sparse_mode in (2, 3, 4) else _of_batch(self.given, batch)
        if self.sparse_mode == 1 or (self.sparse_mode == 0 and given is None):
            lower, upper = -queries, keys
        else:
            lower, upper = self._limits(queries, keys)
        prefix = self.prefix[batch] if self.sparse_mode == 5 and self.prefix is not None else 0

        def of_rows(first: int, end: int) -> Tensor | None:
            found = None if given is None else given[..., first:end, :keys] != 0
            if lower > -queries or upper < keys - 1:
                j = torch.arange(keys, device=device)
                distance = j - torch.arange(first, end, device=device)[:, None]
                outside = ((distance < lower) | (distance > upper)) & (j >= prefix)
                found = outside if found is None else found | outside
            return found

        return of_rows

    def _limits(self, queries: int, keys: int) -> tuple[int, int]:
        """Smallest and largest j - i that stay."""
        corner = keys - queries
        if self.sparse_mode == 0:
            return -self.pre_tokens, self.next_tokens
        if self.sparse_mode == 4:
            return corner - self.pre_tokens, corner + self.next_tokens
        return -queries, 0 if self.sparse_mode == 2 else corner


_Removed = Callable[[int, int], Tensor | None]


def integers(values: IntList) -> tuple[int, ...] | None:
    """A list of integers, however it was passed; None stays."""
    if values is None:
        return None
    return tuple(int(item) for item in (values.reshape(-1).tolist() if isinstance(values, Tensor) else values))


def bounds(ends: IntList, total: int, *, name: str) -> list[tuple[int, int]]:
    """(first, end) of each stretch that cumulative `ends` cut from `total` rows.

    Raises:
        Unsupported: they do not rise to `total`, as random values in their place do.
    """
    found = integers(ends)
    if not found or list(found) != sorted(found) or found[0] < 0 or found[-1] > total:
        raise Unsupported(f"{name} is {found}: not cumulative lengths up to {total} (collect real data for this API)")
    return list(zip((0, *found[:-1]), found))


def _of_batch(given: Tensor, batch: int) -> Tensor:
    """The mask of a batch element: (N1 or 1, S1, S2) or (S1, S2)."""
    if given.dim() == 2:
        return given
    chosen = given[batch if given.shape[0] > 1 else 0]
    return chosen[0] if chosen.dim() == 3 and chosen.shape[0] == 1 else chosen


def _check_compressed(given: Tensor, mode: int) -> None:
    if given.shape[-2:] != (_COMPRESSED, _COMPRESSED):
        raise Unsupported(f"sparse_mode {mode} takes a mask of 2048 x 2048, the dump has {tuple(given.shape)}")
    triangle = torch.ones(given.shape[-2:], dtype=torch.bool, device=given.device).triu(1)
    if not torch.equal((given != 0).reshape(-1, *triangle.shape)[0], triangle):
        raise Unsupported(
            f"attn_mask is not the upper triangle that sparse_mode {mode} takes (collect real data for this API)"
        )
