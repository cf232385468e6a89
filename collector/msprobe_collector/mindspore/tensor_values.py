"""The values of MindSpore as the writer of dumps takes them: a tensor as a NumPy array, the cheapest way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from msprobe_collector.dump_format import array_dtype, find_dtype
from msprobe_collector.dump_format.writing.encoding import EncodeInner, TensorValues
from msprobe_collector.dump_format.writing.parts import ValueParts
from msprobe_collector.mindspore.mindspore_internals import wait_for_graphs
from msprobe_collector.recording.guard import ComputationFailed

TENSOR = "mindspore.Tensor"


class MindSporeValues:
    """See `FrameworkValues`."""

    dtype_type_name = "mindspore.dtype"
    file_suffix = ".npy"
    hidden_lines: tuple[str, ...] = ()

    def __init__(self) -> None:
        """Load MindSpore's types."""
        import mindspore
        from mindspore._c_expression import typing

        self.tensor_types: tuple[type, ...] = (mindspore.Tensor,)
        self.dtype_type: type = typing.Type
        self.parts = ValueParts(self.tensor_types, opaque=(typing.Type,))
        # Not tried on a device, where `asnumpy` is the documented way.
        self._copies = mindspore.get_context("device_target") == "CPU"
        self._dtypes: dict[Any, tuple[str, np.dtype[Any] | None]] = {}

    def read(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`.

        Raises:
            ComputationFailed: the error that came up is one of the script's computation.
        """
        try:
            return self._read(tensor)
        except Exception as error:
            if _may_be_of_the_script(error) and _is_error_of_the_script(tensor):
                raise _failure(error) from error
            raise

    def _read(self, tensor: Any) -> TensorValues:
        dtype = tensor.dtype
        known = self._dtypes.get(dtype)
        if known is None:
            known = self._dtypes[dtype] = _described(str(dtype))
        name, numpy_dtype = known
        if self._copies and numpy_dtype is not None:
            shape = tensor.shape
            # Up to this size copying the bytes (0.6 us) is cheaper than `asnumpy`, whose
            # description NumPy must parse (5 us).
            if 0 < math.prod(shape) * numpy_dtype.itemsize <= 1 << 16:
                return TensorValues(np.frombuffer(tensor.get_bytes(), numpy_dtype).reshape(shape), name, TENSOR)
        return TensorValues(tensor.asnumpy(), name, TENSOR)

    def frozen(self, tensor: Any) -> TensorValues:
        """See `FrameworkValues`."""
        values = self.read(tensor)
        values.keep(has_elements=True)
        return values

    def pending(self, *, has_sketches: bool) -> None:
        """See `FrameworkValues`."""

    def dtype_text(self, dtype: Any) -> str:
        """See `FrameworkValues`."""
        return str(dtype)

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """What batch_isend_irecv gets; its tensor stands in it as it does elsewhere."""
        if type(value).__name__ != "P2POp":
            return None
        op = value.op if isinstance(value.op, str) else value.op.__name__
        fields = {"op": op, "peer": value.peer, "tag": value.tag, "group_id": value.group}
        tensor = encode(value.tensor, "tensor")
        return f'{{"class_type": "mindspore.mint.distributed.P2POp", "tensor": {tensor}, {json.dumps(fields)[1:]}'


@cache
def mindspore_values() -> MindSporeValues:
    """The one of this process, made for the device that is set when it is first asked for."""
    return MindSporeValues()


@contextmanager
def errors_of_the_script(tensors: Iterable[Any]) -> Iterator[None]:
    """Tell errors of the script's computation from those of reading `tensors`, for use around looks at them.

    Raises:
        ComputationFailed: the error that came up inside is one of the script's.
    """
    try:
        yield
    except Exception as error:
        if _may_be_of_the_script(error) and any(map(_is_error_of_the_script, tensors)):
            raise _failure(error) from error
        raise


def _failure(error: Exception) -> ComputationFailed:
    """`error` on its way to the script, and with it whatever else MindSpore would raise later for the same call."""
    with suppress(Exception):
        wait_for_graphs()
    return ComputationFailed(error)


def _may_be_of_the_script(error: Exception) -> bool:
    """Whether MindSpore raises such errors for a kernel; want of memory or stack in Python is the collector's own."""
    return type(error).__module__ == "builtins" and not isinstance(error, (MemoryError, RecursionError))


def _is_error_of_the_script(tensor: Any) -> bool:
    """Whether an error that came up while `tensor` was read is one of what the script had started.

    MindSpore raises the error of a kernel at the first look at any tensor, and never again unless the failed call made
    this very tensor, which then has no shape. What fails again on a tensor with a shape is the reading itself.
    """
    try:
        _ = tensor.shape
    except Exception:
        return True
    try:
        tensor.asnumpy()
    except Exception:
        return False
    return True


def _described(name: str) -> tuple[str, np.dtype[Any] | None]:
    dtype = find_dtype(name)
    return name, None if dtype is None or dtype.name == "Int4" else array_dtype(dtype)
