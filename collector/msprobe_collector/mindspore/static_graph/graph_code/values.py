"""What the compiler knows of values, and the tensors in them: code that MindSpore compiles, on any device."""

# The compiler knows neither unpacking in tuples, nor generators, nor iteration of a dict:
# ruff: noqa: RUF005, SIM110, SIM118

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.functional import isconstant

FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)
_INTEGERS = (mindspore.int8, mindspore.int16, mindspore.int32, mindspore.int64, mindspore.uint8, mindspore.uint16)
_OTHERS = (mindspore.bool_, mindspore.uint32, mindspore.uint64, mindspore.complex64, mindspore.complex128)
#: What a Python function inside a graph takes; others end the run.
SEEN = (*FLOATS, *_INTEGERS, *_OTHERS)


def is_whole(tensor: Any) -> bool:
    """Whether `tensor` has elements, a shape that stays, and a dtype that can leave a graph."""
    if not isconstant(tensor.shape) or tensor.dtype not in SEEN:
        return False
    for size in tensor.shape:
        if size == 0:
            return False
    return True


def described(value: Any) -> Any:
    """What is known of `value` when the graph is built: a `Description` of layouts.py."""
    if isinstance(value, Tensor):
        if isconstant(value.shape) and value.dtype in SEEN:
            return ("tensor", str(value.dtype), value.shape)
        return ("moving", str(value.dtype))
    if isinstance(value, (tuple, list)):
        items: Any = ()
        for item in value:
            items = items + (described(item),)
        return ("items", items)
    if isinstance(value, dict):
        held: Any = ()
        for key in value.keys():
            held = held + (described(value[key]),)
        return ("keys", tuple(value.keys()), held)
    if value is None or (isinstance(value, (bool, int, float, str)) and isconstant(value)):
        return ("value", value)
    return ("unseen", "")


def with_dimension(tensor: Any) -> Any:
    """`tensor`, with one dimension where it has none."""
    # A 0-d tensor would arrive as a Python number, which not every dtype can become. CPU reshapes no bfloat16.
    if tensor.shape == ():
        if tensor.dtype == mindspore.bfloat16:
            tensor = ops.cast(tensor, mindspore.float32)
        return ops.reshape(tensor, (1,))
    return tensor


def tensors_in(value: Any) -> Any:
    """The whole tensors in tuples, lists and dicts, in the order of `whole_tensors` of layouts.py."""
    if isinstance(value, Tensor):
        if is_whole(value):
            return (with_dimension(ops.stop_gradient(value)),)
        return ()
    found: Any = ()
    if isinstance(value, (tuple, list)):
        for item in value:
            found = found + tensors_in(item)
    if isinstance(value, dict):
        for key in value.keys():
            found = found + tensors_in(value[key])
    return found
