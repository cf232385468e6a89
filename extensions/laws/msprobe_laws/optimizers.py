"""What laws see of one step of an optimizer, put together from what a framework reads before and after it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_laws.law import Step
from msprobe_laws.observation import Array, Content, Update, UpdatedParameter
from msprobe_laws.session import LawSession

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
class Gradient:
    """What a step gets for a parameter.

    Attributes:
        elements: None without a gradient.
        dtype: "" without a gradient.
        identity: equal for the tensor that the step before has used, as long as nothing has written it; None for none.
        is_term: see `UpdatedParameter`.
    """

    elements: Array | None
    dtype: str
    identity: Any = None
    is_term: bool = False

    def is_same(self, identity: Any, elements: Array | None) -> bool:
        """Return whether it is the gradient of this identity with these elements, which are not all 0."""
        if self.identity is None or self.identity != identity or self.elements is None or elements is None:
            return False
        return bool(np.any(elements)) and np.array_equal(elements, self.elements)


@dataclass(slots=True)
class OpenStep:
    """A step that runs, and what was read before it.

    Attributes:
        watched: its optimizer.
        step: itself.
        groups: of the parameters; indices in `settings`.
        before, gradients: of the parameters.
        computes_gradients: whether the step computes them itself, in a closure: they are not known.
    """

    watched: WatchedOptimizer
    step: Step
    groups: Sequence[int]
    settings: Sequence[Mapping[str, Any]]
    before: Sequence[Content]
    gradients: Sequence[Gradient]
    computes_gradients: bool = False
    used_again: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        watched = self.watched
        self.used_again = []
        for key, content, gradient in zip(self.step.parameters, self.before, self.gradients):
            has_state = any(map(np.any, content.states.values()))
            if not has_state or key not in watched.steps:
                watched.steps[key] = None if has_state else 0
            is_again = not self.computes_gradients and gradient.is_same(*watched.gradients.get(key, (None, None)))
            self.used_again.append(is_again)


class Optimizers:
    """The optimizers of a training, which hand each step to a `LawSession`."""

    def __init__(self, session: LawSession) -> None:
        """Know none yet."""
        self._session = session
        self._watched: dict[int, WatchedOptimizer] = {}
        self._counts: dict[str, int] = {}

    def watched(self, optimizer: Any) -> WatchedOptimizer:
        """Return what is kept of an optimizer: the name is that of its class, with a number from the second one on."""
        watched = self._watched.get(id(optimizer))
        if watched is None or watched.optimizer() is not optimizer:  # the id was that of an optimizer that is gone
            kind = type(optimizer).__name__
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            name = f"{kind}.{count - 1}" if count > 1 else kind
            watched = self._watched[id(optimizer)] = WatchedOptimizer(weakref.ref(optimizer), name)
        return watched

    def take(
        self,
        opened: OpenStep,
        after: Sequence[Content],
        formula: tuple[str, str, bool],
        precision: float,
        explained: Collection[str],
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
        parameters = [self._updated(opened, at, key, after[at]) for at, key in enumerate(opened.step.parameters)]
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

    def _updated(self, opened: OpenStep, at: int, key: int, after: Content) -> UpdatedParameter:
        item, before, gradient = opened.step.parameters[key], opened.before[at], opened.gradients[at]
        watched, elements = opened.watched, gradient.elements
        if gradient.identity is not None:
            watched.gradients[key] = gradient.identity, elements
        count = watched.steps.get(key)
        if count is not None and elements is not None:
            watched.steps[key] = count = count + 1
        if before.values.size != after.values.size or opened.computes_gradients:
            before.values = after.values = EMPTY
        return UpdatedParameter(
            watched.names.get(key, f"param_groups.{opened.groups[at]}"),
            opened.groups[at],
            before,
            after,
            EMPTY if opened.computes_gradients else elements,
            gradient.dtype,
            bool(item.requires_grad),
            count or 0,
            opened.used_again[at],
            gradient.is_term,
        )
