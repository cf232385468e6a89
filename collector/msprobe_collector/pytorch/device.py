"""PyTorch's operations where tensors are: copies, statistics and sketches, computed later than they are asked for.

- Of a small tensor a copy is kept where it is: one operation. Copies of one dtype and shape are reduced at once.
- A large one on a device is reduced at once, none of which the host waits for: in one pass by a kernel of Triton, else
  in eight operations for each 2**21 elements, none of whose results is as large as the tensor.
- All of it comes to the host in one copy from each device; NumPy shares the memory of tensors on
  the CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count as numbers_from, repeat
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch._C import _functorch

from msprobe_collector import logger
from msprobe_collector.dump_format import array_dtype, find_dtype
from msprobe_collector.dump_format.sketches import Arithmetic, Tables, memory_order, plan_of
from msprobe_collector.dump_format.writing.encoding import Sketched, TensorValues
from msprobe_collector.dump_format.writing.statistics import (
    NO_STATISTICS,
    SHIFT,
    DeviceSketch,
    Statistics,
    row_from_device,
    slot,
    statistics_of_blocks,
    statistics_of_parts,
)
from msprobe_collector.pytorch import one_pass

#: Elements that are multiplied at a time.
_SKETCHED_AT_ONCE = 1 << 24
#: Devices that do not compute in float64.
NARROW = frozenset({"mps", "npu"})


@cache
def _arithmetic(device: Any, dtype: Any) -> Arithmetic:
    return Arithmetic(
        tables=Tables(lambda table: torch.from_numpy(table).to(device, dtype), scale=2.0**-SHIFT),
        # Elements that are not finite count as 0.
        raised=lambda part: torch.nan_to_num(part.to(dtype), 0.0, 0.0, 0.0),
        weighted=lambda counters, table: (counters * table).sum(1),
        joined=torch.cat,
        block=_SKETCHED_AT_ONCE,
    )


def sketch_on_device(tensor: Any) -> Any:
    """The 64 numbers of a tensor with elements, times 2**-32, on its device; nothing waits for it.

    Computed in float32 where all its numbers are exact there, else in float64.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    is_wide = tensor.dtype in (torch.float64, torch.int32, torch.int64)
    # A script may have allowed products of float32 to lose digits.
    is_wide = is_wide or (tensor.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    dtype = torch.float64 if is_wide and tensor.device.type not in NARROW else torch.float32
    order = memory_order(tensor.stride())
    plan = plan_of(tuple(tensor.shape), order)
    flat = tensor.permute(order).reshape(-1)
    for rows, length, padded, columns in plan.pads:
        flat = torch.nn.functional.pad(flat.reshape(rows, length, columns), (0, 0, 0, padded - length)).reshape(-1)
    with torch.autocast(flat.device.type, enabled=False):
        return _arithmetic(flat.device, dtype).fold(flat, plan)


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


_T = TypeVar("_T")
#: Up to this many elements a tensor is copied.
_FEW = 1 << 12
#: Elements that are reduced at a time.
_BLOCK = 1 << 21
#: Values, and bytes of copies, that wait at most; of values on the host few, since a kill costs their records.
_MOST_VALUES, _MOST_BYTES = 1 << 12, 1 << 26
_MOST_ON_HOST = 1 << 8
#: Whether the elements of a tensor can be read without waiting for a device.
is_on_host: Callable[[Any], bool] = attrgetter("is_cpu")
#: The elements of several tensors of one dtype, in their order, one after the other.
_joined: Callable[[list[Any]], Any] = torch._C._nn.flatten_dense_tensors
_is_wrapped: Callable[[Any], bool] = _functorch.is_functorch_wrapped_tensor
_transform: Callable[[], Any] = _functorch.peek_interpreter_stack


@dataclass(slots=True, eq=False)
class _Reduced:
    """A large tensor while its statistics are on the device.

    Attributes:
        number: of the value.
        dtype, count: of its elements.
        width: numbers of a part: minimum, maximum, sum, norm and, of floating-point numbers, counts of elements that
            are NaN, that are not finite and, with sketches, that are +Inf.
        parts: tensors that hold these numbers of each block, one after the other.
        sketch: numbers of the sketch; None where none is wanted.
    """

    number: int
    dtype: Any
    count: int
    width: int
    parts: list[Any]
    sketch: Any

    @property
    def device(self) -> Any:
        """Where the parts are."""
        return self.parts[0].device


#: Number of a small value, a copy of it, and how many elements it has.
_Copy = tuple[int, Any, int]
_Copies = deque[_Copy]


@dataclass(slots=True, eq=False)
class _Form:
    """What is the same of all values of one dtype, shape and device: made once.

    Attributes:
        before, after: what stands around the number of such a value in a record, with the ends of its slot.
        count: of its elements.
        copies: numbers of small values, copies of them, and how many elements each has, of one dtype and device;
            None for a large value.
        bytes: of a copy.
        is_here: whether it is on the host.
        requires_grad: whether a copy of it would be a part of the script's graph.
    """

    before: str
    after: str
    count: int
    copies: _Copies | None
    bytes: int
    is_here: bool
    requires_grad: bool


_NO_SKETCH = DeviceSketch(None)


class TorchPending:
    """See `PendingStatistics`."""

    def __init__(self, *, has_sketches: bool = False) -> None:
        """Nothing waits yet."""
        self._has_sketches = has_sketches
        self._numbers = numbers_from()  # several threads ask
        self._waiting = self._waiting_on_host = self._waiting_bytes = 0
        #: Small values by device (None is the host) and dtype; number and dtype of those without elements.
        self._copies: dict[tuple[Any, Any], _Copies] = {}
        self._empty: deque[tuple[int, Any]] = deque()
        self._reduced: deque[_Reduced] = deque()
        #: By what tells them apart; None for values whose statistics are computed at once.
        self._forms: dict[tuple[Any, ...], _Form | None] = {}
        self._has_lost = False

    @property
    def has_device(self) -> bool:
        """See `PendingStatistics`."""
        return has_pinned_memory()

    @property
    def is_full(self) -> bool:
        """See `PendingStatistics`."""
        return (
            self._waiting >= _MOST_VALUES
            or self._waiting_bytes >= _MOST_BYTES
            # Where there are others, their device would have to be waited for.
            or self._waiting == self._waiting_on_host >= _MOST_ON_HOST
        )

    def entry(self, tensor: Any) -> str | None:
        """See `PendingStatistics`."""
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.is_nested:
            return None
        if _is_wrapped(tensor) or _transform() is not None or (form := self._form_of(tensor)) is None:
            return None
        return f"{form.before}{self._take(form, tensor)}{form.after}"

    def add(self, tensor: Any, *, is_own: bool = False) -> int | None:
        """Take a strided tensor; the number of the value, None where its statistics are to be computed at once.

        `is_own`: nothing changes it any more, so that a small one is not copied.
        """
        form = self._form_of(tensor)
        return None if form is None else self._take(form, tensor, is_own=is_own)

    def _form_of(self, tensor: Any) -> _Form | None:
        place = None if is_on_host(tensor) else tensor.device
        key = tensor.dtype, tensor.shape, tensor.requires_grad, tensor.layout, place
        try:
            return self._forms[key]
        except KeyError:
            if len(self._forms) >= _MOST_VALUES:
                self._forms.clear()
            form = self._forms[key] = self._new_form(tensor, place)
            return form

    def _new_form(self, tensor: Any, place: Any) -> _Form | None:
        dtype, count = tensor.dtype, tensor.numel()
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or numpy_dtype(dtype) is None:
            return None
        is_here, is_small = place is None, count <= _FEW
        if is_here and not is_small:
            return None
        copies = self._copies.setdefault((place, dtype), deque()) if is_small else None
        text = (
            f'{{"type": "torch.Tensor", "dtype": "{dtype}", "shape": {list(tensor.shape)}, {slot("number")}'
            f', "requires_grad": {str(tensor.requires_grad).lower()}'
        )
        before, _, after = text.partition("number")
        return _Form(before, after, count, copies, count * tensor.itemsize, is_here, tensor.requires_grad)

    def _take(self, form: _Form, tensor: Any, *, is_own: bool = False) -> int:
        number = next(self._numbers)
        values = tensor.detach() if form.requires_grad else tensor
        try:
            if not form.count:
                self._empty.append((number, values.dtype))
            elif form.copies is not None:
                form.copies.append((number, values if is_own else values.clone(), form.count))
                self._waiting_bytes += form.bytes
            else:
                width, parts, sketch = self._reduce(values)
                self._waiting_bytes += 8 * len(parts) * parts[0].numel()
                self._reduced.append(_Reduced(number, values.dtype, form.count, width, parts, sketch))
            self._waiting += 1
            self._waiting_on_host += form.is_here
        except RuntimeError as error:  # no memory is left, or the device is lost
            self._lose(error)
        return number

    def _reduce(self, tensor: Any) -> tuple[int, list[Any], Any]:
        """`width`, `parts` and `sketch` of `_Reduced`."""
        sketch = sketch_on_device(tensor) if self._has_sketches else None
        parts = list(map(one_pass.reduced, _pieces(tensor)))
        if all(part is not None for part in parts):
            return one_pass.WIDTH, parts, sketch
        reduced = [
            _reduced_block(block, has_sketch=self._has_sketches)
            for piece in _pieces(tensor)
            for block in piece.split(_BLOCK)
        ]
        return len(reduced[0]), list(chain(*reduced)), sketch

    def fetch(self) -> Iterator[tuple[int, Statistics, Sketched]]:
        """See `PendingStatistics`."""
        copies = list(map(taken_from, list(self._copies.values())))
        empty = taken_from(self._empty)
        reduced = taken_from(self._reduced)
        self._waiting = self._waiting_on_host = self._waiting_bytes = 0
        for number, dtype in empty:
            yield number, NO_STATISTICS, TensorValues(np.zeros(0), str(dtype), "")
        places: dict[Any, tuple[list[list[_Copy]], list[_Reduced]]] = {}
        for held in sorted(filter(None, copies)):  # by the number of the first value
            places.setdefault(held[0][1].device, ([], []))[0].append(held)
        for value in reduced:
            places.setdefault(value.device, ([], []))[1].append(value)
        for place in sorted(places, key=str):
            try:
                yield from _fetched(*places[place], has_sketches=self._has_sketches)
            except RuntimeError as error:
                self._lose(error)

    def texts(self) -> Mapping[int, str]:
        """See `PendingStatistics`."""
        return {}

    def _lose(self, error: Exception) -> None:
        if not self._has_lost:
            self._has_lost = True
            logger.warning("a device gives no statistics of some values, which are recorded without them: %s", error)


def taken_from(values: deque[_T]) -> list[_T]:
    """What stands in `values` now, taken out; another thread may add meanwhile."""
    return [values.popleft() for _ in range(len(values))]


def _fetched(
    copies: list[list[_Copy]], reduced: list[_Reduced], *, has_sketches: bool
) -> Iterator[tuple[int, Statistics, Sketched]]:
    """The statistics of values on one device, from which they come in one copy."""
    parts = [part for value in reduced for part in value.parts]
    parts += [value.sketch for value in reduced if value.sketch is not None]
    #: Places in `parts` of those that are stacked.
    places: dict[tuple[Any, Any], list[int]] = {}
    for place, part in enumerate(parts):
        places.setdefault((part.dtype, part.shape), []).append(place)
    stacks = [_joined([copy for _, copy, _ in held]).resolve_conj().resolve_neg() for held in copies]
    stacks += [torch.stack([parts[place] for place in same]) for same in places.values()]
    arrays = host_arrays(stacks)
    for held, array in zip(copies, arrays):
        numbers, _, sizes = zip(*held)
        sketched = _sketched(held, array) if has_sketches else repeat(_NO_SKETCH)
        yield from zip(numbers, statistics_of_parts(array, sizes), sketched)
    for same, array in zip(places.values(), arrays[len(copies) :]):
        # Dimensions of what the kernel leaves of several values.
        for place, row in zip(same, one_pass.joined(array) if array.ndim == 3 else array):
            parts[place] = row
    here = iter(parts)
    numbers_of = [[number for _ in value.parts for number in np.ravel(next(here)).tolist()] for value in reduced]
    for value, figures in zip(reduced, numbers_of):
        statistics, above = _of_reduced(value, figures)
        sketch = None if value.sketch is None else row_from_device(next(here), statistics, above)
        yield value.number, statistics, DeviceSketch(sketch)


def _sketched(held: list[_Copy], array: np.ndarray[Any, Any]) -> Iterator[Sketched]:
    """What has the sketches of small values, whose elements `array` has one after the other."""
    end = 0
    for _, copy, size in held:
        yield TensorValues(array[end : end + size].reshape(copy.shape), str(copy.dtype), "")
        end += size


def _of_reduced(value: _Reduced, numbers: list[Any]) -> tuple[Statistics, int]:
    """Statistics, and how many elements are +Inf, where that is counted."""
    columns = [numbers[at :: value.width] for at in range(value.width)]
    dtype: Any = numpy_dtype(value.dtype)
    kind: Any = {"b": "bool", "i": "int", "u": "int"}.get(dtype.kind, "float")
    return statistics_of_blocks(columns, value.count, kind)


def _pieces(tensor: Any) -> Iterable[Any]:
    """The elements of a tensor in some order, in tensors of one dimension; copies have at most `_BLOCK` elements."""
    if tensor.is_contiguous():
        return (tensor.view(-1),)
    dense = tensor.permute(memory_order(tensor.stride()))
    if dense.is_contiguous():
        return (dense.view(-1),)
    if tensor.numel() <= _BLOCK:
        return (tensor.reshape(-1),)
    longest = max(range(tensor.ndim), key=lambda dimension: tensor.shape[dimension])
    return (piece for part in tensor.tensor_split(2, longest) for piece in _pieces(part))


def _reduced_block(block: Any, *, has_sketch: bool) -> tuple[Any, ...]:
    """See `_Reduced.parts`."""
    dtype = block.dtype
    wide = (block.abs() if dtype.is_complex else block).to(
        torch.float32 if block.device.type in NARROW else torch.float64
    )
    if dtype.is_floating_point or dtype.is_complex:
        minimum, maximum = torch.aminmax(wide)
        nan = torch.count_nonzero(wide != wide)
        sums = wide.sum(), torch.linalg.vector_norm(wide)
        above = (torch.count_nonzero(wide == math.inf),) if has_sketch else ()
        return minimum, maximum, *sums, nan, torch.count_nonzero(wide - wide), *above
    # float64 does not hold all integers of 64 bits.
    exact = block if dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64) else wide
    return *torch.aminmax(exact), wide.sum(), torch.linalg.vector_norm(wide)
