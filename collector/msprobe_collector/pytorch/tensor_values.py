"""The values of PyTorch as the writer of dumps takes them; statistics are computed where the tensor is."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch._C import _functorch
from torch.utils import _pytree

from msprobe_collector.dump_format.sketches import LEAST, MOST, memory_order
from msprobe_collector.dump_format.writing.encoding import (
    EncodeInner,
    PendingStatistics,
    TensorValues,
    WrittenPart,
    fingerprint_of,
)
from msprobe_collector.dump_format.writing.parts import ValueParts
from msprobe_collector.dump_format.writing.statistics import NO_STATISTICS, Statistics, statistics_of
from msprobe_collector.pytorch.device import TorchPending, copied_to_host, host_array, is_on_host, shared

_T = TypeVar("_T")

TENSOR = "torch.Tensor"
#: No other reader knows their dtypes; the values are those that the quantised ones stand for.
QUANTISED = "torch.QuantizedTensor"
#: Elements of a row, whose sum is taken at once, and of a block.
_ROW, _BLOCK = 1 << 12, 1 << 18
_HALF = {torch.float16, torch.bfloat16}
_REAL = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class TorchTensorValues(TensorValues):
    """A tensor whose elements are looked at when they are asked for."""

    __slots__ = ("_array", "_is_own", "_shape", "_tensor", "_wait")

    def __init__(self, tensor: Any, dtype_name: str, fields: str) -> None:
        self._tensor = tensor
        #: Whether nothing changes the tensor any more.
        self._is_own = False
        self._array: np.ndarray[Any, Any] | None = None
        #: Waits until the elements are there, where they are on their way to the host.
        self._wait: Callable[[], object] | None = None
        self.origin = self.number = None
        self.is_rest = False
        self.dtype_name = dtype_name
        self.type_name = QUANTISED if tensor.is_quantized else TENSOR
        self.fields = fields

    @property
    def array(self) -> Any:  # type: ignore[override]  # asked for late
        """Elements of the tensor; None where none can be read (meta, inside vmap)."""
        if self._array is None:
            self._settle()
            self._array = _outside_transforms(_array, self._tensor)
        return self._array

    def _settle(self) -> None:
        if self._wait is not None:
            self._wait()
            self._wait = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        tensor = self._tensor
        if tensor is None:
            return self._shape
        return tuple(tensor.shape) if not tensor.is_nested else (tensor.size(0),)

    def statistics(self) -> Statistics:
        """Of elements on the host, and of what `later` does not take."""
        self._settle()
        tensor = self._tensor
        # Up to this many elements NumPy is quicker on a CPU.
        if self._is_strided and is_on_host(tensor) and tensor.dtype in _REAL and tensor.numel() > 1 << 14:
            return _outside_transforms(_reduced, tensor)
        array = self.array
        return NO_STATISTICS if array is None else statistics_of(array)

    def later(self, pending: PendingStatistics) -> int | None:
        """Of small tensors and of those on a device: nothing waits for them until a step has many."""
        if not self._is_strided:
            return None
        return _outside_transforms(partial(cast("TorchPending", pending).add, is_own=self._is_own), self._tensor)

    def keep(self, *, has_elements: bool) -> None:
        """See `TensorValues`; elements of a device are on their way then, in stream order."""
        tensor = self._tensor
        self._shape = self.shape
        if not has_elements:
            self._tensor = None
        elif is_on_host(tensor) or not self._is_strided:
            self._tensor = _outside_transforms(torch.clone, tensor)
        else:
            self._tensor, self._wait = _outside_transforms(copied_to_host, tensor)

    def take(self, part: WrittenPart) -> bool:
        """See `TensorValues`."""
        inside = part.part_of(self._tensor)
        if inside is not None:
            self._tensor = inside
        return inside is not None

    @property
    def held_bytes(self) -> int:
        """See `TensorValues`."""
        return 0 if self._tensor is None else self._tensor.numel() * self._tensor.element_size()

    @property
    def _is_strided(self) -> bool:
        tensor = self._tensor
        return _is_plain(tensor) and tensor.layout is torch.strided and not tensor.is_quantized

    def plus(self, other: TensorValues, *, factor: int = 1) -> TensorValues | None:
        """See `TensorValues`."""
        return self._combined(other, partial(torch.add, alpha=factor))

    def minus(self, other: TensorValues) -> TensorValues | None:
        """See `TensorValues`."""
        if (rest := self._combined(other, _rest)) is not None:
            rest.is_rest = True
        return rest

    def _combined(self, other: TensorValues, combine: Callable[[Any, Any], Any]) -> TensorValues | None:
        if not isinstance(other, TorchTensorValues) or is_on_host(self._tensor):
            return None
        combined = _outside_transforms(lambda tensor: combine(tensor, other._tensor), self._tensor)
        return TorchTensorValues(combined, self.dtype_name, self.fields)


def _rest(whole: Any, part: Any) -> Any:
    return (whole - part).masked_fill_((whole == part) | ((whole != whole) & (part != part)), 0)


class TorchValues:
    """See `FrameworkValues`."""

    tensor_types: tuple[type, ...] = (torch.Tensor,)
    dtype_type: type = torch.dtype
    dtype_type_name = "torch.dtype"
    file_suffix = ".pt"

    # How functions written in Python ask modes.
    hidden_lines: tuple[str, ...] = ("handle_torch_function(", "mode.__torch_function__(")

    def __init__(self) -> None:
        """Read nothing yet."""
        self.parts = ValueParts(self.tensor_types, registered=_registered_parts)

    def read(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        if type(tensor) not in _OWN_TYPES:
            with torch._C.DisableTorchFunctionSubclass():
                local = getattr(tensor, "_local_tensor", None)
                if local is not None and hasattr(tensor, "placements"):
                    return _part_of(tensor, self._read(_arrived(local)))
                if (arrived := _arrived(tensor)) is not tensor:
                    values = self._read(arrived)
                    values.fields = _requires_grad(tensor.requires_grad)
                    return values
                # A class that only adds to the tensor is left out; others alone can compute with theirs.
                has_own_memory = type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
                return self._read(tensor.as_subclass(torch.Tensor) if has_own_memory else tensor)
        return self._read(tensor)

    def _read(self, tensor: Any) -> TensorValues:
        requires_grad = tensor.requires_grad
        dtype = torch.float32 if tensor.is_quantized else tensor.dtype
        if requires_grad or _functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _outside_transforms(_detached, tensor)
        return TorchTensorValues(tensor, _dtype_name(dtype), _requires_grad(requires_grad))

    def frozen(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        if type(tensor) not in _OWN_TYPES and (hasattr(tensor, "placements") or _arrived(tensor) is not tensor):
            values = self.read(tensor)  # a copy of what is not there yet would wait for the training
            held: Any = values
            held._tensor = held._tensor.clone()
            return values
        copied: Any = self.read(tensor.detach().clone())
        copied.fields, copied._is_own = _requires_grad(tensor.requires_grad), True
        return copied  # type: ignore[no-any-return]

    def pending(self, *, has_sketches: bool) -> TorchPending:
        """See `FrameworkValues`."""
        return TorchPending(has_sketches=has_sketches)

    def dtype_text(self, dtype: Any) -> str:
        """See `FrameworkValues`."""
        return _dtype_name(dtype)

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """Devices, layouts, memory formats and process groups."""
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return f'{{"type": "torch.{type(value).__name__}", "value": {json.dumps(str(value))}}}'
        if type(value).__name__ == "ProcessGroup":
            return _group(value)
        if isinstance(value, GroupRanks):
            return value.text()
        if type(value).__name__ in ("RedOpType", "ReduceOp"):
            return f'{{"type": "torch.distributed.ReduceOp", "value": {json.dumps(str(value))}}}'
        return None


def _registered_parts(value: Any) -> Any:
    """What the class of `value` has declared to `torch.utils._pytree`; None where it has not."""
    node = _pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else node.flatten_fn(value)[0]


@cache
def torch_values() -> TorchValues:
    """The one of this process."""
    return TorchValues()


@cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype)


class GroupRanks:
    """Stands for the process group of these global ranks in a record."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)

    def text(self) -> str:
        """The entry of a group in a dump."""
        identity = f"{zlib.crc32(str(self.ranks).encode()):08x}"
        return json.dumps({"type": "torch.ProcessGroup", "group_ranks": self.ranks, "group_id": identity})


def _group(group: Any) -> str:
    from torch import distributed

    return GroupRanks(distributed.get_process_group_ranks(group)).text()


def _requires_grad(is_required: bool) -> str:
    return f', "requires_grad": {"true" if is_required else "false"}'


def _arrived(tensor: Any) -> Any:
    """What a functional collective has given, when it is there; other tensors as they are.

    The tensor itself does not learn that it was waited for: the training waits where it would.
    """
    if type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    return tensor.elem if tensor.completed else torch.ops._c10d_functional.wait_tensor(tensor.elem)


_OWN_TYPES = (torch.Tensor, torch.nn.Parameter)
_without_transforms: Callable[[], AbstractContextManager[None]] = getattr(torch._C, "_DisableFuncTorch")  # noqa: B009


def _outside_transforms(compute: Callable[[Any], _T], tensor: Any) -> _T:
    """`compute(tensor)`; inside torch.func.grad and its like, what is computed would be wrapped, without memory."""
    if _functorch.peek_interpreter_stack() is None:
        return compute(tensor)
    with _without_transforms():
        return compute(tensor)


def _detached(tensor: Any) -> Any:
    """The values that a tensor stands for. Those of vmap are one of many and stay as they are."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.detach() if tensor.requires_grad else tensor


def _part_of(whole: Any, part: TensorValues) -> TensorValues:
    """The part of a DTensor that this process holds, with how the whole is spread."""
    mesh = whole.device_mesh
    spread = {
        "placements": list(map(str, whole.placements)),
        "mesh": mesh.mesh.tolist(),
        "mesh_dim_names": mesh.mesh_dim_names,
        "global_shape": list(whole.shape),
    }
    part.fields = f'{_requires_grad(whole.requires_grad)}, "dtensor": {json.dumps(spread)}'
    return part


def _is_plain(tensor: Any) -> bool:
    """Whether the elements of a strided tensor can be computed with."""
    return type(tensor) in _OWN_TYPES and not (
        tensor.is_meta or tensor.is_nested or _functorch.is_functorch_wrapped_tensor(tensor)
    )


def _array(tensor: Any) -> np.ndarray[Any, Any] | None:
    if not _is_plain(tensor):
        return None
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return host_array(tensor.cpu().resolve_conj().resolve_neg())


def content_of(tensor: Any) -> Any:
    """A key of the elements of a tensor: their fingerprint; on a device a tensor of one integer, to be waited for.

    None of one that nobody can read.
    """
    is_strided = _is_plain(tensor) and not tensor.is_quantized and tensor.layout is torch.strided
    if is_on_host(tensor):
        if is_strided and tensor.dtype in _REAL and not tensor.is_neg():
            return fingerprint_of(cast("np.ndarray[Any, Any]", host_array(tensor.detach())))
        array = torch_values().read(tensor).array
        return None if array is None else fingerprint_of(array)
    if not is_strided:
        return None
    return _outside_transforms(sum_of_bits, tensor.detach())


def sum_of_bits(tensor: Any) -> Any:
    """The sum of the elements' bits, as integers, in which each 4096 of them count with a weight of their own."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.resolve_neg().reshape(-1)
    bits = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    count = bits.numel() - bits.numel() % _ROW
    rows = bits[:count].view(-1, _ROW).sum(1, dtype=torch.int64)
    weights = torch.arange(2, rows.numel() + 2, device=rows.device)
    return (rows * weights).sum() + bits[count:].sum(dtype=torch.int64)


def _reduced(tensor: Any) -> Statistics:
    """The statistics of a large real tensor on a CPU, whose elements are taken in the order in which they lie.

    Sums are taken in the tensor's dtype (half precision in float32) over rows of 4096 elements, and of the rows in
    float64: right to 1e-7 of the norm, and the same for every number of threads.
    """
    dense = tensor.permute(memory_order(tensor.stride()))
    flat = dense.view(-1) if dense.is_contiguous() else tensor.reshape(-1)
    maxima, minima, totals, squares = zip(*map(_of_block, flat.split(_BLOCK)))
    maximum, minimum, square = max(maxima), min(minima), sum(squares)
    if not LEAST < max(abs(maximum), abs(minimum)) < MOST or square != square:
        # Rare: NaN and Inf are counted, and squares that leave the range of float32 are taken in float64.
        return statistics_of(cast("np.ndarray[Any, Any]", _array(tensor)))
    return Statistics(maximum, minimum, sum(totals) / flat.numel(), math.sqrt(square))


def _of_block(block: Any) -> tuple[float, float, float, float]:
    """Maximum, minimum, sum and sum of squares of elements that stay in the cache for all four."""
    if block.dtype in _HALF:
        block = block.float()
    array = shared(block)
    whole, total, squares = len(array) - len(array) % _ROW, 0.0, 0.0
    if whole:
        rows = block[:whole].view(-1, _ROW)
        norms = shared(torch.linalg.vector_norm(rows, dim=1)).astype(np.float64)
        total, squares = float(shared(rows.sum(1)).sum(dtype=np.float64)), float(norms.dot(norms))
    if whole < len(array):
        rest = array[whole:].astype(np.float64)
        total, squares = total + float(rest.sum()), squares + float(rest.dot(rest))
    return float(np.maximum.reduce(array)), float(np.minimum.reduce(array)), total, squares
