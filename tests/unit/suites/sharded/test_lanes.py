"""The picture of ranks as lanes."""

from __future__ import annotations

from pytest_msprobe.suites.sharded.judgement import RecordFinding, ValueFinding
from pytest_msprobe.suites.sharded.placements import Axis, Kind, Placement
from pytest_msprobe.suites.sharded.report import KINDS, LaneRecord, picture


def place(order: int, held_as: Kind, ranks: tuple[int, ...], *, is_wrong: bool = False) -> LaneRecord:
    value = ValueFinding("output.0", "unexplained" if is_wrong else "placed", held_as=held_as, is_output=True)
    finding = RecordFinding(f"Module.<{order}>.forward.0", order, "forward", (value,), ranks)
    return LaneRecord.of(finding, is_first=is_wrong)


def test_records_that_a_rank_holds_alike_are_one_rectangle() -> None:
    found = picture([place(1, "S", (0, 1)), place(0, "S", (0, 1)), place(2, "R", (1,))])
    assert found.count("<rect") == 3
    assert found.count(KINDS["S"][0]) == 3  # two lanes and the legend
    assert "Module.&lt;0&gt;.forward.0 to Module.&lt;1&gt;.forward.0" in found


def test_the_first_wrong_place_is_marked() -> None:
    found = picture([place(0, "R", (0, 1)), place(1, "P", (0, 1), is_wrong=True)])
    assert found.count("<path") == 1
    assert "first wrong place: Module.&lt;1&gt;.forward.0</p>" in found


def test_terms_of_a_sum_and_what_is_not_judged_have_colours_of_their_own() -> None:
    assert place(0, "P", (0,)).kind == "P"
    assert place(0, "R", (0,)).kind == "R"
    assert LaneRecord.of(RecordFinding("a", 0, "backward"), is_first=False).kind == "unjudged"
    assert picture([]) == picture([place(0, "R", ())]) == ""


def test_how_a_rank_holds_a_value_is_told_by_its_own_groups() -> None:
    axes = {kind: Axis("tp", 2, kind) for kind in ("R", "S", "P")}
    assert Placement((axes["R"],), 0.0, logical=(axes["P"],)).held_as == "R"
    assert Placement((axes["S"], axes["R"]), 0.0).held_as == "S"
    assert Placement((axes["S"], axes["P"]), 0.0).held_as == "P"
