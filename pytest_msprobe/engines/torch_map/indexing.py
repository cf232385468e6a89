"""Gathers, scatters, segments and slices of MindSpore in PyTorch. Reached through `adapters`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_msprobe.engines.torch_map.arguments import Number, long

_ELEMENT_REDUCTION = {"mul": "prod", "max": "amax", "min": "amin"}


def gather_axis(x: Tensor, indices: Tensor | int, axis: int | Tensor, batch_dims: int = 0) -> Tensor:
    """ops.gather: whole slices of `x` along `axis`; with batch_dims the leading axes are shared."""
    indices = torch.as_tensor(indices, device=x.device).long()
    axis = int(axis) % x.dim()
    if batch_dims < 0:
        batch_dims += indices.dim()
    if batch_dims:
        rows = [gather_axis(part, index, axis - 1, batch_dims - 1) for part, index in zip(x, indices, strict=True)]
        return torch.stack(rows)
    picked = x.index_select(axis, indices.reshape(-1))
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def gather_nd(x: Tensor, indices: Tensor) -> Tensor:
    """The last axis of `indices` addresses the leading axes of `x`."""
    return x[tuple(indices.long().unbind(-1))]


def numpy_take(x: Tensor, indices: Tensor, axis: int | None, mode: str) -> Tensor:
    """Tensor.take in its NumPy form; indices beyond the end are clipped, wrapped or refused."""
    size = x.numel() if axis is None else x.shape[axis]
    index = indices.long()
    index = index.clamp(0, size - 1) if mode == "clip" else index % size if mode == "wrap" else index
    return gather_axis(x.reshape(-1), index, 0) if axis is None else gather_axis(x, index, axis)


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int] | Tensor) -> Tensor:
    """Updates summed into zeros."""
    return tensor_scatter(updates.new_zeros([int(item) for item in shape]), indices, updates, "add")


def tensor_scatter(x: Tensor, indices: Tensor, updates: Tensor, how: str) -> Tensor:
    """tensor_scatter_{add,sub,...} and scatter_nd_*: the last axis of `indices` addresses the leading axes of `x`."""
    depth = indices.shape[-1]
    lead, rest = x.shape[:depth], x.shape[depth:]
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for i, size in enumerate(lead):
        flat = flat * size + indices[..., i].long()
    rows = updates.to(x.dtype).expand(*indices.shape[:-1], *rest).reshape(flat.numel(), *rest)
    return _scatter(x.reshape(-1, *rest), flat.reshape(-1), rows, how).reshape(x.shape)


def scatter_rows(x: Tensor, indices: Tensor | int | Sequence[int], updates: Tensor | Number, how: str) -> Tensor:
    """scatter_* and inplace_*: whole rows of axis 0."""
    index = torch.as_tensor(indices, device=x.device).long()
    rows = torch.as_tensor(updates, device=x.device).to(x.dtype).expand(*index.shape, *x.shape[1:])
    return _scatter(x, index.reshape(-1), rows.reshape(index.numel(), *x.shape[1:]), how)


def scatter_elements(x: Tensor, dim: int, index: Tensor, src: Tensor | float, how: str = "none") -> Tensor:
    """A number as source fills; source and `x` may differ in dtype."""
    source = src.to(x.dtype) if isinstance(src, Tensor) else torch.full_like(index, src, dtype=x.dtype)
    if how in ("none", "update", "replace"):
        return x.scatter(dim, index.long(), source)
    if how == "add":
        return x.scatter_add(dim, index.long(), source)
    return x.scatter_reduce(dim, index.long(), source, _ELEMENT_REDUCTION.get(how, how))


def _scatter(x: Tensor, index: Tensor, rows: Tensor, how: str) -> Tensor:
    if how == "update":
        return x.index_copy(0, index, rows)
    if how in ("add", "sub"):
        return x.index_add(0, index, rows, alpha=1 if how == "add" else -1)
    if how == "div":
        return _scatter(x, index, 1 / rows, "mul")
    # scatter_reduce and not index_reduce: the latter warns that it is in beta.
    spread = index.reshape(-1, *[1] * (x.dim() - 1)).expand_as(rows)
    return x.scatter_reduce(0, spread, rows, _ELEMENT_REDUCTION[how])


def segment_sum(x: Tensor, segment_ids: Tensor, num_segments: int | Tensor) -> Tensor:
    """unsorted_segment_sum: negative ids are dropped."""
    return _segments(x, segment_ids, num_segments, 0, "add")


def segment_prod(x: Tensor, segment_ids: Tensor, num_segments: int | Tensor) -> Tensor:
    """unsorted_segment_prod: an empty segment is 1."""
    return _segments(x, segment_ids, num_segments, 1, "mul")


def segment_reduce(x: Tensor, segment_ids: Tensor, num_segments: int | Tensor, how: str) -> Tensor:
    """unsorted_segment_max and _min: an empty segment is the lowest or highest value of the dtype, here float32's."""
    limits = torch.finfo(torch.float32) if x.is_floating_point() else torch.iinfo(x.dtype)
    return _segments(x, segment_ids, num_segments, limits.min if how == "max" else limits.max, how)


def _segments(x: Tensor, segment_ids: Tensor, num_segments: int | Tensor, empty: Number, how: str) -> Tensor:
    ids = segment_ids.reshape(-1).long()
    rows = x.reshape(ids.numel(), *x.shape[segment_ids.dim() :])
    start = x.new_full((int(num_segments), *rows.shape[1:]), empty)
    return _scatter(start, ids[ids >= 0], rows[ids >= 0], how)


def unique_in_order(x: Tensor) -> tuple[Tensor, Tensor]:
    """ops.unique: values in order of first appearance, and for each element the place of its value."""
    flat = x.reshape(-1)
    _, inverse = torch.unique(flat, return_inverse=True)
    first = torch.full((int(inverse.max()) + 1 if inverse.numel() else 0,), x.numel(), device=x.device)
    first = first.scatter_reduce(0, inverse, torch.arange(x.numel(), device=x.device), "amin")
    order = torch.argsort(first)
    return flat[first[order]], torch.argsort(order)[inverse].reshape(x.shape)


def index_put(x: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool) -> Tensor:
    """Indices may be int32, the values of another dtype."""
    return x.index_put(tuple(long(item) for item in indices), values.to(x.dtype), accumulate)


def index_fill(x: Tensor, axis: int, index: Tensor | int, value: Tensor | Number) -> Tensor:
    """The index may be one integer, the value a number or a one-element Tensor."""
    rows = torch.as_tensor(index, device=x.device).long().reshape(-1)
    return x.index_fill(axis, rows, value.reshape(()) if isinstance(value, Tensor) else value)


def slice_from(x: Tensor, begin: Sequence[int] | Tensor, size: Sequence[int] | Tensor) -> Tensor:
    """ops.slice: a size of -1 takes the rest."""
    for dim, (first, count) in enumerate(zip(begin, size, strict=True)):
        x = x.narrow(dim, int(first), x.shape[dim] - int(first) if int(count) == -1 else int(count))
    return x


def strided_slice(
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    masks: Sequence[int],
) -> Tensor:
    """ops.strided_slice. Masks: begin, end, ellipsis, new axis, shrink axis; bit i belongs to item i."""
    begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_mask = masks
    dim = 0
    for i, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            later = range(i + 1, len(begin))
            dim = x.dim() - sum(1 for j in later if not new_axis_mask & (1 << j))
        elif new_axis_mask & bit:
            x, dim = x.unsqueeze(dim), dim + 1
        elif shrink_mask & bit:
            x = x.select(dim, int(first))
        else:
            part = slice(None if begin_mask & bit else int(first), None if end_mask & bit else int(last), int(step))
            places = list(range(x.shape[dim]))[part]
            x, dim = x.index_select(dim, torch.tensor(places, dtype=torch.int64, device=x.device)), dim + 1
    return x


def reverse_sequence(x: Tensor, lengths: Tensor, seq_dim: int, batch_dim: int) -> Tensor:
    """The first `lengths[b]` places of each sequence in reverse order."""
    place = torch.arange(x.shape[seq_dim], device=x.device)
    count = lengths.long().unsqueeze(-1)
    index = torch.where(place < count, count - 1 - place, place)
    shape = [1] * x.dim()
    shape[batch_dim], shape[seq_dim] = index.shape
    index = index.reshape(shape) if batch_dim < seq_dim else index.T.reshape(shape)
    return x.gather(seq_dim, index.expand_as(x))


def flatten(x: Tensor, order: str, start_dim: int, end_dim: int) -> Tensor:
    """Order 'F' reverses the axes first. Rank 0 and 1 become rank 1."""
    if order == "F" and x.dim() > 1:
        x = x.permute(*reversed(range(x.dim())))
    return x.reshape(-1) if x.dim() < 2 else torch.flatten(x, start_dim, end_dim)


def index_at(x: Tensor, indices: Sequence[Tensor]) -> Tensor:
    """`x[indices]` with indices of any integer dtype."""
    return x[tuple(long(item) for item in indices)]


def set_item(x: Tensor, index: object, value: Tensor | Number) -> Tensor:
    """`x` after `x[index] = value`."""
    result = x.clone()
    result[index] = value  # type: ignore[index]  # whatever the script had
    return result


def slice_axis(x: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    """`x[start:end:step]` along one axis."""
    return x.movedim(axis, 0)[start:end:step].movedim(0, axis)


def choose(x: Tensor, choices: Sequence[Tensor] | Tensor, mode: str) -> Tensor:
    """The choice that `x` names at each place, rounded towards zero (seen on CPU).

    Indices beyond the end are clipped, wrapped or refused, as `mode` says.
    """
    shape = torch.broadcast_shapes(x.shape, *(item.shape for item in choices))  # type: ignore[no-untyped-call]
    stacked = torch.stack([item.expand(shape) for item in choices])
    index = x.long().clamp(0, len(stacked) - 1) if mode == "clip" else x.long()
    index = index % len(stacked) if mode == "wrap" else index
    return stacked.gather(0, index.expand(stacked.shape[1:]).unsqueeze(0))[0].to(x.dtype).to(stacked.dtype)


def unique_with_pad(x: Tensor, pad: Number) -> tuple[Tensor, Tensor]:
    """(elements in the order of their first place and then `pad`, inverse)."""
    values, inverse = unique_in_order(x)
    return torch.cat([values, values.new_full((x.numel() - values.numel(),), pad)]), inverse


def sparse_segment_mean(x: Tensor, indices: Tensor, segments: Tensor) -> Tensor:
    """Mean of the rows that stand in one segment; a segment without rows is zero."""
    count = int(segments.max()) + 1
    rows = x.index_select(0, indices.long())
    total = x.new_zeros((count, *x.shape[1:])).index_add(0, segments.long(), rows)
    members = torch.bincount(segments.long(), minlength=count).clamp(min=1).to(x.dtype)
    return total / members.reshape(-1, *[1] * (x.dim() - 1))


def in_top_k(scores: Tensor, target: Tensor, k: int) -> Tensor:
    """Whether fewer than `k` scores of the row are above that of its target."""
    own = scores.gather(1, target.long().unsqueeze(1))
    return (scores > own).sum(1) < k
