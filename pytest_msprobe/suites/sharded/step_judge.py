"""One step: each logical record judged once, and what the layer around it or an optimizer behind it makes of that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.suites.sharded.judgement import RecordFinding
from pytest_msprobe.suites.sharded.layer_names import layer_path
from pytest_msprobe.suites.sharded.outline import StepOutline
from pytest_msprobe.suites.sharded.record_judge import RecordJudge
from pytest_msprobe.suites.sharded.tolerances import Tolerances


class StepJudge:
    """One training step of a sharded run, judged by the logical run.

    What is found of a record depends on those before it, by how far they are off. So records are judged in one order,
    that of execution, as far as the one that is asked about, whoever asks first.

    Attributes:
        outline: of the step.
    """

    def __init__(self, outline: StepOutline) -> None:
        self.outline = outline
        self._judged: dict[str, RecordFinding | Exception] = {}

    @cached_property
    def _judge(self) -> RecordJudge:
        outline = self.outline
        half_from = outline.matching.half_from()
        return RecordJudge(outline, Tolerances(outline.run, outline.phase, outline.number or 0, half_from))

    @cached_property
    def _order(self) -> list[Operation]:
        """All records in the order in which they are judged.

        What optimizers do says how the parameters of a step behind the first one begin.
        """
        updates = self.outline.updates if self.outline.number else []
        others = (operation for operation in self.outline.logical.operations if operation not in updates)
        return [*updates, *others]

    def _judged_alone(self, operation: Operation) -> RecordFinding:
        """What is found of the values of a record, once those before it are judged."""
        while operation.record not in self._judged:
            following = self._order[len(self._judged)]
            try:
                self._judged[following.record] = self._judge.judge(following)
            except Exception as error:  # of the item of this record, and no other
                self._judged[following.record] = error
        finding = self._judged[operation.record]
        if isinstance(finding, Exception):
            raise finding
        return finding

    def finding(self, operation: Operation) -> RecordFinding:
        """What is found of a logical record."""
        finding = self._judged_alone(operation)
        if not finding.wrong:
            return finding
        if operation.phase == GRADIENTS:
            return without_updated(finding, layer_path(operation.name), self._right_at_optimizers)
        around = self.outline.around(operation)
        return finding if around is None else without_local(finding, around.name, self.finding(around))

    @cached_property
    def _right_at_optimizers(self) -> set[str]:
        """The places of all values that records of optimizers have right."""
        right = set()
        for operation in self.outline.logical.operations:
            if operation.record.startswith("Optimizer."):
                right.update(value.path for value in self.finding(operation).values if value.state == "placed")
        return right


def without_updated(finding: RecordFinding, layer: str, right: Collection[str]) -> RecordFinding:
    """Gradients that a dump holds as they were later are not wrong where an optimizer gets the right ones."""
    words = "is not what the backward gave, and what the optimizer gets is right"
    wrong = (value for value in finding.wrong if f"input.gradients.{layer}.{value.path}" in right)
    return finding.changed(replace(value, state="unjudged", message=words) for value in wrong)


def without_local(finding: RecordFinding, layer: str, outer: RecordFinding) -> RecordFinding:
    """Values that ranks compute otherwise are not wrong where the layer around them gives what it should.

    Args:
        finding: of a record.
        layer: name of the layer around it.
        outer: what is found of that.
    """
    outputs = [value for value in outer.values if value.is_output]
    is_right = any(value.state == "placed" for value in outputs)
    if outer.wrong or not (is_right or any(value.is_open for value in outputs)):
        return finding
    reason = "is no part of the logical value"
    words = f"{reason}; what {layer} gives is right, so the ranks compute it otherwise"
    if not is_right:
        reason += " for certain"
        words = f"{reason}; what {layer} gives was not judged"
    wrong = (value for value in finding.wrong if not value.path.startswith("parameters."))
    return finding.changed(replace(value, state="unjudged", message=words, reason=reason) for value in wrong)
