"""One call's backward while its gradients arrive.

Gradients of the parameters of layers (Cells, Modules), as records of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from msprobe_collector.dump_format.writing.encoding import FrameworkValues, TensorValues
from msprobe_collector.dump_format.writing.parts import ValueParts
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.recorder import OpenRecord, Recorder


class Completed(Protocol):
    """Receives a finished backward."""

    def __call__(self, incoming: list[Any], outgoing: list[Any], others: Mapping[str, Any]) -> None:
        """`incoming[i]` is the gradient of output i, `outgoing[i]` that of tensor argument i; None where none came.

        Of an output that holds tensors `incoming[i]` is a dict or list of gradients, as `Outputs.places` has them.
        `others` are those that came of tensors in lists and keywords, by path.
        """


@dataclass(slots=True)
class Outputs:
    """The tensors that a call returned.

    Attributes:
        tensors: in order, those inside dicts, records and objects too.
        places: the returned values that are or hold tensors, each tensor replaced by its position in `tensors`.
        is_nested: whether a tensor stands inside a value.
    """

    tensors: list[Any]
    places: list[Any]
    is_nested: bool = False

    @classmethod
    def of(cls, result: Any, parts: ValueParts) -> Outputs:
        """Those of `result`; of a tuple or list, those of each item."""
        if parts.is_tensor(result):
            return cls([result], [0])
        outputs = cls([], [])
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if (tree := item if parts.is_tensor(item) else parts.tree(item)) is not None:
                outputs.places.append(place := outputs._placed(tree))
                outputs.is_nested |= not isinstance(place, int)
        return outputs

    def _placed(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self._placed(item) for key, item in tree.items()}
        if isinstance(tree, list):
            return [self._placed(item) for item in tree]
        if tree is None:
            return None
        self.tensors.append(tree)
        return len(self.tensors) - 1


def _filled(places: Any, gradients: Sequence[Any]) -> Any:
    """`places` of `Outputs` with the gradients in them."""
    if isinstance(places, dict):
        return {key: _filled(item, gradients) for key, item in places.items()}
    if isinstance(places, list):
        return [_filled(item, gradients) for item in places]
    return None if places is None else gradients[places]


def leave_out_shared(nodes: Iterable[Any], unclear: Set[int]) -> None:
    """Leave out the edges to `unclear` arguments: those of one tensor that stands for several behind several nodes.

    The nodes do not say which edge belongs to which argument. Each has edges as (number, argument, ...) in its list
    `to_arguments`.
    """
    for node in nodes if unclear else ():
        node.to_arguments[:] = [edge for edge in node.to_arguments if edge[1] not in unclear]


#: In the place of a gradient that has not come; one that came may be None.
_NOT_YET: Any = object()


class BackwardCall:
    """One call's backward while its gradients arrive.

    It completes when every edge has delivered; `complete` ends it early when the rest will not come.
    """

    def __init__(
        self,
        outputs: Outputs,
        arguments: int,
        listed: int,
        paths: Sequence[str],
        values: FrameworkValues,
        on_complete: Completed,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        """Nothing has arrived yet.

        Args:
            outputs: what the call returned: a gradient comes in for each tensor.
            arguments: how many go out: of top-level tensors, then of those in lists, tuples, dicts and keywords.
            listed: how many of those the record lists by position: as many as there are top-level tensors, or 0 when
                none of them is floating.
            paths: of the tensors in lists and keywords: `input.0.1`, `kwargs.weight`.
            values: reads gradients.
            on_complete: called with all of them.
            on_begin: called when the first one arrives.
        """
        self._listed = listed
        self._paths = paths
        self._values = values
        #: None where each output is a tensor.
        self._places = outputs.places if outputs.is_nested else None
        self._incoming: list[Any] = [_NOT_YET] * len(outputs.tensors)
        #: What an output gets from the other outputs that the call made of it, by position; None while none has come.
        self._inner: dict[int, Any] | None = None
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
        inner: Sequence[tuple[int, Any]] = (),
    ) -> None:
        """Take gradients as (position, gradient); contributions to one argument are added up.

        Those of `inner` go from one output of the call to another that it was made of. They are no gradients that came
        into the call, and are taken off what arrives at the other one, which is later.
        """
        if self.is_complete:  # a hook on a tensor that takes more gradients than those of this call
            return
        if not self.has_begun:
            self.has_begun = True
            if self._on_begin is not None:
                self._on_begin()
        self._waits_for -= 1
        for position, gradient in incoming:
            made_inside = None if self._inner is None else self._inner.pop(position, None)
            self._incoming[position] = self._added(
                None, gradient if made_inside is None or gradient is None else self._from_outside(gradient, made_inside)
            )
        for position, gradient in outgoing:
            sum_so_far = self._outgoing[position]
            self._outgoing[position] = self._added(sum_so_far, gradient)
        for position, gradient in inner:
            if self._inner is None:
                self._inner = {}
            self._inner[position] = self._added(self._inner.get(position), gradient)
        if self._waits_for == 0:
            self.complete()

    def lacks(self, position: int) -> bool:
        """Whether no gradient of this output has come in."""
        return not self.is_complete and self._incoming[position] is _NOT_YET

    def _added(self, sum_so_far: Any, gradient: Any) -> Any:
        """The sum of two contributions to a gradient, rounded to its dtype as autograd would; None where none came.

        The first one is copied where others may come: autograd may add to the tensor itself meanwhile.
        """
        if gradient is None:
            return sum_so_far
        if sum_so_far is None:
            return (
                self._values.frozen(gradient)
                if self._waits_for and not isinstance(gradient, TensorValues)
                else gradient
            )
        values = sum_so_far if isinstance(sum_so_far, TensorValues) else self._values.frozen(sum_so_far)
        right = self._values.read(gradient)
        return values.plus(right) or combined(np.add, values, right.array)

    def _from_outside(self, gradient: Any, inner: Any) -> Any:
        """The gradient of an output without its `inner` part; None where that is all of it."""
        values = self._values.read(gradient)
        part = inner if isinstance(inner, TensorValues) else self._values.read(inner)
        if (rest := values.minus(part)) is not None:
            return rest
        whole: Any = values.array
        right: Any = part.array
        if whole is None or right is None:  # nobody can read them
            return None
        is_same = (whole == right) | ((whole != whole) & (right != right))
        if is_same.all():
            return None
        rest = combined(np.subtract, values, right)
        rest.array[is_same] = 0
        return rest

    def complete(self) -> None:
        """Hand over what has arrived, once."""
        if self._on_complete is not None and self.has_begun:
            report, self._on_complete = self._on_complete, None
            incoming, self._incoming, outgoing, self._outgoing = self._incoming, [], self._outgoing, []
            incoming = [None if gradient is _NOT_YET else gradient for gradient in incoming]
            if self._places is not None:
                incoming = _filled(self._places, incoming)
            report(incoming, *self._split_by_position(outgoing))

    def _split_by_position(self, outgoing: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """(gradients by position, those of tensors in lists and keywords that came, by path)."""
        rest = outgoing[len(outgoing) - len(self._paths) :]
        return outgoing[: self._listed], {path: item for path, item in zip(self._paths, rest) if item is not None}

    @property
    def is_complete(self) -> bool:
        """Whether everything has been handed over."""
        return self._on_complete is None


def combined(combine: np.ufunc, values: TensorValues, right: np.ndarray[Any, Any]) -> TensorValues:
    """`left` with the result of `combine` on its elements and those of `right`, in its dtype."""
    array = values.array
    with np.errstate(all="ignore"):  # a training may turn warnings into errors
        if array.dtype.isbuiltin == 1:
            total = np.asarray(combine(array, right))
        else:
            total = np.asarray(combine(array.astype("float32"), right.astype("float32"))).astype(array.dtype)
    return TensorValues(total, values.dtype_name, values.type_name, values.fields)


@dataclass(slots=True)
class _Arrivals:
    """Gradients of one layer, whose record waits for those of its other parameters.

    They are read as they come and not kept: autograd copies a gradient that somebody else holds.
    """

    label: str
    names: frozenset[str]
    record: OpenRecord | None = None
    arrived: set[str] = field(default_factory=set)


class ParameterGradients:
    """Writes `{layer}.{path}.{Class}.parameters_grad.{k}`: {parameter: [gradient]}, k counting backwards of the step.

    A record is written when every parameter's gradient is there, or when the step ends with what has come. Layers of
    one name (of two networks that were given to `start` one after the other) share the numbers, and nothing else.
    """

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        self._arrivals: list[_Arrivals] = []
        self._handles: list[Any] = []
        #: Layer and name of each parameter, by its id, which must not become that of another one before the step ends.
        self._known: dict[int, tuple[_Arrivals, str, Any]] = {}
        #: Parameters, by id, whose gradients hooks of autograd have shown.
        self._shown: set[int] = set()

    def watch(self, label: str, parameters: Mapping[str, Any]) -> None:
        """Watch those of a layer's `parameters` that take gradients; one of several layers counts for the first."""
        new = {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.requires_grad and id(parameter) not in self._known
        }
        if not new:
            return
        arrivals = _Arrivals(label, frozenset(new))
        self._arrivals.append(arrivals)
        for name, parameter in new.items():
            self._known[id(parameter)] = arrivals, name, parameter
            self._handles.append(parameter.register_hook(self._hook(arrivals, name, id(parameter))))

    def flush(self) -> None:
        """Write the records that lack gradients."""
        for arrivals in self._arrivals:
            self._guard.faults.guarded(arrivals.label, self._write, arrivals)

    def remove(self) -> None:
        """Take the hooks off the parameters: the step is over."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._known.clear()
        self._shown.clear()
        self._arrivals.clear()

    def _hook(self, arrivals: _Arrivals, name: str, parameter: int) -> Callable[[Any], Any]:
        def arrived(gradient: Any) -> Any:
            """Take the gradient and pass it on as it is."""
            self._shown.add(parameter)
            self._guard.enter(f"{arrivals.label}.parameters_grad", self._take, arrivals, name, gradient)
            return gradient

        return arrived

    def shows(self, parameter: Any) -> bool:
        """Whether hooks of autograd show the gradients of this parameter."""
        return id(parameter) in self._shown

    def take(self, parameter: Any, gradient: Any) -> None:
        """Take the gradient of a watched parameter that no hook of autograd shows."""
        arrivals, name, _ = self._known[id(parameter)]
        self._take(arrivals, name, gradient)

    def _take(self, arrivals: _Arrivals, name: str, gradient: Any) -> None:
        if self._recorder.folder is None:
            return
        if name in arrivals.arrived:
            self._write(arrivals)
        if arrivals.record is None:
            number = self._recorder.number(f"{arrivals.label}.parameters_grad")
            arrivals.record = self._recorder.begin(f"{arrivals.label}.parameters_grad.{number}", "backward", None)
        arrivals.arrived.add(name)
        self._recorder.parameter_gradient(arrivals.record, name, gradient)
        if arrivals.arrived == arrivals.names:
            self._write(arrivals)

    def _write(self, arrivals: _Arrivals) -> None:
        if arrivals.record is not None:
            record, arrivals.record = arrivals.record, None
            arrivals.arrived.clear()
            self._recorder.end(record)
