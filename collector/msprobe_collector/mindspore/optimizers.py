"""What optimizers of MindSpore get and leave: seen at the `__call__` of their base classes.

Nothing is seen of an optimizer that runs inside a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msprobe_collector import extensions
from msprobe_collector.mindspore.calls import own_parameters
from msprobe_collector.recording.session import Session
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_collector.recording.updates import Named, UpdateRecords


class OptimizerCalls:
    """Records every call of an optimizer."""

    def __init__(self, session: Session) -> None:
        """See nothing yet."""
        self._guard = session.guard
        self._recorder, self._activity = session.recorder, session.guard.activity
        self._records = UpdateRecords(session.recorder, session.guard)
        self._is_wanted = session.configuration.collects_optimizers
        self._swaps = MethodSwaps()
        #: Name and parameter, by the parameter's id.
        self._names: dict[int, tuple[str, Any]] = {}

    def watch(self, cells: Iterable[tuple[str, Any]]) -> None:
        """Name the parameters of these Cells, given as (path, Cell), as records of Cells do."""
        for path, cell in cells:
            for name, parameter in own_parameters(cell).items():
                self._names.setdefault(id(parameter), (f"{path}.{name}" if path else name, parameter))

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

    def end_step(self) -> None:
        """End what has begun, and forget the names."""
        self._records.give_up()
        self._names.clear()

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_collecting or self._activity.is_inside:
                return original(optimizer, *args, **kwargs)
            gradients = args[0] if args else kwargs.get("gradients", ())
            self._guard.enter("an optimizer's call", self._begin, optimizer, gradients)
            result = original(optimizer, *args, **kwargs)
            self._guard.enter("an optimizer's call", self._end, optimizer)
            return result

        return call

    def _begin(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        names = self._names_of(optimizer)
        self._records.begin(_kind(optimizer), optimizer, self._values(optimizer, names))
        self._records.gets(optimizer, _settings_of(optimizer))
        self._records.gets(optimizer, ((f"gradients.{name}", item) for name, item in zip(names, gradients)))
        self._records.gets(optimizer, _state_of(optimizer, names))

    def _end(self, optimizer: Any) -> None:
        names = self._names_of(optimizer)
        self._records.leaves(optimizer, [*self._values(optimizer, names), *_state_of(optimizer, names)])

    def _values(self, optimizer: Any, names: Sequence[str]) -> Named:
        return ((f"parameters.{name}", item) for name, item in zip(names, optimizer.parameters))

    def _names_of(self, optimizer: Any) -> list[str]:
        return [self._names.get(id(parameter), (parameter.name,))[0] for parameter in optimizer.parameters]


def _kind(optimizer: Any) -> str:
    return type(optimizer).__name__


def _settings_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Hyper-parameters of each group, and what extensions say of the optimizer."""
    from msprobe_collector.mindspore.hyperparameters import step_settings

    yield "settings", step_settings(optimizer)
    yield from extensions.optimizer_leaves("mindspore", optimizer).items()


def _state_of(optimizer: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Parameters of the optimizer's own: as many as it updates, one for each of them, then single ones."""
    from mindspore import Parameter

    taken = {id(parameter) for parameter in optimizer.parameters}
    held = {**vars(optimizer), **optimizer._params}
    for key, value in held.items():
        is_of_each = isinstance(value, (tuple, list)) and len(value) == len(names)
        if is_of_each and all(isinstance(item, Parameter) and id(item) not in taken for item in value):
            taken.update(map(id, value))
            yield from ((f"state.{name}.{key}", item) for name, item in zip(names, value))
    for key, value in held.items():
        if isinstance(value, Parameter) and id(value) not in taken:
            taken.add(id(value))
            yield f"state.{key}", value
