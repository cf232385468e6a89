"""Gradients of the parameters of layers (Cells, Modules), as records of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msprobe_collector.dump_format.writing.framework_values import ComputationFailed
from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.faults import FaultLog, guarded
from msprobe_collector.recording.recorder import Recorder


@dataclass(slots=True)
class _Arrivals:
    """Gradients of one layer that wait for those of its other parameters."""

    names: frozenset[str]
    number: int = 0
    gradients: dict[str, Any] = field(default_factory=dict)


class ParameterGradients:
    """Writes `{layer}.{path}.{Class}.parameters_grad.{k}`: {parameter: [gradient]}, k counting backwards of the step.

    A record is written when every parameter's gradient is there, or when the step ends with what has come.
    """

    def __init__(self, recorder: Recorder, activity: Activity, faults: FaultLog) -> None:
        self._recorder = recorder
        self._activity = activity
        self._faults = faults
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
            guarded(self._faults, label, functools.partial(self._write, label))

    def remove(self) -> None:
        """Take the hooks off the parameters: the step is over."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._known.clear()
        self._arrivals.clear()

    def _hook(self, label: str, name: str) -> Callable[[Any], Any]:
        def arrived(gradient: Any) -> Any:
            """Take the gradient and pass it on as it is.

            Raises:
                Exception: the error of the script's own computation, where reading a value brought it up.
            """
            if self._recorder.folder is not None:
                with self._activity.own_work():
                    try:
                        self.take(label, name, gradient)
                    except ComputationFailed as failure:
                        raise failure.error from None
                    except Exception as error:  # the border between the collector and the user's training
                        self._faults.note(f"{label}.parameters_grad", error)
            return gradient

        return arrived

    def take(self, label: str, name: str, gradient: Any) -> None:
        """Take the gradient of the parameter `name`."""
        arrivals = self._arrivals[label]
        if name in arrivals.gradients:
            self._write(label)
        arrivals.gradients[name] = gradient
        if arrivals.gradients.keys() == arrivals.names:
            self._write(label)

    def _write(self, label: str) -> None:
        arrivals = self._arrivals[label]
        if not arrivals.gradients:
            return
        gradients, arrivals.gradients = arrivals.gradients, {}
        number, arrivals.number = arrivals.number, arrivals.number + 1
        record = self._recorder.begin(f"{label}.parameters_grad.{number}", "backward", None)
        for name, gradient in gradients.items():
            self._recorder.parameter_gradient(record, name, gradient)
        self._recorder.end(record)
