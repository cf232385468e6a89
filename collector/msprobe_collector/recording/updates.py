"""What an optimizer gets and leaves, and what clips gradients, as records `Optimizer.<Class>.<k>.forward`.

The keywords of such a record are `parameters.<name>`, `gradients.<name>` and `state.<name>.<key>` before the update,
its output the same names after it. `settings` are the hyper-parameters of each group, in the order of the
parameters; extensions add what they know of the optimizer. Values are taken one by one: no more than one of a model's
is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.recorder import OpenRecord, Recorder

#: (name in the record, value) of each value.
Named = Iterable[tuple[str, Any]]


class UpdateRecords:
    """Begins and ends the records of updates and clippings."""

    def __init__(self, recorder: Recorder, guard: Guard) -> None:
        self._recorder = recorder
        self._guard = guard
        #: Those that have begun, by the id of what updates, which is kept so that the id stays its own.
        self._open: dict[int, tuple[Any, OpenRecord]] = {}

    def begin(self, kind: str, owner: Any, values: Named) -> None:
        """Begin the record of the next update by a `kind`, which gets `values`; `owner` names it until it ends."""
        self._give_up(owner)
        number = self._recorder.number(f"Optimizer.{kind}")
        name = f"Optimizer.{kind}.{number}.forward"
        record = self._recorder.begin(name, "forward", self._guard.activity.cell, follows_tensors=False)
        self._open[id(owner)] = owner, record
        self._recorder.part(record, "input_args", "input", [])
        self.gets(owner, values)

    def gets(self, owner: Any, values: Named) -> None:
        """More values that the update of `owner` gets."""
        self._take(owner, "input", values)

    def leaves(self, owner: Any, values: Named) -> None:
        """The update of `owner` is over, and has left `values`."""
        try:
            self._take(owner, "output", values)
        finally:
            self._end(owner)

    def returns(self, owner: Any, result: Any) -> None:
        """What `owner` did is over, and has returned `result`."""
        if (begun := self._open.get(id(owner))) is not None:
            self._recorder.outputs(begun[1], result)
            self._end(owner)

    def give_up(self) -> None:
        """End what has begun and did not end: it raised."""
        for owner, _ in list(self._open.values()):
            self._give_up(owner)

    def _give_up(self, owner: Any) -> None:
        if (begun := self._open.get(id(owner))) is not None:
            begun[1].fault = "it did not end: it raised, or the step ended inside it"
            self._end(owner)

    def _take(self, owner: Any, part: Any, values: Named) -> None:
        if (begun := self._open.get(id(owner))) is not None:
            try:
                for name, value in values:
                    self._recorder.entry(begun[1], part, name, value)
            except Exception as error:
                begun[1].fault = f"of its {part} values some are missing: {type(error).__name__}: {error}"
                raise

    def _end(self, owner: Any) -> None:
        if (begun := self._open.pop(id(owner), None)) is not None:
            self._recorder.end_quietly(begun[1])
