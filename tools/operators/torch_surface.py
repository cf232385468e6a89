"""The public operators of the installed PyTorch: functions of tensors, found by looking at it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import Any

from tools.operators.mindspore_surface import OPERATORS, PublicApi

_SUBMODULES = ("fft", "linalg", "special")
#: Private functions that compute values from tensors, and which optimizers, clipping, scalers and layers call.
_PRIVATE = re.compile(
    r"_foreach_\w+|_amp_\w+|_fused_(adam|adamw|sgd|adagrad)_|_fused_rms_norm|_weight_norm|"
    r"_pack_padded_sequence|_pad_packed_sequence"
)


def public_operators() -> tuple[PublicApi, ...]:
    """Every public operator, sorted by name within its namespace. Imports PyTorch."""
    torch: Any = importlib.import_module("torch")
    found = {
        ("torch", "Torch"): [*_functions(torch), *_in_submodules(torch)],
        ("torch.nn.functional", "Functional"): _functional(torch),
        ("torch.Tensor", "Tensor"): _methods(torch.Tensor),
        ("torch._VF", "VF"): _public(torch._C._VariableFunctions),
        ("torch.ops.aten", "Aten"): _aten(torch),
    }
    return tuple(
        PublicApi(namespace, api_type, name)
        for (namespace, api_type), names in found.items()
        for name in sorted(set(names))
    )


def _functions(torch: Any) -> Iterator[str]:
    """The module also holds switches, serialisation and compilers; operators are what its dispatcher generates."""
    generated = torch._C._VariableFunctions
    for name in _public(torch):
        if getattr(generated, name, None) is getattr(torch, name):
            yield name
    yield from (name for name in dir(generated) if _PRIVATE.fullmatch(name))
    yield from (name for name in torch.functional.__all__ if hasattr(torch, name))


def _in_submodules(torch: Any) -> Iterator[str]:
    for module in _SUBMODULES:
        owner = getattr(torch, module)
        yield from (f"{module}.{name}" for name in _public(owner) if _is_builtin(getattr(owner, name)))


def _functional(torch: Any) -> Iterator[str]:
    """Functions of torch.nn.functional, without what the module imports for its own use."""
    functional = torch.nn.functional
    for name in _public(functional):
        function = getattr(functional, name)
        is_own = inspect.isfunction(function) and function.__module__ == functional.__name__
        if is_own or (_is_builtin(function) and "torch_function" not in name):
            yield name


def _methods(tensor: Any) -> Iterator[str]:
    yield from _public(tensor)
    yield from (name for name in OPERATORS if callable(getattr(tensor, name, None)))


def _aten(torch: Any) -> Iterator[str]:
    """Operators of the dispatcher; of the private ones only the core operators, to which PyTorch breaks down others."""
    aten = torch.ops.aten
    names = {name.removeprefix("aten::").partition(".")[0] for name in _dispatched(torch)}
    for name in names:
        packet = getattr(aten, name, None)
        if packet is not None and (not name.startswith("_") or _is_core(torch, packet)):
            yield name


def _dispatched(torch: Any) -> Iterator[str]:
    return (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))


def _is_core(torch: Any, packet: Any) -> bool:
    return any(torch.Tag.core in getattr(packet, overload).tags for overload in packet.overloads())


def _public(owner: Any) -> Iterator[str]:
    for name in dir(owner):
        value = None if name.startswith("_") else getattr(owner, name)
        if callable(value) and not inspect.isclass(value):
            yield name


def _is_builtin(value: object) -> bool:
    return isinstance(value, BuiltinFunctionType)
