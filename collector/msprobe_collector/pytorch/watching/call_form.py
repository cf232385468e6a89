"""How a call is written in the script: as an operator, and with which arguments by position and by keyword.

A function of torch.nn.functional that is written in Python hands its arguments over by name, defaults included. The
instruction that made the call says what the script wrote, and a dump is to hold that.
"""

from __future__ import annotations

import dis
import inspect
import re
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from torch import overrides

#: Instructions of operators: BINARY_OP from Python 3.11 on, one for each operator before.
_OPERATOR = re.compile("BINARY_(?!SUBSCR|SLICE)|INPLACE_|COMPARE_OP")
_HANDLER = overrides.handle_torch_function.__code__
_UNKNOWN = inspect.Parameter.empty


class Form(NamedTuple):
    """What the instruction of a call says.

    Attributes:
        is_operator: it is `+`, `<` or their like.
        positional: how many arguments stand by position; None when it does not say (`f(*args)`).
        keywords: names of the others.
    """

    is_operator: bool
    positional: int | None = None
    keywords: tuple[str, ...] = ()


def is_operator(frame: FrameType) -> bool:
    """Whether what runs in `frame` is an operator."""
    return _form(frame.f_code, frame.f_lasti).is_operator


def as_called(
    function: Any, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the script wrote them, where `function` has handed them to a mode in another form.

    Args:
        function: that was called.
        frame: which called the mode.
        args: as they were handed over; returned when the script's form is not known.
        kwargs: likewise.
    """
    if not isinstance(function, FunctionType) or frame.f_code is not _HANDLER or frame.f_back is None:
        return args, kwargs
    own, caller = frame.f_back, frame.f_back.f_back
    if own.f_code is not function.__code__ or caller is None:
        return args, kwargs
    form = _form(caller.f_code, caller.f_lasti)
    defaults = _parameters(function)
    if form.positional is None or defaults is None or len(args) > len(defaults):
        return args, kwargs
    values = {**dict(zip(defaults, args)), **kwargs}
    names = list(defaults)
    written = {*names[: form.positional], *form.keywords}
    # What the instruction does not name must have its default: else it made another call (`map(F.relu, tensors)`).
    if not written <= values.keys() or any(
        name not in written and value is not defaults.get(name, _UNKNOWN) for name, value in values.items()
    ):
        return args, kwargs
    return tuple(values[name] for name in names[: form.positional]), {name: values[name] for name in form.keywords}


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
    before = [instruction for instruction in dis.get_instructions(code) if instruction.offset <= offset]
    before = [instruction for instruction in before if instruction.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG")]
    return _form_of(before[-1], before[-2] if len(before) > 1 else None, code.co_consts) if before else Form(False)


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
        return Form(False)
    return Form(False, count - len(keywords), keywords)
