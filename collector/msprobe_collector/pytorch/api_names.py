"""What a call is named in a dump: by the function that PyTorch hands over, and by how the script wrote the call.

- How the script wrote it: as an operator, and with which arguments by position and by keyword.
- Who made it: the script and its layers, or PyTorch's own machinery, whose calls are no records.
- Operators of Ascend: torch_npu registers them as PyTorch operators, so that they are seen as all
  others are.

A function of torch.nn.functional that is written in Python hands its arguments over by name, defaults included. The
instruction that made the call says what the script wrote, and a dump is to hold that.

`torch_npu.npu_rms_norm` is the operator `npu::npu_rms_norm`, recorded as `NPU.npu_rms_norm`; its wrappers written in
Python call such operators. Nothing of this has run on an NPU: it was tested with operators of the same names that
compute on the CPU.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import _VF, overrides

#: Instructions of operators: BINARY_OP from Python 3.11 on, one for each operator before.
_OPERATOR = re.compile("BINARY_(?!SUBSCR|SLICE)|INPLACE_|COMPARE_OP")
_HANDLER = overrides.handle_torch_function.__code__
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]  # a class method
_NOT_GIVEN = inspect.Parameter.empty


class Form(NamedTuple):
    """What the instruction of a call says.

    Attributes:
        is_operator: it is `+`, `<` or their like.
        positional: how many arguments stand by position; None when it does not say (`f(*args)`).
        keywords: names of the others.
        hands_on: it is `f(*args)`, as what was given a function calls it.
    """

    is_operator: bool
    positional: int | None = None
    keywords: tuple[str, ...] = ()
    hands_on: bool = False


#: The innermost frame that is neither the function's own nor that of a mode which passed the call on, and the
#: function's own where it is written in Python and has handed itself over. No class: one is made at every call.
Caller = tuple[FrameType, FrameType | None]


def caller_of(frame: FrameType) -> Caller:
    """Who made the call that `frame` has handed to a mode."""
    function_frame = None
    while True:
        code = frame.f_code
        if code is _HANDLER and frame.f_back is not None and frame.f_back.f_back is not None:
            function_frame = frame.f_back
            frame = frame.f_back.f_back
        elif code.co_name == "__torch_function__" and frame.f_back is not None:
            frame = frame.f_back
        else:
            return frame, function_frame


_TORCH = str(Path(torch.__file__).parent) + "/"
#: Packages of PyTorch whose calls are how it works, not what the script computes. The rest (layers, functions,
#: optimizers, clipping) calls what users would.
_MACHINERY = tuple(
    f"{_TORCH}{package}/"
    for package in (
        *("autograd", "distributed", "nn/parallel", "_functorch", "_dynamo", "_inductor", "_subclasses"),
        *("_refs", "_prims", "_prims_common", "_decomp", "_higher_order_ops"),
    )
)


def is_machinery(call: str, frame: FrameType) -> bool:
    """Whether PyTorch's machinery makes the `call` in `frame`: DTensor, DDP, torch.func, gradients of gradients.

    A file that lies in no package of PyTorch (`torch/_utils.py`) works for who calls it. A function that was given to
    the machinery (`torch.vmap(torch.dot)`) is the script's, an operator by its own name only where the script itself
    calls it.
    """
    if _kind_of_file(frame.f_code.co_filename) == "script":
        return False
    is_operator_itself = call.startswith("Aten.")
    while (kind := _kind_of_file(frame.f_code.co_filename)) in ("front", "operators") and frame.f_back is not None:
        if is_operator_itself and kind == "front":
            return True
        frame = frame.f_back
    if is_operator_itself:
        return kind != "script"
    # Autograd functions hand nothing on: an argument that they return is made a view of itself there.
    is_given = frame.f_code is not _APPLY and kind == "machinery" and _form(frame.f_code, frame.f_lasti).hands_on
    return kind == "machinery" and not is_given


@cache
def _kind_of_file(path: str) -> Literal["script", "operators", "front", "machinery", "torch"]:
    if not path.startswith(_TORCH):
        return "script"
    if path.startswith(_MACHINERY):
        return "machinery"
    if "/" in path[len(_TORCH) :]:
        return "torch"
    return "operators" if path == torch._ops.__file__ else "front"


def is_operator(frame: FrameType) -> bool:
    """Whether what runs in `frame` is an operator."""
    return _form(frame.f_code, frame.f_lasti).is_operator


def as_called(
    function: Any, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the script wrote them, where `function` has handed them to a mode in another form.

    Args:
        function: that was called.
        caller: who made the call.
        args: as they were handed over; returned when the script's form is not known.
        kwargs: likewise.
    """
    frame, function_frame = caller
    if function_frame is None or type(function) is not FunctionType:
        return args, kwargs
    if function_frame.f_code is not function.__code__:
        return args, kwargs
    written = _written(function, _form(frame.f_code, frame.f_lasti), len(args), tuple(kwargs))
    values = (*args, *kwargs.values())
    # What the instruction does not name must have its default: else it made another call (`map(F.relu, tensors)`).
    if written is None or any(values[at] is not default for at, default in written.defaults):
        return args, kwargs
    return tuple([values[at] for at in written.positional]), {name: values[at] for name, at in written.keywords}


class Written(NamedTuple):
    """Where in the values that a function hands over stand those that the script wrote.

    Attributes:
        positional: those by position, in order.
        keywords: names and places of the others.
        defaults: places of those that the script did not write, and what they are by default.
    """

    positional: tuple[int, ...]
    keywords: tuple[tuple[str, int], ...]
    defaults: tuple[tuple[int, Any], ...]


@lru_cache(maxsize=4096)
def _written(function: FunctionType, form: Form, count: int, keywords: tuple[str, ...]) -> Written | None:
    """`count` values are handed over by position, the others by these names; None where the script's are not known."""
    defaults = _parameters(function)
    if form.positional is None or defaults is None or count > len(defaults):
        return None
    names = list(defaults)
    places = {name: at for at, name in enumerate((*names[:count], *keywords))}
    positional = names[: form.positional]
    if not {*positional, *form.keywords} <= places.keys():
        return None
    others = [name for name in places if name not in positional and name not in form.keywords]
    return Written(
        tuple([places[name] for name in positional]),
        tuple([(name, places[name]) for name in form.keywords]),
        tuple([(places[name], defaults.get(name, _NOT_GIVEN)) for name in others]),
    )


@lru_cache(maxsize=1024)
def _parameters(function: FunctionType) -> dict[str, Any] | None:
    """Default by parameter, in order; None for a function that takes any number."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return None
    return {parameter.name: parameter.default for parameter in parameters}


@lru_cache(maxsize=1 << 16)
def _form(code: CodeType, offset: int) -> Form:
    # While Python runs a function that it calls itself, the offset is that of the call's last cache entry.
    last = instruction = None
    for following in dis.get_instructions(code):
        if following.offset > offset:
            break
        if following.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG"):
            last, instruction = instruction, following
    return Form(False) if instruction is None else _form_of(instruction, last, code.co_consts)


def _form_of(instruction: dis.Instruction, last: dis.Instruction | None, constants: tuple[Any, ...]) -> Form:
    name, count = instruction.opname, instruction.arg or 0
    if _OPERATOR.match(name):
        return Form(True)
    keywords: tuple[str, ...] = ()
    if name in ("CALL_KW", "CALL_FUNCTION_KW"):
        if last is None or not isinstance(last.argval, tuple):
            return Form(False)
        keywords = last.argval
    elif name == "CALL":
        if last is not None and last.opname == "KW_NAMES":
            keywords = constants[last.arg or 0]
    elif name not in ("CALL_FUNCTION", "CALL_METHOD"):
        return Form(False, hands_on=name == "CALL_FUNCTION_EX")
    return Form(False, count - len(keywords), keywords)


#: Type of record by namespace of operators.
NAMESPACES = {"npu": "NPU", "atb": "NPU.atb", "mindspeed": "NPU.mindspeed"}


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
_NAMESPACES = {"aten": "Aten", **NAMESPACES}
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
        return f"Tensor.__{'i' * (method != base)}{_OPERATORS[base]}__"

    def _found(self, function: Any) -> str | None:
        name = self._public.get(function) or _otherwise(function)
        if name is None or name.rpartition(".")[2] in self._unlisted:
            return None
        return name


#: Where public functions stand, and what records call the place. Of places that share a function the first names it.
_PLACES = (
    (torch.nn.functional, "Functional"),
    (torch, "Torch"),
    (torch.linalg, "Torch.linalg"),
    (torch.fft, "Torch.fft"),
    (torch.special, "Torch.special"),
    (torch.sparse, "Torch.sparse"),
    (torch.nested, "Torch.nested"),
    (torch.nn.init, "Torch.nn.init"),
    (torch.Tensor, "Tensor"),
)
#: Names of methods in Python 2, which stand beside those of today.
_OF_PYTHON_2 = frozenset({"__div__", "__rdiv__", "__idiv__", "__long__", "__nonzero__"})


def _public_names() -> dict[Any, str]:
    """The one name of each function under which users find it.

    Of several, public ones go before private ones (`Functional.threshold`, not `_threshold`), and that of the operator
    before others (`Torch.mm`, not `dsmm` or `spmm`, which equal it).
    """
    ranks_of: dict[Any, list[tuple[int, int, str]]] = {}
    for place, (owner, _) in enumerate(_PLACES):
        for name, value in _members(owner):
            privacy = name.startswith("_") + (name in _OF_PYTHON_2)
            ranks_of.setdefault(value, []).append((privacy, place, name))
    names = {}
    for value, ranks in ranks_of.items():
        best = [rank for rank in ranks if rank[:2] == min(ranks)[:2]]
        operators = (rank for rank in best if hasattr(torch.ops.aten, rank[2]))
        _, place, name = next(operators, best[0])
        names[value] = f"{_PLACES[place][1]}.{name}"
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"):
        names[getattr(_VF, name)] = f"VF.{name}"
    for name in ("max_pool1d", "max_pool2d", "max_pool3d"):  # what the functions of this name hand over
        names[getattr(torch, name)] = f"Functional.{name}"
    return names


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    is_class = isinstance(owner, type)
    members = {**vars(torch._C.TensorBase), **vars(owner)} if is_class else vars(owner)
    for name, value in members.items():
        if callable(value) and (is_class or not (isinstance(value, type) or name.startswith("__"))):
            yield name, value


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


@lru_cache(4096)
def changes_first_argument(name: str) -> bool:
    """Whether a call of this name writes its result into its first argument."""
    method = name.rpartition(".")[2]
    if method.startswith("__"):
        return method == "__setitem__" or method in _IN_PLACE_OPERATORS
    return method.endswith("_")
