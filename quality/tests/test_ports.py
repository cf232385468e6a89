"""The tables of pairs of implementations against their scripts."""

from __future__ import annotations

import re

import pytest

from quality.ports.__main__ import HERE, TABLES, Row, rows

ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.pair}-{row.bug}")
def test_a_bug_has_a_line_of_the_port_and_a_call_of_the_reference(row: Row) -> None:
    assert all((HERE / command.split()[0]).is_file() for command in (row.reference, row.port))
    assert bool(row.lines) is bool(row.golden), "a bug has a marked line and its place in the reference"


@pytest.mark.parametrize("port", sorted({row.port.split()[0] for row in ROWS}))
def test_each_mark_of_a_port_is_a_row(port: str) -> None:
    text = (HERE / port).read_text(encoding="utf-8")
    marks = {bug for mark in re.findall("# bug: (.*)", text) for bug in re.split(r"\W+", mark)}
    assert marks == {row.bug for row in ROWS if row.port.split()[0] == port and row.golden}


def test_the_two_halves_have_pairs_of_their_own() -> None:
    first, second = ({row.pair for row in ROWS if row.table == table} for table in TABLES)
    assert first
    assert second
    assert first.isdisjoint(second)


def test_a_finding_is_right_at_a_marked_line_or_a_named_call_of_its_side() -> None:
    (row,) = [row for row in ROWS if (row.pair, row.bug) == ("gpt2", "eps")]
    place = {"record": "Functional.layer_norm.0.forward", "source": None}
    assert row.is_named_by({"place": place, "figures": {"side": "golden"}})
    assert not row.is_named_by({"place": place, "figures": {"side": "target"}})
    (line,) = row.lines
    assert row.is_named_by({"place": {"record": None, "source": f"/somewhere/{line}"}, "figures": {}})
