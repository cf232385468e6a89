"""Values that a training script saves by hand (level debug)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msprobe_collector.dump_format.writing.encoding import FrameworkValues
from msprobe_collector.log import logger
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.recorder import Recorder

#: `Framework.register_gradient_hook`.
Hook = Callable[[Any, Callable[[Any], None]], "Callable[[], None] | None"]


class _Gradients:
    """The gradients of one saved value while they arrive.

    Attributes:
        name: of the entry.
        holder: a list of one: the value's structure, with None where no gradient has come.
        waits_for: tensors whose gradients have not come.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: list[Any] = [None]
        self.waits_for = 0


class SavedValues:
    """Writes `{name}.{n}.debug` and, when its gradients have come, `{name}_grad.{n}.debug`."""

    def __init__(self, recorder: Recorder, values: FrameworkValues, hook: Hook, guard: Guard) -> None:
        self._values = values
        self._hook = hook
        self._recorder = recorder
        self._guard = guard
        self._waiting: list[_Gradients] = []
        self._removers: list[Callable[[], None]] = []
        #: Entries of this step, those of gradients too, which `save` of another name may come upon: "x_grad".
        self._taken: set[str] = set()

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Write `variable`; a value that cannot be saved is warned about and skipped."""
        if problem := self._problem(variable, name, save_backward):
            logger.warning("save(): %s; nothing is saved", problem)
        else:
            self._guard.enter(f"save({name!r})", self._save, variable, name, save_backward)

    def flush(self) -> None:
        """Write the gradients that have not all arrived."""
        for gradients in self._waiting:
            self._recorder.write_value(gradients.name, gradients.holder[0])
        self._waiting.clear()
        self._taken.clear()
        while self._removers:
            self._removers.pop()()

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        entry, entry_of_gradient = self._free_entries(name)
        self._recorder.write_value(entry, variable)
        if not save_backward:
            return
        gradients = _Gradients(entry_of_gradient)
        self._watch(variable, gradients, gradients.holder, 0)
        self._waiting.append(gradients)

    def _free_entries(self, name: str) -> tuple[str, str]:
        """Names of the entries of the next value that is called `name`, and of its gradient."""
        while True:
            number = self._recorder.number(name)
            entries = f"{name}.{number}.debug", f"{name}_grad.{number}.debug"
            if self._taken.isdisjoint(entries):
                self._taken.update(entries)
                return entries

    def _watch(self, value: Any, gradients: _Gradients, holder: Any, place: str | int) -> None:
        """Put the structure of `value` into `holder[place]`, and hooks on its tensors that fill it."""
        holder[place] = None
        if isinstance(value, dict):
            holder[place] = {}
            for key, item in value.items():
                self._watch(item, gradients, holder[place], key)
        elif isinstance(value, (list, tuple)):
            holder[place] = [None] * len(value)
            for index, item in enumerate(value):
                self._watch(item, gradients, holder[place], index)
        elif isinstance(value, self._values.tensor_types):

            def arrived(gradient: Any) -> None:
                if gradients in self._waiting:
                    self._guard.enter(gradients.name, self._arrived, gradients, holder, place, gradient)

            if (remove := self._hook(value, arrived)) is not None:
                gradients.waits_for += 1
                self._removers.append(remove)

    def _arrived(self, gradients: _Gradients, holder: Any, place: str | int, gradient: Any) -> None:
        holder[place] = self._values.frozen(gradient)
        gradients.waits_for -= 1
        if gradients.waits_for == 0:
            self._waiting.remove(gradients)
            self._recorder.write_value(gradients.name, gradients.holder[0])

    def _problem(self, variable: Any, name: Any, save_backward: Any) -> str:
        if not isinstance(name, str) or not name:
            return f"the name {name!r} is not text"
        if not isinstance(save_backward, bool):
            return f"save_backward {save_backward!r} is neither True nor False"
        return self._value_problem(variable)

    def _value_problem(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            # None stands for what is not there, and is null in the file.
            return next((problem for item in value if item is not None and (problem := self._value_problem(item))), "")
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return "a dict has a key that is not text"
            return self._value_problem(list(value.values()))
        if isinstance(value, (*self._values.tensor_types, int, float, str)):
            return ""
        return f"a {type(value).__name__} is not a tensor, number, text, list, tuple or dict"
