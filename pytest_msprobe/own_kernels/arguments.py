"""What a kernel is called with: values of any framework, and the arrays that stand for its tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, is_differentiable, leaves

_FRAMEWORKS = ("torch", "mindspore")
#: Where functions of PyTorch stand that facts are known of, by the type of their records.
_HOLDERS = {"Torch": "torch", "Functional": "torch.nn.functional"}


def framework_of(value: object) -> str:
    """`torch`, `mindspore`, `numpy`, `other` for arrays of others (JAX, CuPy), "" for what is no tensor."""
    for name in _FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None and isinstance(value, module.Tensor):
            return name
    if isinstance(value, np.ndarray):
        return "numpy"
    is_array = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    return "other" if is_array and not isinstance(value, (np.generic, type)) else ""


def array_of(value: Any) -> Array:
    """The elements of a tensor of any framework, on the host."""
    framework = framework_of(value)
    if framework == "torch":
        from pytest_msprobe.engines.torch_engine import to_array

        return to_array(sys.modules["torch"], value.detach())
    if framework == "mindspore":
        from pytest_msprobe.engines.mindspore_engine import to_array as of_mindspore

        return of_mindspore(value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        if not hasattr(value, "__dlpack__"):
            raise
    torch = sys.modules.get("torch")  # which reads memory of devices
    return np.from_dlpack(value) if torch is None else array_of(torch.from_dlpack(value))


def clone_of(value: Any) -> Any:
    """A tensor with the elements, strides, offset and device of `value`, that a kernel may write into."""
    if framework_of(value) != "torch" or str(value.layout) != "torch.strided":
        if hasattr(value, "copy"):
            return value.copy()
        return value.clone() if hasattr(value, "clone") else value
    value = value.detach()
    offset = value.storage_offset()
    reach = offset + 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    if not value.numel() or value.is_quantized:
        return value.clone()
    memory = value.as_strided((reach,), (1,), 0).clone()
    return memory.as_strided(value.shape, value.stride(), offset)


def is_same(value: Any, other: Any) -> bool:
    """Whether two tensors of one framework, shape and dtype hold the same bits."""
    return array_of(value).tobytes() == array_of(other).tobytes()


def _map(value: Any, path: LeafPath, convert: Callable[[LeafPath, Any], Any], *, as_tuples: bool) -> Any:
    """`value` with every leaf replaced by convert(path, leaf); lists keep their types or become tuples."""
    if isinstance(value, dict):
        return {key: _map(item, (*path, key), convert, as_tuples=as_tuples) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not type(value).__module__.startswith("torch"):
        items = [_map(item, (*path, place), convert, as_tuples=as_tuples) for place, item in enumerate(value)]
        if hasattr(value, "_fields") and not as_tuples:
            return type(value)(*items)
        return tuple(items) if as_tuples else type(value)(items)
    return convert(path, value)


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel as the user gave them."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def mapped(self, convert: Callable[[LeafPath, Any], Any], *, as_tuples: bool = False) -> tuple[Any, Any]:
        """(positional, keywords) with every leaf replaced by convert(path, leaf)."""
        positional = _map(tuple(self.positional), ("input",), convert, as_tuples=as_tuples)
        return positional, _map(dict(self.keywords), ("kwargs",), convert, as_tuples=as_tuples)

    def with_arrays(self, call: Call, convert: Callable[[LeafPath, Any], Any]) -> Any:
        """`mapped` with the leaves of `call`, whose arrays may be other ones, in place of one's own."""
        values = dict(leaves(call))
        return self.mapped(lambda path, value: convert(path, values.get(path, value)))

    @property
    def tensors(self) -> dict[LeafPath, Any]:
        """The tensors among them, by their places."""
        tensors: dict[LeafPath, Any] = {}

        def add(path: LeafPath, value: Any) -> None:
            if framework_of(value):
                tensors[path] = value

        self.mapped(add)
        return tensors

    @property
    def framework(self) -> str:
        """That of the tensors; "numpy" without any."""
        kinds = set(map(framework_of, self.tensors.values()))
        return next((kind for kind in (*_FRAMEWORKS, "other") if kind in kinds), "numpy")

    def call(self, api: ApiName) -> Call:
        """The call of `api` with these arguments."""

        def convert(path: LeafPath, value: Any) -> Any:
            if not framework_of(value):
                return value
            array = array_of(value).view()
            array.flags.writeable = False
            return array

        return Call(api, "pytorch", *self.mapped(convert, as_tuples=True))

    def differentiated(self, *, of_all: bool) -> tuple[LeafPath, ...]:
        """Places of the tensors whose gradients are wanted: that require one, or `of_all` of floats."""

        def is_wanted(value: Any) -> bool:
            is_asked = of_all or getattr(value, "requires_grad", False)
            return is_asked and framework_of(value) in _FRAMEWORKS and is_differentiable(array_of(value))

        return tuple(path for path, value in self.tensors.items() if is_wanted(value))

    def described(self) -> str:
        """Dtype and shape of every tensor, and the other arguments."""
        named = (f"{key}={_described(value)}" for key, value in self.keywords.items())
        return ", ".join([*map(_described, self.positional), *named])


def _described(value: Any) -> str:
    if framework_of(value):
        return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    return repr(value)[:40]


def api_of(reference: Callable[..., Any]) -> ApiName:
    """The API whose facts hold for `reference`: that of a function of PyTorch, else one that nothing is known of."""
    name = getattr(reference, "__name__", "")
    for kind, module in _HOLDERS.items():
        if name and getattr(sys.modules.get(module), name, None) is reference:
            return ApiName(kind, name, 0)
    return ApiName("Torch", "own kernel", 0)


def runs_in(reference: Callable[..., Any], arguments: Arguments) -> str:
    """The framework that `reference` is written in: the one that it names, else that of the arguments."""
    function: Any = getattr(reference, "func", reference)
    code, named = getattr(function, "__code__", None), dict(getattr(function, "__globals__", {}))
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or ()):
        with suppress(ValueError):  # a name that gets its value later
            named[name] = cell.cell_contents
    places = [getattr(function, "__module__", "")]
    for name in _names_in(code) if code is not None else ():
        value = named.get(name)
        places.append(value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", ""))
    modules = {str(place).partition(".")[0] for place in places}
    default = arguments.framework if arguments.framework in _FRAMEWORKS else "numpy"
    return next((name for name in (default, *_FRAMEWORKS, "numpy") if name in modules), default)


def _names_in(code: Any) -> Iterable[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names_in(constant)
