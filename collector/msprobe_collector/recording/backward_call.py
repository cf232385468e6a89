"""One call's backward while its gradients arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msprobe_collector.dump_format.writing.framework_values import FrameworkValues, TensorValues


class Completed(Protocol):
    """Receives a finished backward."""

    def __call__(self, incoming: list[Any], outgoing: list[Any]) -> None:
        """`incoming[i]` is the gradient of output i, `outgoing[i]` that of tensor argument i; None where none came."""


class BackwardCall:
    """One call's backward while its gradients arrive.

    It completes when every edge has delivered; `complete` ends it early when the rest will not come.
    """

    __slots__ = (
        "_incoming",
        "_on_begin",
        "_on_complete",
        "_outgoing",
        "_values",
        "_waits_for",
        "has_begun",
        "is_of_several",
    )

    def __init__(
        self,
        outputs: int,
        arguments: int,
        *,
        values: FrameworkValues,
        on_begin: Callable[[], None] | None,
        on_complete: Completed,
    ) -> None:
        self._values = values
        self._incoming: list[Any] = [None] * outputs
        self._outgoing: list[Any] = [None] * arguments
        self._waits_for = 0
        self._on_begin = on_begin
        self._on_complete: Completed | None = on_complete
        self.has_begun = False
        #: Whether several hooks must fire, of which some may never.
        self.is_of_several = False

    def expect(self, hook_calls: int) -> None:
        """Set how many hooks will fire."""
        self._waits_for = hook_calls
        self.is_of_several = hook_calls > 1

    def arrived(
        self,
        *,
        incoming: Sequence[tuple[int, Any]] = (),
        outgoing: Sequence[tuple[int, Any]] = (),
    ) -> None:
        """Take gradients as (position, gradient); contributions to one argument are added up."""
        if self.is_complete:  # a hook on a tensor that takes more gradients than those of this call
            return
        if not self.has_begun:
            self.has_begun = True
            if self._on_begin is not None:
                self._on_begin()
        self._waits_for -= 1
        for position, gradient in incoming:
            self._incoming[position] = self._held(gradient)
        for position, gradient in outgoing:
            known = self._outgoing[position]
            self._outgoing[position] = self._held(gradient) if known is None else self._added(known, gradient)
        if self._waits_for == 0:
            self.complete()

    def _held(self, gradient: Any) -> Any:
        """What can be kept until the other gradients come: autograd may add to the tensor itself meanwhile."""
        return self._values.frozen(gradient) if self._waits_for and gradient is not None else gradient

    def _added(self, known: Any, gradient: Any) -> Any:
        """The sum of two contributions to a gradient, rounded to its dtype as autograd would."""
        if gradient is None:
            return known
        left = known if isinstance(known, TensorValues) else self._values.frozen(known)
        right = self._values.read(gradient).array
        if left.array.dtype.isbuiltin == 1:
            total = left.array + right
        else:
            total = (left.array.astype("float32") + right.astype("float32")).astype(left.array.dtype)
        return TensorValues(total, left.dtype_name, left.type_name, left.fields)

    def complete(self) -> None:
        """Hand over what has arrived, once."""
        if self._on_complete is not None and self.has_begun:
            report, self._on_complete = self._on_complete, None
            incoming, self._incoming, outgoing, self._outgoing = self._incoming, [], self._outgoing, []
            report(incoming, outgoing)

    @property
    def is_complete(self) -> bool:
        """Whether everything has been handed over."""
        return self._on_complete is None
