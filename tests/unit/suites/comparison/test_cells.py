"""What a difference does in Cells, from what their rows say."""

from __future__ import annotations

import msgspec
import pytest

from pytest_msprobe.suites.comparison.accounting.account import Account, ValueKey
from pytest_msprobe.suites.comparison.cells import CellDifferences, CellFacts, DifferenceOrigin
from pytest_msprobe.suites.comparison.report import RecordSummary
from pytest_msprobe.verdicts import StepPosition, VerdictRow

OUTER, INNER = ("b.Block",), ("b.Block", "b.a.Attn")
CLEAN, INHERITS = CellFacts(False, False), CellFacts(True, True)
ARISES = CellFacts(False, True)


def row(
    record: str,
    cells: tuple[str, ...],
    facts: CellFacts | None = None,
    *,
    order: int = 0,
    is_origin: bool = False,
    keys: tuple[ValueKey, ...] | None = None,
) -> VerdictRow:
    summary = RecordSummary(record, order, "both", "error", {}, first=record if is_origin else "", is_origin=is_origin)
    attachment = {"summary": summary.to_wire(), "rows": []}
    if facts is not None:
        attachment["cell"] = msgspec.to_builtins(facts)
    if keys is not None:
        attachment["account"] = Account("contained", keys=keys).to_wire()
    front, _, part = record.replace(".forward.0", ".0.forward").replace(".backward.0", ".0.backward").rpartition(".")
    level = (("level", facts.level),) if facts is not None and facts.level else ()
    return VerdictRow(
        "id", "dump.json", front, part, (part,), (part,), "error", "failed",
        suite="comparison", place=StepPosition(cells=cells), attachment=attachment, properties=level,
    )  # fmt: skip


def differences(*rows: VerdictRow) -> CellDifferences:
    found = CellDifferences()
    for one in rows:
        found.add(one)
    return found


def levels(found: CellDifferences, *faults: DifferenceOrigin) -> dict[str, str]:
    return {record: difference.level for record, difference in found.of(faults).items()}


OUT, IN = "Cell.b.Block.forward.0", "Cell.b.a.Attn.forward.0"


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (CLEAN, ""),
        (INHERITS, "inherited, passed on"),
        (CellFacts(True, False), "inherited"),
        (ARISES, "arises inside, passed on"),
        (CellFacts(False, True, is_known=False), "passed on"),
    ],
)
def test_what_a_cell_alone_says(facts: CellFacts, level: str) -> None:
    assert facts.level == level
    assert levels(differences(row(OUT, OUTER, facts))) == ({OUT: level} if level else {})


def test_a_fault_inside_outweighs_what_comes_in_and_only_the_changed_rows_are_named() -> None:
    found = differences(row(OUT, OUTER, INHERITS, order=1), row(IN, INNER, ARISES, order=0))
    assert levels(found) == {IN: "arises inside, passed on", OUT: "arises inside, passed on"}
    assert found.changed() == {("Cell.b.Block.0", "forward"): "arises inside, passed on"}
    assert found.of()[OUT].born == (IN,)


def test_a_fault_of_the_other_direction_or_of_another_cell_is_not_inside() -> None:
    found = differences(row(OUT, OUTER, INHERITS))
    elsewhere = DifferenceOrigin("Mint.exp.0.forward", "forward", ("c.Block",))
    backward = DifferenceOrigin("Mint.exp.0.backward", "backward", OUTER)
    assert levels(found, elsewhere, backward) == {OUT: "inherited, passed on"}


def test_calls_that_are_accounted_for_say_whether_it_is_rounding() -> None:
    accounted = CellFacts(False, True, is_accounted=True)
    found = differences(row(OUT, OUTER, accounted, keys=()))
    assert levels(found) == {OUT: "arises inside by rounding, passed on"}
    fault = DifferenceOrigin("Mint.exp.0.forward", "forward", INNER)
    assert levels(found, fault) == {OUT: "arises inside, passed on"}
    assert found.changed(only_born=True) == {}


def test_a_value_that_comes_in_with_the_inputs_is_inherited_and_a_parameter_is_born_inside() -> None:
    batch = ValueKey("input.0", False, "t", "g", 0.5, (4,), True)
    found = differences(row(OUT, OUTER, INHERITS, keys=(batch,)), row(IN, INNER, INHERITS, keys=()))
    assert levels(found, DifferenceOrigin("Mint.exp.0.forward", "forward", INNER, ("t", "g"))) == {
        OUT: "inherited, passed on",
        IN: "arises inside, passed on",
    }


def test_a_backward_whose_forward_differs_may_have_it_from_there() -> None:
    backward = row("Cell.b.Block.backward.0", OUTER, ARISES)
    assert levels(differences(backward, row(OUT, OUTER, CLEAN))) == {
        "Cell.b.Block.backward.0": "arises inside, passed on"
    }
    found = levels(differences(backward, row(OUT, OUTER, INHERITS)))
    assert found["Cell.b.Block.backward.0"] == "inherited, passed on"


def test_without_accounts_a_call_with_equal_inputs_is_where_it_begins_unless_its_forward_differs() -> None:
    call = row("Mint.exp.0.forward", INNER, is_origin=True)
    found = differences(row(OUT, OUTER, INHERITS), row("Cell.b.Block.backward.0", OUTER, INHERITS), call)
    found.add(row("Mint.exp.0.backward", INNER, is_origin=True))
    assert found.of()[OUT].born == ("Mint.exp.0.forward",)
    assert levels(found)["Cell.b.Block.backward.0"] == "inherited, passed on"
