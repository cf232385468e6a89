"""A call that runs again and again on the same tensors, as long as it does not write into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import Array

_Execution = TypeVar("_Execution")
_Ready = TypeVar("_Ready", bound="Ready")


@dataclass(slots=True)
class Seeds:
    """Incoming gradients as tensors of a framework, made for each run, or kept from one run to the next.

    Attributes:
        are_kept: whether the next run with the same `incoming` gets the same tensors.
        incoming, tensors: of the last run, when they are kept.
    """

    are_kept: bool = False
    incoming: tuple[Array | None, ...] | None = None
    tensors: Sequence[Any] = ()

    def of(self, incoming: tuple[Array | None, ...], make: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The tensors of `incoming`, which `make` makes."""
        if not self.are_kept:
            return make()
        if self.incoming is not incoming:
            self.incoming, self.tensors = incoming, make()
        return self.tensors


class Ready(Protocol):
    """A call with its arguments converted, before it runs."""

    @property
    def seeds(self) -> Seeds:
        """The tensors of its incoming gradients."""

    def watch(self) -> Callable[[], bool]:
        """A function that says whether the tensors among the arguments are as they are now."""


class Repetition(Generic[_Ready, _Execution]):
    """Runs a call each time it is called: on the same tensors, unless the first run has written into them."""

    def __init__(self, make: Callable[[], _Ready], run: Callable[[_Ready], _Execution]) -> None:
        """`make` makes the call ready, which costs as much as a small kernel; `run` runs it once."""
        self._make = make
        self._run = run
        self._kept: _Ready | None = None
        self._has_run = False

    def __call__(self) -> _Execution:
        """The next run."""
        if self._kept is not None:
            return self._run(self._kept)
        ready = self._make()
        if self._has_run:
            return self._run(ready)
        are_unwritten = ready.watch()
        execution = self._run(ready)
        self._has_run = True
        if are_unwritten():
            ready.seeds.are_kept = True
            self._kept = ready
        return execution
