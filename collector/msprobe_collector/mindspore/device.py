"""MindSpore's operations where tensors are: copies, statistics, sketches and hashes, none of which the host waits for.

Run so far on a CPU alone, in tests, where MindSpore's operations on the CPU stand for those of a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore._c_expression import MixedPrecisionType
from mindspore._c_expression.amp import AmpLevel, pop_amp_strategy, push_amp_strategy

from msprobe_collector.dump_format import array_dtype, find_dtype
from msprobe_collector.dump_format.sketches import Arithmetic, Tables, memory_order, plan_of
from msprobe_collector.dump_format.writing.device_values import SHIFT
from msprobe_collector.mindspore.mindspore_internals import graph_executors

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
