"""Elements of MindSpore's tensors, as the laws compare them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from msprobe_collector.mindspore.tensor_values import mindspore_values
from msprobe_laws.observation import Array, fingerprint, leaves
from pytest_msprobe.numerics.expected import Absolute, Relative

#: Elements of a mask and of a batch.
_MASK, _BATCH = 512, 1 << 16


def factors_of(total: Array, parts: Sequence[Array]) -> tuple[float, ...]:
    """Return factors of `parts` whose sum is `total`, to within float16; () where they cannot be told."""
    table = np.stack(parts, axis=1)
    size = np.linalg.norm(total)
    if not np.isfinite(size) or not size or not np.all(np.isfinite(table)):
        return ()
    units = table / np.maximum(np.linalg.norm(table, axis=0), Absolute.ZERO_OF_FLOAT64)
    if len(parts) > 1 and abs(float(units[:, 0] @ units[:, 1])) > Relative.PARALLEL:
        return ()
    factors, *_ = np.linalg.lstsq(table, total, rcond=None)
    rest = np.linalg.norm(total - table @ factors)
    return tuple(map(float, factors)) if rest < Relative.SUM_OF_PARTS * size else ()


def dtype_of(tensor: Any) -> str:
    """Return `bfloat16`."""
    return str(tensor.dtype).lower()


def some_elements(tensor: Any, most: int) -> Array:
    """Return at most so many elements as float64, evenly spread."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return np.empty(0)
    stride = -(-int(tensor.size) // most) or 1
    if tensor.size > _BATCH:
        tensor, stride = tensor.reshape(-1)[::stride], 1
    return np.array(mindspore_values().read(tensor).array.reshape(-1)[::stride], np.float64)


def first_elements(tensor: Any) -> Array:
    """Return the first elements, as float32."""
    return np.array(mindspore_values().read(tensor).array.reshape(-1)[:_MASK], np.float32)


def tensors_in(value: Any) -> Iterator[Any]:
    """Return the tensors in lists, tuples and mappings."""
    return (item for item in leaves(value) if isinstance(item, Tensor))


def fingerprint_of(tensors: Sequence[Any]) -> tuple[str, bool]:
    """Return the fingerprint of all elements, or of a part of many, and `Batch.is_poor`."""
    parts = []
    for tensor in tensors:
        array = tensor if isinstance(tensor, np.ndarray) else mindspore_values().read(tensor).array
        stride = -(-array.size // _BATCH) or 1
        values = array.reshape(-1)[::stride]
        values = values if values.dtype.isbuiltin else values.astype(np.float32)
        parts.append((array.shape, str(array.dtype), values))
    return fingerprint(parts)


def tokens_of(tensors: Sequence[Any], otherwise: Array | None) -> Array | None:
    """Return the first integer matrix among the tensors."""
    for item in tensors:
        if item.ndim == 2 and item.dtype in (mindspore.int32, mindspore.int64) and item.size:
            return np.array(mindspore_values().read(item).array)
    return otherwise


def norm_of(tensors: Sequence[Any]) -> float:
    """Return the 2-norm of all elements, in float64."""
    total = 0.0
    for tensor in tensors:
        array = np.asarray(mindspore_values().read(tensor).array, np.float64)
        total += float(np.sum(array * array))
    return math.sqrt(total) if math.isfinite(total) else total
