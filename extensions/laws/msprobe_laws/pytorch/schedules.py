"""Schedules of learning rates: how often each advances, against the steps of its optimizer."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import lr_scheduler

from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.law import Step, Violation
from msprobe_laws.pytorch.ranks import world_size
from msprobe_laws.replacing import Replacing
from msprobe_laws.session import LawSession
from msprobe_laws.training import SCHEDULES

#: Steps of an optimizer after which its schedule should have advanced, and steps in which it advances by several.
_NEVER, _OFTEN = 8, 2
_MOST = 256
_MAKERS = (
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
    lr_scheduler.ChainedScheduler,
)


class _Schedule:
    """One schedule.

    Attributes:
        schedule: itself.
        optimizer: whose learning rates it sets.
        begin: its number when it was made.
        rate: learning rate that it has set then; one of 0 may be passed over on purpose.
        before: its number at the last step of any optimizer.
        most: by how much it has advanced between two steps of any optimizers, since the last one of its own.
        steps: of its optimizer.
        repeated: in how many steps one after another it has advanced by several.
        is_moved: whether its step was called.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule, self.optimizer = weakref.ref(schedule), weakref.ref(schedule.optimizer)
        self.name, self.kind = type(schedule).__name__, type(schedule.optimizer).__name__
        self.is_over = self.is_moved = False
        self.begin = self.before = _number(schedule)
        self.rate = schedule.optimizer.param_groups[0]["lr"]
        self.most = self.steps = self.repeated = 0

    def fault_at_first(self, number: int, optimizer: str, tries: int) -> str:
        """Return what is wrong at the first step of its optimizer; "" for nothing."""
        owner: Any = self.optimizer()
        if number == self.begin + 1 and tries == 1 and not owner.state and self.rate != 0:
            return f"{self.name} has advanced before the first step of {optimizer}: its first value is never used"
        return ""

    def fault(self, number: int, optimizer: str) -> str:
        """Return what is wrong at a later step of its optimizer; "" for nothing, and for what was said before."""
        # Accelerate advances a schedule once for each rank.
        self.repeated = self.repeated + 1 if self.most > world_size() else 0
        if self.repeated == _OFTEN:
            return (
                f"{self.name} advances by {self.most} for one step of {optimizer}: it is to advance once a step, not "
                "once for each part of a batch"
            )
        end = getattr(self.schedule(), "T_max", None)
        if isinstance(end, int) and number > end and not self.is_over:
            self.is_over = True
            return f"{self.name} goes on behind its T_max of {end}: its rate rises again (steps in place of epochs?)"
        return ""


class Schedules:
    """Compares the number of each schedule with the steps that are taken."""

    def __init__(self, session: LawSession, replacing: Replacing) -> None:
        """Know none yet."""
        self._session, self._replacing = session, replacing
        self._known: list[_Schedule] = []
        self._of: weakref.WeakKeyDictionary[Any, _Schedule] = weakref.WeakKeyDictionary()
        #: Steps that a loss scaler was asked for since the last one that was taken.
        self._tries = 0

    def put(self, swaps: MethodSwaps) -> None:
        """See schedules that are made from now on, those that are made of others as one."""
        made = self._replacing.after("a schedule is made", self._made)
        moved = self._replacing.before("a schedule advances", self._moved)
        for kind in vars(lr_scheduler).values():
            if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler):
                # Of classes that are made from others: LRScheduler.__init__ is called by theirs, or not at all.
                for name, replacement in (("__init__", made), ("step", moved)):
                    if name in vars(kind) and (name == "step" or kind in _MAKERS):
                        swaps.put(kind, name, replacement)

    def tries(self) -> None:
        """Note that a loss scaler is to take a step, which it leaves out where a gradient is not finite."""
        self._tries += 1

    def step_begins(self, step: Step) -> None:
        """Compare schedules with the steps of their optimizers, of which one begins."""
        tries, self._tries = max(1, self._tries), 0
        for entry in list(self._known):
            schedule, owner = entry.schedule(), entry.optimizer()
            if schedule is None or owner is None:
                continue
            number = _number(schedule)
            entry.most = max(entry.most, (number - entry.before) // tries)
            entry.before = number
            if owner is step.optimizer:
                if entry.steps:
                    message = entry.fault(number, step.name)
                else:
                    message = entry.fault_at_first(number, step.name, tries)
                entry.steps, entry.most = entry.steps + 1, 0
                findings = [Violation(SCHEDULES, entry.name, message)] if message else []
                self._session.say(SCHEDULES, step.name, findings, source=step.source)

    def end(self, *, is_cut: bool) -> None:
        """Say which schedules never advanced; `is_cut`: before the end of its first pass over the data."""
        for entry in self._known:
            if entry.steps >= _NEVER and not entry.is_moved and not is_cut and entry.before == entry.begin:
                message = f"{entry.name} was made and never advances in {entry.steps} steps of its optimizer"
            elif not entry.steps and self._session.step >= _NEVER and entry.is_moved:
                message = (
                    f"{entry.name} sets learning rates of an optimizer that takes no step: of one that was replaced?"
                )
            else:
                continue
            self._session.say(SCHEDULES, entry.kind, [Violation(SCHEDULES, entry.name, message)])

    def _made(self, result: None, args: tuple[Any, ...], kwargs: Any) -> None:
        parts = [id(part) for part in getattr(args[0], "_schedulers", ())]
        self._known = [entry for entry in self._known if id(entry.schedule()) not in parts]
        self._add(args[0])

    def _moved(self, args: tuple[Any, ...], kwargs: Any) -> None:
        if (entry := self._of.get(args[0])) is not None:
            entry.is_moved = True

    def _add(self, schedule: Any) -> None:
        if len(self._known) < _MOST and isinstance(getattr(schedule, "last_epoch", 0), int):
            entry = self._of[schedule] = _Schedule(schedule)
            self._known.append(entry)


def _number(schedule: Any) -> int:
    parts = getattr(schedule, "_schedulers", ())
    number = getattr(schedule, "last_epoch", None)
    return int(number) if isinstance(number, (int, float)) else max(map(_number, parts), default=0)
