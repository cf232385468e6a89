"""What is known of APIs by their names: the one grammar of fact files, its parser, and what single topics say.

A file holds the facts of one topic, one line each::

    # a comment
    Type.name(signature) -> fact  # source of the fact
    name name name -> fact
    Type.* -> fact
    [framework Type -> fact]

* `Type` is the type of record names (`Mint`, `Functional`, ...); a Primitive is named by its class.
* A name without a type applies to every type and spelling, see `plain_name`.
* `Type.*` applies to all names of a type.
* A heading in brackets applies to the lines below it, up to the next one: `mindspore` or `pytorch` limits them to dumps
  of that framework (`pytorch` includes MSAdapter), a type stands before their names, a fact is that of lines
  without an arrow. Each part may be missing.
* `none: reason` as the fact says that there is none, and why.
* What else a fact and a signature mean is the topic's own; its file says so at the top.

The most particular line counts: `Type.name` before `Type.*` before `name`. A name has several lines only when each
has a signature (overloads). Signatures and terms are read by `ast`: nothing of a file is ever run.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from msprobe_collector.dump_format import API_TYPES, ApiName, Direction, PlainValue, TensorValue, is_communication


def read_signature(text: str, default: Callable[[ast.expr], object] = ast.literal_eval) -> inspect.Signature:
    """The signature that `(a, b=1, *c, d: int | None = 2, **e)` writes.

    Args:
        text: with its brackets.
        default: makes the value of a default from its expression; as it stands, defaults are constants.

    Returns:
        Annotations are tuples of the words between the bars, `("int", "None")`; () where there is none.
    """
    (function,) = ast.parse(f"def api{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    written, kinds = function.args, inspect.Parameter

    parameters: list[inspect.Parameter] = []

    def add(kind: Any, arguments: Sequence[ast.arg | None], expressions: Sequence[ast.expr | None]) -> None:
        for argument, expression in zip(arguments, expressions):
            if argument is not None:
                value = kinds.empty if expression is None else default(expression)
                text = ast.unparse(argument.annotation) if argument.annotation else ""
                words = tuple(filter(None, text.split(" | ")))
                parameters.append(kinds(argument.arg, kind, default=value, annotation=words))

    without_default = [None] * (len(written.args) - len(written.defaults))
    add(kinds.POSITIONAL_OR_KEYWORD, written.args, [*without_default, *written.defaults])
    add(kinds.VAR_POSITIONAL, [written.vararg], [None])
    add(kinds.KEYWORD_ONLY, written.kwonlyargs, written.kw_defaults)
    add(kinds.VAR_KEYWORD, [written.kwarg], [None])
    return inspect.Signature(parameters)


@dataclass(frozen=True, slots=True)
class Term:
    """A name with arguments: `uniform(0, high)`, where an argument is a constant or names a parameter of the API.

    Attributes:
        name: before the bracket.
        arguments: as written.
        keywords: constants that are given by name.
    """

    name: str
    arguments: tuple[ast.expr, ...]
    keywords: Mapping[str, Any]

    def values(self, bound: Mapping[str, Any]) -> list[Any]:
        """The arguments' values, given those of the API's parameters."""
        return [_evaluated(item, bound) for item in self.arguments]


def _evaluated(item: ast.expr, bound: Mapping[str, Any]) -> Any:
    return bound[item.id] if isinstance(item, ast.Name) else ast.literal_eval(item)


@cache
def read_terms(text: str) -> tuple[Term, ...]:
    """The terms of `name(arguments); name(arguments)`."""
    return tuple(_term(part) for part in text.split("; "))


def _term(text: str) -> Term:
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"not name(arguments): {text}")
    keywords = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
    return Term(call.func.id, tuple(call.args), keywords)


_OPERATORS = "add|sub|mul|matmul|div|truediv|floordiv|mod|divmod|pow|and|or|xor|lshift|rshift"
_OPERATOR_METHOD = re.compile(rf"__[ir]?({_OPERATORS})__")
_IN_PLACE_METHOD = re.compile(rf"__i(?:{_OPERATORS})__")


@cache
def plain_name(name: str) -> str:
    """`addmm` for `addmm_` and `Addmm`, `logsoftmax` for `log_softmax`, `add` for `__add__`, `__radd__`, `__iadd__`."""
    operator = _OPERATOR_METHOD.fullmatch(name)
    return operator[1] if operator else name.replace("_", "").lower()


def writes_in_place(api: ApiName) -> bool:
    """Whether `api` changes its first argument: `add_`, `__iadd__`, `__setitem__`."""
    return is_name_in_place(api.short)


def is_name_in_place(name: str) -> bool:
    """Whether an API of this short name does."""
    if name.startswith("__"):
        return name == "__setitem__" or _IN_PLACE_METHOD.fullmatch(name) is not None
    return name.endswith("_")


FOLDER = Path(__file__).with_name("facts")
FRAMEWORKS = ("mindspore", "pytorch")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one line says of an API.

    Attributes:
        name: the API as the table knows it: `Mint.rand`, `addmm`, `Jit.*`.
        parameters: signature in brackets, "" without one.
        text: right of the arrow, or of that of the heading; "" when neither has one.
        source: behind the line, "" without one.
    """

    name: str
    parameters: str = ""
    text: str = ""
    source: str = ""

    @property
    def reason(self) -> str:
        """Why there is no fact; "" when there is one."""
        return self.text.partition("none: ")[2] if self.text.startswith("none: ") else ""


class FactTable:
    """The facts of one topic."""

    def __init__(self, lines: Iterator[tuple[str, Fact]]) -> None:
        """A table of (framework, fact); the framework is "" for a fact of all of them."""
        tables: dict[str, dict[str, tuple[Fact, ...]]] = {framework: {} for framework in FRAMEWORKS}
        for framework, fact in lines:
            for table in [tables[framework]] if framework else tables.values():
                others = table.get(fact.name, ())
                if others and not (fact.parameters and others[-1].parameters):
                    raise ValueError(f"{fact.name} is listed twice")
                table[fact.name] = (*others, fact)
        self._tables = tables
        self._found = lru_cache(maxsize=1024)(self.find)  # all calls of an API ask the same

    def of(self, api: ApiName, framework: str = "mindspore") -> Fact | None:
        """The fact on `api` in a dump of `framework`, or None."""
        return self._found(api.type, api.table_name, framework)

    def find(self, api_type: str, name: str, framework: str = "mindspore") -> Fact | None:
        """The same by record type and table name: `Mint` and `linalg.inv`, `Primitive` and `Conv2D`."""
        table = self._of_framework(framework)
        return next(iter(self._lines(table, api_type, name)), None)

    def forms(self, api: ApiName, framework: str) -> tuple[Fact, ...]:
        """Every line that counts for `api`, in order: its overloads; () without any."""
        return self._lines(self._of_framework(framework), api.type, api.table_name)

    @staticmethod
    def _lines(table: Mapping[str, tuple[Fact, ...]], api_type: str, name: str) -> tuple[Fact, ...]:
        for key in (f"{api_type}.{name}", f"{api_type}.*", plain_name(name.rpartition(".")[2])):
            if key in table:
                return table[key]
        return ()

    def word(self, name: str) -> Fact | None:
        """The fact on the bare `name`, whatever its type."""
        return next(iter(self._tables["mindspore"].get(plain_name(name), ())), None)

    def overloads(self, api_type: str, name: str) -> tuple[Fact, ...]:
        """Every line on the MindSpore API of this type and name, in order; () without any."""
        return self._tables["mindspore"].get(f"{api_type}.{name}", ())

    def typed(self, framework: str = "mindspore") -> Mapping[str, Fact]:
        """The first line on each `Type.name`, in the order of the file."""
        table = self._of_framework(framework)
        return MappingProxyType({name: lines[0] for name, lines in table.items() if "." in name})

    def _of_framework(self, framework: str) -> Mapping[str, tuple[Fact, ...]]:
        return self._tables.get(framework, self._tables["pytorch"])


@cache
def facts(topic: str) -> FactTable:
    """The facts of `topic`, the name of a file in `facts` without `.txt`, read when first asked for.

    Raises:
        ValueError: a line of the file is not one of the grammar.
    """
    return read(FOLDER / f"{topic}.txt")


def read(path: Path) -> FactTable:
    """The facts in the file at `path`.

    Raises:
        ValueError: a line of it is wrong; the text names the file.
    """
    try:
        return FactTable(_facts(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _facts(text: str) -> Iterator[tuple[str, Fact]]:
    framework = api_type = shared = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("["):
            scope, _, shared = line.removeprefix("[").removesuffix("]").partition("-> ")
            framework = next((word for word in scope.split() if word in FRAMEWORKS), "")
            api_type = next((word for word in scope.split() if word in API_TYPES), "")
            if not line.endswith("]") or len(scope.split()) != bool(framework) + bool(api_type):
                raise ValueError(f"line {number}: not a heading [framework Type -> fact]: {line}")
        elif line and not line.startswith("#"):
            written, _, source = line.partition("  # ")
            declared, arrow, fact = written.rstrip().partition(" -> ")
            name, bracket, parameters = declared.partition("(")
            if bracket and not (parameters.endswith(")") and arrow):
                raise ValueError(f"line {number}: not name(signature) -> fact: {line}")
            for spelled in name.split():
                yield framework, Fact(_key(spelled, api_type), bracket + parameters, fact if arrow else shared, source)


def _key(name: str, api_type: str) -> str:
    """`Type.name`, or the plain spelling of a name without a type."""
    if api_type:
        return f"{api_type}.{name}"
    return name if name.partition(".")[0] in API_TYPES and "." in name else plain_name(name)


# What single topics say:
# - Random and uninitialised APIs: the law of their outputs.
# - Calls that draw inside when their arguments say so: attention and recurrent layers with dropout.
# - Outputs that are not judged element by element as they stand: indices, and values in an open order.
# - Which recorded values are memory that nobody had written yet.
# - API calls that cannot be judged at all, each with its reason.
# - Which operations are documented to give other bytes in another run, and by how much.


_UNINITIALISED = Term("uninitialised", (), {})


@dataclass(frozen=True, slots=True)
class RandomApi:
    """An API whose outputs no benchmark can foretell.

    Attributes:
        signature: of the API.
        law: what its outputs follow; None when none is known.
        form: the dtype and shape that they must have; None when the arguments do not tell.
        reason: why there is no law; "" when there is one.
    """

    signature: inspect.Signature
    law: Term | None
    form: Term | None
    reason: str = ""

    def bind(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all parameters for one call. TypeError when they do not fit."""
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return dict(bound.arguments)


@lru_cache(maxsize=256)  # asked several times on the way of each call
def random_api(api: ApiName, framework: str) -> RandomApi | None:
    """What is known of `api` in a dump of `framework` when it is random or uninitialised, else None."""
    unwritten = facts("unwritten").of(api, framework)
    if unwritten is not None and unwritten.text.startswith("outputs("):
        return _random(unwritten, "uninitialised memory: its values mean nothing")
    fact = facts("random").of(api, framework)
    if fact is None:
        return None
    why = fact.reason or f"the table of laws has no {api.type}.{api.table_name}"
    return _random(fact, f"random by nature: {why}")


def random_apis(framework: str = "mindspore") -> Mapping[str, str]:
    """`Type.name` of every API with a line of its own: its law (`uniform`, `uninitialised`, ...), or "" without one."""
    lines = {name: fact for name, fact in facts("unwritten").typed(framework).items() if fact.parameters}
    laws = {name: _random(fact).law for name, fact in {**lines, **facts("random").typed(framework)}.items()}
    return {name: law.name if law else "" for name, law in laws.items()}


@cache
def _random(fact: Fact, reason: str = "") -> RandomApi:
    """What a line says; `reason` when it has no law and no signature."""
    if not fact.parameters:
        return RandomApi(inspect.Signature(), None, None, reason)
    law, form = (*read_terms(fact.text), None)[:2]
    if fact.text.startswith("outputs("):
        law = _UNINITIALISED
    return RandomApi(read_signature(fact.parameters), law, form)


#: When a call draws inside, by the terms of random_inside.txt.
_DRAWS: Mapping[str, Callable[[Any], bool]] = {
    "positive": lambda value: value is not None and value != 0,
    "below_one": lambda value: value is not None and value != 1,
    "true": bool,
    "several": lambda value: value != 1,
    "missing": lambda value: value is None,
}


def random_inside(
    api: ApiName,
    framework: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
) -> str:
    """Why nothing can tell what this call of `api` computed: it drew inside, as its arguments say; "" when it did not.

    `attributes` is what the class of a Primitive was called with. Arguments that fit no signature say nothing.
    """
    for fact in facts("random_inside").forms(api, framework):
        bound = _bound(read_signature(fact.parameters), arguments, {**(attributes or {}), **keywords})
        if bound is None:
            continue
        shown = []
        for term in read_terms(fact.text):
            name = ast.unparse(term.arguments[0])
            value = _number(bound[name])
            if not _DRAWS[term.name](value):
                return ""
            shown.append(f"{name}={value}")
        return f"random by nature with {', '.join(shown)}: what the call drew inside is not in the dump"
    return ""


def _number(value: Any) -> Any:
    """A number, also out of a tensor of one element, or None; True for anything else that is given."""
    value = value.item() if getattr(value, "size", 0) == 1 else value
    return value if value is None or isinstance(value, (bool, int, float)) else True


def _bound(
    signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Values of all parameters; None when the arguments do not fit, also by the kind that a parameter asks for."""
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError:
        return None
    bound.apply_defaults()
    for name, parameter in signature.parameters.items():
        if parameter.annotation == ("bool",) and not isinstance(bound.arguments[name], bool):
            return None
    return dict(bound.arguments)


#: Behind all arguments: for APIs whose axis no argument gives.
_NOWHERE = 99


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """An output that selects from the first argument.

    Attributes:
        position: which output holds the indices.
        axis_position: positional argument that gives the axis, counted with the tensor as 0.
        default_axis: axis when the call gives none; None means the flattened tensor.
        is_selection: True when one line of the indices may not name an element twice (topk, sort).
        values_position: which output holds the values that the indices must select; None without one.
        flattened_axes: trailing axes of source and indices that count as one, as in pooling; 0 for none.
        stable_position: positional argument `stable`; None for APIs that do not promise the order of equals.
    """

    position: int = 0
    axis_position: int = _NOWHERE
    default_axis: int | None = None
    is_selection: bool = False
    values_position: int | None = 0
    flattened_axes: int = 0
    stable_position: int | None = None


def index_output(api: ApiName) -> IndexOutput | None:
    """Which output of `api` is indices into its first argument, or None."""
    keywords = _keywords("index_outputs", api)
    return None if keywords is None else IndexOutput(**keywords)


def sorted_position(api: ApiName) -> int | None:
    """Positional argument `sorted` of an API that may leave the order of its outputs open, or None."""
    keywords = _keywords("open_order", api)
    return None if keywords is None else int(keywords["position"])


def _keywords(topic: str, api: ApiName) -> Mapping[str, Any] | None:
    fact = facts(topic).of(api)
    return None if fact is None or fact.reason else read_terms(fact.text)[0].keywords


#: More than there are APIs; a dump may hold any names.
_REMEMBERED = 8192
_PLACES = ("outputs", "beside", "inputs", "mixed", "overwritten")
_NOTHING = Fact("")


@dataclass(frozen=True, slots=True)
class UnwrittenMemory:
    """The values of one API that mean nothing.

    Attributes:
        outputs: outputs that come back as the memory was found, by the first step of their path: "0", "tensor".
        inputs: arguments that the call fills, as they were before.
    """

    outputs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Whether the value at `path` (`input.0.1`, `output.0`) is in one of `outputs` or `inputs`."""
        side, _, rest = path.partition(".")
        return rest.partition(".")[0] in (self.inputs if side == "input" else self.outputs)


@lru_cache(_REMEMBERED)
def unwritten_memory(name: str, framework: str, partly: Literal["mixed", "overwritten"]) -> UnwrittenMemory:
    """What of the operation called `name` (`Mint.empty`, `Primitive.held.Empty`) means nothing in its records.

    Arguments that are such memory only in part are `inputs` when they are so in the way `partly`: see unwritten.txt.
    """
    fact = fact_of("unwritten", name, framework)
    if fact is None:
        return UnwrittenMemory()
    places: dict[str, set[str]] = defaultdict(set)
    for term in read_terms(fact.text):
        if term.name in _PLACES:
            places[term.name].update(str(ast.literal_eval(item)) for item in term.arguments)
    outputs, inputs = places["outputs"] | places["beside"], places["inputs"] | places[partly]
    return UnwrittenMemory(frozenset(outputs), frozenset(inputs))


@lru_cache(_REMEMBERED)
def fact_of(topic: str, name: str, framework: str = "pytorch") -> Fact | None:
    """The fact on the operation called `name` (`Mint.exp`, `Primitive.held.Exp`, `Cell.net.norm.LayerNorm`)."""
    api_type, _, api = name.partition(".")
    return facts(topic).find(api_type, api.rpartition(".")[2] if api_type == "Primitive" else api, framework)


@lru_cache(_REMEMBERED)
def text_of(topic: str, name: str) -> str:
    """The text of that fact; "" without one."""
    return (fact_of(topic, name) or _NOTHING).text


def is_a(word: str, name: str) -> bool:
    """Whether the operation called `name` is the one that PyTorch calls `word`: `Mint.true_divide` is a `div`."""
    plain = plain_name(name.rpartition(".")[2])
    return word == (text_of("operation_names", name) or plain)


@lru_cache(_REMEMBERED)
def is_batch_argument(name: str, path: str) -> bool:
    """Whether the value at `path` (`input.1`) of the operation called `name` is data, such as labels are."""
    fact = fact_of("batch_arguments", name)
    if fact is None:
        return False
    places = map(ast.literal_eval, read_terms(fact.text)[0].arguments)
    return path.partition(".")[2] in map(str, places)


def says_where(operation: str, path: str, value: Any) -> bool:
    """Whether an argument says where or how a call of `operation` runs, not what it computes.

    Args:
        operation: its name, `Tensor.to`.
        path: of the argument, `input.device`.
        value: what the dump holds there.
    """
    if isinstance(value, TensorValue) or hasattr(value, "__array_interface__"):
        return False
    if _where(path.rpartition(".")[2]) == "name" or _where(getattr(value, "type_name", "")) == "type":
        return True
    text = value.value if isinstance(value, PlainValue) else value
    if not isinstance(text, str):
        return False
    device, _, number = text.partition(":")
    if _where(device) == "device" and (number.isdecimal() or device == text):
        return True
    return is_communication(operation) and _where(text.rpartition(".")[2]) != "reduction"


@lru_cache(_REMEMBERED)
def _where(word: str) -> str:
    """What where_and_how.txt says of a word; "" for nothing."""
    return (facts("where_and_how").word(word) or _NOTHING).text


#: `SigmoidGrad`, `GmmBackward`, but not `ApplyGradientDescent`.
_GRADIENT_KERNEL = re.compile(r"Grad(?!ient)|Backward")


def reason_not_judged(api: ApiName, framework: str = "mindspore") -> str | None:
    """Why neither a benchmark nor a law can judge the outputs of `api`, or None when one may."""
    entry = random_api(api, framework)
    return reason_uncomputable(api, framework) or (entry and entry.reason) or None


def reason_uncomputable(api: ApiName, framework: str = "mindspore") -> str | None:
    """Why no engine can compute `api` from what a dump holds, or None when one may."""
    if is_communication(api.type):
        return "communication: the other ranks' data is not in this dump"
    if framework == "mindspore" and api.type == "Primitive" and _GRADIENT_KERNEL.search(api.short):
        return "a gradient kernel, which MindSpore calls itself: the backward record of its API is judged instead"
    fact = facts("not_judged").of(api, framework)
    return None if fact is None else fact.reason


def adds_up_narrowly(api: ApiName, framework: str) -> bool:
    """Whether gradients that `api` sums over an incoming gradient are added up in the dtype of that one."""
    return facts("narrow_sums").of(api, framework) is not None


#: `sums`: the order of additions changes. `writes`: any of several values may be the last one written.
Kind = Literal["sums", "writes"]


def documented_difference(api: ApiName, framework: str, target: str, direction: Direction) -> Kind | None:
    """Why results of `api` on `target` (`cpu`, `cuda`, `ascend`) may differ between runs; None where they may not."""
    fact = facts("nondeterministic").of(api, framework) or _NOTHING
    for line in filter(None, fact.text.split("; ")):
        place, way, kind = line.split()
        if place in (target, "any") and way in (direction, "both"):
            return "writes" if kind == "writes" else "sums"
    return None
