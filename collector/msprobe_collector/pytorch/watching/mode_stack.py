"""The stack of modes of this thread: one mode is put on it, and taken off it wherever it is by then."""

from __future__ import annotations

from typing import Any

import torch

#: Its functions have no types.
overrides: Any = torch.overrides


def push(mode: Any) -> None:
    """Put `mode` below all others, unless it is there: a `with` of the script takes the topmost off when it ends."""
    if not is_on(mode):
        above = _popped_until(None)
        _push_all([mode, *above])


def remove(mode: Any) -> bool:
    """Take `mode` off; modes of the script stay. False when it was not there."""
    if not is_on(mode):
        return False
    _push_all(_popped_until(mode))
    return True


def is_on(mode: Any) -> bool:
    """Whether `mode` is on the stack of this thread."""
    return any(other is mode for other in overrides._get_current_function_mode_stack())


def _popped_until(mode: Any) -> list[Any]:
    """The modes above `mode`, or all, lowest first; they and `mode` are off the stack."""
    above: list[Any] = []
    while overrides._len_torch_function_stack() and (top := overrides._pop_mode()) is not mode:
        above.insert(0, top)
    return above


def _push_all(modes: list[Any]) -> None:
    for mode in modes:
        overrides._push_mode(mode)
