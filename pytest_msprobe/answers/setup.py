"""Two runs that are set up differently: when that is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from pytest_msprobe.answers.answer import Answer
from pytest_msprobe.answers.finding import Finding, Place

#: Kinds of values that no operation of the run has made.
_BEFORE = ("parameter", "batch", "unknown")


def with_setup(answer: Answer, setup: tuple[str, ...], explains: Sequence[str]) -> Answer:
    """`answer`, of two runs that are set up differently: what `explains` values that no operation made comes first."""
    answer = structs.replace(answer, setup=setup)
    if not explains or not answer.findings or not all(finding.kind in _BEFORE for finding in answer.findings):
        return answer
    first = answer.findings[0]
    place = Place(record=first.place.record, operation="set-up")
    cause = Finding(id=first.id, kind="setup", confidence="likely", place=place, detail=explains[0])
    rest = tuple(structs.replace(finding, confidence="first difference only") for finding in answer.findings)
    return structs.replace(answer, findings=(cause, *rest))
