"""What a call is named in a dump, by the function that PyTorch hands over and by how the script wrote the call."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import _VF

from msprobe_collector.pytorch.watching import npu_operators
from msprobe_collector.pytorch.watching.call_form import is_operator

_LISTED = Path(__file__).with_name("not_recorded.txt")
#: In-place and plain methods behind operators: `x + y` calls Tensor.add, `x += y` Tensor.add_.
_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "fmod": "mod",
    "pow": "pow",
    "matmul": "matmul",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
}
_IN_PLACE_OPERATORS = frozenset(f"__i{operator}__" for operator in _OPERATORS.values())
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_NAMESPACES = {"aten": "Aten", **npu_operators.NAMESPACES}
#: Operators that PyTorch's own Python code calls: a user sees what stands above them.
_INTERNAL_NAMESPACES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "debugprims", "fsdp", "inductor"}
    | {"higher_order", "prim", "prims", "profiler", "quantized_decomposed", "rngprims", "streams", "symm_mem"}
)
_UNKNOWN = object()


class ApiNames:
    """Names by function object, each found once."""

    def __init__(self, without: Iterable[Any] = ()) -> None:
        """Leave out the functions `without` and those of not_recorded.txt."""
        self._unlisted = _listed()
        self._public = _public_names()
        self._known: dict[Any, str | None] = dict.fromkeys(without)

    def of(self, function: Any) -> str | None:
        """`Torch.cat`, `Tensor.add`, ...; None for what is not recorded."""
        try:
            name = self._known.get(function, _UNKNOWN)
        except TypeError:  # not hashable
            return None
        if name is _UNKNOWN:
            name = self._known[function] = self._found(function)
        return name  # type: ignore[return-value]  # _UNKNOWN has been replaced

    def as_written(self, name: str, frame: FrameType) -> str:
        """`Tensor.__add__` for `Tensor.add` where the call in `frame` is written as an operator."""
        method = name[7:]  # after "Tensor."
        base = method.removesuffix("_")
        if base not in _OPERATORS and method not in _COMPARISONS:
            return name
        if not is_operator(frame):
            return name
        if method in _COMPARISONS:
            return f"Tensor.__{method}__"
        return f"Tensor.__{'' if method == base else 'i'}{_OPERATORS[base]}__"

    def _found(self, function: Any) -> str | None:
        name = self._public.get(function) or _otherwise(function)
        if name is None or name.rpartition(".")[2] in self._unlisted:
            return None
        return name


def _public_names() -> dict[Any, str]:
    names: dict[Any, str] = {}
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"):
        names[getattr(_VF, name)] = f"VF.{name}"
    # Their own names are those of Python 2.
    names[torch.Tensor.__rdiv__] = "Tensor.__rtruediv__"
    for name in ("max_pool1d", "max_pool2d", "max_pool3d"):  # what the functions of this name hand over
        names[getattr(torch, name)] = f"Functional.{name}"
    for module, prefix in (
        (torch.nn.functional, "Functional"),
        (torch, "Torch"),
        (torch.linalg, "Torch.linalg"),
        (torch.fft, "Torch.fft"),
        (torch.special, "Torch.special"),
    ):
        for name, value in vars(module).items():
            if callable(value) and not isinstance(value, type) and not name.startswith("__"):
                names.setdefault(value, f"{prefix}.{name}")
    for owner in (torch._C.TensorBase, torch.Tensor):
        for name, value in vars(owner).items():
            if callable(value):
                names.setdefault(value, f"Tensor.{name}")
    return names


def _otherwise(function: Any) -> str | None:
    """The name of what stands in no public module."""
    name = getattr(function, "__name__", "")
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        packet = function if isinstance(function, torch._ops.OpOverloadPacket) else function.overloadpacket
        namespace, _, operator = packet._qualified_op_name.partition("::")
        return None if namespace in _INTERNAL_NAMESPACES else f"{_NAMESPACES.get(namespace, namespace)}.{operator}"
    if name in ("__get__", "__set__", "__delete__") or not name:
        return None
    if getattr(function, "__module__", None) == "torch.nn.functional":
        return f"Functional.{name}"
    if getattr(function, "__objclass__", None) is torch._C.TensorBase:
        return f"Tensor.{name}"
    return None


def _listed() -> frozenset[str]:
    lines = _LISTED.read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


def changes_first_argument(name: str) -> bool:
    """Whether a call of this name writes its result into its first argument."""
    method = name.rpartition(".")[2]
    if method.startswith("__"):
        return method == "__setitem__" or method in _IN_PLACE_OPERATORS
    return method.endswith("_")
