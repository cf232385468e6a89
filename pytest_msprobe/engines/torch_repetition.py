"""A call of PyTorch that is ready to run, and runs again and again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_msprobe.engines.protocol import Array

_Execution = TypeVar("_Execution")


@dataclass(slots=True)
class Seeds:
    """Incoming gradients as tensors, made for each run, or kept from one run to the next.

    Attributes:
        are_kept: whether the next run with the same `incoming` gets the same tensors.
        incoming, tensors: of the last run, when they are kept.
    """

    are_kept: bool = False
    incoming: tuple[Array | None, ...] | None = None
    tensors: Sequence[Tensor] = ()

    def of(self, incoming: tuple[Array | None, ...], make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The tensors of `incoming`, which `make` makes."""
        if not self.are_kept:
            return make()
        if self.incoming is not incoming:
            self.incoming, self.tensors = incoming, make()
        return self.tensors


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call with its arguments converted and bound, before it runs.

    Attributes:
        function: the PyTorch function, bound to its arguments.
        target: its name.
        tensors: those among the arguments.
        leaves: the tensors to differentiate; a call that writes in place gets clones of them as arguments.
        seeds: the tensors of its incoming gradients.
    """

    function: Callable[[], object]
    target: str
    tensors: Sequence[Tensor]
    leaves: Sequence[Tensor]
    seeds: Seeds = field(default_factory=Seeds)


class Repetition(Generic[_Execution]):
    """Runs a call each time it is called: on the same tensors, unless the first run has written into them."""

    def __init__(self, torch: Any, make: Callable[[], ReadyCall], run: Callable[[ReadyCall], _Execution]) -> None:
        """`make` converts and binds the arguments, which costs as much as a small kernel; `run` runs them once."""
        self._torch = torch
        self._make = make
        self._run = run
        self._kept: ReadyCall | None = None
        self._has_run = False

    def __call__(self) -> _Execution:
        """The next run."""
        if self._kept is not None:
            return self._run(self._kept)
        ready = self._make()
        if self._has_run:
            return self._run(ready)
        # PyTorch counts what is written into a tensor, but not every kernel of a device takes part in that.
        before = [(tensor._version, tensor.detach().clone()) for tensor in ready.tensors]
        execution = self._run(ready)
        self._has_run = True
        if all(
            tensor._version == version and self._torch.equal(tensor.detach(), copy)
            for tensor, (version, copy) in zip(ready.tensors, before)
        ):
            ready.seeds.are_kept = True
            self._kept = ready
        return execution
