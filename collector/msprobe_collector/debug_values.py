"""Values that a training script saves by hand (level debug)."""

from __future__ import annotations

import logging
from typing import Any

from msprobe_collector.hooking.activity import Activity
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.recorder import Recorder
from msprobe_collector.recording.tensor_values import TensorReader

logger = logging.getLogger("msprobe_collector")


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

    def __init__(self, recorder: Recorder, activity: Activity, faults: FaultLog) -> None:
        from mindspore import Tensor

        self._tensor = Tensor
        self._recorder = recorder
        self._activity = activity
        self._faults = faults
        self._reader = TensorReader()
        self._waiting: list[_Gradients] = []

    def save(self, variable: Any, name: str, *, save_backward: bool) -> None:
        """Write `variable`; a value that cannot be saved is warned about and skipped."""
        if problem := self._problem(variable, name, save_backward):
            logger.warning("save(): %s; nothing is saved", problem)
            return
        with self._activity.own_work():
            try:
                self._save(variable, name, save_backward)
            except Exception as error:  # the border between the collector and the user's training
                self._faults.note(f"save({name!r})", error)

    def flush(self) -> None:
        """Write the gradients that have not all arrived."""
        for gradients in self._waiting:
            self._recorder.write_value(gradients.name, gradients.holder[0])
        self._waiting.clear()

    def _save(self, variable: Any, name: str, save_backward: bool) -> None:
        number = self._recorder.number(name)
        self._recorder.write_value(f"{name}.{number}.debug", variable)
        if not save_backward:
            return
        gradients = _Gradients(f"{name}_grad.{number}.debug")
        self._watch(variable, gradients, gradients.holder, 0)
        self._waiting.append(gradients)

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
        elif isinstance(value, self._tensor) and value._requires_grad:
            gradients.waits_for += 1
            # A function of Python: MindSpore 2.7 takes no other callable.
            value.register_hook(lambda gradient: self._arrived(gradients, holder, place, gradient))

    def _arrived(self, gradients: _Gradients, holder: Any, place: str | int, gradient: Any) -> Any:
        if gradients in self._waiting:
            with self._activity.own_work():
                try:
                    holder[place] = self._reader.frozen(gradient)
                    gradients.waits_for -= 1
                    if gradients.waits_for == 0:
                        self._waiting.remove(gradients)
                        self._recorder.write_value(gradients.name, gradients.holder[0])
                except Exception as error:  # the border between the collector and the user's training
                    self._faults.note(gradients.name, error)
        return gradient

    def _problem(self, variable: Any, name: Any, save_backward: Any) -> str:
        if not isinstance(name, str) or not name:
            return f"the name {name!r} is no text"
        if not isinstance(save_backward, bool):
            return f"save_backward {save_backward!r} is neither True nor False"
        return self._value_problem(variable)

    def _value_problem(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            return next((problem for item in value if (problem := self._value_problem(item))), "")
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                return "a dict has a key that is no text"
            return self._value_problem(list(value.values()))
        if isinstance(value, (self._tensor, int, float, str)):
            return ""
        return f"a {type(value).__name__} is no tensor, number, text, list, tuple or dict"
