"""Statistics of tensors that are computed later than they are asked for, so that no record waits for a device.

- Of a small tensor a copy is kept where it is: one operation. Copies of one dtype and shape are reduced at once.
- Of a large one on a device it is reduced at once, in eight operations for each 2**21 elements, none of which the host
  waits for, and none of whose results is as large as the tensor.
- All of it comes to the host in one copy from each device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

from msprobe_collector.dump_format.sketches import memory_order
from msprobe_collector.dump_format.writing.statistics import Statistics, statistics_of_rows
from msprobe_collector.log import logger
from msprobe_collector.pytorch.host_arrays import host_arrays, numpy_dtype

#: Up to this many elements a tensor is copied.
_FEW = 1 << 12
#: Elements that are reduced at a time.
_BLOCK = 1 << 21
#: Values, and bytes of copies, that wait at most; of values on the host few, since a kill costs their records.
_MOST_VALUES, _MOST_BYTES = 1 << 12, 1 << 26
_MOST_ON_HOST = 1 << 6
#: Devices that do not compute in float64.
_NARROW = frozenset({"mps", "npu"})


@dataclass(frozen=True, slots=True)
class _Reduced:
    """A large tensor while its statistics are on the device.

    Attributes:
        number: of the value.
        dtype, count: of its elements.
        parts: of each block its minimum, maximum, sum, norm and, of floating-point numbers, counts of elements that are
            NaN, and that are not finite; tensors without dimensions.
    """

    number: int
    dtype: Any
    count: int
    parts: list[tuple[Any, ...]]

    @property
    def device(self) -> Any:
        """Where the parts are."""
        return self.parts[0][0].device


class TorchPending:
    """See `PendingStatistics`."""

    def __init__(self) -> None:
        """Nothing waits yet."""
        self._lock = Lock()
        self._count = 0
        self._waiting_values = 0
        self._waiting_on_host = 0
        self._waiting_bytes = 0
        #: Numbers and copies of small tensors, by device, dtype and shape.
        self._copies: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
        self._reduced: list[_Reduced] = []
        self._has_lost = False

    @property
    def is_full(self) -> bool:
        """See `PendingStatistics`."""
        return (
            self._waiting_values >= _MOST_VALUES
            or self._waiting_bytes >= _MOST_BYTES
            # Where there are others, their device would have to be waited for.
            or self._waiting_values == self._waiting_on_host >= _MOST_ON_HOST
        )

    def add(self, tensor: Any) -> int | None:
        """Take a strided tensor; the number of the value, None where its statistics are to be computed at once."""
        count, dtype = tensor.numel(), tensor.dtype
        if (count > _FEW and is_on_host(tensor)) or numpy_dtype(dtype) is None:
            return None
        copy, parts = None, []
        try:
            if 0 < count <= _FEW:
                copy = tensor.clone()
            elif count:
                parts = [_reduced_block(block) for block in _blocks(tensor)]
        except torch.OutOfMemoryError as error:
            self._lose(error)
            count = 0
        with self._lock:
            number = self._count
            self._count += 1
            self._waiting_values += 1
            self._waiting_on_host += is_on_host(tensor)
            if copy is not None:
                self._waiting_bytes += count * copy.element_size()
                self._copies.setdefault((copy.device, dtype, copy.shape), []).append((number, copy))
            elif count:
                self._reduced.append(_Reduced(number, dtype, count, parts))
        return number

    def fetch(self) -> Iterator[tuple[int, Statistics]]:
        """See `PendingStatistics`."""
        with self._lock:
            copies, self._copies = self._copies, {}
            reduced, self._reduced = self._reduced, []
            self._waiting_values = self._waiting_on_host = self._waiting_bytes = 0
        places = {key[0] for key in copies} | {value.device for value in reduced}
        for place in sorted(places, key=str):
            yield from _fetched(
                {key: held for key, held in copies.items() if key[0] == place},
                [value for value in reduced if value.device == place],
            )

    def _lose(self, error: Exception) -> None:
        if not self._has_lost:
            self._has_lost = True
            logger.warning("a device has no memory for statistics; such values are recorded without them: %s", error)


def is_on_host(tensor: Any) -> bool:
    """Whether its elements can be read without waiting for a device."""
    return bool(tensor.is_cpu)


def _fetched(
    copies: dict[tuple[Any, ...], list[tuple[int, Any]]], reduced: list[_Reduced]
) -> Iterator[tuple[int, Statistics]]:
    """The statistics of values on one device, from which they come in one copy."""
    stacks = [torch.stack([copy for _, copy in held]).resolve_conj().resolve_neg() for held in copies.values()]
    arrays = host_arrays([*stacks, *(scalar for value in reduced for part in value.parts for scalar in part)])
    for held, array in zip(copies.values(), arrays):
        numbers = [number for number, _ in held]
        yield from zip(numbers, statistics_of_rows(array.reshape(len(numbers), -1)), strict=True)
    yield from _of_reduced(reduced, [scalar.item() for scalar in arrays[len(stacks) :]])


def _of_reduced(values: list[_Reduced], scalars: list[Any]) -> Iterator[tuple[int, Statistics]]:
    """Of values whose parts are `scalars`, one after the other."""
    numbers = iter(scalars)
    for value in values:
        parts = [[next(numbers) for _ in part] for part in value.parts]
        minima, maxima, sums, norms, *counts = zip(*parts, strict=True)
        nan, not_finite = (sum(count) for count in counts) if counts else (0, 0)
        if value.dtype is torch.bool:
            yield value.number, Statistics(bool(max(maxima)), bool(min(minima)), None, None)
            continue
        maximum, minimum = (math.nan, math.nan) if nan else (max(maxima), min(minima))
        norm: float | None = math.hypot(*norms)
        if norm == math.inf and not (nan or not_finite):
            norm = None  # squares left the range
        yield value.number, Statistics(maximum, minimum, sum(sums) / value.count, norm, nan, not_finite - nan)


def _blocks(tensor: Any) -> Iterator[Any]:
    """The elements of a tensor in some order, in tensors of one dimension and at most `_BLOCK` elements."""
    order = memory_order(tensor.stride())
    dense = tensor.permute(order)
    if dense.is_contiguous():
        yield from dense.view(-1).split(_BLOCK)
    elif tensor.numel() <= _BLOCK:
        yield tensor.reshape(-1)
    else:
        longest = max(range(tensor.ndim), key=lambda dimension: tensor.shape[dimension])
        for part in tensor.tensor_split(2, longest):
            yield from _blocks(part)


def _reduced_block(block: Any) -> tuple[Any, ...]:
    """See `_Reduced.parts`."""
    dtype = block.dtype
    wide = (block.abs() if dtype.is_complex else block).to(
        torch.float32 if block.device.type in _NARROW else torch.float64
    )
    if dtype.is_floating_point or dtype.is_complex:
        minimum, maximum = torch.aminmax(wide)
        nan = torch.count_nonzero(wide != wide)
        sums = wide.sum(), torch.linalg.vector_norm(wide)
        return minimum, maximum, *sums, nan, torch.count_nonzero(wide - wide)
    # float64 does not hold all integers of 64 bits.
    exact = block if dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64) else wide
    return *torch.aminmax(exact), wide.sum(), torch.linalg.vector_norm(wide)
