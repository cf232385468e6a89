"""Whether a recorded value holds NaN or Inf: from its data where there is some, else from its statistics.

Max and Min alone prove nothing: reductions of MindSpore on CPU see a NaN only at element 0 (mindspore#391, #392).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import PlainValue, TensorValue, Value

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import Array

_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Finiteness:
    """What is known of one value.

    Attributes:
        has_nan, has_inf: whether such elements were seen.
        nan_count, inf_count: how many; None where only statistics are known.
        first_index: place of the first such element, in C order; None where only statistics are known.
        is_known: False when the dump holds neither data nor statistics of it.
    """

    has_nan: bool = False
    has_inf: bool = False
    nan_count: int | None = 0
    inf_count: int | None = 0
    first_index: tuple[int, ...] | None = None
    is_known: bool = True

    @property
    def is_bad(self) -> bool:
        """Whether anything is not finite."""
        return self.has_nan or self.has_inf

    def __str__(self) -> str:
        kinds = ((self.has_nan, self.nan_count, "NaN"), (self.has_inf, self.inf_count, "Inf"))
        return ", ".join(f"{count} {word}" if count else word for has, count, word in kinds if has)


FINITE = Finiteness()
UNKNOWN = Finiteness(nan_count=None, inf_count=None, is_known=False)


def can_overflow(tensor: TensorValue) -> bool:
    """Whether a tensor of this dtype and shape can hold NaN or Inf at all."""
    return tensor.dtype is not None and tensor.dtype.kind in ("float", "complex") and tensor.size > 0


def of_array(array: Array) -> Finiteness:
    """What counting in `array` finds, a chunk at a time."""
    import numpy as np

    flat = array.reshape(-1)
    nan = bad = 0
    first: int | None = None
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        chunk = flat[start : start + _CHUNK_ELEMENTS]
        finite = np.isfinite(chunk)
        if finite.all():
            continue
        if first is None:
            first = start + int(np.argmin(finite))
        bad += int(chunk.size - np.count_nonzero(finite))
        nan += int(np.count_nonzero(np.isnan(chunk)))
    if first is None:
        return FINITE
    index = tuple(int(step) for step in np.unravel_index(first, array.shape))
    return Finiteness(nan > 0, bad > nan, nan, bad - nan, index)


def of_statistics(tensor: TensorValue) -> Finiteness:
    """What the recorded statistics of a tensor tell.

    A NaN in Max, Min or Norm is one in the data; so is one in Mean, unless Inf of both signs made it. An infinite Mean
    or Norm is none beside finite Max and Min: sums and squares of finite numbers overflow in a small dtype.
    """
    ends = [float(end) for end in (tensor.maximum, tensor.minimum) if end is not None]
    mean, norm = (None if number is None else float(number) for number in (tensor.mean, tensor.norm))
    sums = [number for number in (mean, norm) if number is not None]
    if not ends and not sums and tensor.nan_count is None and tensor.inf_count is None:
        return UNKNOWN
    cancels = math.inf in ends and -math.inf in ends
    has_nan = bool(tensor.nan_count) or any(map(math.isnan, ends)) or (norm is not None and math.isnan(norm))
    has_nan = has_nan or (mean is not None and math.isnan(mean) and not cancels)
    has_inf = bool(tensor.inf_count) or any(map(math.isinf, ends or sums))
    if not (has_nan or has_inf):
        return FINITE
    nan_count, inf_count = (
        count if count is not None else None if has else 0
        for has, count in ((has_nan, tensor.nan_count), (has_inf, tensor.inf_count))
    )
    return Finiteness(has_nan, has_inf, nan_count, inf_count)


def of_plain(value: Value) -> Finiteness:
    """What a value that is not a tensor is; only Python and NumPy floats are not always finite."""
    number = value.value if isinstance(value, PlainValue) else None
    if not isinstance(number, float) or math.isfinite(number):
        return FINITE
    is_nan = math.isnan(number)
    return Finiteness(is_nan, not is_nan, int(is_nan), int(not is_nan), ())


def combined(found: Sequence[Finiteness]) -> Finiteness:
    """Several values as one; a count is None when one of them is."""

    def total(counts: Sequence[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    return Finiteness(
        any(one.has_nan for one in found),
        any(one.has_inf for one in found),
        total([one.nan_count for one in found]),
        total([one.inf_count for one in found]),
        is_known=all(one.is_known for one in found),
    )
