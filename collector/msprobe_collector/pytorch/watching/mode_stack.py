"""The stack of modes of this thread: one mode is put on it, and taken off it wherever it is by then."""

from __future__ import annotations

from typing import Any

from torch import overrides


def push(mode: Any) -> None:
    """Put `mode` on the stack, unless it is there."""
    if not is_on(mode):
        overrides._push_mode(mode)


def remove(mode: Any) -> bool:
    """Take `mode` off; modes that the script has entered since stay. False when it was not there."""
    if not is_on(mode):
        return False
    above = []
    while (top := overrides._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)
    return True


def is_on(mode: Any) -> bool:
    """Whether `mode` is on the stack of this thread."""
    return any(other is mode for other in overrides._get_current_function_mode_stack())
