"""What laws see of one step of an optimizer, put together from what a framework reads before and after it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_laws.observation import Array, Place, Update, UpdatedParameter
from msprobe_laws.session import LawSession
from msprobe_laws.steps import Step

EMPTY: Array = np.empty(0)
#: Elements of a large parameter that are looked at; all of a smaller one.
SAMPLE = 128
#: Elements of a parameter of which all are looked at where that is wanted.
WHOLE = 1 << 14


@dataclass(slots=True)
class WatchedOptimizer:
    """An optimizer that steps.

    Attributes:
        optimizer: itself, as long as the script has it.
        name: in findings.
        number: of its next step, from 0.
        names: of its parameters by id.
        samples: which elements of large parameters are looked at, by the parameter's id.
        steps: of each parameter by its id: see `UpdatedParameter`; None where its state was there from the first.
        gradients: what the last step has used, by the parameter's id: which tensor it was, and elements of it.
    """

    optimizer: weakref.ref[Any]
    name: str
    number: int = 0
    names: dict[int, str] = field(default_factory=dict)
    samples: dict[int, Any] = field(default_factory=dict)
    steps: dict[int, int | None] = field(default_factory=dict)
    gradients: dict[int, tuple[Any, Array | None]] = field(default_factory=dict)


@dataclass(slots=True)
class Content:
    """What a parameter and its states hold before a step, or after it: see `UpdatedParameter`."""

    values: Array
    place: Place
    shape: tuple[int, ...] = ()
    size: int = 0
    is_whole: bool = True
    states: dict[str, Array] = field(default_factory=dict)
    state_places: dict[str, Place] = field(default_factory=dict)


@dataclass(slots=True)
class Gradient:
    """What a step gets for a parameter.

    Attributes:
        elements: None without a gradient.
        dtype: "" without a gradient.
        identity: equal for the tensor that the step before has used, as long as nothing has written it; None for none.
    """

    elements: Array | None
    dtype: str
    identity: Any = None


@dataclass(slots=True)
class OpenStep:
    """A step that runs, and what was read before it.

    Attributes:
        watched: its optimizer.
        step: itself.
        items: parameters, each once.
        groups: of the parameters; indices in `settings`.
        before, gradients: of the parameters.
        computes_gradients: whether the step computes them itself, in a closure: they are not known.
    """

    watched: WatchedOptimizer
    step: Step
    items: Sequence[Any]
    groups: Sequence[int]
    settings: Sequence[Mapping[str, Any]]
    before: Sequence[Content]
    gradients: Sequence[Gradient]
    computes_gradients: bool = False
    used_again: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        watched = self.watched
        self.used_again = []
        for item, content, gradient in zip(self.items, self.before, self.gradients):
            has_state = any(map(np.any, content.states.values()))
            if has_state and id(item) not in watched.steps:
                watched.steps[id(item)] = None
            elif not has_state:
                watched.steps[id(item)] = 0
            identity, elements = watched.gradients.get(id(item), (None, None))
            is_same = identity is not None and identity == gradient.identity and not self.computes_gradients
            is_same = is_same and elements is not None and gradient.elements is not None
            self.used_again.append(is_same and bool(np.any(elements)) and np.array_equal(elements, gradient.elements))


class Optimizers:
    """The optimizers of a training, which hand each step to a `LawSession`."""

    def __init__(self, session: LawSession) -> None:
        """Know none yet."""
        self._session = session
        self._watched: dict[int, WatchedOptimizer] = {}
        self._counts: dict[str, int] = {}

    def watched(self, optimizer: Any) -> WatchedOptimizer:
        """Return what is kept of an optimizer: the name is that of its class, with a number from the second one on."""
        known = self._watched.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:  # the id was that of an optimizer that is gone
            kind = type(optimizer).__name__
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind}.{count - 1}" if count > 1 else kind
            known = self._watched[id(optimizer)] = WatchedOptimizer(weakref.ref(optimizer), name)
        return known

    def take(
        self,
        opened: OpenStep,
        after: Sequence[Content],
        formula: tuple[str, str, bool],
        precision: float,
        explained: Iterable[str],
    ) -> Update:
        """Have the laws check a step that is over.

        Args:
            opened: the step.
            after: what its parameters hold now.
            formula: `Update.formula`, `unknown` and `is_own`.
            precision: `Update.hyper_precision`.
            explained: see `LawSession.update`.

        Returns:
            What was checked.
        """
        name, unknown, is_own = formula
        if opened.computes_gradients:
            name, unknown = "", "its step computes the gradients itself, in a closure"
        parameters = [self._updated(opened, at, content) for at, content in enumerate(after)]
        update = Update(
            opened.watched.name,
            name,
            opened.settings,
            parameters,
            opened.watched.number,
            opened.step.source,
            unknown,
            is_own,
            precision,
        )
        opened.watched.number += 1
        self._session.update(update, explained)
        return update

    def _updated(self, opened: OpenStep, at: int, after: Content) -> UpdatedParameter:
        item, before, gradient = opened.items[at], opened.before[at], opened.gradients[at]
        watched, elements = opened.watched, gradient.elements
        if gradient.identity is not None:
            watched.gradients[id(item)] = gradient.identity, elements
        count = watched.steps.get(id(item))
        if count is not None and elements is not None:
            watched.steps[id(item)] = count = count + 1
        is_comparable = before.values.size == after.values.size and not opened.computes_gradients
        return UpdatedParameter(
            watched.names.get(id(item), f"param_groups.{opened.groups[at]}"),
            opened.groups[at],
            after.shape,
            before.values if is_comparable else EMPTY,
            after.values if is_comparable else EMPTY,
            EMPTY if opened.computes_gradients else elements,
            before.states,
            after.states,
            before.is_whole,
            before.place,
            after.place,
            gradient.dtype,
            after.state_places,
            bool(item.requires_grad),
            after.size,
            count or 0,
            opened.used_again[at],
        )
