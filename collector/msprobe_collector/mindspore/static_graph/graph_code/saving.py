"""`save` and `save_grad`: tensors that a script writes to files, inside graphs and outside of them.

Both are Cells, since MindSpore compiles the `construct` of a Cell that stands in a graph, and calls `__call__`
elsewhere. On CPU values leave a graph through a Python function (`ops.Custom`), on Ascend through TensorDump and
DumpGradient, which has not been run on a device.

What the compiler knows of values, and the tensors in them: code that MindSpore compiles, on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.functional import isconstant
from mindspore.ops.primitive import constexpr

from msprobe_collector.mindspore.static_graph.files import GRADIENT, SAVED
from msprobe_collector.mindspore.tensor_values import mindspore_values

# The compiler knows neither unpacking in tuples, nor generators, nor iteration of a dict:
# ruff: noqa: RUF005, SIM110, SIM118


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
    """Return what is known of `value` when the graph is built: a `Description` of layouts.py."""
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
    tensors: Any = ()
    if isinstance(value, (tuple, list)):
        for item in value:
            tensors = tensors + tensors_in(item)
    if isinstance(value, dict):
        for key in value.keys():
            tensors = tensors + tensors_in(value[key])
    return tensors


@constexpr  # type: ignore[untyped-decorator]  # MindSpore has no types
def _is_on_ascend() -> bool:
    return bool(mindspore.get_context("device_target") == "Ascend")


@constexpr  # type: ignore[untyped-decorator]
def _note(folder: Any, name: Any, description: Any) -> int:
    return SAVED.note(folder, name, description)


@constexpr  # type: ignore[untyped-decorator]
def _waiting_path(folder: Any, name: Any) -> str:
    return SAVED.waiting_path(folder, name)


def _arrive(place: Any, value: Any) -> Any:
    SAVED.arrive(int(place[0]), int(place[1]), value)
    return np.zeros(1, np.int32)


_leave = ops.Custom(_arrive, out_shape=(1,), out_dtype=mindspore.int32, func_type="pyfunc")
# It runs although nothing needs its result, and not once more where a Cell is computed again in the backward.
_leave.add_prim_attr("side_effect_io", True)
_leave.add_prim_attr("recompute", False)


def _same(place: Any, value: Any) -> Any:
    return value


def _gradient_leaves(place: Any, value: Any, out: Any, gradient: Any) -> Any:
    token = _leave(place, with_dimension(ops.stop_gradient(gradient)))
    return ops.zeros_like(place), ops.depend(gradient, token)


_with_gradient = ops.Morph(_same, _same, _same, bprop_fn=_gradient_leaves)
_dump = ops.TensorDump()
_dump_gradient = ops.DumpGradient()


def _dump_all(folder: Any, name: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        path = _waiting_path(folder, name)
        if path != "":
            _dump(path, ops.stop_gradient(value))
    elif isinstance(value, (tuple, list)):
        for index in range(len(value)):
            _dump_all(folder, name + "." + str(index), value[index])
    elif isinstance(value, dict):
        for key in value.keys():  # the compiler does not iterate over a dict
            _dump_all(folder, name + "." + key, value[key])
    return None


class _Save(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Save a tensor, or those in a list, tuple or dict, to files that `numpy.load` reads.

    Writes `{folder}/step{n}/rank{r}/{name}_{dtype}_{id}.npy`, for values inside others `{name}.1.key_...`. `n` counts
    calls of `step`, `r` is the rank in MindSpore's communication or 0, `id` counts the files of the process. bfloat16
    is written as float32. Works in PyNative mode and in compiled graphs, where folder and name must be constants;
    there tensors without elements, or whose shape changes from run to run, are not written.

    Args:
        folder: where files go; created when it is missing.
        name: begins the files' names.
        value: the tensors. Anything else in it is passed over.

    What cannot be saved is a warning, never an error.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def __call__(self, folder: str, name: str, value: Any) -> None:
        if SAVED.accepts("save", folder, name):
            _save_all(folder, name, value)

    def construct(self, folder: Any, name: Any, value: Any) -> Any:
        if _is_on_ascend():
            _dump_all(folder, name, value)
        else:
            place = _note(folder, name, described(value))
            if place >= 0:
                tensors = tensors_in(value)
                for position in range(len(tensors)):
                    _leave(Tensor([place, position], mindspore.int32), tensors[position])
        return None


class _SaveGradient(nn.Cell):  # type: ignore[misc]
    """Save the gradient of a tensor when the backward pass computes it: `y = save_grad("grads", "y", y)`.

    Go on with the tensor that is returned: in a graph only its gradient is seen. Files are those of `save`, with
    `_grad` behind the name.

    Args:
        folder: where files go; created when it is missing.
        name: begins the files' names.
        value: a tensor of floats. A gradient that is never computed leaves no file.

    Returns:
        A tensor equal to `value`.

    What cannot be saved is a warning, never an error.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def __call__(self, folder: str, name: str, value: Any) -> Any:
        if SAVED.accepts("save_grad", folder, name) and _can_have_gradient(name, value) and value._requires_grad:
            value.register_hook(_writer(folder, f"{name}{GRADIENT}"))
        return value

    def construct(self, folder: Any, name: Any, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in FLOATS:
            return value
        if _is_on_ascend():
            path = _waiting_path(folder, name + GRADIENT)
            if path == "":
                return value
            return _dump_gradient(path, value, "out")
        if not is_whole(value):
            return value
        place = _note(folder, name + GRADIENT, described(value))
        if place < 0:
            return value
        return _with_gradient(Tensor([place, 0], mindspore.int32), value)


def _save_all(folder: str, name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        _write(folder, name, value)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            _save_all(folder, f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _save_all(folder, f"{name}.{key}", item)


def _write(folder: str, name: str, tensor: Any) -> None:
    try:
        array = mindspore_values().read(tensor).array
    except Exception as error:  # the border between the collector and the user's training
        SAVED.warn(f"{name!r} cannot be saved: {error}")
    else:
        SAVED.write(folder, name, array)


def _writer(folder: str, name: str) -> Callable[[Any], Any]:
    def write(gradient: Any) -> Any:
        _write(folder, name, gradient)
        return gradient

    return write


def _can_have_gradient(name: str, value: Any) -> bool:
    if isinstance(value, Tensor) and value.dtype in FLOATS:
        return True
    what = str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
    SAVED.warn(f"save_grad(): {name!r} is not a tensor of floats but {what}, which has no gradient; nothing is saved")
    return False


save = _Save()
save_grad = _SaveGradient()
