"""The table of pairs of implementations against their scripts."""

from __future__ import annotations

import pytest

from quality.ports.__main__ import HERE, Row, rows

ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.pair}-{row.bug}")
def test_a_bug_has_a_line_of_the_port_and_a_call_of_the_reference(row: Row) -> None:
    assert all((HERE / command.split()[0]).is_file() for command in (row.reference, row.port))
    ports_of_the_pair = {other.port.split()[0] for other in ROWS if other.pair == row.pair and other.bug == "none"}
    is_bug = bool(ports_of_the_pair) and row.bug != "none"
    assert bool(row.lines) is is_bug, "a line of the port is marked with its bug"
    assert bool(row.golden) is is_bug, "a bug has its place in the reference"


def test_a_finding_is_right_at_a_marked_line_or_a_named_call_of_its_side() -> None:
    (row,) = [row for row in ROWS if (row.pair, row.bug) == ("gpt2", "eps")]
    place = {"record": "Functional.layer_norm.0.forward", "source": None}
    assert row.is_named_by({"place": place, "figures": {"side": "golden"}})
    assert not row.is_named_by({"place": place, "figures": {"side": "target"}})
    (line,) = row.lines
    assert row.is_named_by({"place": {"record": None, "source": f"/somewhere/{line}"}, "figures": {}})
