"""What optimizers of MindSpore get and leave: seen at the `__call__` of their base classes.

Nothing is seen of an optimizer that runs inside a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msprobe_collector.mindspore.calls import own_parameters
from msprobe_collector.mindspore.hyperparameters import step_settings
from msprobe_collector.recording.session import Session
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_collector.recording.updates import Named, OptimizerRecords, ParameterNames, named


class OptimizerCalls(OptimizerRecords):
    """Records every call of an optimizer."""

    framework = "mindspore"

    def __init__(self, session: Session) -> None:
        """See nothing yet."""
        super().__init__(
            session, ParameterNames(own_parameters, lambda others: {id(item): item.name for item in others})
        )
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See calls from now on."""
        if self._is_wanted and not self._swaps.are_in:
            from mindspore import nn
            from mindspore.experimental import optim

            for owner in (nn.Optimizer, optim.Optimizer):
                self._swaps.put(owner, "__call__", self._seen)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_collecting or self._activity.is_inside:
                return original(optimizer, *args, **kwargs)
            gradients = args[0] if args else kwargs.get("gradients", ())
            of_parameters = functools.partial(_gradients_of, gradients)
            self._guard.enter("an optimizer's call", self._begin, optimizer, of_parameters)
            result = original(optimizer, *args, **kwargs)
            self._guard.enter("an optimizer's call", self._end, optimizer)
            return result

        return call

    def _groups(self, optimizer: Any) -> list[list[Any]]:
        return [list(optimizer.parameters)]

    def _settings(self, optimizer: Any) -> list[dict[str, Any]]:
        return step_settings(optimizer)

    def _state(self, optimizer: Any, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Parameters of the optimizer's own: as many as it updates, one for each of them, then single ones."""
        from mindspore import Parameter

        taken = set(map(id, parameters.values()))
        held = {**vars(optimizer), **optimizer._params}
        for key, value in held.items():
            is_of_each = isinstance(value, (tuple, list)) and len(value) == len(parameters)
            if is_of_each and all(isinstance(item, Parameter) and id(item) not in taken for item in value):
                taken.update(map(id, value))
                yield from ((f"state.{name}.{key}", item) for name, item in zip(parameters, value))
        for key, value in held.items():
            if isinstance(value, Parameter) and id(value) not in taken:
                taken.add(id(value))
                yield f"state.{key}", value


def _names_of(parameters: Sequence[Any]) -> dict[int, str]:
    return {id(parameter): parameter.name for parameter in parameters}


def _gradients_of(gradients: Sequence[Any], parameters: Mapping[str, Any]) -> Named:
    return named("gradients", zip(parameters, gradients))
