"""MindSpore's operations where tensors are: copies, statistics, sketches and hashes, none of which the host waits for.

- Of a small tensor a copy is kept where it is: one operation.
- A large one is reduced at once, in at most 12 operations for each 2**21 elements, for which the
  host does not wait.
- All of it comes to the host in one copy.

On a CPU this would be slower: NumPy reads a tensor there in 1 us, and an operation of MindSpore
takes 30 to 300 us.
Run so far on a CPU alone, in tests, where MindSpore's operations on the CPU stand for those of a device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count as numbers_from
from threading import get_ident
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore._c_expression import MixedPrecisionType
from mindspore._c_expression.amp import AmpLevel, pop_amp_strategy, push_amp_strategy

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
from msprobe_collector.mindspore.mindspore_internals import (
    TENSOR,
    failure_at,
    failure_of,
    graph_executors,
    has_shape,
    wait_for_graphs,
)
from msprobe_collector.recording.guard import ComputationFailed

#: Elements that are reduced at a time, and those of sketches and sums of bits that are added in a row.
_BLOCK, _ROW = 1 << 21, 1 << 12
#: Elements of a sketch that are multiplied at a time.
_SKETCHED = 1 << 24
#: Devices that do not compute in float64.
_NARROW = {"Ascend"}
_BITS = {1: mindspore.int8, 2: mindspore.int16, 4: mindspore.int32, 8: mindspore.int64}


def is_on_host() -> bool:
    """Return whether tensors lie in memory of the host, where NumPy reads them without waiting for a device."""
    return bool(mindspore.get_context("device_target") == "CPU")


@cache
def has_views_of_bytes() -> bool:
    """Return whether a tensor can be viewed in another dtype, which MindSpore 2.7 cannot do."""
    try:
        Tensor([0.0], mindspore.float32).view(mindspore.uint8)
    except TypeError:
        return False
    return True


class Outside:
    """A context in which operations leave no trace in the script's backward, and mixed precision casts nothing."""

    def __enter__(self) -> None:
        """Leave the script's modes."""
        self._executor = graph_executors()._pynative_executor
        self._takes_gradients = self._executor.enable_grad()
        self._executor.set_enable_grad(False)
        self._executor.set_mixed_precision_type(MixedPrecisionType.NOTSET)
        push_amp_strategy(AmpLevel.AmpO0, mindspore.float16, [], [])

    def __exit__(self, *error: object) -> None:
        """Enter them again."""
        pop_amp_strategy()
        self._executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, False)
        self._executor.set_enable_grad(self._takes_gradients)


@cache
def described(dtype: Any) -> tuple[str, np.dtype[Any] | None]:
    """Return the name of a dtype, and NumPy's dtype of arrays that hold such tensors, None where there is none."""
    name = str(dtype)
    described = find_dtype(name)
    return name, None if described is None or described.name == "Int4" else array_dtype(described)


def copied(tensor: Any) -> Any:
    """Return a contiguous copy of a tensor where it is: what the training changes later is not seen."""
    with Outside():
        return mint.cat([tensor.reshape(-1)]).reshape(tensor.shape)


def on_host(tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the elements of tensors of one dimension, none of them empty, in one copy from the device."""
    places: dict[Any, list[int]] = {}
    groups: dict[Any, list[Any]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
        groups.setdefault(tensor.dtype, []).append(tensor)
    with Outside():
        joined = [mint.cat(group).view(mindspore.uint8) for group in groups.values()]
        content = mint.cat(joined).asnumpy()
    arrays: list[Any] = [None] * len(tensors)
    start = 0
    for dtype, same in places.items():
        numpy_dtype: Any = described(dtype)[1]
        for place in same:
            end = start + tensors[place].shape[0] * numpy_dtype.itemsize
            arrays[place] = content[start:end].view(numpy_dtype)
            start = end
    return arrays


def sum_of_bits(tensor: Any) -> Any:
    """Return the sum of the elements' bits, in which each 4096 of them have a weight, as a tensor of one integer."""
    with Outside():
        flat = (ops.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
        bits = flat.view(_BITS[flat.itemsize])
        whole = bits.shape[0] - bits.shape[0] % _ROW
        sums = [bits[whole:]] if whole < bits.shape[0] else []
        if whole:
            rows = mint.sum(bits[:whole].reshape(-1, _ROW), 1, dtype=mindspore.int64)
            sums.append(rows * Tensor(np.arange(2, rows.shape[0] + 2)))
        return sum(mint.sum(part, 0, True, dtype=mindspore.int64) for part in sums)


def kind_of(dtype: Any) -> str:
    """Return the kind of a dtype as NumPy has it: "b", "i", "u", "f", "c", or "V" of a number that NumPy lacks."""
    numpy_dtype = described(dtype)[1]
    return "V" if numpy_dtype is None else numpy_dtype.kind


def reduced(block: Any, *, has_sketch: bool) -> list[Any]:
    """Return what `statistics_of_blocks` takes of elements in one dimension, each as a tensor of one number.

    In place of the norm stands the sum of squares, and in that of elements that are not finite the number of those
    that are.
    """
    kind = kind_of(block.dtype)
    wide = ops.cast(mint.abs(block) if kind == "c" else block, _wide(block.dtype))
    exact = block if kind in "iu" else wide
    numbers = [ops.amin(exact, 0, True), ops.amax(exact, 0, True)]
    numbers += [mint.sum(wide, 0, True), mint.sum(mint.square(wide), 0, True)]
    if kind not in "biu":
        masks = [mint.ne(wide, wide), mint.isfinite(wide)]
        if has_sketch:
            masks.append(mint.eq(wide, float("inf")))
        numbers += [mint.sum(mask, 0, True) for mask in masks]
    return numbers


def _wide(dtype: Any) -> Any:
    is_narrow = mindspore.get_context("device_target") in _NARROW and dtype != mindspore.float64
    return mindspore.float32 if is_narrow else mindspore.float64


def blocks_of(tensor: Any) -> Iterator[Any]:
    """Yield the elements of a tensor in some order, in tensors of one dimension that are no copies of the whole."""
    if not tensor.is_contiguous():
        dense = mint.permute(tensor, memory_order(tensor.stride()))
        if not dense.is_contiguous() and tensor.size > _BLOCK:
            longest = max(range(tensor.ndim), key=lambda dimension: tensor.shape[dimension])
            for part in mint.chunk(tensor, 2, longest):
                yield from blocks_of(part)
            return
        tensor = dense
    flat = tensor.reshape(-1)
    yield from mint.split(flat, _BLOCK) if tensor.size > _BLOCK else (flat,)


def _finite(part: Any) -> Any:
    """Return elements with 0 in the place of those that are not finite."""
    return mint.where(mint.isfinite(part), part, 0.0)


@cache
def _arithmetic(dtype: Any) -> Arithmetic:
    return Arithmetic(
        tables=Tables(lambda table: ops.cast(Tensor(table), dtype), scale=2.0**-SHIFT),
        raised=lambda part: _finite(ops.cast(part, dtype)),
        weighted=lambda counters, table: sum(mint.sum(part, 1) for part in mint.split(counters * table, _ROW, 1)),
        joined=mint.cat,
        block=_SKETCHED,
        product=_product,
    )


def _product(rows: Any, table: Any) -> Any:
    """Return a product of matrices; the sum of very many float32 in a row loses digits."""
    pieces = zip(mint.split(rows, _ROW, 1), mint.split(table, _ROW, 0))
    return sum(mint.matmul(part, rows_of_table) for part, rows_of_table in pieces)


def sketch_on_device(tensor: Any) -> Any:
    """Return the 64 numbers of the sketch of a tensor with elements, times 2**-32.

    They are computed in float32 where all its numbers are exact there, else in float64, if the device has it.
    """
    if tensor.is_complex():
        tensor = ops.view_as_real(tensor)
    order = memory_order(tensor.stride())
    plan = plan_of(tuple(tensor.shape), order)
    flat = mint.permute(tensor, order).reshape(-1)
    for rows, length, padded, columns in plan.pads:
        zeros = mint.zeros((rows, padded - length, columns), dtype=flat.dtype)
        flat = mint.cat([flat.reshape(rows, length, columns), zeros], 1).reshape(-1)
    is_wide = tensor.dtype in (mindspore.float64, mindspore.int32, mindspore.int64)
    return _arithmetic(_wide(tensor.dtype) if is_wide else mindspore.float32).fold(flat, plan)


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

    - Of a small tensor a copy is kept where it is: one operation.
    - A large one is reduced at once, in at most 12 operations for each 2**21 elements, which the
      host does not wait for.
    - All of it comes to the host in one copy.

    On a CPU this would be slower: NumPy reads a tensor there in 1 us, and an operation of
    MindSpore takes 30 to 300 us.
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
