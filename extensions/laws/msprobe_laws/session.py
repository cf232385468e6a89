"""All laws of one training, in the process that trains."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msprobe_collector.recording.guard import Activity, FaultLog, Guard
from msprobe_laws import updates
from msprobe_laws.extension import chosen_folder, left_out, meant
from msprobe_laws.formula_check import FormulaCheck
from msprobe_laws.journal import LAWS, Journal
from msprobe_laws.law import Checked, Unchecked, Violation, listed
from msprobe_laws.observation import Batch, Clipping, DropoutMask, Labels, Update
from msprobe_laws.signals import BatchesDiffer, ClipNorm, DropoutLaws, LabelsAligned
from msprobe_laws.training import BATCHES_DIFFER, CLIP_NORM, FRESH, SCALE_REMOVED, STAYS_TRAINABLE


class LawSession:
    """Checks what a framework hands over, and tells the journal.

    Its methods raise what a fault of ours raises: who calls them goes through `Guard.enter`.
    """

    def __init__(self, journal: Journal, left_out: Iterable[str] = ()) -> None:
        """Check all laws but those whose names are `left_out`."""
        self.journal = journal
        self._left_out = frozenset(left_out)
        self._formula_laws = [law() for law in updates.OF_FORMULA]
        self.state_continues = updates.StateContinues()
        self._update_laws = [*(law() for law in updates.OF_UPDATE), self.state_continues]
        self._clip_norm = ClipNorm()
        self._dropout = DropoutLaws()
        self._batches = BatchesDiffer()
        self._labels = LabelsAligned()
        #: Number of steps that have ended, of all optimizers.
        self.step = 0
        self._source = ""
        #: Names of parameters whose update was compared with a formula in some step, and in some was not.
        self._compared: dict[str, set[str]] = defaultdict(set)
        self._not_compared: dict[str, set[str]] = defaultdict(set)

    def update(self, update: Update, explained: Collection[str] = ()) -> None:
        """Check one call of an optimizer's `step`, when it is over, but for the laws `explained`."""
        self._source = update.source
        computed = FormulaCheck(update)
        for name, result in self._results(update, computed):
            if name not in explained:
                self.say(name, update.optimizer, result, source=update.source, step=update.number)
        compared = {item.name for item in update.parameters if item.gradient is not None} - set(computed.not_compared)
        self._compared[update.optimizer] |= compared
        self._not_compared[update.optimizer].update(computed.not_compared)
        self._dropout.step_ends()
        self.step += 1
        self.journal.step_ended()

    def _results(self, update: Update, computed: FormulaCheck) -> Iterator[tuple[str, Checked]]:
        for law in self._formula_laws:
            yield law.name, law.check(computed)
        for other in self._update_laws:
            yield other.name, other.check(update)
        if again := [item.name for item in update.parameters if item.is_used_again]:
            message = "the step uses the gradient of the step before once more: no backward pass has written it since"
            yield FRESH, [Violation.of(FRESH, again, message)]
        if moved := [item.name for item in update.parameters if item.is_moved_frozen]:
            message = "requires_grad is False, and the step changes it: its gradient is 0 and not None"
            yield STAYS_TRAINABLE, [Violation.of(STAYS_TRAINABLE, moved, message)]

    def clipping(self, clipping: Clipping) -> None:
        """Check that gradients were clipped rightly."""
        if clipping.scale != 1:
            names = list(clipping.names) or ["gradients"]
            message = f"gradients are clipped while they hold the scale {clipping.scale:g} of the loss scaler"
            self.say(SCALE_REMOVED, "clipping", [Violation.of(SCALE_REMOVED, names, message)], source=clipping.source)
        self.say(CLIP_NORM, "clipping", self._clip_norm.check(clipping), source=clipping.source)

    def mask(self, mask: DropoutMask) -> None:
        """Check what dropout has drawn."""
        for name, result in self._dropout.check(mask):
            self.say(name, "dropout", result, source=mask.source)

    def batch(self, batch: Batch) -> None:
        """Check the batch that a step got."""
        self.say(BATCHES_DIFFER, batch.of, self._batches.check(batch))

    def labels(self, labels: Labels) -> None:
        """Check the targets that a cross entropy got."""
        self.say(self._labels.name, "labels", self._labels.check(labels))

    def say(self, name: str, about: str, result: Checked, *, source: str = "", step: int | None = None) -> None:
        """Take what a law of the given name says."""
        if name in self._left_out:
            return
        stated = result if isinstance(result, Unchecked) else list(updates.summed_up(result))
        self.journal.take(name, about, stated, step=self.step if step is None else step, source=source or self._source)

    def close(self, faults: int = 0) -> None:
        """End the training, with so many kinds of faults of ours."""
        for optimizer, names in self._not_compared.items():
            if self._compared[optimizer] and (never := sorted(names - self._compared[optimizer])):
                about = f"{optimizer}, {listed(never)}"
                reason = "the formula takes sums over the whole parameter, or reads what was not there"
                self.say("update-formula", about, Unchecked(reason, parameters=tuple(never)))
        self.journal.close(faults)


_lock = threading.Lock()


class Seeing(Protocol):
    """Sees a part of training while it is installed."""

    def install(self) -> None:
        """See from now on."""

    def uninstall(self) -> None:
        """See no more."""


class LawWatch:
    """Checks laws from `install` to `close`. The class of a framework sets what sees its training."""

    signals: Seeing
    optimizers: Seeing
    _of_process: ClassVar[LawWatch | None] = None

    def __init__(self, folder: Path, skip: Iterable[str], laws_meant: Mapping[str, str] | None = None) -> None:
        """Write findings below `folder`; the laws named in `skip` are left out. `laws_meant`: see `start`."""
        self.guard = Guard(Activity(), FaultLog())
        skip, declared = tuple(skip), {**meant(folder), **(laws_meant or {})}
        for name in [name for name in (*skip, *declared) if name not in LAWS]:
            sys.stderr.write(f"msprobe: there is no law {name}\n")
        self.journal = Journal(folder, self.describe, self.rank, declared)
        self.journal.on_open = self.guard.faults.write_to
        self.session = LawSession(self.journal, skip)

    @classmethod
    def start(
        cls,
        folder: str | os.PathLike[str] | None = None,
        *,
        skip: Iterable[str] = (),
        laws_meant: Mapping[str, str] | None = None,
    ) -> LawWatch:
        """Check the laws of training in this process from now on.

        Args:
            folder: where findings go, `msprobe_laws` by default; one file for each rank is written below it.
            skip: names of laws to leave out, beside those of MSPROBE_LAWS_SKIP.
            laws_meant: why what a law finds is meant, by its name, beside those of MSPROBE_LAWS_MEANT: its findings
                are information.

        Returns:
            The watch, the same one for every call; its `close()` ends it, which the end of the process does as well.
        """
        with _lock:
            if cls._of_process is None:
                chosen = chosen_folder() if folder is None else Path(folder)
                watch = cls(chosen, (*skip, *left_out()), laws_meant)
                watch.install()
                cls._of_process = watch
            return cls._of_process

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return what the first line of the journal says of the run."""
        return {"script": Path(sys.argv[0]).name if sys.argv else ""}

    @staticmethod
    def rank() -> int | None:
        """Return the rank of this process; None where it is alone."""
        return None

    def install(self) -> None:
        """Watch from now on."""
        self.optimizers.install()
        self.signals.install()
        atexit.register(self.close)

    def close(self) -> None:
        """Write the closing line, and watch no more."""
        atexit.unregister(self.close)
        self.optimizers.uninstall()
        self.signals.uninstall()
        self.guard.enter("laws: the end", self.at_the_end)
        self.guard.enter("laws: the end", self.session.close, int(self.guard.faults.has_any))

    def at_the_end(self) -> None:
        """Check what is known when the training is over."""
