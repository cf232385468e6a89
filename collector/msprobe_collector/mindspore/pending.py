"""Statistics of tensors on a device, computed later than they are asked for, so that no record waits for the device.

- Of a small tensor a copy is kept where it is: one operation.
- A large one is reduced at once, in at most 12 operations for each 2**21 elements, for which the host does not wait.
- All of it comes to the host in one copy.

On a CPU this would be slower: NumPy reads a tensor there in 1 us, and an operation of MindSpore takes 30 to 300 us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers_from
from threading import get_ident
from typing import Any

import numpy as np
from mindspore import mint

from msprobe_collector.dump_format.writing.device_values import DeviceSketch, row_from_device, statistics_of_blocks
from msprobe_collector.dump_format.writing.encoding import Sketched, TensorValues
from msprobe_collector.dump_format.writing.statistics import NO_STATISTICS, Statistics, slot, statistics_of_parts
from msprobe_collector.log import logger
from msprobe_collector.mindspore.device import (
    Outside,
    blocks_of,
    described,
    kind_of,
    on_host,
    reduced,
    sketch_on_device,
)
from msprobe_collector.mindspore.mindspore_internals import TENSOR, wait_for_graphs
from msprobe_collector.mindspore.script_errors import failure_at, failure_of, has_shape
from msprobe_collector.recording.guard import ComputationFailed

#: Up to this many elements a tensor is copied.
_FEW = 1 << 12
#: Values, and bytes of copies, that wait at most.
_MOST_VALUES, _MOST_BYTES = 1 << 12, 1 << 26
#: What a number takes in the memory of a device.
_LEAST_BYTES = 512


@dataclass(slots=True, eq=False)
class _WaitingValue:
    """A value while its numbers are on the device.

    Attributes:
        number: of the value.
        dtype, shape: of the tensor.
        copy: the elements of a small tensor, in one dimension.
        blocks: of each block of a large one what `reduced` gives, and its number of elements.
        sketch: numbers of the sketch; None where none is wanted.
    """

    number: int
    dtype: Any
    shape: tuple[int, ...]
    copy: Any = None
    blocks: Sequence[tuple[list[Any], int]] = ()
    sketch: Any = None

    def tensors(self) -> list[Any]:
        """Return all that comes to the host, each in one dimension, in the order of the attributes."""
        tensors = [] if self.copy is None else [self.copy]
        for numbers, _ in self.blocks:
            tensors += numbers
        return tensors if self.sketch is None else [*tensors, self.sketch]


class MindSporePending:
    """See `PendingStatistics`.

    MindSpore's operations are launched by the thread that trains and by no other, so only there it can be full.
    """

    #: Elements that are written come to the host in the thread that writes.
    has_device = True

    def __init__(self, *, has_sketches: bool) -> None:
        """Nothing waits yet."""
        self._has_sketches = has_sketches
        self._numbers = numbers_from()
        self._waiting: deque[_WaitingValue] = deque()
        self._waiting_bytes = 0
        self._thread = get_ident()
        #: Whether the device has the operations for a dtype.
        self._is_supported: dict[Any, bool] = {}
        self._has_lost = False
        #: Hashes of statistics by the numbers of the values, and (slot, value, value, text) of comparisons.
        self._contents: dict[int, int] = {}
        self._comparisons: deque[tuple[int, int, int, str]] = deque()

    @property
    def is_full(self) -> bool:
        """See `PendingStatistics`."""
        return get_ident() == self._thread and self._has_many(1)

    def _has_many(self, factor: int) -> bool:
        return len(self._waiting) >= factor * _MOST_VALUES or self._waiting_bytes >= factor * _MOST_BYTES

    def entry(self, tensor: Any) -> str | None:
        """See `PendingStatistics`."""
        if (number := self.add(tensor)) is None:
            return None
        name, shape = described(tensor.dtype)[0], list(tensor.shape)
        return f'{{"type": "{TENSOR}", "dtype": "{name}", "shape": {shape}, {slot(number)}'

    def add(self, tensor: Any) -> int | None:
        """Return the number of the value; None where its statistics are to be computed at once.

        Raises:
            ComputationFailed: launching has brought up an error of the script's computation.
        """
        self._thread = get_ident()
        if self._has_many(2) or getattr(tensor, "has_init", False):
            return None
        try:
            return self._launch(tensor)
        except Exception as error:  # no memory is left, or the device is lost
            if (failure := failure_at(error, tensor, again=self._launch)) is not None:
                raise failure from error
            self._lose(error)
            return next(self._numbers)

    def _launch(self, tensor: Any) -> int | None:
        """Let the device compute the numbers of a value; None where it cannot."""
        count = math.prod(tensor.shape)
        if count and not self._supports(tensor):
            return None
        value = _WaitingValue(next(self._numbers), tensor.dtype, tuple(tensor.shape))
        with Outside():
            if 0 < count <= _FEW:
                value.copy = mint.cat([tensor.reshape(-1)])
                self._waiting_bytes += count * tensor.itemsize
            elif count:
                blocks = blocks_of(tensor)
                value.blocks = [(reduced(block, has_sketch=self._has_sketches), block.shape[0]) for block in blocks]
                value.sketch = sketch_on_device(tensor) if self._has_sketches else None
                self._waiting_bytes += _LEAST_BYTES * len(value.tensors())
        self._waiting.append(value)
        return value.number

    def _supports(self, tensor: Any) -> bool:
        """Return whether the device can compute with the dtype of a tensor, which is waited for once.

        A launch that is found to be impossible later would raise its error where the training looks at a tensor.
        """
        dtype = tensor.dtype
        if dtype not in self._is_supported:
            wait_for_graphs()  # errors of the script come up here, and not below
            try:
                with Outside():
                    first = mint.cat([mint.narrow(tensor.reshape(-1), 0, 0, 1)])
                    sketches = [sketch_on_device(first)] if self._has_sketches else []
                    on_host([*reduced(first, has_sketch=self._has_sketches), *sketches, first])
                self._is_supported[dtype] = True
            except Exception as error:
                self._is_supported[dtype] = False
                logger.warning("this device has no statistics of %s, whose elements are waited for: %s", dtype, error)
        return self._is_supported[dtype]

    def compared(self, before: int, now: int, difference: str) -> str:
        """Return a slot for `difference`, which is left empty if two values turn out to have equal statistics."""
        number = next(self._numbers)
        self._comparisons.append((number, before, now, difference))
        return slot(number)

    def texts(self) -> Mapping[int, str]:
        """See `PendingStatistics`."""
        texts = {}
        for _ in range(len(self._comparisons)):
            number, before, now, difference = self._comparisons.popleft()
            contents = self._contents.get(before), self._contents.get(now)
            texts[number] = difference if None not in contents and contents[0] != contents[1] else ""
        return texts

    def forget(self) -> None:
        """Forget the statistics of the step, which is over."""
        self._contents.clear()

    def fetch(self) -> Iterator[tuple[int, Statistics, Sketched]]:
        """See `PendingStatistics`.

        Raises:
            ComputationFailed: an error of the script's computation came up; what could be fetched was given before.
        """
        values = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._waiting_bytes = 0
        failure: ComputationFailed | None = None
        try:
            arrays = _arrays_of(values)
        except Exception as error:
            try:  # once more, without what was computed of a tensor of a failed call
                values = [value for value in values if all(map(has_shape, value.tensors()))]
                arrays, failure = _arrays_of(values), failure_of(error)
            except Exception as second:
                self._lose(second)
                return
        for number, statistics, sketched in self._statistics(values, arrays):
            self._contents[number] = hash(str(statistics))  # of numbers, NaN is not equal to itself
            yield number, statistics, sketched
        if failure is not None:
            raise failure

    def _statistics(
        self, values: Sequence[_WaitingValue], arrays: Iterator[np.ndarray[Any, Any]]
    ) -> Iterator[tuple[int, Statistics, Sketched]]:
        """Yield what `fetch` does; `arrays` are the tensors of the values, one after the other."""
        copies: dict[Any, list[tuple[_WaitingValue, np.ndarray[Any, Any]]]] = {}
        for value in values:
            if value.copy is not None:
                copies.setdefault(value.dtype, []).append((value, next(arrays)))
            elif value.blocks:
                yield value.number, *self._of_blocks(value, arrays)
            else:
                yield value.number, NO_STATISTICS, TensorValues(np.zeros(0), described(value.dtype)[0], TENSOR)
        for dtype, same in copies.items():
            small, held = zip(*same)
            every = statistics_of_parts(np.concatenate(held), [array.size for array in held])
            for value, array, statistics in zip(small, held, every):
                yield value.number, statistics, TensorValues(array.reshape(value.shape), described(dtype)[0], TENSOR)

    def _of_blocks(
        self, value: _WaitingValue, arrays: Iterator[np.ndarray[Any, Any]]
    ) -> tuple[Statistics, DeviceSketch]:
        rows = []
        for numbers, size in value.blocks:
            row = [next(arrays).item() for _ in numbers]
            row[3] = math.sqrt(row[3])
            row[5:6] = [size - finite for finite in row[5:6]]
            rows.append(row)
        kind: Any = {"b": "bool", "i": "int", "u": "int"}.get(kind_of(value.dtype), "float")
        statistics, above = statistics_of_blocks(list(zip(*rows)), math.prod(value.shape), kind)
        sketch = None if value.sketch is None else row_from_device(next(arrays), statistics, above)
        return statistics, DeviceSketch(sketch)

    def _lose(self, error: Exception) -> None:
        if not self._has_lost:
            self._has_lost = True
            logger.warning("a device gives no statistics of some values, which are recorded without them: %s", error)


def _arrays_of(values: Sequence[_WaitingValue]) -> Iterator[np.ndarray[Any, Any]]:
    """Return the elements of all tensors of the values."""
    tensors = [tensor for value in values for tensor in value.tensors()]
    return iter(on_host(tensors) if tensors else ())
