"""Laws on which optimizer has a parameter, and whether it trains it, for all frameworks."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from msprobe_laws.law import Violation
from msprobe_laws.models import ModelLaws
from msprobe_laws.session import LawSession
from msprobe_laws.steps import Step
from msprobe_laws.training import EACH_IN_ONE, IN_AN_OPTIMIZER, STAYS_TRAINABLE

#: Steps after which what never required a gradient is not going to.
_LONG_ENOUGH = 5


class Owners:
    """Follows which parameters each optimizer updates."""

    def __init__(self, models: ModelLaws) -> None:
        """Know no optimizer yet."""
        self._framework = models.framework
        #: Parameters of each optimizer that has stepped, by id, and when its last step was, by its name.
        self.held: dict[str, dict[int, weakref.ref[Any]]] = {}
        self._last: dict[str, int] = {}
        self._ticks = 0
        #: Optimizers whose steps run, and pairs of which one steps inside of the other.
        self._stepping: list[str] = []
        self._nested: set[tuple[str, str]] = set()
        #: Elements of parameters with gradients that are in no optimizer, at the last step.
        self._suspects: dict[int, bytes] = {}

    def step_begins(self, step: Step) -> list[Violation]:
        """Return the parameters that the optimizer has twice, and those that another one updates in turn with it."""
        if self._stepping:
            outer = self._stepping[-1]
            self._nested.update(((outer, step.name), (step.name, outer)))
        self._stepping.append(step.name)
        self._ticks += 1
        counts = Counter(map(id, step.order))
        twice = [key for key, count in counts.items() if count > 1]
        message = f"it is in {step.name} twice, and updated twice"
        findings = [Violation(EACH_IN_ONE, step.names[key], message) for key in twice]
        last = self._last.get(step.name, self._ticks)
        for other, held in self.held.items():
            if other == step.name or self._last[other] < last or (other, step.name) in self._nested:
                continue
            shared = [key for key, item in step.parameters.items() if key in held and held[key]() is item]
            findings += step.findings(EACH_IN_ONE, shared, f"{step.name} and {other} both update it, in turn")
        self.held[step.name] = {key: weakref.ref(item) for key, item in step.parameters.items()}
        self._last[step.name] = self._ticks
        return findings

    def step_ended(self, name: str) -> None:
        """Note that the step of an optimizer is over, and with it those inside of it."""
        if name in self._stepping:
            del self._stepping[self._stepping.index(name) :]

    def in_no_optimizer(self, candidates: Iterable[tuple[str, Any]], *, at_once: bool) -> list[Violation]:
        """Return those of the parameters with gradients that no optimizer has.

        Args:
            candidates: (name, parameter) of parameters with gradients.
            at_once: whether they are named at once; otherwise when nothing has changed them until the next step.
        """
        owned = set().union(*self.held.values())
        missing: dict[int, tuple[str, Any]] = {}
        for name, item in candidates:
            if id(item) not in owned:
                missing.setdefault(id(item), (name, item))
        if missing:
            owned = self._framework.ids_in_optimizers()
        before, self._suspects = self._suspects, {}
        for key, (_, item) in missing.items():
            if key not in owned:
                self._suspects[key] = self._framework.some_bytes(item)
        # Something else updates them, such as the copies of an optimizer that holds float32: some may stay by rounding.
        is_updated = any(before.get(key, value) != value for key, value in self._suspects.items())
        names = [missing[key][0] for key in self._suspects if at_once or key in before]
        if not names or is_updated:
            return []
        return [Violation.of(IN_AN_OPTIMIZER, names, "it has a gradient and is in no optimizer: it is never updated")]


class Freezing:
    """Follows which parameters of optimizers require gradients."""

    def __init__(self, session: LawSession, models: ModelLaws) -> None:
        """Know no optimizer yet."""
        self._session, self._models = session, models
        #: Parameters that required gradients when an optimizer was made of them, until its first step, by id.
        self._made: dict[int, weakref.ref[Any]] = {}
        #: Ids of the parameters that each optimizer has trained, by its name, and optimizers of which some were frozen.
        self._trained: dict[str, set[int]] = {}
        self._frozen: set[str] = set()
        #: Number of steps, and the parameters that required no gradient in any, by optimizer.
        self._never: dict[str, tuple[int, dict[int, str]]] = {}
        #: Parameters that the script has frozen by a call.
        self.meant: Container[Any] = ()
        #: Whether the optimizer of this step trains nothing any more, which the law says of it.
        self.explains_no_update = False

    def made(self, parameters: Sequence[Any]) -> None:
        """Note that an optimizer is made: what it is to train is what can be trained now."""
        for item in parameters:
            if item.requires_grad:
                self._made[id(item)] = weakref.ref(item)

    def step_begins(self, step: Step) -> list[Violation]:
        """Return the parameters that were frozen since the optimizer was made, or since its last step."""
        trained = self._trained.setdefault(step.name, set())
        frozen = [key for key, item in step.parameters.items() if not item.requires_grad]
        count, never = self._never.get(step.name, (0, step.names))
        self._never[step.name] = count + 1, {key: never[key] for key in frozen if key in never}
        made = {key: self._made.pop(key, None) for key in step.parameters}
        at_first = [key for key in frozen if (reference := made[key]) and reference() is step.parameters[key]]
        stopped = [key for key in frozen if key in trained]
        trained.update(step.parameters)
        trained.difference_update(frozen)
        if stopped:
            self._frozen.add(step.name)
        is_all = len(frozen) == len(step.parameters)
        self.explains_no_update = bool(stopped) or (is_all and step.name in self._frozen)
        if stopped and not is_all:
            # A schedule freezes what it names, or whole parts of a model, and leaves something to train.
            partly = self._partly_frozen(step)
            stopped = [key for key in stopped if step.parameters[key] not in self.meant and key in partly]
        message = f"requires_grad is False, and it was True when {step.name} was made: it is not trained"
        findings = step.findings(STAYS_TRAINABLE, at_first, message)
        message = f"requires_grad is False since this step: {step.name} trains it no more"
        return findings + step.findings(STAYS_TRAINABLE, stopped, message)

    def _partly_frozen(self, step: Step) -> set[int]:
        """Return the ids of parameters in parts of models that are frozen in part, and of those that are in none."""
        partly = set(step.parameters)
        framework = self._models.framework
        for _, root in self._models.running.roots():
            for _, part in framework.parts(root):
                held = framework.own_parameters(part)
                if not any(item.requires_grad for item in held):
                    partly.difference_update(map(id, held))
        return partly

    def end(self, owners: Owners) -> None:
        """Say what an optimizer had and never trained, when the training is over."""
        models = self._models.running.models.values()
        for name, (count, frozen) in self._never.items():
            # Who hands all parameters of a model to an optimizer may have frozen some of them on purpose.
            is_whole = any(owners.held[name].keys() >= model.parameters.keys() for model in models)
            if count >= _LONG_ENOUGH and frozen and self._trained.get(name) and not is_whole:
                message = f"{name} has it, and it never required a gradient in {count} steps"
                self._session.say(
                    STAYS_TRAINABLE, name, [Violation.of(STAYS_TRAINABLE, list(frozen.values()), message)]
                )
