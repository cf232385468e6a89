"""Tensors of PyTorch as NumPy arrays: memory on the CPU is shared, that of devices comes in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from msprobe_collector.dump_format import array_dtype, find_dtype


class _Shared:
    """Hands the memory of a tensor on the CPU to NumPy."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch._C._to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def shared(tensor: Any) -> np.ndarray[Any, Any]:
    """The elements as an array. `Tensor.numpy` would forbid the script to resize the tensor (as FSDP does)."""
    if tensor.dtype is torch.bool:
        return np.from_dlpack(_Shared(tensor.view(torch.uint8))).view(np.bool_)
    return np.from_dlpack(_Shared(tensor))


#: Of integers as wide as an element, for dtypes that DLPack or NumPy lacks.
_BITS = {1: torch.uint8, 2: torch.int16}
#: NumPy's dtype of each dtype of PyTorch that has one; looking a name up takes longer than a small tensor does.
_NUMPY: dict[Any, np.dtype[Any] | None] = {}


def numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The dtype of arrays that hold tensors of `dtype`; None where there is none."""
    if dtype not in _NUMPY:
        description = find_dtype(str(dtype))
        _NUMPY[dtype] = None if description is None else array_dtype(description)
    return _NUMPY[dtype]


def host_array(tensor: Any) -> np.ndarray[Any, Any] | None:
    """The elements of a strided tensor on the CPU; None where NumPy has no such dtype."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype is None:
        return None
    if dtype.isbuiltin == 1:
        return shared(tensor)
    return shared(tensor.contiguous().view(_BITS[tensor.element_size()])).view(dtype)


def host_arrays(tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The elements of strided tensors of one device, whose dtypes NumPy has; from a device in one copy, waited for."""
    if not tensors or tensors[0].is_cpu:
        return [_known(host_array(tensor)) for tensor in tensors]
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == tensors[0].device.type:
        torch.accelerator.synchronize(tensors[0].device)  # several threads and streams may have computed them
    arrays, start = [], 0
    content = shared(torch.cat(list(map(_bytes_of, tensors))).cpu())
    for tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        arrays.append(content[start:end].view(_known(numpy_dtype(tensor.dtype))).reshape(tensor.shape))
        start = end
    return arrays


def _bytes_of(tensor: Any) -> Any:
    flat = tensor.contiguous().reshape(-1)
    return (torch.view_as_real(flat) if flat.is_complex() else flat).view(torch.uint8).reshape(-1)


def _known(value: Any) -> Any:
    assert value is not None
    return value


#: Types of devices from which copies go to pinned memory while the training runs on.
_WITH_STREAMS = frozenset({"cuda", "npu", "xpu"})
_streams: dict[Any, Any] = {}


def has_pinned_memory() -> bool:
    """Whether there is a device for `copied_to_host`."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator is not None and accelerator.type in _WITH_STREAMS


def copied_to_host(tensor: Any) -> tuple[Any, Callable[[], object]]:
    """A copy of a tensor in pinned memory, and what waits until the elements are there.

    It is copied where it is first, in the order of the training's stream: what the training changes later is not seen.
    """
    device = torch.get_device_module(tensor.device)
    copy = tensor.clone()
    if (side := _streams.get(tensor.device)) is None:
        side = _streams[tensor.device] = device.Stream(tensor.device)
    side.wait_stream(device.current_stream(tensor.device))
    target = _pinned(copy)
    with device.stream(side):
        target.copy_(copy, non_blocking=True)
        arrived = side.record_event()
    copy.record_stream(side)  # its memory is free when it has been copied
    return target, arrived.synchronize


def _pinned(tensor: Any) -> Any:
    return torch.empty_like(tensor, device="cpu", pin_memory=True)
