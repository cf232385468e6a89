"""The values of PyTorch as the writer of dumps takes them; statistics are computed where the tensor is."""

from __future__ import annotations

import json
import zlib
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._C import _functorch

from msprobe_collector.dump_format import array_dtype, find_dtype
from msprobe_collector.dump_format.writing.framework_values import EncodeInner, TensorValues
from msprobe_collector.dump_format.writing.statistics import Statistics, statistics_of

TENSOR = "torch.Tensor"
#: Up to this many elements NumPy is quicker on a CPU.
_FEW = 1 << 14
#: Elements that are raised to float64 at a time.
_CHUNK = 1 << 20
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NONE_SUCH = Statistics(None, None, None, None)


class TorchTensorValues(TensorValues):
    """A tensor whose elements are looked at when they are asked for."""

    __slots__ = ("_array", "_tensor")

    def __init__(self, tensor: Any, dtype_name: str, fields: str) -> None:
        self._tensor = tensor
        self._array: np.ndarray[Any, Any] | None = None
        self.dtype_name = dtype_name
        self.type_name = TENSOR
        self.fields = fields

    @property
    def array(self) -> Any:
        """Its elements; None for a tensor that has none that can be read (meta, inside vmap)."""
        if self._array is None:
            self._array = _array(self._tensor)
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return tuple(self._tensor.shape)

    def statistics(self) -> Statistics:
        """Computed in float64 on the tensor's own device."""
        tensor = self._tensor
        if tensor.numel() > _FEW and tensor.dtype in _REAL and tensor.layout is torch.strided and _is_plain(tensor):
            return _reduced(tensor)
        array = self.array
        return _NONE_SUCH if array is None else statistics_of(array)


class TorchValues:
    """See `FrameworkValues`."""

    tensor_types: tuple[type, ...] = (torch.Tensor,)
    dtype_type: type = torch.dtype
    dtype_type_name = "torch.dtype"
    file_suffix = ".pt"

    def read(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        requires_grad = tensor.requires_grad
        fields = ', "requires_grad": true' if requires_grad else ', "requires_grad": false'
        return TorchTensorValues(tensor.detach() if requires_grad else tensor, _dtype_name(tensor.dtype), fields)

    def frozen(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        values = self.read(tensor.detach().clone())
        values.fields = f', "requires_grad": {"true" if tensor.requires_grad else "false"}'
        return values

    def dtype_text(self, dtype: Any) -> str:
        """See `FrameworkValues`."""
        return _dtype_name(dtype)

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """Devices, layouts, memory formats and process groups."""
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return f'{{"type": "torch.{type(value).__name__}", "value": {json.dumps(str(value))}}}'
        if type(value).__name__ == "ProcessGroup":
            return _group(value)
        if type(value).__name__ in ("RedOpType", "ReduceOp"):
            return f'{{"type": "torch.distributed.ReduceOp", "value": {json.dumps(str(value))}}}'
        return None


@cache
def torch_values() -> TorchValues:
    """The one of this process."""
    return TorchValues()


@cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype)


def _group(group: Any) -> str:
    from torch import distributed

    ranks = distributed.get_process_group_ranks(group)
    identity = f"{zlib.crc32(str(ranks).encode()):08x}"
    return json.dumps({"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": identity})


def _is_plain(tensor: Any) -> bool:
    """Whether the elements of a strided tensor can be computed with."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (
        tensor.is_meta or _functorch.is_functorch_wrapped_tensor(tensor)
    )


def _array(tensor: Any) -> np.ndarray[Any, Any] | None:
    if not _is_plain(tensor) or tensor.is_nested:
        return None
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    host = tensor.cpu().resolve_conj().resolve_neg()
    if host.dtype in _REAL and host.dtype is not torch.bfloat16:
        return host.numpy()
    dtype = find_dtype(str(host.dtype))
    numpy_dtype = None if dtype is None else array_dtype(dtype)
    if numpy_dtype is None:
        return None
    if numpy_dtype.isbuiltin == 1:
        return host.numpy()
    return host.contiguous().view({1: torch.uint8, 2: torch.int16}[host.element_size()]).numpy().view(numpy_dtype)


def _reduced(tensor: Any) -> Statistics:
    """The statistics of a large real tensor; one transfer from its device."""
    low, high = torch.aminmax(tensor)
    flat = tensor.reshape(-1)
    total = squares = 0.0
    for start in range(0, flat.numel(), _CHUNK):
        wide = flat[start : start + _CHUNK].double()
        total, squares = total + wide.sum(), squares + torch.dot(wide, wide)
    maximum, minimum, total, squares = torch.stack([high.double(), low.double(), total, squares]).tolist()
    if not (maximum - maximum == 0.0 == minimum - minimum) or squares == float("inf") or (squares == 0.0 != maximum):
        # Rare: NaN and Inf are counted, and a norm is scaled whose square leaves the range of float64.
        return statistics_of(_array(tensor))
    return Statistics(maximum, minimum, total / flat.numel(), squares**0.5)
