"""Boxes and blocks of images of MindSpore that no PyTorch call has. Reached through `adapters`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from pytest_msprobe.engines.torch_map.arguments import sizes


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
    share = (places - first).reshape([-1 if dim == axis else 1 for dim in range(x.dim())])
    before, after = (x.index_select(axis, (first + i).long().clamp(0, size - 1)) for i in (0, 1))
    return before + share * (after - before)


def space_to_batch(x: Tensor, block: int | Sequence[int], paddings: Sequence[Sequence[int]]) -> Tensor:
    """Blocks of the trailing axes, after zero padding, to the batch axis, the place in a block first."""
    blocks = [block] * len(paddings) if isinstance(block, int) else list(block)
    x = functional.pad(x, [int(item) for pair in reversed(list(paddings)) for item in pair])
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
