"""Find the PyTorch call for a recorded API call, and bind the recorded arguments to it.

Tables are apis/facts/torch_calls and references.txt: ``MindSpore signature -> PyTorch call`` or ``name -> none:
reason``. Several lines of one name are overloads, tried in order until the arguments bind. A parameter may carry the
kinds of value that it takes (``axis: int | None = None``): with them two overloads of equal length can be
distinguished. A word of `_REFUSED` in their place (``scale: quantised = None``) refuses every value but None.
Keyword-only parameters of a Primitive are attributes, given to its constructor. The right-hand side may use parameters,
literals, dotted names that begin with ``torch.``, ``adapters.`` or ``references.``, methods and attributes of any of
these, tuples, lists, ``*names`` and nested calls, and nothing else. Parsed by ``ast``, run by the small interpreter
below: a table cannot do more than call PyTorch.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import cast

from pytest_msprobe.apis import Fact, facts
from pytest_msprobe.apis.fact_table import read_signature
from pytest_msprobe.apis.operators import find_operator, unknown_operator
from pytest_msprobe.engines import references
from pytest_msprobe.engines.protocol import Unsupported

ALLOWED_NODES = (
    ast.Call,
    ast.keyword,
    ast.Attribute,
    ast.Name,
    ast.Load,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.UnaryOp,
    ast.USub,
)


_ROOTED = re.compile(r"(torch|adapters|references)(\.\w+)+")


class MissingInTorch(LookupError):
    """The installed PyTorch has no such name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the installed PyTorch has no {name}")
        self.name = name


_KINDS: Mapping[str, Callable[[object], bool]] = {
    "None": lambda value: value is None,
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "tuple": lambda value: isinstance(value, (tuple, list)),
    "Tensor": lambda value: hasattr(value, "shape"),
    "dtype": lambda value: type(value).__name__ == "dtype",
}


#: Why an argument is refused whose parameter has one of these words in place of kinds of value.
_REFUSED = {
    "quantised": "quantised values and paged or padded caches have no reference",
    "unsupported": "MindSpore 2.10 does not support it here",
    "packed": "packed formats",
}


def attribute_at(dotted: str, roots: Mapping[str, object]) -> object:
    """The value of a dotted name that begins at a root.

    Raises:
        MissingInTorch: the installed PyTorch has no such name.
    """
    root, *path = dotted.split(".")
    if root == "references":
        return references.function(dotted)
    value = roots[root]
    for name in path:
        try:
            value = getattr(value, name)
        except AttributeError:
            raise MissingInTorch(dotted) from None
    return value


def dotted_names(expression: ast.expr) -> list[str]:
    """Longest dotted names of an expression that begin at a root, outermost first."""
    names: list[str] = []
    if isinstance(expression, ast.Attribute) and (dotted := _rooted(expression)):
        return [dotted]
    for child in ast.iter_child_nodes(expression):
        node = child.value if isinstance(child, ast.keyword) else child
        if isinstance(node, ast.expr):
            names += dotted_names(node)
    return names


def evaluate(node: ast.expr, values: Mapping[str, object], roots: Mapping[str, object]) -> object:
    """Value of an expression of the allowed nodes, whose names are parameters or roots.

    Raises:
        MissingInTorch: the installed PyTorch lacks an attribute that the expression names.
    """
    match node:
        case ast.Name(id=name):
            return values[name] if name in values else roots[name]
        case ast.Constant(value=value):
            return value
        case ast.Attribute(value=owner, attr=name):
            if dotted := _rooted(node):
                return attribute_at(dotted, roots)
            target = evaluate(owner, values, roots)
            try:
                return cast("object", getattr(target, name))
            except AttributeError:
                raise MissingInTorch(ast.unparse(node)) from None
        case ast.Call(func=function, args=arguments, keywords=keywords):
            callee = cast("Callable[..., object]", evaluate(function, values, roots))
            named = {str(keyword.arg): evaluate(keyword.value, values, roots) for keyword in keywords}
            return callee(*_items(arguments, values, roots), **named)
        case ast.Tuple(elts=elements):
            return tuple(_items(elements, values, roots))
        case ast.List(elts=elements):
            return _items(elements, values, roots)
        case ast.UnaryOp(operand=operand):
            return -cast("float", evaluate(operand, values, roots))
    raise ValueError(f"not an expression of a table: {node!r}")


def _items(nodes: Sequence[ast.expr], values: Mapping[str, object], roots: Mapping[str, object]) -> list[object]:
    items: list[object] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            items += cast("Sequence[object]", evaluate(node.value, values, roots))
        else:
            items.append(evaluate(node, values, roots))
    return items


@cache  # a table line is read once, for thousands of calls
def _rooted(node: ast.Attribute) -> str:
    """The dotted name that `node` writes when it begins at a root, else ""."""
    dotted = ast.unparse(node)
    return dotted if _ROOTED.fullmatch(dotted) else ""


_TABLE_OF_TYPE: Mapping[str, str] = {
    "Mint": "torch_calls/mint",
    "MintFunctional": "torch_calls/mint_functional",
    "Tensor": "torch_calls/tensor",
    "Functional": "torch_calls/functional",
    "Primitive": "torch_calls/primitive",
}
# MindSpore types whose names mean the same in PyTorch unless their table says otherwise: the type of the namesake.
_NPU = "torch_calls/npu"
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
class NoCounterpart:
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
            Unsupported: an argument is given that the line refuses.
        """
        used = {name: value for name, value in (attributes or {}).items() if name in self.attributes}
        values: dict[str, object] = dict(self.signature.bind(*args, **{**used, **kwargs}).arguments)
        refused: dict[str, list[str]] = {}
        for name, parameter in self.signature.parameters.items():
            kinds = parameter.annotation
            if name not in values:
                is_list = parameter.kind is parameter.VAR_POSITIONAL
                values[name] = () if is_list else evaluate(parameter.default, {}, roots)
            elif kinds and kinds[0] in _REFUSED:
                if values[name] is not None:
                    refused.setdefault(_REFUSED[kinds[0]], []).append(name)
            elif kinds and not any(_KINDS[kind](values[name]) for kind in kinds):
                raise TypeError(f"argument '{name}' is a {type(values[name]).__name__}")
        if refused:
            raise Unsupported("; ".join(f"{', '.join(names)}: {reason}" for reason, names in refused.items()))
        return values

    @property
    def attributes(self) -> list[str]:
        """Names of the parameters that a Primitive's constructor was given."""
        return [
            name for name, parameter in self.signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
        ]

    def missing(self, attributes: Mapping[str, object] | None) -> list[str]:
        """The attributes without a default that are not among `attributes`."""
        parameters = self.signature.parameters
        needed = [name for name in self.attributes if parameters[name].default is inspect.Parameter.empty]
        return [name for name in needed if attributes is None or name not in attributes]

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
        return lambda *args, **kwargs: self.bound(args, kwargs, roots)()

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
            Unsupported: an argument is given that its line refuses.
            MissingInTorch: the installed PyTorch lacks a name that is needed for it.
        """
        if not self.forms:
            return partial(cast("Callable[..., object]", attribute_at(self.target, roots)), *args, **kwargs)
        if self.api.partition(".")[0] == "Primitive" and all(form.missing(attributes) for form in self.forms):
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
def lookup(api_type: str, name: str, framework: str = "mindspore") -> Binding | NoCounterpart:
    """The PyTorch call for an API, or why there is none. Neither framework is imported.

    `name` may be dotted (``linalg.inv``); for ``Primitive`` it is the class name. Under the frameworks ``pytorch``
    and ``mindtorch`` names and arguments are PyTorch's own.
    """
    api = f"{api_type}.{name}"
    if framework in ("pytorch", "mindtorch"):
        return _lookup_in_torch(api_type, name, framework)
    if framework != "mindspore" or api_type not in _TABLE_OF_TYPE:
        return NoCounterpart(f"{api}: no PyTorch counterpart is known for type {api_type} of framework {framework}")
    if api_type == "Mint" and name.startswith("nn.functional."):
        api_type, name = "MintFunctional", name.removeprefix("nn.functional.")
    references = facts("references").overloads(api_type, name)
    lines = tuple(replace(line, text=f"references.{line.text}") for line in references)
    if lines and not lines[0].parameters:
        return Binding(api, lines[0].text)
    lines = lines or facts(_TABLE_OF_TYPE[api_type]).overloads(api_type, name)
    if lines:
        return _from_lines(api, lines, "")
    if find_operator("mindspore", api_type, name) is None:
        return NoCounterpart(f"{api}: {unknown_operator('mindspore', api_type)}")
    if api_type not in _NAMESAKES:
        return NoCounterpart(
            f"{api}: no PyTorch counterpart in the table ({_TABLE_OF_TYPE[api_type].rpartition('/')[2]}.txt)"
        )
    path = find_operator("torch", _NAMESAKES[api_type], name)
    return Binding(api, path) if path else NoCounterpart(f"{api}: PyTorch has no operator of its name")


def _lookup_in_torch(api_type: str, name: str, framework: str) -> Binding | NoCounterpart:
    api = f"{api_type}.{name}"
    if api_type == "NPU":
        return _from_lines(api, facts(_NPU).overloads(api_type, name), f"no reference is known ({_NPU}.txt)")
    if api_type not in _PYTORCH_TYPES:
        return NoCounterpart(f"{api}: PyTorch has no API of type {api_type}")
    if framework == "pytorch" and (reference := facts("references").typed("pytorch").get(api)) is not None:
        return Binding(api, f"references.{reference.text}")
    path = find_operator("torch", api_type, name)
    return Binding(api, path) if path else NoCounterpart(f"{api}: {unknown_operator('torch', api_type)}")


def names(api_type: str) -> tuple[str, ...]:
    """The names in the table of a MindSpore API type, in its order."""
    lines = facts(_TABLE_OF_TYPE[api_type]).typed()
    return tuple(name.partition(".")[2] for name in lines)


def _from_lines(api: str, lines: Sequence[Fact], without: str) -> Binding | NoCounterpart:
    """What the lines of an API say; `without` is the reason for a refusal when there is none."""
    if not lines or lines[0].reason:
        return NoCounterpart(f"{api}: {lines[0].reason if lines else without}")
    forms = tuple(_form(api.partition(".")[2], line) for line in lines)
    return Binding(api, next(iter(forms[0].targets()), "torch.Tensor"), forms)


def _form(name: str, line: Fact) -> CallMapping:
    text = f"{name}{line.parameters} -> {line.text}"
    expression = ast.parse(line.text, mode="eval").body
    for node in ast.walk(expression):
        if not isinstance(node, ALLOWED_NODES):
            raise ValueError(f"{type(node).__name__} is not allowed in a table: {text}")
    return CallMapping(text, read_signature(line.parameters or "()", lambda default: default), expression)


#: How compiled front ends and the tables here refuse arguments, and how functions without a signature do.
_FRONT_END = re.compile(
    r"Failed calling \w+ with"
    r"|received an invalid combination of arguments"
    r"|argument '\w+' \(position \d+\) must be"
    r"|the recorded arguments do not fit its signature"
)
_COUNTED = re.compile(
    r"unexpected keyword argument|takes [\w ]+ positional arguments? but|missing \d+ required"
    r"|multiple values for (?:keyword )?argument"
)


def is_misfit(error: BaseException, call: Callable[[], object]) -> bool:
    """Whether `error` is how the function of the partial `call` refuses the names, number or kinds of its arguments.

    Such an error comes before anything is computed, and says nothing of a device: the dump is of
    another version. The signature of a function of Python decides: the same words from inside of
    it are a fault of the framework.
    """
    call = partial(call)
    if not isinstance(error, TypeError):
        return False
    if _FRONT_END.search(str(error)):
        return True
    try:
        signature = inspect.signature(call.func)
    except (ValueError, TypeError):
        return _COUNTED.search(str(error)) is not None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return _COUNTED.search(str(error)) is not None
    try:
        signature.bind(*call.args, **call.keywords)
    except TypeError:
        return True
    return False
