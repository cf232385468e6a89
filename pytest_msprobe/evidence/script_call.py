"""A recorded API call as Python: `mint.matmul(x0, x1)`. Only names and literals, never text of the dump."""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName, Dtype
from pytest_msprobe.apis.operators import find_operator, refused_argument, unknown_operator
from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.evidence.evidence import Evidence, NumpyValue, ValuePath

_TYPES = ("Mint", "MintFunctional", "Functional", "Tensor", "Primitive")
#: Attributes of a MindSpore tensor that dumps record as if they were methods.
_PROPERTIES = frozenset({"T", "H", "mT", "dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"})
_PRIMITIVE_IMPORT = """\
try:
    from mindspore.ops import {name}
except ImportError:
    from mindspore.ops.auto_generate import {name}"""


class NoScript(Exception):
    """A call that cannot be written as a script; the text says why."""


@dataclass(slots=True)
class ScriptCall:
    """The parts of a script that make one call.

    Attributes:
        roots: modules of MindSpore that the call begins with.
        imports: lines that import what else it needs.
        api: the callable as people call it: `mint.matmul`, `Tensor.reshape`, `ops.Abs`; from the table of operators.
        arrays: arrays by the name of their variable.
        paths: the variable that stands at a place among the arguments.
        arguments, keywords: texts of the arguments.
        attributes: texts of what the class of a Primitive is called with.
    """

    api: str
    roots: tuple[str, ...] = ()
    imports: str = ""
    arrays: dict[str, Array] = field(default_factory=dict)
    numpy_names: set[str] = field(default_factory=set)
    paths: dict[ValuePath, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> list[str]:
        """Variables that are tensors."""
        return [name for name in self.arrays if name not in self.numpy_names]

    def expression(self, api: ApiName, *, copies_first: bool) -> str:
        """The call as an expression. `copies_first`: the API writes to its first argument, which must outlive it."""
        arguments = list(self.arguments)
        if copies_first and arguments[:1] and arguments[0] in self.arrays:
            arguments[0] = f"({arguments[0]} * 1)"
        name = self.api.rpartition(".")[2]
        if api.type != "Tensor":
            made = f"{name}({joined((), self.attributes)})" if api.type == "Primitive" else self.api
            return f"{made}({joined(arguments, self.keywords)})"
        if name in _PROPERTIES and len(arguments) == 1:
            return f"{arguments[0]}.{name}"
        return f"{arguments[0]}.{name}({joined(arguments[1:], self.keywords)})"


def script_call(evidence: Evidence) -> ScriptCall:
    """The call of `evidence` in parts of source text.

    Raises:
        NoScript: its API or an argument cannot be written down.
    """
    api = evidence.api
    if evidence.framework != "mindspore":
        raise NoScript(f"the dump is one of {evidence.framework}, and reproducers run on MindSpore")
    if api.type not in _TYPES:
        raise NoScript(f"calls of type {api.type!r} cannot be made by a script")
    path = find_operator("mindspore", api.type, api.table_name)
    if path is None:
        raise NoScript(f"{api.type}.{api.table_name} is {unknown_operator('mindspore', api.type)}")
    found = _begin(api, path)
    for index, value in enumerate(evidence.arguments):
        found.arguments.append(_text(found, api.short, ("input", index), value))
    for key, value in evidence.keywords.items():
        if not is_name(key):
            raise NoScript(f"the keyword {key!r} is not a name in Python")
        found.keywords[key] = _text(found, api.short, ("kwargs", key), value)
    for key, value in (evidence.attributes or {}).items():
        if not is_name(key):
            raise NoScript(f"the attribute {key!r} is not a name in Python")
        found.attributes[key] = _text(found, api.short, ("attributes", key), value)
    if api.type == "Tensor" and (not evidence.arguments or found.arguments[0] not in found.arrays):
        raise NoScript("the tensor whose method it is was not recorded")
    return found


def is_name(text: str) -> bool:
    """Whether `text` is a plain Python name."""
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def joined(arguments: Sequence[str], keywords: Mapping[str, str]) -> str:
    """Texts of arguments as they stand between parentheses."""
    return ", ".join([*arguments, *(f"{key}={text}" for key, text in keywords.items())])


def _begin(api: ApiName, path: str) -> ScriptCall:
    name = path.rpartition(".")[2]
    if api.type == "Primitive":
        return ScriptCall(f"ops.{name}", imports=_PRIMITIVE_IMPORT.format(name=name))
    inside = path.removeprefix("mindspore.")
    return ScriptCall(inside, roots=() if api.type == "Tensor" else (inside.partition(".")[0],))


def _text(found: ScriptCall, operator: str, path: ValuePath, value: Any) -> str:
    if isinstance(value, (np.ndarray, NumpyValue)):
        name = f"x{len(found.arrays)}"
        found.arrays[name] = value.array if isinstance(value, NumpyValue) else value
        if isinstance(value, NumpyValue):
            found.numpy_names.add(name)
        found.paths[path] = name
        return name
    if isinstance(value, (tuple, list)):
        items = [_text(found, operator, (*path, index), item) for index, item in enumerate(value)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, str) and (reason := refused_argument(operator, value)) is not None:
        raise NoScript(reason)
    return _literal(value)


def _literal(value: Any) -> str:
    if isinstance(value, Dtype):
        return dtype_text(value)
    if isinstance(value, slice):
        return f"slice({value.start!r}, {value.stop!r}, {value.step!r})"
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return ascii(value)
    raise NoScript(f"an argument of type {type(value).__name__} cannot be written down")


def dtype_text(dtype: Dtype) -> str:
    """The dtype as a script writes it: `ms.float16`.

    Raises:
        NoScript: MindSpore has no name for the dtype.
    """
    if dtype.array_name is None:
        raise NoScript(f"there is no array type for {dtype.name}")
    return f"ms.{'bool_' if dtype.kind == 'bool' else dtype.array_name}"
