"""Where two runs diverge, from summaries that may arrive in any order."""

from __future__ import annotations

from dataclasses import replace

from pytest_msprobe.answers import ArgumentDifference
from pytest_msprobe.answers.words import headline
from pytest_msprobe.suites.comparison.report import Divergence, RecordSummary


def summary(record: str, order: int, *, origin: bool = False, is_input: bool = False) -> RecordSummary:
    return RecordSummary(record, order, "both", "error", {"error": 1}, f"{record}.x", "off", is_input, origin)


def divergence(*summaries: RecordSummary) -> Divergence:
    found = Divergence()
    for one in summaries:
        found.add(one)
    return found


def test_the_first_divergence_is_that_of_execution_not_of_arrival() -> None:
    found = divergence(summary("Mint.b.0.forward", 7), summary("Mint.a.0.forward", 3), summary("Mint.c.0.forward", 9))
    assert found.first is not None
    assert found.first.record == "Mint.a.0.forward"


def test_the_answer_by_distances_alone_claims_no_fault() -> None:
    found = divergence(summary("Mint.a.0.forward", 1, is_input=True), summary("Mint.b.0.forward", 2)).answer()
    (finding,) = found.findings
    assert (finding.kind, finding.confidence, finding.place.value) == ("unknown", "first difference only", "x")
    assert [step.kind for step in found.next] == ["maker"]


def test_an_argument_that_differs_is_data() -> None:
    argument = ArgumentDifference("dropout_p", "0.1", "0.0")
    found = divergence(replace(summary("Mint.a.0.forward", 1, is_input=True), argument=argument)).answer()
    assert [(one.kind, one.arguments) for one in found.findings] == [("arguments", (argument,))]
    assert headline(found) == "Wrong: differs first in Mint.a.0, dropout_p 0.1, golden 0.0"


def test_an_empty_comparison_claims_nothing() -> None:
    assert Divergence().answer().outcome == "nothing judged"
    assert next(Divergence().lines()) == "Nothing judged: no operation was compared"


def test_what_only_one_dump_holds_is_counted() -> None:
    found = divergence(
        RecordSummary("Mint.a.0.forward", 0, "both", "pass", {"pass": 1}),
        RecordSummary("Mint.b.0.forward", 1, "golden", "unmatched", {"unmatched": 2}),
    ).answer()
    assert [(one.kind, one.figures) for one in found.findings] == [("incomplete", {"golden only": 1, "values": 2})]
    assert found.outcome == "wrong"


def test_a_summary_survives_the_wire() -> None:
    one = replace(summary("Mint.a.0.forward", 1, origin=True), argument=ArgumentDifference("eps", "1e-05", "1e-06"))
    assert RecordSummary.from_wire(one.to_wire()) == one
