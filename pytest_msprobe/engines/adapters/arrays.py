"""Gathers, slices, diagonals, and boxes and blocks of images of MindSpore in PyTorch. Reached through `adapters`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.adapters.arguments import Number, long, sizes

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
    index = _within(indices.long(), size, mode)
    return gather_axis(x.reshape(-1), index, 0) if axis is None else gather_axis(x, index, axis)


def _within(index: Tensor, size: int, mode: str) -> Tensor:
    if mode == "clip":
        return index.clamp(0, size - 1)
    return index % size if mode == "wrap" else index


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int] | Tensor) -> Tensor:
    """Updates summed into zeros."""
    return tensor_scatter(updates.new_zeros(sizes(shape)), indices, updates, "add")


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


def segment_reduce(x: Tensor, segment_ids: Tensor, num_segments: int | Tensor, how: str) -> Tensor:
    """unsorted_segment_sum and others: negative ids are dropped.

    An empty segment is 0 or 1, of `max` and `min` the lowest or highest value of the dtype, here float32's.
    """
    empty: Number = {"add": 0, "mul": 1}.get(how, 0)
    if how in ("max", "min"):
        limits = torch.finfo(torch.float32) if x.is_floating_point() else torch.iinfo(x.dtype)
        empty = limits.min if how == "max" else limits.max
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
    return x.index_put(tuple(map(long, indices)), values.to(x.dtype), accumulate)


def index_fill(x: Tensor, axis: int, index: Tensor | int, value: Tensor | Number) -> Tensor:
    """The index may be one integer, the value a number or a one-element Tensor."""
    rows = torch.as_tensor(index, device=x.device).long().reshape(-1)
    return x.index_fill(axis, rows, value.reshape(()) if isinstance(value, Tensor) else value)


def slice_from(x: Tensor, begin: Sequence[int] | Tensor, size: Sequence[int] | Tensor) -> Tensor:
    """ops.slice: a size of -1 takes the rest."""
    for dim, (first, count) in enumerate(zip(begin, size, strict=True)):
        x = x.narrow(dim, int(first), x.shape[dim] - int(first) if int(count) == -1 else int(count))
    return x


def transposed_and_reshaped(x: Tensor, perm: Sequence[int], shape: Sequence[int], transpose_first: bool) -> Tensor:
    """torch_npu.npu_confusion_transpose: both, in the order that `transpose_first` says."""
    if transpose_first:
        return x.permute(sizes(perm)).reshape(sizes(shape))
    return x.reshape(sizes(shape)).permute(sizes(perm))


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
            start = None if begin_mask & bit else int(first)
            stop = None if end_mask & bit else int(last)
            places = list(range(x.shape[dim]))[start : stop : int(step)]
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
    return x[tuple(map(long, indices))]


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
    index = _within(x.long(), len(stacked), mode)
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


# Bands of diagonals in stacks of matrices

#: One diagonal or (lowest, highest), 0 the main one, positive above it. The diagonals of a band
#: stand in rows from the highest down, each filled up to the longest on the side that `align`
#: says: RIGHT_LEFT pushes those above the main diagonal to the right and those below to the left
#: (docs of mindspore.ops.matrix_diag).
Diagonals = int | Sequence[int] | Tensor


def matrix_diag(x: Tensor, k: Diagonals, rows: object, columns: object, padding: object, align: str) -> Tensor:
    """Matrices with the band `x`; -1 rows or columns mean as few as hold it, both a square."""
    lowest, highest = _bounds(k)
    band = x.unsqueeze(-2) if lowest == highest else x
    least = (band.shape[-1] - min(highest, 0), band.shape[-1] + max(lowest, 0))
    size = [int(rows), int(columns)]  # type: ignore[call-overload]  # a number or a one-element Tensor
    if size == [-1, -1]:
        least = (max(least), max(least))
    for axis in (0, 1):
        if size[axis] == -1:
            size[axis] = least[axis]
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
    if isinstance(k, int):
        return k, k
    values = k.reshape(-1).tolist() if isinstance(k, Tensor) else k
    return int(values[0]), int(values[-1])


def _places(x: Tensor, lowest: int, highest: int, align: str) -> Iterator[tuple[int, int, int, int]]:
    """(row in the band, diagonal, first place in the row, length) from the highest down."""
    rows, columns = x.shape[-2:]
    lengths = {k: min(rows + min(k, 0), columns - max(k, 0)) for k in range(lowest, highest + 1)}
    above, below = align.upper().split("_")
    for row, k in enumerate(range(highest, lowest - 1, -1)):
        side = above if k >= 0 else below
        yield row, k, max(lengths.values()) - lengths[k] if side == "RIGHT" else 0, lengths[k]


# Boxes and blocks of images


def bounding_box_encode(anchors: Tensor, truth: Tensor, means: Sequence[float], stds: Sequence[float]) -> Tensor:
    """Offsets of centre and log size from anchor to truth; a box ends on its last pixel, so widths are x2 - x1 + 1."""
    centre, size = _centre_and_size(anchors)
    true_centre, true_size = _centre_and_size(truth)
    deltas = torch.cat([(true_centre - centre) / size, torch.log(true_size / size)], -1)
    return (deltas - deltas.new_tensor(means)) / deltas.new_tensor(stds)


def bounding_box_decode(
    anchors: Tensor,
    deltas: Tensor,
    shape: Sequence[int],
    means: Sequence[float],
    stds: Sequence[float],
    ratio: float,
) -> Tensor:
    """Boxes (x1, y1, x2, y2) inside a `shape` (height, width), ends included; log sizes are held within the ratio."""
    deltas = deltas * deltas.new_tensor(stds) + deltas.new_tensor(means)
    centre, size = _centre_and_size(anchors)
    limit = abs(math.log(ratio))
    half = size * torch.exp(deltas[..., 2:].clamp(-limit, limit)) / 2
    centre = centre + size * deltas[..., :2]
    top = deltas.new_tensor([shape[1], shape[0]])
    corners = [torch.minimum(corner.clamp(min=0), top) for corner in (centre - half + 0.5, centre + half - 0.5)]
    return torch.cat(corners, -1)


def _centre_and_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2] + 1


def check_valid(boxes: Tensor, image: Tensor) -> Tensor:
    """Whether each box lies in an image given as (height, width, ratio)."""
    height, width, ratio = image.unbind()
    top = torch.stack([width * ratio - 1, height * ratio - 1])
    return ((boxes[:, :2] >= 0) & (boxes[:, 2:] <= top)).all(-1)


def iou(anchors: Tensor, truth: Tensor, mode: str) -> Tensor:
    """Overlap over union (`iou`) or over the true box (`iof`), a row per true box. Widths are x2 - x1 + 1."""
    low = torch.maximum(anchors[:, :2], truth[:, None, :2])
    high = torch.minimum(anchors[:, 2:], truth[:, None, 2:])
    overlap = (high - low + 1).clamp(min=0).prod(-1)
    true_area = _area(truth)[:, None]
    return overlap / (true_area if mode == "iof" else _area(anchors) + true_area - overlap)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2] + 1).prod(-1)


def crop_and_resize(
    image: Tensor, boxes: Tensor, box_indices: Tensor, crop_size: Sequence[int], method: str, outside: float
) -> Tensor:
    """Crops (box, height, width, channel) of images of the same order of axes; boxes are (y1, x1, y2, x2) in 0..1.

    Raises:
        NotImplementedError: `method` is bilinear_v2.
    """
    if method == "bilinear_v2":
        raise NotImplementedError("ops.crop_and_resize with method bilinear_v2")
    crops = []
    for box, index in zip(boxes, box_indices.tolist()):
        rows = _samples(box[0], box[2], int(crop_size[0]), image.shape[1])
        columns = _samples(box[1], box[3], int(crop_size[1]), image.shape[2])
        part = _resample(_resample(image[index], rows, 0, method), columns, 1, method)
        is_inside = _is_inside(rows, image.shape[1])[:, None] & _is_inside(columns, image.shape[2])
        crops.append(torch.where(is_inside[..., None], part, outside))
    return torch.stack(crops)


def _samples(low: Tensor, high: Tensor, count: int, size: int) -> Tensor:
    if count == 1:
        return ((low + high) / 2 * (size - 1)).reshape(1)
    steps = torch.arange(count, dtype=low.dtype, device=low.device)
    return (low + steps * (high - low) / (count - 1)) * (size - 1)


def _is_inside(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places <= size - 1)


def _resample(x: Tensor, places: Tensor, axis: int, method: str) -> Tensor:
    size = x.shape[axis]
    if method == "nearest":
        return x.index_select(axis, places.round().long().clamp(0, size - 1))
    first = places.floor()
    shape = [1] * x.dim()
    shape[axis] = -1
    share = (places - first).reshape(shape)
    before, after = (x.index_select(axis, (first + i).long().clamp(0, size - 1)) for i in (0, 1))
    return before + share * (after - before)


def space_to_batch(x: Tensor, block: int | Sequence[int], paddings: Sequence[Sequence[int]]) -> Tensor:
    """Blocks of the trailing axes, after zero padding, to the batch axis, the place in a block first."""
    blocks = [block] * len(paddings) if isinstance(block, int) else list(block)
    x = constant_pad(x, paddings)
    lead = x.dim() - len(blocks)
    shape = [*x.shape[:lead], *(part for size, b in zip(x.shape[lead:], blocks) for part in (size // b, b))]
    places = [lead + 2 * i for i in range(len(blocks))]
    split = x.reshape(shape).permute(*[place + 1 for place in places], *range(lead), *places)
    return split.reshape(-1, *x.shape[1:lead], *(size // b for size, b in zip(x.shape[lead:], blocks)))


def batch_to_space(x: Tensor, block: int | Sequence[int], crops: Sequence[Sequence[int]]) -> Tensor:
    """The inverse of `space_to_batch`, then cropped."""
    blocks = [block] * len(crops) if isinstance(block, int) else list(block)
    count, lead = len(blocks), x.dim() - len(blocks)
    split = x.reshape(*blocks, x.shape[0] // math.prod(blocks), *x.shape[1:])
    order = [*range(count, count + lead), *(axis for i in range(count) for axis in (count + lead + i, i))]
    whole = split.permute(order).reshape(
        x.shape[0] // math.prod(blocks), *x.shape[1:lead], *(size * b for size, b in zip(x.shape[lead:], blocks))
    )
    for axis, (before, after) in enumerate(crops, lead):
        whole = whole.narrow(axis, int(before), whole.shape[axis] - int(before) - int(after))
    return whole


def mirror_pad(x: Tensor, paddings: Tensor | Sequence[Sequence[int]], mode: str) -> Tensor:
    """Padding along any number of axes; `SYMMETRIC` repeats the edge, `REFLECT` does not."""
    pairs = paddings.tolist() if isinstance(paddings, Tensor) else paddings
    shift = 1 if mode.upper() == "REFLECT" else 0
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis]
        index = [*range(before - 1 + shift, shift - 1, -1), *range(size)]
        index += range(size - 1 - shift, size - 1 - shift - after, -1)
        x = x.index_select(axis, torch.tensor(index, device=x.device))
    return x


def pad_last(x: Tensor, size: int) -> Tensor:
    """ops.padding: the last axis, of length 1, with zeros to `size`."""
    return functional.pad(x, (0, size - x.shape[-1]))


def resize(x: Tensor, *shape: object) -> Tensor:
    """Tensor.resize: the elements in order, cut off or followed by zeros."""
    wanted = sizes(*shape)
    flat = x.reshape(-1)[: math.prod(wanted)]
    return functional.pad(flat, (0, math.prod(wanted) - flat.numel())).reshape(wanted)


def index_with_value(x: Tensor, axis: int, keep_dims: bool, function: str) -> tuple[Tensor, Tensor]:
    """(indices, values) of `max` or `min`."""
    values, indices = getattr(torch, function)(x, axis, keep_dims)
    return indices, values


def one_axis(axis: int | Sequence[int]) -> int:
    """The axis, taken out of a sequence of one.

    Raises:
        NotImplementedError: the sequence does not hold exactly one axis.
    """
    if not isinstance(axis, int) and len(axis) != 1:
        raise NotImplementedError(f"axis {axis}")
    return axis if isinstance(axis, int) else int(axis[0])


def constant_pad(x: Tensor, paddings: Sequence[Sequence[int]], value: float = 0.0) -> Tensor:
    """Zeros, or another value, before and after each of the last axes."""
    return functional.pad(x, [int(side) for pair in reversed(list(paddings)) for side in pair], value=value)


def space_to_depth(x: Tensor, block_size: int) -> Tensor:
    """Blocks of the spatial axes to channels, the place in a block first."""
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // block_size, block_size, width // block_size, block_size)
    return split.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // block_size, width // block_size)


def depth_to_space(x: Tensor, block_size: int) -> Tensor:
    """The inverse of `space_to_depth`."""
    batch, _, height, width = x.shape
    split = x.reshape(batch, block_size, block_size, -1, height, width)
    return split.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * block_size, width * block_size)
