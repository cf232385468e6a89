"""Values that no operation made and that differ: parameters, the batch, constants. They have no rounding."""

from __future__ import annotations

import math

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import manifest_beside
from pytest_msprobe.manifests.differences import differing_batch_shapes
from pytest_msprobe.suites.comparison.accounting.account import AccountStep, ValueKey, any_differs
from pytest_msprobe.suites.comparison.accounting.evidence import overwrites
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow
from pytest_msprobe.suites.comparison.sides import ComparedDump


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
