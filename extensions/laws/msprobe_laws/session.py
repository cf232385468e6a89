"""All laws of one training, in the process that trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msprobe_laws.formula_check import FormulaCheck
from msprobe_laws.journal import Journal
from msprobe_laws.law import Checked, Finding, Law, Unchecked, listed
from msprobe_laws.observation import Batch, Clipping, DropoutMask, Labels, Update
from msprobe_laws.signals import BatchesDiffer, ClipNorm, DropoutLaws, LabelsAligned
from msprobe_laws.training import FRESH, SCALE_REMOVED, STAYS_TRAINABLE
from msprobe_laws.updates import (
    DecayAsDeclared,
    HyperParameters,
    MomentsFormula,
    OwnState,
    SomethingUpdated,
    StateContinues,
    StepCounter,
    StorageKept,
    UpdateFormula,
    UpdatesArrive,
    summed_up,
)


class LawSession:
    """Checks what a framework hands over, and tells the journal.

    Its methods raise what a fault of ours raises: who calls them goes through `Guard.enter`.
    """

    def __init__(self, journal: Journal, left_out: Iterable[str] = ()) -> None:
        """Check all laws but those whose names are `left_out`."""
        self.journal = journal
        self._left_out = frozenset(left_out)
        self._formula_laws: list[Law[FormulaCheck]] = [
            UpdateFormula(),
            MomentsFormula(),
            DecayAsDeclared(),
            UpdatesArrive(),
        ]
        self.state_continues = StateContinues()
        self._update_laws: list[Law[Update]] = [
            StepCounter(),
            OwnState(),
            StorageKept(),
            SomethingUpdated(),
            HyperParameters(),
            self.state_continues,
        ]
        self._clip_norm = ClipNorm()
        self._dropout = DropoutLaws()
        self._batches = BatchesDiffer()
        self._labels = LabelsAligned()
        #: Number of steps that have ended, of all optimizers.
        self.step = 0
        self._source = ""
        #: Names of parameters whose update was compared with a formula in some step, and in some was not.
        self._compared: dict[str, set[str]] = {}
        self._not_compared: dict[str, set[str]] = {}

    def update(self, update: Update, explained: Iterable[str] = ()) -> None:
        """One call of an optimizer's `step`, when it is over; what laws `explained` say of it is known already."""
        self._source = update.source
        seen = FormulaCheck(update)
        for law in self._formula_laws:
            self._take(law, update.optimizer, law.check(seen), update.number, update.source)
        for other in self._update_laws:
            if other.name in explained:
                continue
            self._take(other, update.optimizer, other.check(update), update.number, update.source)
        if again := [item.name for item in update.parameters if item.is_used_again]:
            message = "the step uses the gradient of the step before once more: no backward pass has written it since"
            found = [Finding(FRESH, again[0], message, None, tuple(again[1:]))]
            self.say(FRESH, update.optimizer, found, source=update.source, step=update.number)
        if moved := [item.name for item in update.parameters if item.is_moved_frozen]:
            message = "requires_grad is False, and the step changes it: its gradient is 0 and not None"
            found = [Finding(STAYS_TRAINABLE, moved[0], message, None, tuple(moved[1:]))]
            self.say(STAYS_TRAINABLE, update.optimizer, found, source=update.source, step=update.number)
        compared = {item.name for item in update.parameters if item.gradient is not None} - set(seen.not_compared)
        left = self._not_compared.setdefault(update.optimizer, set())
        self._compared.setdefault(update.optimizer, set()).update(compared)
        left.update(seen.not_compared)
        self._dropout.step_ends()
        self.step += 1
        self.journal.step_ended()

    def clipping(self, clipping: Clipping) -> None:
        """Gradients were clipped."""
        if clipping.scale != 1:
            names = list(clipping.names) or ["gradients"]
            message = f"gradients are clipped while they hold the scale {clipping.scale:g} of the loss scaler"
            found = Finding(SCALE_REMOVED, names[0], message, None, tuple(names[1:]))
            self.say(SCALE_REMOVED, "clipping", [found], source=clipping.source)
        self._take(self._clip_norm, "clipping", self._clip_norm.check(clipping), self.step, clipping.source)

    def mask(self, mask: DropoutMask) -> None:
        """Dropout has drawn."""
        for name, result in self._dropout.check(mask):
            self.say(name, "dropout", result, source=mask.source)

    def batch(self, batch: Batch) -> None:
        """A step got a batch."""
        self._take(self._batches, batch.of, self._batches.check(batch), self.step, batch.source)

    def labels(self, labels: Labels) -> None:
        """A cross entropy got its targets."""
        self._take(self._labels, "labels", self._labels.check(labels), self.step, labels.source)

    def say(self, name: str, about: str, result: Checked, *, source: str = "", step: int | None = None) -> None:
        """What a law of the given name says that the framework's own observer has checked."""
        if name in self._left_out:
            return
        told = result if isinstance(result, Unchecked) else list(summed_up(result))
        self.journal.take(name, about, told, step=self.step if step is None else step, source=source or self._source)

    def _take(self, law: Law[Any], about: str, result: Checked, step: int, source: str) -> None:
        self.say(law.name, about, result, step=step, source=source)

    def close(self, faults: int = 0) -> None:
        """The training is over, with so many kinds of faults of ours."""
        for optimizer, names in self._not_compared.items():
            if self._compared[optimizer] and (never := sorted(names - self._compared[optimizer])):
                about = f"{optimizer}, {listed(never)}"
                reason = "the formula takes sums over the whole parameter, or reads what was not there"
                self.say("update-formula", about, Unchecked(reason, parameters=tuple(never)))
        self.journal.close(faults)
