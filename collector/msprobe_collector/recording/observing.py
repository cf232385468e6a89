"""What runs around a call of the training: its record and its gradients.

- The layers of watched models by their paths.
- Tensors of a call that are not top-level arguments, under the paths by which dumps name their gradients.
- Observers of API calls and of layers, the same for every framework.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msprobe_collector import logger
from msprobe_collector.dump_format import is_communication
from msprobe_collector.recording.gradients import ParameterGradients
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.manifest import numbered
from msprobe_collector.recording.swaps import MethodSwaps

if TYPE_CHECKING:
    from msprobe_collector.dump_format.writing.parts import ValueParts
    from msprobe_collector.recording.gradients import BackwardCall, Completed
    from msprobe_collector.recording.other_records import OptimizerRecords
    from msprobe_collector.recording.recorder import OpenRecord
    from msprobe_collector.recording.session import Session


def backward_of_layer(forward: str) -> str:
    """The backward record of the layer whose forward record is `forward`."""
    front, _, number = forward.rpartition(".")
    return f"{front.removesuffix('.forward')}.backward.{number}"


class ObservedCall:
    """One call of an API or a layer while it is observed.

    Attributes:
        what: it is a call of: `Mint.add`, `Cell.net.Dense`.
        microbatch: part of the batch that it belongs to, in a pipeline; its backward has the same.
        function: that is called, of an API.
        communicates: whether it moves values between processes.
        name: of its forward record; "" while it has none, and for one that repeats a call that is not known.
        parent: forward record of the layer that runs it.
        record: open; None where the call repeats another one, and so has no record of its own.
        sources: what the `GradientTap` needs of it; None where no gradients are wanted or will come.
        is_awaited: its outputs are there after a `wait` only, which ends the record.
        repeatable: of one that may be computed again, or is, and whose gradients are wanted.
    """

    communicates = is_awaited = False
    name = ""
    parent: str | None = None
    record: OpenRecord | None = None
    sources: Any = None
    repeatable: Repeatable | None = None

    def __init__(self, what: str, microbatch: int | None, function: Any = None) -> None:
        self.what = what
        self.microbatch = microbatch
        self.function = function


#: Of names without numbers, which recur.
communicates = lru_cache(4096)(is_communication)


def named_layers(models: Sequence[Any], walk: Callable[[Any], Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """(path, layer) of every layer below the `models`, each once under its first path; the models have the path "".

    `walk` gives (path, layer) of a model and of all layers below it. Of several models, paths begin with their number.
    """
    visited: set[int] = set()
    for front, model in numbered(models):
        for path, layer in walk(model):
            if id(layer) not in visited:
                visited.add(id(layer))
                yield (f"{front}{path}" if path else ""), layer


def warn_of_no_layers(models: Sequence[Any]) -> None:
    """Say that no layers will be recorded of `models`, since there are none inside them."""
    logger.warning(
        "start(): no layers are inside the %s that was given, and levels L0 and mix record those inside a model; "
        "give start() the network that holds it",
        ", ".join(type(model).__name__ for model in models),
    )


def inner_tensors(
    arguments: Sequence[Any], keywords: Mapping[str, Any], parts: ValueParts
) -> Iterator[tuple[str, Any]]:
    """(path, tensor) of those in keywords, and of those inside arguments: `input.0.1`, `kwargs.mask`."""
    for name, value in keywords.items():
        yield from parts.tensors(f"kwargs.{name}", value)
    for at, value in enumerate(arguments):
        if not parts.is_tensor(value):
            yield from parts.tensors(f"input.{at}", value)


def as_sequence(value: Any) -> Sequence[Any]:
    """Return a tuple or list itself, and any other value as its only item."""
    return value if isinstance(value, (tuple, list)) else (value,)


@dataclass(slots=True)
class _Awaited:
    """A call whose result is not there yet; it keeps its handles, so that their ids stay their own."""

    handles: Sequence[Any]
    take_outputs: Callable[[], None]
    give_up: Callable[[], None]
    missing: int


class Waits:
    """Asynchronous calls whose handle the script has not waited on. The collector itself never waits.

    A framework says what its handles are, and where it waits on them.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._swaps = MethodSwaps()
        self._awaited: dict[int, _Awaited] = {}

    def install(self) -> None:
        """See the training wait from now on."""
        if not self._swaps.are_in:
            self._put(self._swaps)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def expect(self, handles: Sequence[Any], *, take_outputs: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `take_outputs` when the training has waited on all `handles`, or `give_up` when the step ends before."""
        waiting = _Awaited(handles, take_outputs, give_up, len(handles))
        self._awaited.update((id(handle), waiting) for handle in handles)

    def give_up(self) -> None:
        """End what nobody has waited for; its values may still be on their way."""
        waiting, self._awaited = {id(call): call for call in self._awaited.values()}, {}
        for call in waiting.values():
            call.give_up()

    def outputs_of(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a communication call put out: its result, or, where it fills its arguments, these as they are now."""
        parts = as_sequence(result)
        if all(part is None or self._is_no_value(part) for part in parts):
            return [*args, *kwargs.values()]
        return [None if self._is_handle(part) else part for part in parts]

    def handles_of(self, result: Any) -> list[Any]:
        """Handles in `result` on which someone must still wait."""
        return [part for part in as_sequence(result) if self._is_handle(part) and self._must_wait(part)]

    def _put(self, swaps: MethodSwaps) -> None:
        """Put `seen_wait` in the place of each method that waits."""
        raise NotImplementedError

    def _is_handle(self, value: Any) -> bool:
        """Whether `value` is what an asynchronous communication returns to wait on."""
        raise NotImplementedError

    def _must_wait(self, handle: Any) -> bool:
        return True

    def _is_no_value(self, part: Any) -> bool:
        return self._is_handle(part)

    def seen_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of the method `wait` of handles."""

        @functools.wraps(original)
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            """Wait as the script asked for, then take the results of the call."""
            result = original(handle, *args, **kwargs)
            call = self._awaited.pop(id(handle), None)
            if call is not None:
                call.missing -= 1
                if not call.missing:
                    self._guard.enter("taking what was waited for", call.take_outputs)
            return result

        return wait


class GradientTap(Protocol):
    """How a framework shows the gradients of a call."""

    def before(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_in_place: bool = False) -> Any:
        """What `attach` needs to know of a call before it runs; None when no gradients will come.

        `is_in_place`: the call writes its result into its first argument.
        """

    def attach(
        self, before: Any, result: Any, *, on_complete: Completed, on_begin: Callable[[], None] | None = None
    ) -> BackwardCall | None:
        """Watch the backward of a call that has run.

        Args:
            before: what `before` gave for it.
            result: what the call returned.
            on_complete: called with the gradients when all have arrived.
            on_begin: called when the first output's gradient arrives, ahead of all that happens inside the call.

        Returns:
            The watched backward, or None when none will come.
        """


class Repeatable(Protocol):
    """A call that the backward may compute again; it is shown each time that it runs."""

    def began(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """It is about to run with these arguments."""

    def returned(self, result: Any) -> None:
        """It has returned `result`."""

    def settling(self) -> Callable[[], bool]:
        """What tells later, and may wait, whether it got or gave other values when it was computed again."""


#: (call, layer that runs it, what makes its name) -> (name, layer, whether it repeats a call that has its record, that
#: call or the one that may be repeated).
Number = Callable[[str, "str | None", Callable[[str], str]], "tuple[str, str | None, bool, Repeatable | None]"]


def new_call(call: str, parent: str | None, make_name: Callable[[str], str]) -> tuple[str, str | None, bool, None]:
    """The `Number` of a framework in which no call repeats another one."""
    return make_name(call), parent, False, None


class Observer:
    """What the observers of API calls and of layers share: the record of a call, and the watch on its gradients.

    Whatever the collector does at a call it does through `Guard.enter`; the call itself is made outside of it.
    """

    def __init__(self, session: Session, tap: GradientTap, *, number: Number = new_call) -> None:
        self.recorder = session.recorder
        self.guard = session.guard
        self.activity = session.guard.activity
        self.faults = session.guard.faults
        self._remember = session.remember
        self._tap = tap
        self._number = number
        self._wants_backward = session.recorder.wants("backward")

    def _before(
        self,
        call: ObservedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin `call`."""
        numbered = self._number(call.what, self.activity.cell, self._new_name)
        call.name, call.parent, is_repeated, repeatable = numbered
        if not is_repeated:
            self.faults.guarded(call.name, self._begin, call, args, kwargs, attributes, call=call)
        if not self._wants_backward:
            return
        if call.name:
            call.sources = self._sources(call.what, args, kwargs)
        if repeatable is not None:
            call.repeatable = repeatable
            self.faults.guarded(call.what, repeatable.began, args, kwargs)

    def _begin(
        self,
        call: ObservedCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None,
    ) -> None:
        record = call.record = self.recorder.begin(call.name, "forward", call.parent)
        record.microbatch = call.microbatch
        self.recorder.inputs(record, args, kwargs)
        if attributes is not None:
            self.recorder.part(record, "attributes", "attributes", attributes)

    def _new_name(self, what: str) -> str:
        """The name of the forward record of the next call of `what`."""
        raise NotImplementedError

    def _sources(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._tap.before(args, kwargs)

    def _watch(self, backward: BackwardCall | None) -> None:
        """Complete a backward that may lack gradients when the step ends."""
        if backward is not None and backward.is_of_several:
            self._remember(backward)


class CallObserver(Observer):
    """Records outermost API calls, and returns and raises exactly what they return and raise."""

    def __init__(self, session: Session, tap: GradientTap, waits: Waits, *, number: Number = new_call) -> None:
        super().__init__(session, tap, number=number)
        self._waits = waits

    def wrapped(
        self, original: Callable[..., Any], call: str, *, attributes: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """`original`, recorded as calls of `call` (`Mint.add`), with a Primitive's constructor `attributes`."""
        activity, recorder, observe = self.activity, self.recorder, self.observe
        moves_values = communicates(call)

        @functools.wraps(original, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if not recorder.is_collecting or (activity.is_closed if moves_values else activity.is_inside):
                return original(*args, **kwargs)
            return observe(original, call, args, kwargs, attributes)

        return recorded

    def observe(
        self,
        original: Callable[..., Any],
        what: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `original`, and record it as a call of `what`.

        Of what a recorded call does inside, communication alone is recorded.

        Raises:
            Exception: what the call raises, or the error of an earlier one that reading a value brought up.
        """
        activity, enter = self.activity, self.guard.enter
        call = ObservedCall(what, activity.microbatch, original)
        was_inside, was_closed, activity.is_inside = activity.is_inside, activity.is_closed, True
        if communicates(what):
            call.communicates = activity.is_closed = True
        try:
            enter(what, self._before, call, args, kwargs, attributes, call=call)
            result = original(*args, **kwargs)
            if call.record is not None or call.sources is not None or call.repeatable is not None:
                enter(call.name, self._after, call, result, args, kwargs, call=call)
            return result
        finally:
            activity.is_inside, activity.is_closed = was_inside, was_closed
            # Also of a call that raised: its arguments are what is wanted then.
            if call.record is not None and not (call.record.is_ended or call.is_awaited):
                enter(call.name, self.recorder.end, call.record)

    def _after(self, call: ObservedCall, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        guarded, record = self.faults.guarded, call.record
        if record is not None:
            if call.communicates:
                guarded(call.name, self._take_communicated, call, record, result, args, kwargs, call=call)
            else:
                guarded(call.name, self._take_outputs, record, result, call=call)
        if call.repeatable is not None:
            guarded(call.what, call.repeatable.returned, result)
        if call.sources is not None:
            guarded(call.name, self._attach, call, result, call=call)
        if record is not None and not call.is_awaited:
            self.recorder.end(record)

    def _new_name(self, what: str) -> str:
        return f"{what}.{self.recorder.number(what)}.forward"

    def _take_outputs(self, record: OpenRecord, result: Any) -> None:
        self.recorder.outputs(record, result)

    def _take_communicated(
        self, call: ObservedCall, record: OpenRecord, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take the outputs of a communication call, which may come later or stand in its arguments."""
        waits = self._waits

        def take_outputs() -> None:
            self.recorder.outputs(record, self._shown(waits.outputs_of(result, args, kwargs)))

        def take_awaited() -> None:
            try:
                self.faults.guarded(call.name, take_outputs, call=call)
            finally:
                self.recorder.end_quietly(record)

        def give_up() -> None:
            record.fault = "the script had not waited for its handle when the step ended: the outputs are not known"
            self.recorder.end_quietly(record)

        if handles := waits.handles_of(result):
            waits.expect(handles, take_outputs=take_awaited, give_up=give_up)
            call.is_awaited = True
        else:
            take_outputs()

    def _shown(self, outputs: Any) -> Any:
        """What a record holds for what a communication put out."""
        return outputs

    def _attach(self, call: ObservedCall, result: Any) -> None:
        name, parent = f"{call.name.removesuffix('.forward')}.backward", call.parent and backward_of_layer(call.parent)
        recorder, step, repeatable = self.recorder, self.recorder.step_mark, call.repeatable
        microbatch = call.microbatch

        def completed(incoming: list[Any], outgoing: list[Any], others: Mapping[str, Any]) -> None:
            recorder.backward(
                name,
                parent,
                incoming,
                outgoing,
                others=others,
                differs=None if repeatable is None else repeatable.settling(),
                microbatch=microbatch,
                step_mark=step,
            )

        self._watch(self._tap.attach(call.sources, result, on_complete=completed))


class LayerObserver(Observer):
    """Records the layers of watched models, seen at `__call__` of their class; counts the forwards of the first model.

    Attributes:
        layers: the watched layers inside the models, with their labels `{kind}.{path}.{Class}`.
        on_root_forward: called before each forward of the first model.
        kind: what records call a layer: `Cell`.
        sees_inside_calls: whether layers that run inside a recorded API call are recorded.
        layers_of: (path, layer) of all layers of some models; the models have the path "".
        parameters_of: the parameters that stand on a layer itself, by name.
    """

    kind: ClassVar[str]
    sees_inside_calls: ClassVar[bool]
    layers_of: ClassVar[staticmethod[[Sequence[Any]], Iterator[tuple[str, Any]]]]
    parameters_of: ClassVar[staticmethod[[Any], dict[str, Any]]]

    def __init__(self, session: Session, tap: GradientTap, layer_class: type, *, number: Number = new_call) -> None:
        """See nothing yet; `layer_class` is the class of all layers."""
        super().__init__(session, tap, number=number)
        self._class = layer_class
        self.layers: list[tuple[str, Any]] = []
        self._labels: dict[int, str] = {}
        self._root: Any = None
        self._manifest = session.manifest
        self._swaps = MethodSwaps()
        self.on_root_forward: Callable[[], object] | None = None

    def class_name(self, layer: Any) -> str:
        """Return the name of its class, which stands in the names of its records."""
        return type(layer).__name__

    def watch(self, models: Sequence[Any], *, records: bool) -> None:
        """Watch `models`; with `records` the layers inside them are recorded."""
        self._root = models[0]
        if records:
            self.layers = [
                (f"{self.kind}.{path}.{self.class_name(layer)}", layer)
                for path, layer in self.layers_of(models)
                if path
            ]
            self._labels = {id(layer): label for label, layer in self.layers}
            if not self.layers:
                warn_of_no_layers(models)

    @property
    def is_installed(self) -> bool:
        """Whether calls of layers are seen."""
        return self._swaps.are_in

    def install(self) -> None:
        """See calls of layers from now on."""
        if not self._swaps.are_in:
            self._swaps.put(self._class, "__call__", self._recorded)

    def uninstall(self) -> None:
        """Put the original `__call__` back."""
        self._swaps.uninstall()

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, activity, sees_inside_calls = self.recorder, self.activity, self.sees_inside_calls
        manifest = self._manifest

        @functools.wraps(original)
        def recorded(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if layer is self._root and self.on_root_forward is not None:
                self.guard.enter("counting forwards of the model", self.on_root_forward)
            if (
                manifest is not None
                and manifest.is_open
                and not activity.is_closed
                and (not manifest.roots or id(layer) in manifest.roots)
            ):
                self.guard.enter("the batch", manifest.called, layer, args, kwargs)
            label = self._labels.get(id(layer))
            if label is None or not recorder.is_collecting or (activity.is_inside and not sees_inside_calls):
                return original(layer, *args, **kwargs)
            return self._observe(original, label, layer, args, kwargs)

        return recorded

    def _observe(
        self, original: Callable[..., Any], label: str, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        layers, enter, call = self.activity.cells, self.guard.enter, ObservedCall(label, self.activity.microbatch)
        try:
            enter(label, self._before, call, args, kwargs, call=call)
            layers.append(call.name or label)
            try:
                result = original(layer, *args, **kwargs)
            finally:
                layers.pop()
            if call.record is not None or call.sources is not None:
                enter(call.name, self._after, call, layer, result, call=call)
            return result
        finally:
            if call.record is not None and not call.record.is_ended:
                enter(call.name, self.recorder.end, call.record)

    def _new_name(self, what: str) -> str:
        return f"{what}.forward.{self.recorder.number(what)}"

    def _after(self, call: ObservedCall, layer: Any, result: Any) -> None:
        guarded, record = self.faults.guarded, call.record
        if record is not None:
            guarded(call.name, self._take_outputs, record, layer, result, call=call)
        if call.sources is not None:
            guarded(call.name, self._attach, call, result, call=call)
        if record is not None:
            self.recorder.end(record)

    def _take_outputs(self, record: OpenRecord, layer: Any, result: Any) -> None:
        self.recorder.outputs(record, result)
        self.recorder.part(record, "parameters", "parameters", self.parameters_of(layer))

    def _attach(self, call: ObservedCall, result: Any) -> None:
        name, parent = backward_of_layer(call.name), call.parent and backward_of_layer(call.parent)
        recorder, step, microbatch = self.recorder, self.recorder.step_mark, call.microbatch
        begun: list[OpenRecord] = []

        def begin() -> None:
            if step == recorder.step_mark:
                begun.append(recorder.begin(name, "backward", parent))
                begun[0].microbatch = microbatch

        def completed(incoming: list[Any], outgoing: list[Any], others: Mapping[str, Any]) -> None:
            if begun and step == recorder.step_mark:
                recorder.gradients(begun[0], incoming, outgoing, others)
                recorder.end(begun[0])

        self._watch(self._tap.attach(call.sources, result, on_complete=completed, on_begin=begin))


class Installable(Protocol):
    """What sees something of a training while it is installed."""

    def install(self) -> None:
        """See it from now on, also where it is in already."""

    def uninstall(self) -> None:
        """See it no more, also where it is out already."""


class FrameworkWatch:
    """What frameworks do alike to see the calls of a training; see `msprobe_collector.framework.CallWatch`."""

    #: What is installed in this order, and taken out in the opposite one.
    _installed: Sequence[Installable]
    #: What runs at the end of a step, apart from what all have.
    _endings: Sequence[Callable[[], object]] = ()
    _layers: LayerObserver
    _optimizers: OptimizerRecords
    _waits: Waits

    def __init__(self, session: Session) -> None:
        self._session = session
        self._guard = session.guard
        self._parameters = ParameterGradients(session.recorder, session.guard)

    def prepare(self, models: Sequence[Any]) -> None:
        """See `CallWatch`; nothing needs to be done."""

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], object] | None) -> None:
        """See `CallWatch`."""
        layers, collects = self._layers, self._session.configuration.collects_cells
        if models:
            layers.watch(models, records=collects)
            self._guard.enter("names of parameters", self._optimizers.names.watch, layers.layers_of(models))
        if collects and self._session.recorder.wants("backward"):
            for label, layer in layers.layers:
                self._parameters.watch(label, layers.parameters_of(layer))
        layers.on_root_forward = on_root_forward

    def install(self) -> None:
        """See `CallWatch`."""
        for part in self._installed:
            part.install()

    def uninstall(self) -> None:
        """See `CallWatch`."""
        for part in reversed(self._installed):
            part.uninstall()

    def settle(self) -> None:
        """See `CallWatch`; nothing is recorded later than it runs."""

    def end_step(self) -> None:
        """See `CallWatch`."""
        for end in (self._waits.give_up, self._parameters.flush, self._optimizers.end_step, *self._endings):
            self._guard.faults.guarded("ending the step", end)
        self._parameters.remove()

    def remove(self) -> None:
        """See `CallWatch`; nothing stays."""
