"""Calls under automatic mixed precision, as what they were: calls with operands of another dtype.

PyTorch's autocast, mindspore.amp and Cell.to_float cast operands inside a call, so that a record shows float32
arguments of a product that was computed in bfloat16. With the operands cast likewise, the call is an ordinary one: for
the benchmark, and for a device that runs it without autocast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dtype, ForwardRecord, Value, array_dtype, find_dtype, tensors_in
from pytest_msprobe.apis import facts
from pytest_msprobe.engines.protocol import Call, LeafPath, map_leaves

_NARROW = ("Float16", "BFloat16")


def with_cast_operands(call: Call, forward: ForwardRecord) -> tuple[Call, str]:
    """(`call` with its operands as they were cast inside, a note that says so); (`call`, "") where none was."""
    dtype = _computed_in(call, forward)
    target = array_dtype(dtype) if dtype is not None else None
    if dtype is None or target is None:
        return call, ""
    casts = []

    def cast(path: LeafPath, value: Any) -> Any:
        if not hasattr(value, "__array_interface__") or value.dtype == target or not _is_cast(value.dtype):
            return value
        casts.append(path)
        with np.errstate(over="ignore"):  # float16 overflows on the device as well
            return value.astype(target)

    arguments, keywords = map_leaves(call, cast)
    note = f"mixed precision: computed in {dtype.name}" if casts else ""
    return replace(call, arguments=tuple(arguments), keywords=keywords), note


def _computed_in(call: Call, forward: ForwardRecord) -> Dtype | None:
    """The dtype to which operands were cast inside the call; None where they were not."""
    inputs = _float_dtypes((forward.arguments or (), forward.keywords))
    outputs = _float_dtypes(forward.outputs or ())
    wide = find_dtype("Float32")
    if facts("mixed_precision").of(call.api, call.framework) is not None:
        narrow = [dtype for dtype in outputs if dtype.name in _NARROW]
        return narrow[0] if len(narrow) == 1 and wide in inputs else None
    # Of other functions autocast gives float32 operands to some; which, differs between devices.
    return wide if forward.autocast is not None and outputs == {wide} and inputs == {forward.autocast} else None


def _float_dtypes(values: Value) -> set[Dtype]:
    return {tensor.dtype for tensor in tensors_in(values) if tensor.dtype is not None and tensor.dtype.kind == "float"}


def _is_cast(dtype: np.dtype[Any]) -> bool:
    """Whether such operands are cast: floats but float64."""
    return str(dtype) in ("float16", "bfloat16", "float32")
