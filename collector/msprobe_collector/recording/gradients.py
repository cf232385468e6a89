"""One call's backward while its gradients arrive.

Gradients of the parameters of layers (Cells, Modules), as records of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msprobe_collector.dump_format.writing.encoding import FrameworkValues, TensorValues
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.recorder import OpenRecord, Recorder


class Completed(Protocol):
    """Receives a finished backward."""

    def __call__(self, incoming: list[Any], outgoing: list[Any], others: Mapping[str, Any]) -> None:
        """`incoming[i]` is the gradient of output i, `outgoing[i]` that of tensor argument i; None where none came.

        `others` are those that came of tensors in lists and keywords, by path.
        """


class BackwardCall:
    """One call's backward while its gradients arrive.

    It completes when every edge has delivered; `complete` ends it early when the rest will not come.
    """

    __slots__ = (
        "_incoming",
        "_listed",
        "_on_begin",
        "_on_complete",
        "_outgoing",
        "_paths",
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
        listed: int,
        paths: Sequence[str],
        values: FrameworkValues,
        on_begin: Callable[[], None] | None,
        on_complete: Completed,
    ) -> None:
        """Nothing has arrived yet.

        Args:
            outputs: how many gradients come in.
            arguments: how many go out: of top-level tensors, then of those in lists, tuples, dicts and keywords.
            listed: how many of those the record lists by position: as many as there are top-level tensors, or 0 when
                none of them is floating.
            paths: of the tensors in lists and keywords: `input.0.1`, `kwargs.weight`.
            values: reads gradients.
            on_begin: called when the first one arrives.
            on_complete: called with all of them.
        """
        self._listed = listed
        self._paths = paths
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
            report(incoming, *self._split_by_position(outgoing))

    def _split_by_position(self, outgoing: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """(gradients by position, those of tensors in lists and keywords that came, by path)."""
        rest = outgoing[len(outgoing) - len(self._paths) :]
        return outgoing[: self._listed], {path: item for path, item in zip(self._paths, rest) if item is not None}

    @property
    def is_complete(self) -> bool:
        """Whether everything has been handed over."""
        return self._on_complete is None


@dataclass(slots=True)
class _Arrivals:
    """Gradients of one layer, whose record waits for those of its other parameters.

    They are read as they come and not kept: autograd copies a gradient that somebody else holds.
    """

    names: frozenset[str]
    number: int = 0
    record: OpenRecord | None = None
    arrived: set[str] = field(default_factory=set)


class ParameterGradients:
    """Writes `{layer}.{path}.{Class}.parameters_grad.{k}`: {parameter: [gradient]}, k counting backwards of the step.

    A record is written when every parameter's gradient is there, or when the step ends with what has come.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self._arrivals: dict[str, _Arrivals] = {}
        self._handles: list[Any] = []
        self._known: set[int] = set()

    def watch(self, label: str, own: Mapping[str, Any]) -> None:
        """Watch those of a layer's `own` parameters that take gradients; one of several layers counts for the first."""
        parameters = {
            name: parameter
            for name, parameter in own.items()
            if parameter.requires_grad and id(parameter) not in self._known
        }
        if not parameters:
            return
        self._arrivals[label] = _Arrivals(frozenset(parameters))
        for name, parameter in parameters.items():
            self._known.add(id(parameter))
            self._handles.append(parameter.register_hook(self._hook(label, name)))

    def flush(self) -> None:
        """Write the records that lack gradients."""
        for label in self._arrivals:
            self._guard.faults.guarded(label, self._write, label)

    def remove(self) -> None:
        """Take the hooks off the parameters: the step is over."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._known.clear()
        self._arrivals.clear()

    def _hook(self, label: str, name: str) -> Callable[[Any], Any]:
        def arrived(gradient: Any) -> Any:
            """Take the gradient and pass it on as it is."""
            self._guard.enter(f"{label}.parameters_grad", self.take, label, name, gradient)
            return gradient

        return arrived

    def take(self, label: str, name: str, gradient: Any) -> None:
        """Take the gradient of the parameter `name`."""
        if self._recorder.folder is None:
            return
        arrivals = self._arrivals[label]
        if name in arrivals.arrived:
            self._write(label)
        if arrivals.record is None:
            number, arrivals.number = arrivals.number, arrivals.number + 1
            arrivals.record = self._recorder.begin(f"{label}.parameters_grad.{number}", "backward", None)
        arrivals.arrived.add(name)
        self._recorder.parameter_gradient(arrivals.record, name, gradient)
        if arrivals.arrived == arrivals.names:
            self._write(label)

    def _write(self, label: str) -> None:
        arrivals = self._arrivals[label]
        if arrivals.record is not None:
            record, arrivals.record = arrivals.record, None
            arrivals.arrived.clear()
            self._recorder.end(record)
