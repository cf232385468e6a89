"""Some elements of tensors of PyTorch, for the laws: of the part that this process holds, never all of a large one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from msprobe_laws.observation import Array, TensorPlace, fingerprint, leaves

#: Elements of a tensor of a batch that make up its fingerprint.
_BATCH = 1 << 16
_NAMED_TOKENS = ("input_ids", "tokens", "ids", "x")


def local_part(value: Any) -> torch.Tensor | None:
    """Return the part of a tensor that this process holds, dense and real; None for what cannot be read."""
    if not isinstance(value, torch.Tensor):
        return None
    local = getattr(value, "_local_tensor", value)
    if local.layout is not torch.strided or local.is_meta or local.is_complex() or local.is_quantized:
        return None
    return local.detach()


def some(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most so many elements, evenly spread; without a copy of the whole."""
    if tensor.numel() <= most:
        return tensor.detach().reshape(-1)
    if tensor.is_contiguous():
        return tensor.detach().view(-1)[:: math.ceil(tensor.numel() / most)]
    places = torch.arange(0, tensor.numel(), math.ceil(tensor.numel() / most), device=tensor.device)
    return torch.take(tensor.detach(), places)


def first(tensor: torch.Tensor, count: int) -> Array:
    """Return the first elements of what this process holds, as NumPy has them."""
    local = local_part(tensor)
    if local is None:
        return np.empty(0, np.float32)
    count = min(local.numel(), count)
    if local.is_contiguous():
        part = local.view(-1)[:count]
    else:
        part = torch.take(local, torch.arange(count, device=local.device))
    array: Array = part.float().cpu().numpy().copy()
    return array


def arrays_of(tensors: Sequence[torch.Tensor | None]) -> list[Array | None]:
    """Return the elements of each in float64: one copy to the host per device and dtype."""
    arrays: list[Array | None] = [None] * len(tensors)
    kinds: dict[Any, list[int]] = {}
    for at, tensor in enumerate(tensors):
        if tensor is not None:
            kinds.setdefault((tensor.device, tensor.dtype), []).append(at)
    for places in kinds.values():
        parts = [part for at in places if (part := tensors[at]) is not None]
        joined = torch.cat(parts).cpu().to(torch.float64).numpy()
        begin = 0
        for at, part in zip(places, parts):
            arrays[at] = joined[begin : begin + part.numel()]
            begin += part.numel()
    return arrays


def dtype_of(tensor: torch.Tensor) -> str:
    """`bfloat16`."""
    return str(tensor.dtype).rpartition(".")[2]


def place_of(local: torch.Tensor | None, whole: Any) -> TensorPlace:
    """Return where a tensor is; `local` is the part that this process holds."""
    if local is None:
        return TensorPlace(0, str(getattr(whole, "dtype", "")).rpartition(".")[2])
    address = local.data_ptr() if local.numel() else 0
    is_part = any(placement.is_shard() for placement in placements_of(whole))
    return TensorPlace(address, dtype_of(local), str(local.device), tuple(local.shape), is_part)


def placements_of(tensor: Any) -> Sequence[Any]:
    """Return how a DTensor is spread over each dimension of its mesh; () for another tensor."""
    return getattr(tensor, "placements", ())


def version_of(tensor: Any) -> int:
    """Return how often it was written; 0 where that is not counted."""
    return 0 if tensor.is_inference() else int(tensor._version)


def address_of(tensor: Any) -> int:
    """Return that of the first element, for the question whether two tensors are one memory."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.data_ptr()) if local.layout is torch.strided else id(tensor)


def is_zero(gradient: Any) -> bool:
    """Return whether a gradient is zero, by some of its elements."""
    local = local_part(gradient)
    return local is None or not local.numel() or not bool(some(local, 1024).any())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Return the tensors in lists, tuples and mappings."""
    return (item for item in leaves(value) if isinstance(item, torch.Tensor))


def fingerprint_of(tensors: Iterable[torch.Tensor]) -> tuple[str, bool]:
    """Return the fingerprint of all elements, or of a part of many, and `Batch.is_poor`."""
    parts = []
    for tensor in tensors:
        local = local_part(tensor)
        if local is not None:
            values = some(local, _BATCH).cpu()
            values = values.float() if values.dtype is torch.bfloat16 else values
            parts.append((tuple(local.shape), str(local.dtype), values.numpy()))
    return fingerprint(parts)


def norm_of(gradients: Sequence[Any]) -> tuple[float | None, str]:
    """Return (2-norm, summed in the gradients' own precision and over them in float64; or why there is none)."""
    if any(map(placements_of, gradients)):
        return None, "gradients are spread over ranks"
    if any(item.layout is not torch.strided or item.is_complex() for item in gradients):
        return None, "gradients are sparse or complex"
    total = 0.0
    for item in gradients:
        if item.is_cpu and item.dtype is torch.float32 and item.is_contiguous():
            flat = item.detach().view(-1)
            square = float(torch.dot(flat, flat))  # five times faster than a norm; n squares in blocks
        else:
            square = float(torch.linalg.vector_norm(item.detach(), 2.0, dtype=torch.float32)) ** 2
        total += square
    return math.sqrt(total) if math.isfinite(total) else total, ""


def tokens_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the integer matrix among the arguments of a model: one that is named as tokens are, else the first."""
    candidates = [kwargs.get(name) for name in _NAMED_TOKENS] + list(args) + list(kwargs.values())
    for item in candidates:
        if not isinstance(item, torch.Tensor) or item.dim() != 2 or not item.numel():
            continue
        if item.dtype in (torch.int64, torch.int32):
            return item.detach()
    return None
