"""Find the PyTorch call for a recorded API call, and bind the recorded arguments to it.

Tables are apis/facts/torch_calls: ``MindSpore signature -> PyTorch call`` or ``name -> none: reason``. Several lines of
one name are overloads, tried in order until the arguments bind. A parameter may carry the kinds of value that it
takes (``axis: int | None = None``): with them two overloads of equal length can be distinguished. Keyword-only
parameters of a Primitive are attributes, given to its constructor. The right-hand side may use parameters, literals,
dotted names that begin with ``torch.``, ``adapters.`` or ``references.``, methods and attributes of any of these,
tuples, lists, ``*names`` and nested calls, and nothing else. Parsed by ``ast``, run by the small interpreter below: a
table cannot do more than call PyTorch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

from pytest_msprobe.apis import Fact, Topic, facts
from pytest_msprobe.apis.operators import find_operator, unknown_operator
from pytest_msprobe.apis.signature import read_signature
from pytest_msprobe.engines import references
from pytest_msprobe.engines.torch_map.expressions import (
    ALLOWED_NODES,
    attribute_at,
    dotted_names,
    evaluate,
    is_of_kind,
)

_TABLE_OF_TYPE: Mapping[str, Topic] = {
    "Mint": "torch_calls/mint",
    "MintFunctional": "torch_calls/mint_functional",
    "Tensor": "torch_calls/tensor",
    "Functional": "torch_calls/functional",
    "Primitive": "torch_calls/primitive",
}
# MindSpore types whose names mean the same in PyTorch unless their table says otherwise: the type of the namesake.
_NPU: Topic = "torch_calls/npu"
_NAMESAKES = {"Mint": "Torch", "MintFunctional": "Functional", "Tensor": "Tensor"}
_PYTORCH_TYPES = ("Torch", "Functional", "Tensor", "VF", "Aten")


class MissingAttributes(LookupError):
    """The call needs attributes of a Primitive that the dump does not hold."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(missing_attributes(names))


def missing_attributes(names: Sequence[str]) -> str:
    """What is wrong with a record of a Primitive that lacks the attributes `names`."""
    return f"constructor attributes ({', '.join(names)}) are not in the dump; msprobe_collector records them"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an API call has no PyTorch counterpart."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallMapping:
    """One table line: a MindSpore signature and the PyTorch call it becomes. Defaults are `ast` expressions."""

    text: str
    signature: inspect.Signature
    expression: ast.expr

    def bind(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        roots: Mapping[str, object],
        attributes: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """Value of every parameter.

        Raises:
            TypeError: the arguments do not fit the signature, or one is of another kind than its parameter says.
        """
        used = {name: value for name, value in (attributes or {}).items() if name in self.attributes}
        values: dict[str, object] = dict(self.signature.bind(*args, **{**used, **kwargs}).arguments)
        for name, parameter in self.signature.parameters.items():
            if name in values:
                if parameter.annotation is not parameter.empty and not is_of_kind(values[name], parameter.annotation):
                    raise TypeError(f"argument '{name}' is a {type(values[name]).__name__}")
            elif parameter.kind is parameter.VAR_POSITIONAL:
                values[name] = ()
            else:
                values[name] = evaluate(parameter.default, {}, roots)
        return values

    @property
    def attributes(self) -> list[str]:
        """Names of the parameters that a Primitive's constructor was given."""
        return [parameter.name for parameter in self._attributes()]

    def missing(self, attributes: Mapping[str, object] | None) -> list[str]:
        """The attributes without a default that are not among `attributes`."""
        needed = [parameter.name for parameter in self._attributes() if parameter.default is parameter.empty]
        return [name for name in needed if attributes is None or name not in attributes]

    def _attributes(self) -> list[inspect.Parameter]:
        return [
            parameter for parameter in self.signature.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
        ]

    def targets(self) -> tuple[str, ...]:
        """Dotted names under ``torch`` and ``adapters`` that the call needs."""
        return tuple(dict.fromkeys(dotted_names(self.expression)))


@dataclass(frozen=True, slots=True)
class Binding:
    """A PyTorch call for an API. Without forms: `target` takes the recorded arguments as they are."""

    api: str
    target: str
    forms: tuple[CallMapping, ...] = ()

    def resolve(self, roots: Mapping[str, object]) -> Callable[..., object]:
        """A callable that takes the recorded arguments; MissingInTorch when PyTorch lacks the target."""
        if not self.forms:
            return cast("Callable[..., object]", attribute_at(self.target, roots))
        for form in self.forms:
            for target in form.targets():
                attribute_at(target, roots)
        return lambda *args, **kwargs: self.call(args, kwargs, roots)

    def call(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        roots: Mapping[str, object],
        attributes: Mapping[str, object] | None = None,
    ) -> object:
        """Run it once: see `bound`."""
        return self.bound(args, kwargs, roots, attributes)()

    def bound(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        roots: Mapping[str, object],
        attributes: Mapping[str, object] | None = None,
    ) -> Callable[[], object]:
        """The PyTorch call with its arguments, which may run many times.

        `roots` is ``{'torch': torch, 'adapters': adapters}``; values are torch tensors and Python values.

        Raises:
            MissingAttributes: the record of a Primitive lacks attributes that every form of its signature needs.
            TypeError: the arguments fit no form; the text says of each why.
            MissingInTorch: the installed PyTorch lacks a name that is needed for it.
        """
        if not self.forms:
            return partial(cast("Callable[..., object]", attribute_at(self.target, roots)), *args, **kwargs)
        if self.api.startswith("Primitive.") and all(form.missing(attributes) for form in self.forms):
            raise MissingAttributes(self.forms[0].missing(attributes))
        problems = []
        for form in self.forms:
            try:
                values = form.bind(args, kwargs, roots, attributes)
            except TypeError as error:
                problems.append(f"{form.text.partition(' -> ')[0]}: {error}")
            else:
                return partial(evaluate, form.expression, values, roots)
        raise TypeError(f"{self.api}: the recorded arguments do not fit its signature ({'; or '.join(problems)})")


@cache
def lookup(api_type: str, name: str, framework: str = "mindspore") -> Binding | Refusal:
    """The PyTorch call for an API, or why there is none. Neither framework is imported.

    `name` may be dotted (``linalg.inv``); for ``Primitive`` it is the class name. Under the frameworks ``pytorch``
    and ``mindtorch`` names and arguments are PyTorch's own.
    """
    api = f"{api_type}.{name}"
    if framework in ("pytorch", "mindtorch"):
        if api_type == "NPU":
            return _from_lines(api, facts(_NPU).overloads(api_type, name), f"no reference is known ({_NPU}.txt)")
        if api_type not in _PYTORCH_TYPES:
            return Refusal(f"{api}: PyTorch has no API of type {api_type}")
        path = find_operator("torch", api_type, name)
        return Binding(api, path) if path else Refusal(f"{api}: {unknown_operator('torch', api_type)}")
    if framework != "mindspore" or api_type not in _TABLE_OF_TYPE:
        return Refusal(f"{api}: no PyTorch counterpart is known for type {api_type} of framework {framework}")
    if api_type == "Mint" and name.startswith("nn.functional."):
        api_type, name = "MintFunctional", name.removeprefix("nn.functional.")
    own = references.find(api_type, name)
    if own is not None:
        return Binding(api, own)
    lines = facts(_TABLE_OF_TYPE[api_type]).overloads(api_type, name)
    if lines:
        return _from_lines(api, lines, "")
    if find_operator("mindspore", api_type, name) is None:
        return Refusal(f"{api}: {unknown_operator('mindspore', api_type)}")
    if api_type not in _NAMESAKES:
        return Refusal(
            f"{api}: no PyTorch counterpart in the table ({_TABLE_OF_TYPE[api_type].rpartition('/')[2]}.txt)"
        )
    path = find_operator("torch", _NAMESAKES[api_type], name)
    return Binding(api, path) if path else Refusal(f"{api}: PyTorch has no operator of its name")


def names(api_type: str) -> tuple[str, ...]:
    """The names in the table of a MindSpore API type, in its order."""
    lines = facts(_TABLE_OF_TYPE[api_type]).typed()
    return tuple(name.partition(".")[2] for name in lines)


def _from_lines(api: str, lines: Sequence[Fact], without: str) -> Binding | Refusal:
    """What the lines of an API say; `without` is the reason for a refusal when there is none."""
    if not lines or lines[0].reason:
        return Refusal(f"{api}: {lines[0].reason if lines else without}")
    forms = tuple(_form(api.partition(".")[2], line) for line in lines)
    return Binding(api, forms[0].targets()[0] if forms[0].targets() else "torch.Tensor", forms)


def _form(name: str, line: Fact) -> CallMapping:
    text = f"{name}{line.parameters} -> {line.text}"
    expression = ast.parse(line.text, mode="eval").body
    for node in ast.walk(expression):
        if not isinstance(node, ALLOWED_NODES):
            raise ValueError(f"{type(node).__name__} is not allowed in a table: {text}")
    return CallMapping(text, read_signature(line.parameters or "()", lambda default: default), expression)
