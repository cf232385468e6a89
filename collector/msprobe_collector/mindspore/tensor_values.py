"""The values of MindSpore as the writer of dumps takes them: a tensor as a NumPy array, the cheapest way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, ops
from mindspore._c_expression import typing

from msprobe_collector.dump_format.writing.encoding import EncodeInner, PendingStatistics, TensorValues, WrittenPart
from msprobe_collector.dump_format.writing.parts import ValueParts
from msprobe_collector.mindspore.device import (
    MindSporePending,
    Outside,
    copied,
    described,
    has_views_of_bytes,
    is_on_host,
)
from msprobe_collector.mindspore.mindspore_internals import TENSOR, errors_of_the_script, failure_at

#: Up to this size copying the bytes (0.6 us) is cheaper than `asnumpy`, whose description NumPy must parse (5 us).
_MOST_COPIED_BYTES = 1 << 16


class DeviceValues(TensorValues):
    """A tensor on a device, whose elements are waited for when they are asked for."""

    __slots__ = ("_array", "_shape", "_tensor")

    def __init__(self, tensor: Any, dtype_name: str) -> None:
        self._tensor = tensor
        self._array: np.ndarray[Any, Any] | None = None
        self._shape: tuple[int, ...] = tuple(tensor.shape)
        self.origin = self.number = None
        self.is_rest = False
        self.dtype_name, self.type_name, self.fields = dtype_name, TENSOR, ""

    @property
    def array(self) -> Any:  # type: ignore[override]  # asked for late
        """Elements of the tensor.

        Raises:
            ComputationFailed: the error that came up is one of the script's computation.
        """
        if self._array is None:
            with errors_of_the_script([self._tensor]):
                self._array = self._tensor.asnumpy()
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return self._shape

    def later(self, pending: PendingStatistics) -> int | None:
        """See `TensorValues`."""
        number: int | None = pending.add(self._tensor)  # type: ignore[attr-defined]  # that of this framework
        return number

    def keep(self, *, has_elements: bool) -> None:
        """See `TensorValues`; the copy is made where the tensor is, in the order of the training's operations."""
        self._tensor = copied(self._tensor) if has_elements else None

    def take(self, part: WrittenPart) -> bool:
        """See `TensorValues`."""
        with Outside():
            inside = part.part_of(self._tensor)
        if inside is not None:
            self._tensor, self._shape = inside, tuple(inside.shape)
        return inside is not None

    @property
    def held_bytes(self) -> int:
        """See `TensorValues`."""
        return 0 if self._tensor is None else self._tensor.size * self._tensor.itemsize

    def plus(self, other: TensorValues, *, factor: int = 1) -> TensorValues | None:
        """See `TensorValues`."""
        return self._combined(other, lambda tensor, other_tensor: mint.add(tensor, other_tensor, alpha=factor))

    def minus(self, other: TensorValues) -> TensorValues | None:
        """See `TensorValues`."""
        if (rest := self._combined(other, _rest)) is not None:
            rest.is_rest = True
        return rest

    def _combined(self, other: TensorValues, combine: Callable[[Any, Any], Any]) -> TensorValues | None:
        if not isinstance(other, DeviceValues):
            return None
        with Outside():
            return DeviceValues(combine(self._tensor, other._tensor), self.dtype_name)


def _rest(whole: Any, part: Any) -> Any:
    rest = mint.sub(whole, part)
    wide, wide_part = (ops.cast(tensor, mindspore.float32) for tensor in (whole, part))
    are_nan = mint.logical_and(mint.ne(wide, wide), mint.ne(wide_part, wide_part))
    is_same = mint.logical_or(mint.eq(wide, wide_part), are_nan)
    return mint.where(is_same, ops.cast(Tensor(0.0), rest.dtype), rest)


class MindSporeValues:
    """See `FrameworkValues`."""

    dtype_type_name = "mindspore.dtype"
    file_suffix = ".npy"
    hidden_lines: tuple[str, ...] = ()

    def __init__(self) -> None:
        """Load MindSpore's types, for the device that is set now."""
        self.tensor_types: tuple[type, ...] = (Tensor,)
        self.dtype_type: type = typing.Type
        self.parts = ValueParts(self.tensor_types, opaque=(typing.Type,))
        #: Whether values are read in the hooks.
        self._reads_at_once = is_on_host() or not has_views_of_bytes()
        #: What was made last.
        self.statistics_of_step: MindSporePending | None = None

    def read(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`.

        Raises:
            ComputationFailed: the error that came up is one of the script's computation.
        """
        try:
            return self._read(tensor)
        except Exception as error:
            if (failure := failure_at(error, tensor)) is not None:
                raise failure from error
            raise

    def _read(self, tensor: Any) -> TensorValues:
        name, numpy_dtype = described(tensor.dtype)
        if not self._reads_at_once:
            return DeviceValues(tensor, name)
        shape = tensor.shape
        if numpy_dtype is not None and 0 < math.prod(shape) * numpy_dtype.itemsize <= _MOST_COPIED_BYTES:
            return TensorValues(np.frombuffer(tensor.get_bytes(), numpy_dtype).reshape(shape), name, TENSOR)
        return TensorValues(tensor.asnumpy(), name, TENSOR)

    def frozen(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        values = self.read(tensor)
        values.keep(has_elements=True)
        return values

    def pending(self, *, has_sketches: bool) -> MindSporePending | None:
        """See `FrameworkValues`."""
        self.statistics_of_step = None if self._reads_at_once else MindSporePending(has_sketches=has_sketches)
        return self.statistics_of_step

    def dtype_text(self, dtype: Any) -> str:
        """See `FrameworkValues`."""
        return str(dtype)

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """Return what batch_isend_irecv gets; its tensor stands in it as it does elsewhere."""
        if type(value).__name__ != "P2POp":
            return None
        op = value.op if isinstance(value.op, str) else value.op.__name__
        fields = {"op": op, "peer": value.peer, "tag": value.tag, "group_id": value.group}
        tensor = encode(value.tensor, "tensor")
        return f'{{"class_type": "mindspore.mint.distributed.P2POp", "tensor": {tensor}, {json.dumps(fields)[1:]}'


@cache
def mindspore_values() -> MindSporeValues:
    """Return the reader of this process, made for the device that is set when it is first asked for."""
    return MindSporeValues()
