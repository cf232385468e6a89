"""Random and uninitialised APIs: the law of their outputs, and what their arguments say of it.

- Calls that draw inside when their arguments say so: attention and recurrent layers with dropout.

- Outputs that are not judged element by element as they stand: indices, and values in an open order.
- Which recorded values are memory that nobody had written yet: the one owner of this fact for all suites.
- API calls that cannot be judged at all, each with its reason.
- Which operations are documented to give other bytes in another run, and by how much.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from msprobe_collector.dump_format import ApiName, Direction, PlainValue, TensorValue, is_communication
from pytest_msprobe.apis.fact_table import Fact, Term, facts, plain_name, read_signature, read_terms

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
