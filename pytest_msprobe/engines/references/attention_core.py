"""Attention of one batch element, block of rows by block of rows, with its closed-form gradient.

The scores of a long sequence do not fit into memory in float64 (32 heads of 4096 x 4096 take 4 GiB, and autograd would
keep several such tensors), so both directions compute a block of query rows at a time and keep no scores. Softmax is
along a row, so blocks of rows change nothing in the result.

Queries, keys and values in any layout as (B, N, S, D), and back.

Which scores an attention removes: the sparse modes of Ascend's attention operators.

Source: description of sparseMode in CANN's aclnnFlashAttentionScore and mindspore.ops.flash_attention_score 2.10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_msprobe.engines.protocol import Unsupported

#: Scores in one block of rows: 16 MiB in float64, of which up to eight copies live at once.
_SCORES_PER_BLOCK = 2**21


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How scores become weights: ``softmax(scale * q k^T + shift)``, or ``softmax(scale * (q k^T + shift))``.

    Attributes:
        scale: factor of the scores.
        removed: (first row, end row) -> True where a score is removed, broadcast to (N1, rows, S2); None: nowhere.
        is_shift_scaled: whether the shift is added before the scale.
        kept: dropout, True where a weight is kept, (N1, S1, S2); None without dropout.
        keep_prob: the kept weights are divided by it.
    """

    scale: float
    removed: Callable[[int, int], Tensor | None]
    is_shift_scaled: bool = False
    kept: Tensor | None = None
    keep_prob: float = 1.0


@dataclass(frozen=True, slots=True)
class Attended:
    """(N1, S1, Dv) weighted values; (N1, S1) maximum of each row's scores and sum of exp(score - maximum).

    A row whose scores are all removed has output 0, maximum -inf and sum 0.
    """

    output: Tensor
    maximum: Tensor
    total: Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, *, shift: Tensor | None, scoring: Scoring) -> Attended:
    """Attention of query (N1, S1, D) to key (N2, S2, D) and value (N2, S2, Dv).

    Head h of the query uses head h // (N1 / N2) of key and value. Differentiable with respect to query, key, value and
    shift ((N1 or 1, S1, S2)), not through maximum and sum, which exist for the backward of the kernel alone.

    Raises:
        ValueError: N1 is not a multiple of N2.
    """
    if query.shape[0] % key.shape[0]:
        raise ValueError(f"{query.shape[0]} query heads are not a multiple of {key.shape[0]} key heads")
    return Attended(*_Attention.apply(query, key, value, shift, scoring))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, shift: Tensor | None, scoring: Scoring
    ) -> tuple[Tensor, Tensor, Tensor]:
        context.scoring = scoring
        grouped = _grouped(query, key)
        output = query.new_zeros((*grouped.shape[:3], value.shape[-1]))
        maximum = query.new_full(grouped.shape[:3], -torch.inf)
        total = query.new_zeros(grouped.shape[:3])
        for rows in _blocks(query, key):
            exponentials, maximum[:, :, rows], total[:, :, rows] = _exponentials(grouped, key, shift, scoring, rows)
            weights = exponentials / _nonzero(total[:, :, rows])[..., None]
            output[:, :, rows] = _dropped(weights, scoring, rows) @ value[:, None]
        context.mark_non_differentiable(maximum, total)
        returned = output.flatten(0, 1)
        # Kept for the gradients as kernels do, which read back the output that they have rounded.
        context.save_for_backward(query, key, value, shift, returned)
        return returned, maximum.flatten(0, 1), total.flatten(0, 1)

    @staticmethod
    def backward(context: Any, d_output: Tensor, _maximum: Any, _total: Any) -> tuple[Tensor | None, ...]:
        query, key, value, shift, output = context.saved_tensors
        scoring: Scoring = context.scoring
        grouped, d_grouped = _grouped(query, key), _grouped(d_output, key)
        # Equal to the sum of d_weights * weights along each row, with dropout as well.
        used = (d_grouped * _grouped(output, key)).sum(-1, keepdim=True)
        d_query, d_key, d_value = torch.zeros_like(grouped), torch.zeros_like(key), torch.zeros_like(value)
        d_shift = None if shift is None else torch.zeros_like(shift)
        for rows in _blocks(query, key):
            exponentials, _, total = _exponentials(grouped, key, shift, scoring, rows)
            weights = exponentials / _nonzero(total)[..., None]
            d_value += (_dropped(weights, scoring, rows).mT @ d_grouped[:, :, rows]).sum(1)
            d_weights = _dropped(d_grouped[:, :, rows] @ value[:, None].mT, scoring, rows)
            d_scores = weights * (d_weights - used[:, :, rows])
            d_query[:, :, rows] = scoring.scale * d_scores @ key[:, None]
            d_key += scoring.scale * (d_scores.mT @ grouped[:, :, rows]).sum(1)
            if d_shift is not None:
                d_rows = d_scores.flatten(0, 1) * (scoring.scale if scoring.is_shift_scaled else 1.0)
                d_shift[:, rows] = d_rows if d_shift.shape[0] == query.shape[0] else d_rows.sum(0, keepdim=True)
        return d_query.flatten(0, 1), d_key, d_value, d_shift, None


def _grouped(x: Tensor, key: Tensor) -> Tensor:
    """(N1, S, D) as (N2, N1 / N2, S, D)."""
    return x.reshape(key.shape[0], -1, *x.shape[1:])


def _blocks(query: Tensor, key: Tensor) -> Iterator[slice]:
    heads, rows = query.shape[:2]
    if key.shape[1]:  # without keys there is nothing to attend to, and the output stays 0
        step = max(1, _SCORES_PER_BLOCK // (heads * key.shape[1]))
        yield from (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def _exponentials(
    grouped: Tensor, key: Tensor, shift: Tensor | None, scoring: Scoring, rows: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """(exp(score - maximum), maximum, sum) of a block of rows; the first is (N2, N1 / N2, rows, S2)."""
    scores = grouped[:, :, rows] @ key[:, None].mT
    if shift is None:
        scores = scores * scoring.scale
    elif scoring.is_shift_scaled:
        scores = (scores + _by_head(shift[:, rows], grouped)) * scoring.scale
    else:
        scores = scores * scoring.scale + _by_head(shift[:, rows], grouped)
    removed = scoring.removed(rows.start, rows.stop)
    if removed is not None:
        scores = scores.masked_fill(_by_head(removed, grouped), -torch.inf)
    maximum = scores.amax(-1)
    exponentials = (scores - maximum.masked_fill(maximum == -torch.inf, 0)[..., None]).exp()
    return exponentials, maximum, exponentials.sum(-1)


def _dropped(weights: Tensor, scoring: Scoring, rows: slice) -> Tensor:
    if scoring.kept is None:
        return weights
    return weights * _by_head(scoring.kept[:, rows], weights) / scoring.keep_prob


def _by_head(x: Tensor, grouped: Tensor) -> Tensor:
    """(N1, rows, S2) as (N2, N1 / N2, rows, S2); one head, or no head axis, is for all of them."""
    return x.reshape(*grouped.shape[:2], *x.shape[1:]) if x.dim() == 3 and x.shape[0] > 1 else x


def _nonzero(total: Tensor) -> Tensor:
    return total.masked_fill(total == 0, 1)


#: Axes of (B, N, S, D) in the order of each layout of four axes; H is N * D.
_ORDERS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}


def by_head(query: Tensor, key: Tensor, value: Tensor, layout: str, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as (B, N, S, D); the `heads` of the query tell the D of layouts that do not show it."""
    order = _order(layout)
    size = query.shape[-1] // heads if layout.endswith("H") else query.shape[-1]

    def moved(x: Tensor) -> Tensor:
        split = x.reshape(*x.shape[:-1], -1, size) if layout.endswith("H") else x
        return split.permute([order.index(axis) for axis in range(4)])

    return moved(query), moved(key), moved(value)


def from_bnsd(x: Tensor, layout: str) -> Tensor:
    """(B, N, S, D) in `layout`."""
    moved = x.permute(_order(layout))
    return moved.flatten(-2) if layout.endswith("H") else moved


def _order(layout: str) -> tuple[int, ...]:
    if layout not in _ORDERS:
        raise Unsupported(f"input_layout {layout}: only {', '.join(_ORDERS)} are known for this API")
    return _ORDERS[layout]


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
        mask: as it was passed; not 0 is removed.
        pre_tokens: see above.
        next_tokens: see above.
        prefix: keys that every query of a batch element sees, in mode 5.
    """

    sparse_mode: int = 0
    mask: Tensor | None = None
    pre_tokens: int = 2**31 - 1
    next_tokens: int = 2**31 - 1
    prefix: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        mode, mask = self.sparse_mode, self.mask
        if mode not in range(6):
            raise Unsupported(f"sparse_mode {mode}: only 0 to 5 are defined for this API")
        if mode in (1, 5) and mask is None:
            raise Unsupported(f"sparse_mode {mode} needs attn_mask, which the dump does not have")
        if mode == 5 and self.prefix is None:
            raise Unsupported("sparse_mode 5 needs prefix, which the dump does not have")
        if mode in (2, 3, 4) and mask is not None:
            _check_compressed(mask, mode)

    def removed(self, batch: int, queries: int, keys: int, *, device: torch.device) -> _Removed:
        """A function as `Scoring.removed` wants it, for one batch element."""
        mask = None if self.mask is None or self.sparse_mode in (2, 3, 4) else _of_batch(self.mask, batch)
        if self.sparse_mode == 1 or (self.sparse_mode == 0 and mask is None):
            lower, upper = -queries, keys
        else:
            lower, upper = self._limits(queries, keys)
        prefix = self.prefix[batch] if self.sparse_mode == 5 and self.prefix is not None else 0

        def of_rows(first: int, end: int) -> Tensor | None:
            is_removed = None if mask is None else mask[..., first:end, :keys] != 0
            if lower > -queries or upper < keys - 1:
                j = torch.arange(keys, device=device)
                distance = j - torch.arange(first, end, device=device)[:, None]
                outside = ((distance < lower) | (distance > upper)) & (j >= prefix)
                return outside if is_removed is None else is_removed | outside
            return is_removed

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
    if isinstance(values, Tensor):
        values = values.reshape(-1).tolist()
    return tuple(map(int, values))


def bounds(ends: IntList, total: int, *, name: str) -> list[tuple[int, int]]:
    """(first, end) of each stretch that cumulative `ends` cut from `total` rows.

    Raises:
        Unsupported: they do not rise to `total`, as random values in their place do.
    """
    numbers = integers(ends)
    if not numbers or list(numbers) != sorted(numbers) or numbers[0] < 0 or numbers[-1] > total:
        raise Unsupported(f"{name} is {numbers}: not cumulative lengths up to {total} (collect real data for this API)")
    return list(zip((0, *numbers[:-1]), numbers))


def _of_batch(mask: Tensor, batch: int) -> Tensor:
    """The mask of a batch element: (N1 or 1, S1, S2) or (S1, S2)."""
    if mask.dim() == 2:
        return mask
    chosen = mask[batch if mask.shape[0] > 1 else 0]
    return chosen[0] if chosen.dim() == 3 and chosen.shape[0] == 1 else chosen


def _check_compressed(mask: Tensor, mode: int) -> None:
    if mask.shape[-2:] != (_COMPRESSED, _COMPRESSED):
        raise Unsupported(f"sparse_mode {mode} takes a mask of 2048 x 2048, the dump has {tuple(mask.shape)}")
    triangle = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
    if not torch.equal((mask != 0).reshape(-1, *triangle.shape)[0], triangle):
        raise Unsupported(
            f"attn_mask is not the upper triangle that sparse_mode {mode} takes (collect real data for this API)"
        )
