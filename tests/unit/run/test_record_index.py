"""What the writing process knows of a run's items by their node ids alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.suite import FakeSuite, group

from pytest_msprobe.run.record_index import RecordIndex

ROOT = Path("/project")
INSIDE, OUTSIDE, BROKEN = ROOT / "step0/dump.json", Path("/elsewhere/dump.json"), ROOT / "broken/dump.json"


@pytest.fixture
def index() -> RecordIndex:
    files = {
        INSIDE: [group("Mint.add.0"), group("Mint.mul.0", ("forward",))],
        OUTSIDE: [group("Mint.add.0"), group("anomaly", ("first anomaly",), scope="")],
        BROKEN: [],
    }
    return RecordIndex(FakeSuite(files, costs={"Mint.add.0": 8.0}), ROOT, None, seed=7)


def test_ids_are_those_of_the_nodes_inside_and_outside_of_rootdir(index: RecordIndex) -> None:
    assert index.scope_of("step0/dump.json::Mint.add.0::forward") == "step0/dump.json::Mint.add.0"
    assert index.cost_of(["step0/dump.json::Mint.add.0::forward"]) == 4.0
    assert index.cost_of([f"/elsewhere/dump.json::Mint.add.0::{part}" for part in ("forward", "backward")]) == 8.0


def test_a_record_without_a_group_is_its_own(index: RecordIndex) -> None:
    node_id = "/elsewhere/dump.json::first anomaly"
    assert index.scope_of(node_id) == node_id
    assert index.cost_of([node_id]) == 1.0


@pytest.mark.parametrize("node_id", ["test_other.py::test_it", "broken/dump.json::Mint.add.0::forward"])
def test_what_is_not_ours_costs_nothing_and_has_no_row(index: RecordIndex, node_id: str) -> None:
    assert index.cost_of([node_id]) == 0.0
    assert index.time_limit_seconds(node_id) is None
    assert index.row_of_lost_item(node_id, [], "gone", device="", host="") is None


def test_the_limit_grows_with_the_cost_or_is_the_chosen_one(index: RecordIndex) -> None:
    node_id = "step0/dump.json::Mint.add.0::forward"
    assert index.time_limit_seconds(node_id) == pytest.approx(60 + 8e-6)
    chosen = RecordIndex(FakeSuite({INSIDE: [group("Mint.add.0")]}), ROOT, 5.0, seed=0)
    assert chosen.time_limit_seconds(node_id) == 5.0


def test_a_lost_item_has_a_row_with_all_that_is_known(index: RecordIndex) -> None:
    ids = [f"step0/dump.json::Mint.add.0::{part}" for part in ("forward", "backward")]
    row = index.row_of_lost_item(ids[1], ids, "died", device="device 3", host="node1")
    assert row is not None
    assert (row.call, row.part, row.dump, row.status, row.outcome) == (
        "Mint.add.0",
        "backward",
        str(INSIDE),
        "error",
        "failed",
    )
    assert (row.message, row.device, row.host, row.seed, row.suite) == ("died", "device 3", "node1", 7, "fake")
    assert row.selected == ("forward", "backward")
    assert row.attachment == {"unrun": "died"}
    only = index.row_of_lost_item(ids[1], ids[1:], "died", device="", host="")
    assert only is not None
    assert only.selected == ("backward",)


def test_names_of_the_reports_tell_files_apart(index: RecordIndex) -> None:
    assert index.parts_of("project/step0/Mint.mul.0") == ("forward",)
    assert index.parts_of("Mint.mul.0") is None
    assert index.is_among("step0/dump.json::Mint.add.0::forward", {"project/step0/Mint.add.0"})
    assert not index.is_among("/elsewhere/dump.json::Mint.add.0::forward", {"project/step0/Mint.add.0"})
