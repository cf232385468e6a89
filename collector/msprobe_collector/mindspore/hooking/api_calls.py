"""One recorded API call: what happens around the original callable while the collector runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from msprobe_collector.dump_format import is_communication
from msprobe_collector.dump_format.writing.framework_values import ComputationFailed
from msprobe_collector.mindspore.hooking.communication import Waits, handles_of, outputs_of
from msprobe_collector.mindspore.hooking.gradients import GradientTap, Sources
from msprobe_collector.recording.activity import Activity, backward_parent
from msprobe_collector.recording.backward_call import BackwardCall
from msprobe_collector.recording.faults import FaultLog, guarded
from msprobe_collector.recording.open_record import OpenRecord
from msprobe_collector.recording.recorder import Recorder

#: A backward that hooks have not finished when the step ends; kept only for calls of several nodes.
Unfinished = Callable[[BackwardCall], None]
#: What is done with a call that returned: its record, the sources of its gradients, its result and its arguments.
_After = Callable[[OpenRecord, "Sources | None", Any, tuple[Any, ...], dict[str, Any]], None]


class ApiCalls:
    """Makes callables that record their outermost calls and return exactly what the originals return."""

    def __init__(
        self,
        recorder: Recorder,
        tap: GradientTap,
        activity: Activity,
        faults: FaultLog,
        *,
        remember: Unfinished,
        waits: Waits,
    ) -> None:
        self._recorder = recorder
        self._tap = tap
        self._activity = activity
        self._faults = faults
        self._remember = remember
        self._waits = waits
        self._wants_backward = recorder.wants("backward")

    def wrapped(
        self, original: Callable[..., Any], call: str, *, attributes: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """`original`, recorded as calls of `call` (`Mint.add`), with a Primitive's constructor `attributes`."""
        activity = self._activity
        observe = self._observe if attributes is None else functools.partial(self._observe, attributes=attributes)
        after = self._after_communication if is_communication(call) else self._after_call

        @functools.wraps(original, updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if activity.is_inside:
                return original(*args, **kwargs)
            return observe(after, original, call, args, kwargs)

        return recorded

    def _observe(
        self,
        after: _After,
        original: Callable[..., Any],
        call: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        attributes: Mapping[str, Any] | None = None,
    ) -> Any:
        activity = self._activity
        if not self._recorder.is_collecting:
            return original(*args, **kwargs)
        activity.is_inside = True
        record: OpenRecord | None = None
        try:
            record, sources = self._before(call, args, kwargs, attributes)
            result = original(*args, **kwargs)
            if record is not None:
                after(record, sources, result, args, kwargs)
                record = None
            return result
        except ComputationFailed as failure:
            raise failure.error from None
        finally:
            activity.is_inside = False
            if record is not None:
                # The call raised: its arguments are what is wanted now.
                self._recorder.end_quietly(record)

    def _after_call(
        self, record: OpenRecord, sources: Sources | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._after(record, sources, result)

    def _after_communication(
        self, record: OpenRecord, sources: Sources | None, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Finish a communication call like `_after_call`; outputs may come later or stand in the arguments."""

        def take_outputs() -> None:
            self._after(record, None, outputs_of(result, args, kwargs))

        def give_up() -> None:
            record.fault = "the script had not waited for its handle when the step ended: the outputs are not known"
            self._recorder.end_quietly(record)

        handles = handles_of(result)
        if handles:
            self._waits.expect(handles[-1], take_outputs=take_outputs, give_up=give_up)
        else:
            take_outputs()
        if sources is not None:
            guarded(self._faults, record.name, functools.partial(self._attach, record, sources, result))

    def _before(
        self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any], attributes: Mapping[str, Any] | None
    ) -> tuple[OpenRecord | None, Sources | None]:
        record: OpenRecord | None = None
        sources: Sources | None = None
        try:
            name = f"{call}.{self._recorder.number(call)}.forward"
            record = self._recorder.begin(name, "forward", self._activity.cell)
            self._recorder.inputs(record, args, kwargs)
            if attributes is not None:
                self._recorder.part(record, "attributes", "attributes", attributes)
            if self._wants_backward:
                sources = self._tap.sources(args, kwargs)
        except ComputationFailed:
            if record is not None:
                self._recorder.end_quietly(record)
            raise
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, call, error)
        return record, sources

    def _after(self, record: OpenRecord, sources: Sources | None, result: Any) -> None:
        try:
            self._recorder.outputs(record, result)
            self._recorder.end(record)
            if sources is not None:
                self._attach(record, sources, result)
        except Exception as error:  # the border between the collector and the user's training
            self._fault(record, record.name, error)
            self._recorder.end_quietly(record)

    def _attach(self, record: OpenRecord, sources: Sources, result: Any) -> None:
        results = self._tap.tensors(result if isinstance(result, (tuple, list)) else (result,))
        if not results:
            return
        name = f"{record.name.removesuffix('.forward')}.backward"
        parent = backward_parent(self._activity.cell)
        step = self._recorder.step_mark

        def completed(incoming: list[Any], outgoing: list[Any]) -> None:
            listed, others = sources.parted(outgoing)
            self._recorder.backward(name, parent, incoming, listed, others=others, step_mark=step)

        backward = self._tap.attach(sources, results, on_complete=completed)
        if backward is not None and backward.is_of_several:
            self._remember(backward)

    def _fault(self, record: OpenRecord | None, where: str, error: BaseException) -> None:
        self._faults.note(where, error)
        if record is not None:
            record.fault = f"{type(error).__name__}: {error}"
