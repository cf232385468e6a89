"""Where two runs diverge, from summaries that may arrive in any order."""

from __future__ import annotations

from pytest_msprobe.suites.comparison.report import Divergence, RecordSummary


def summary(record: str, order: int, *, origin: bool = False, is_input: bool = False) -> RecordSummary:
    return RecordSummary(record, order, "both", "error", {"error": 1}, f"{record}.x", "off", is_input, 0, origin)


def divergence(*summaries: RecordSummary) -> Divergence:
    found = Divergence()
    for one in summaries:
        found.add(one)
    return found


def test_the_first_divergence_is_that_of_execution_not_of_arrival() -> None:
    found = divergence(summary("Mint.b.0.forward", 7), summary("Mint.a.0.forward", 3), summary("Mint.c.0.forward", 9))
    assert found.first is not None
    assert found.first.record == "Mint.a.0.forward"


def test_a_backward_whose_forward_differs_is_no_origin() -> None:
    found = divergence(summary("Mint.a.0.forward", 1), summary("Mint.a.0.backward", 9, origin=True))
    assert found.origins == []
    alone = divergence(summary("Mint.a.0.backward", 9, origin=True))
    assert [origin.record for origin in alone.origins] == ["Mint.a.0.backward"]


def test_the_innermost_cell_is_the_origin() -> None:
    inner, outer = "Cell.net.fc.Dense.forward.0", "Cell.net.Net.forward.0"
    found = divergence(summary(inner, 1, origin=True), summary(outer, 2, origin=True))
    assert [origin.record for origin in found.origins] == [inner]


def test_gradients_of_parameters_are_no_origin() -> None:
    assert divergence(summary("Cell.fc.Dense.parameters_grad.0", 1, origin=True)).origins == []


def test_distances_alone_do_not_tell_what_made_the_first_input_that_differs() -> None:
    lines = list(divergence(summary("Mint.a.0.forward", 1, is_input=True)).lines())
    assert lines[0] == "first divergence: Mint.a.0.forward.x: off"
    assert "a parameter, the batch, or made by what the dump does not hold" in lines[1]


def test_an_empty_comparison_claims_nothing() -> None:
    assert next(Divergence().lines()) == "no operation was compared"


def test_a_summary_survives_the_wire() -> None:
    one = summary("Mint.a.0.forward", 1, origin=True)
    assert RecordSummary.from_wire(one.to_wire()) == one
