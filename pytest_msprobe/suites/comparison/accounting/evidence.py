"""What one record, one value, or the two sources of a value show by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import manifest_beside
from pytest_msprobe.apis.fact_table import is_name_in_place, text_of
from pytest_msprobe.manifests.differences import differing_batch_shapes
from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.suites.comparison.accounting.account import (
    AccountStep,
    Differences,
    ValueKey,
    any_differs,
    numbers_of,
)
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow, Maker, ValueSource
from pytest_msprobe.suites.comparison.sides import ComparedDump


def shared_makers(mine: ValueSource, theirs: ValueSource) -> list[Maker]:
    """What made a value on both sides; all of it where the value is put together."""
    if mine.is_joined or theirs.is_joined:
        return list(mine.makers) if mine.identities == theirs.identities else []
    return [maker for maker in mine.makers if maker.identity in theirs.identities][:1]


def other_ends(mine: ValueSource, theirs: ValueSource) -> str:
    """From where both runs have a value, as a sentence without its subject."""
    return f"gets {mine.text} in the target, {theirs.text} in the golden run"


def is_enlarged(key: ValueKey, makers: Sequence[Maker]) -> bool:
    """Whether an element of a value is off by more than any of its makers, as a view of them cannot be."""
    if key.max_abs is None or any(maker.key.limits != key.limits for maker in makers):
        return False
    return 0 < Times.VIEW * max((maker.key.max_abs or 0.0 for maker in makers), default=0.0) < key.max_abs


def overwrites(step: AccountStep, key: ValueKey) -> bool:
    """Whether a call writes to this argument: its first, where the name says so."""
    return is_name_in_place(step.operation.bare) and key.path.startswith("input.0")


def is_passed_on(step: AccountStep) -> bool:
    """Whether a call gives back the elements of its only tensor, in another dtype, shape or place."""
    return bool(text_of("passed_on", step.operation.name))


def has_other_number(definition: Differences) -> bool:
    """Whether an argument is another number; an axis may be counted from the end."""
    for numbers in filter(None, map(numbers_of, definition)):
        target, golden = numbers
        is_axis = target.is_integer() and golden.is_integer() and (target < 0) != (golden < 0)
        if not is_axis and abs(target - golden) > Relative.ARGUMENT_ROUNDED * max(abs(target), abs(golden)):
            return True
    return False


def by_how_much(key: ValueKey) -> str:
    """`by 0.0123 `, where that says something."""
    if key.distance is None or key.distance == math.inf or key.is_integer:
        return ""
    return f"by {key.distance:.3g} "


def is_policy(steps: Sequence[AccountStep]) -> bool:
    """Whether most calls of the APIs that make another dtype of equal ones do so, as under autocast."""
    forwards = [step for step in steps if step.operation.phase == "forward"]
    changing = {step.operation.bare for step in forwards if step.account.is_cast}
    dtypes = [step.account.dtype for step in forwards if step.operation.bare in changing]
    changed = len(dtypes) - dtypes.count("")
    # A dtype that fewer calls change is that of a place, not of a run.
    return changed >= 3 and 2 * changed >= len(dtypes)


def node_of_value(key: ValueKey) -> str:
    """The node of `Causes` that a value is."""
    return f"value {key.target} {key.golden}"


def is_inside(step: AccountStep, cell: AccountStep) -> bool:
    """Whether a layer runs inside another one."""
    return len(step.cells) > len(cell.cells) and step.cells[: len(cell.cells)] == cell.cells


def is_cast(step: AccountStep) -> bool:
    """Whether a call does nothing but change a dtype."""
    return text_of("passed_on", step.operation.name) == "cast"


class OtherLeaves:
    """Tells the leaves of a pair of dumps that differ in any bit."""

    def __init__(self, flow: DataFlow, sides: tuple[ComparedDump, ComparedDump] | None = None) -> None:
        """Take the flow of a step.

        A later step than the first one gets its parameters from operations. Two kinds of devices may round differently
        what is prepared before the first record.
        """
        self._flow = flow
        self._is_first_step, self._is_one_device = True, True
        self._batch_shapes: frozenset[tuple[int, ...]] = frozenset()
        if sides is not None:
            target, golden = (manifest_beside(side.path)[0] for side in sides)
            self._is_first_step = not any(Slot.of(side.path.absolute()).step for side in sides)
            self._is_one_device = target is not None and golden is not None and target.device == golden.device
            if target is not None and golden is not None:
                self._batch_shapes = differing_batch_shapes(target, golden)
        steps = flow.steps.values()
        backward = (step.account.place for step in steps if step.operation.phase == "backward")
        self._first_backward = min(backward, default=math.inf)
        differing = (step.account.place for step in steps if any_differs(step.account.keys))
        self._first_differing = min(differing, default=math.inf)

    def has(self, step: AccountStep, key: ValueKey) -> bool:
        """Whether an input is such a leaf, of one dtype on both sides.

        Parameters are leaves until the first backward, which an optimizer may follow. Data are where nothing before
        differs, which code that is not recorded may have made them of.
        """
        place = step.account.place
        if not (key.differs and key.is_one_dtype and step.operation.phase == "forward") or overwrites(step, key):
            return False
        target, golden = self._flow.sources(step, key)
        if target.how == golden.how == "leaf":
            return self._is_first_step and place < self._first_backward
        is_data = target.how == golden.how == "unknown" and "True" not in key.trains and not self._flow.unheld(key)
        says_makers = self._flow.says_makers
        return is_data and says_makers and self._is_one_device and place <= self._first_differing

    def has_of_batch(self, step: AccountStep, key: ValueKey) -> bool:
        """Whether an input is such a leaf, and the manifests say that what the model was given differs there."""
        return key.shape in self._batch_shapes and self.has(step, key)
