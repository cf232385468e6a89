"""Records of no call: values that a script saves by hand (level debug), and what an optimizer gets and leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import Any, ClassVar

from msprobe_collector import extensions, logger
from msprobe_collector.dump_format.writing.encoding import FrameworkValues
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.recorder import OpenRecord, Recorder
from msprobe_collector.recording.session import Session

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


#: (name in the record, value) of each value.
Named = Iterable[tuple[str, Any]]


class UpdateRecords:
    """Begins and ends the records of updates and clippings, `Optimizer.<Class>.<k>.forward`.

    The keywords of such a record are `parameters.<name>`, `gradients.<name>` and
    `state.<name>.<key>` before the update, its output the same names after it. `settings` are the
    hyper-parameters of each group, in the order of the parameters; extensions add what they know
    of the optimizer. Values are taken one by one: no more than one of a model's is in memory.
    """

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


class ParameterNames:
    """Names of parameters: those in the watched models, as records of layers have them, else those that they have."""

    def __init__(
        self, parameters_of: Callable[[Any], Mapping[str, Any]], others: Callable[[Sequence[Any]], Mapping[int, str]]
    ) -> None:
        """Know none yet.

        Args:
            parameters_of: gives the parameters that stand on a layer itself, by the last segment of their names.
            others: gives names of parameters that are in no watched model, by their ids, where they have any.
        """
        self._parameters_of, self._others = parameters_of, others
        #: Name and parameter, by the parameter's id.
        self._known: dict[int, tuple[str, Any]] = {}

    def watch(self, layers: Iterable[tuple[str, Any]]) -> None:
        """Learn the parameters of the `layers` of a model, given as (path, layer)."""
        for path, layer in layers:
            for last, parameter in self._parameters_of(layer).items():
                name = f"{path}.{last}".removeprefix(".")
                # Beside it the copy in higher precision that wrappers of optimizers update.
                for item in (parameter, getattr(parameter, "main_param", parameter)):
                    self._known.setdefault(id(item), (name, item))

    def of(self, groups: Sequence[Sequence[Any]], prefix: str) -> list[str]:
        """Return a name of each of the parameters.

        One that has no name, or that of another one, is named by `prefix` and its place in `groups`.
        """
        unknown = [parameter for parameter in chain(*groups) if id(parameter) not in self._known]
        others = self._others(unknown) if unknown else {}
        names: list[str] = []
        taken: set[str] = set()
        for number, group in enumerate(groups):
            for index, parameter in enumerate(group):
                name, _ = self._known.get(id(parameter), (others.get(id(parameter)), None))
                if name is None or name in taken:
                    name = f"{prefix}.{number}.params.{index}" if prefix else f"{index}"
                names.append(name)
                taken.add(name)
        return names

    def clear(self) -> None:
        """Forget all: the step is over."""
        self._known.clear()


def named(kind: str, values: Iterable[tuple[str, Any]]) -> Named:
    """Return `values`, (name of a parameter, value), as entries of a `kind`: `parameters`, `gradients`."""
    return ((f"{kind}.{name}", value) for name, value in values)


class OptimizerRecords:
    """What each optimizer gets and leaves; a framework says when, and calls `_begin` and `_end`.

    Attributes:
        framework: its name.
        names: of parameters.
    """

    framework: ClassVar[str]

    def __init__(self, session: Session, names: ParameterNames) -> None:
        """See nothing yet."""
        self._guard = session.guard
        self._recorder, self._activity = session.recorder, session.guard.activity
        self._records = UpdateRecords(session.recorder, session.guard)
        self._is_wanted = session.configuration.collects_optimizers
        self.names = names

    def end_step(self) -> None:
        """End what has begun, and forget the names."""
        self._records.give_up()
        self.names.clear()

    def _groups(self, optimizer: Any) -> list[list[Any]]:
        """Return the parameters of each group."""
        raise NotImplementedError

    def _settings(self, optimizer: Any) -> list[dict[str, Any]]:
        """Return the hyper-parameters of each group, with the number of its parameters."""
        raise NotImplementedError

    def _state(self, optimizer: Any, parameters: Mapping[str, Any]) -> Named:
        """Return what the optimizer keeps, as `state.<name of the parameter>.<key>`."""
        raise NotImplementedError

    def _parameters(self, optimizer: Any) -> dict[str, Any]:
        groups = self._groups(optimizer)
        return dict(zip(self.names.of(groups, "param_groups"), chain(*groups)))

    def _begin(
        self, optimizer: Any, gradients: Callable[[dict[str, Any]], Named], frame: FrameType | None = None
    ) -> dict[str, Any]:
        """Take what the update gets that runs in `frame`; returns the parameters by name, of which `gradients` are."""
        parameters = self._parameters(optimizer)

        def values() -> Iterator[tuple[str, Any]]:  # what fails in here is noted in the record
            yield from named("parameters", parameters.items())
            yield "settings", self._settings(optimizer)
            yield from extensions.optimizer_leaves(self.framework, optimizer, frame).items()
            yield from gradients(parameters)
            yield from self._state(optimizer, parameters)

        self._records.begin(type(optimizer).__name__, optimizer, values())
        return parameters

    def _end(self, optimizer: Any) -> None:
        parameters = self._parameters(optimizer)
        state = self._state(optimizer, parameters)
        self._records.leaves(optimizer, [*named("parameters", parameters.items()), *state])
