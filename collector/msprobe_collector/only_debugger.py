"""Methods that can be called on the class of a debugger too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from msprobe_collector.debugger import Debugger

_P = ParamSpec("_P")
_R = TypeVar("_R")


class OfTheOnlyDebugger(Generic[_P, _R]):
    """A method that the class may be asked for too: it is then the only debugger's."""

    def __init__(self, method: Callable[Concatenate[Debugger, _P], _R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, debugger: Debugger | None, owner: type[Debugger]) -> Callable[_P, _R]:
        return functools.partial(self._method, debugger or owner.the_one())
