"""Statistics of tensors that are computed later than they are asked for, so that no record waits for a device.

- Of a small tensor a copy is kept where it is: one operation. Copies of one dtype and shape are reduced at once.
- A large one on a device is reduced at once, none of which the host waits for: in one pass by a kernel of Triton, else
  in eight operations for each 2**21 elements, none of whose results is as large as the tensor.
- All of it comes to the host in one copy from each device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count as numbers_from
from typing import Any

import numpy as np
import torch
from torch._C import _functorch

from msprobe_collector.dump_format.sketches import Row, memory_order
from msprobe_collector.dump_format.writing.encoding import Sketched, TensorValues
from msprobe_collector.dump_format.writing.statistics import NO_STATISTICS, Statistics, slot, statistics_of_parts
from msprobe_collector.log import logger
from msprobe_collector.pytorch import one_pass
from msprobe_collector.pytorch.device_sketches import NARROW, row_from_device, sketch_on_device
from msprobe_collector.pytorch.host_arrays import has_pinned_memory, host_arrays, numpy_dtype

#: Up to this many elements a tensor is copied.
_FEW = 1 << 12
#: Elements that are reduced at a time.
_BLOCK = 1 << 21
#: Values, and bytes of copies, that wait at most; of values on the host few, since a kill costs their records.
_MOST_VALUES, _MOST_BYTES = 1 << 12, 1 << 26
_MOST_ON_HOST = 1 << 6
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


class DeviceSketch:
    """Has the sketch of a large tensor, for `SketchRows`."""

    def __init__(self, row: Row | None) -> None:
        """Its row; None where the sketch has lost its digits."""
        self._row = row

    def content(self) -> None:
        """Return no key: a sketch costs less than to fetch the elements."""

    def sketch(self, largest: float | None) -> Row | None:
        """See `TensorValues`."""
        return self._row


class TorchPending:
    """See `PendingStatistics`."""

    def __init__(self, *, has_sketches: bool = False) -> None:
        """Nothing waits yet."""
        self._has_sketches = has_sketches
        self._numbers = numbers_from()  # several threads ask
        self._waiting_on_host = 0
        self._waiting_bytes = 0
        #: Numbers and copies of small tensors.
        self._copies: deque[tuple[int, Any]] = deque()
        self._reduced: deque[_Reduced] = deque()
        #: What stands before and after the slot of a value, by dtype, shape and whether it requires gradients.
        self._texts: dict[tuple[Any, ...], tuple[str, str]] = {}
        self._has_lost = False

    @property
    def has_device(self) -> bool:
        """See `PendingStatistics`."""
        return has_pinned_memory()

    @property
    def is_full(self) -> bool:
        """See `PendingStatistics`."""
        values = len(self._copies) + len(self._reduced)
        return (
            values >= _MOST_VALUES
            or self._waiting_bytes >= _MOST_BYTES
            # Where there are others, their device would have to be waited for.
            or values == self._waiting_on_host >= _MOST_ON_HOST
        )

    def entry(self, tensor: Any) -> str | None:
        """See `PendingStatistics`."""
        kind = type(tensor)
        if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or tensor.is_nested or tensor.is_meta:
            return None
        if tensor.layout is not torch.strided or _is_wrapped(tensor) or _transform() is not None:
            return None
        key = tensor.dtype, tensor.shape, tensor.requires_grad
        if (texts := self._texts.get(key)) is None:
            if len(self._texts) >= _MOST_VALUES or tensor.is_quantized:
                self._texts.clear()
                return None
            texts = self._texts[key] = (
                f'{{"type": "torch.Tensor", "dtype": "{key[0]}", "shape": {list(key[1])}, ',
                f', "requires_grad": {"true" if key[2] else "false"}',
            )
        if (number := self.add(tensor.detach() if key[2] else tensor)) is None:
            return None
        return f"{texts[0]}{slot(number)}{texts[1]}"

    def add(self, tensor: Any) -> int | None:
        """Take a strided tensor; the number of the value, None where its statistics are to be computed at once."""
        count, is_here = tensor.numel(), is_on_host(tensor)
        if (count > _FEW and is_here) or numpy_dtype(tensor.dtype) is None:
            return None
        number = next(self._numbers)
        try:
            if 0 < count <= _FEW:
                copy = tensor.clone()
                self._waiting_bytes += count * copy.itemsize
                self._copies.append((number, copy))
            elif not count:
                self._copies.append((number, torch.empty(0, dtype=tensor.dtype, device="cpu")))
            else:
                width, parts, sketch = self._reduce(tensor)
                self._waiting_bytes += 8 * len(parts) * parts[0].numel()
                self._reduced.append(_Reduced(number, tensor.dtype, count, width, parts, sketch))
            self._waiting_on_host += is_here
        except RuntimeError as error:  # no memory is left, or the device is lost
            self._lose(error)
        return number

    def _reduce(self, tensor: Any) -> tuple[int, list[Any], Any]:
        """`width`, `parts` and `sketch` of `_Reduced`."""
        sketch = sketch_on_device(tensor) if self._has_sketches else None
        parts = [one_pass.reduced(piece) for piece in _pieces(tensor)]
        if all(part is not None for part in parts):
            return one_pass.WIDTH, parts, sketch
        reduced = [
            _reduced_block(block, has_sketch=self._has_sketches)
            for piece in _pieces(tensor)
            for block in piece.split(_BLOCK)
        ]
        return len(reduced[0]), [part for parts in reduced for part in parts], sketch

    def fetch(self) -> Iterator[tuple[int, Statistics, Sketched]]:
        """See `PendingStatistics`."""
        # Another thread may add meanwhile.
        copies = [self._copies.popleft() for _ in range(len(self._copies))]
        reduced = [self._reduced.popleft() for _ in range(len(self._reduced))]
        self._waiting_on_host = self._waiting_bytes = 0
        places: dict[Any, tuple[dict[Any, list[tuple[int, Any]]], list[_Reduced]]] = {}
        for number, copy in copies:
            if copy.numel():
                groups, _ = places.setdefault(copy.device, ({}, []))
                groups.setdefault(copy.dtype, []).append((number, copy))
            else:
                yield number, NO_STATISTICS, TensorValues(np.zeros(0), str(copy.dtype), "")
        for value in reduced:
            places.setdefault(value.device, ({}, []))[1].append(value)
        for place in sorted(places, key=str):
            try:
                yield from _fetched(*places[place], has_sketches=self._has_sketches)
            except RuntimeError as error:
                self._lose(error)

    def _lose(self, error: Exception) -> None:
        if not self._has_lost:
            self._has_lost = True
            logger.warning("a device gives no statistics of some values, which are recorded without them: %s", error)


def is_on_host(tensor: Any) -> bool:
    """Whether its elements can be read without waiting for a device."""
    return bool(tensor.is_cpu)


def _fetched(
    copies: dict[Any, list[tuple[int, Any]]], reduced: list[_Reduced], *, has_sketches: bool
) -> Iterator[tuple[int, Statistics, Sketched]]:
    """The statistics of values on one device, from which they come in one copy."""
    parts = [part for value in reduced for part in value.parts]
    parts += [value.sketch for value in reduced if value.sketch is not None]
    #: Places in `parts` of those that are stacked.
    places: dict[tuple[Any, Any], list[int]] = {}
    for place, part in enumerate(parts):
        places.setdefault((part.dtype, part.shape), []).append(place)
    stacks = [torch.cat([copy.reshape(-1) for _, copy in held]) for held in copies.values()]
    stacks = [stack.resolve_conj().resolve_neg() for stack in stacks]
    stacks += [torch.stack([parts[place] for place in same]) for same in places.values()]
    arrays = host_arrays(stacks)
    for (dtype, held), array in zip(copies.items(), arrays):
        sizes, name, end = [copy.numel() for _, copy in held], str(dtype), 0
        for (number, copy), size, statistics in zip(held, sizes, statistics_of_parts(array, sizes)):
            row = array[end : end + size].reshape(copy.shape) if has_sketches else array
            yield number, statistics, TensorValues(row, name, "")
            end += size
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


def _of_reduced(value: _Reduced, numbers: list[Any]) -> tuple[Statistics, int]:
    """Statistics, and how many elements are +Inf, where that is counted."""
    minima, maxima, sums, norms, *counts = (numbers[at :: value.width] for at in range(value.width))
    nan, not_finite, above = (*(int(sum(count)) for count in counts), 0, 0, 0)[:3]
    if value.dtype is torch.bool:
        return Statistics(bool(max(maxima)), bool(min(minima)), None, None), 0
    maximum, minimum = (math.nan, math.nan) if nan else (max(maxima), min(minima))
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        maximum, minimum = int(maximum), int(minimum)
    norm: float | None = math.hypot(*norms)
    if (norm == math.inf and not (nan or not_finite)) or (norm == 0.0 and (maximum or minimum)):
        norm = None  # squares left the range
    return Statistics(maximum, minimum, sum(sums) / value.count, norm, nan, not_finite - nan), above


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
