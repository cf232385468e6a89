"""What dump.json says of the process groups of a rank, and that a file takes a head that has grown."""

from __future__ import annotations

import json
from pathlib import Path

from msprobe_collector.dump_format.writing.files import GrowingFile
from msprobe_collector.recording.process import ranks_of


def test_groups_have_their_names_and_this_ranks_place() -> None:
    groups = [("dp", [1, 3]), ("tp", [0, 1]), ("", [1, 3]), ("tp", [1, 2]), ("", [3, 1]), ("ep", [2, 3]), ("cp", [1])]
    assert ranks_of(1, 4, groups) == {
        "world_size": 4,
        "rank": 1,
        "groups": {
            "world": {"ranks": [0, 1, 2, 3], "index": 1},
            "dp": {"ranks": [1, 3], "index": 0},
            "tp": {"ranks": [0, 1], "index": 1},
            "group_1_2": {"ranks": [1, 2], "index": 0},
            "group_1_3": {"ranks": [3, 1], "index": 1},
            "cp": {"ranks": [1], "index": 0},
        },
    }


def test_a_mesh_of_all_ranks_has_its_name_beside_world() -> None:
    assert list(ranks_of(0, 2, [("tp", [0, 1]), ("", [0, 1])])["groups"]) == ["world", "tp"]


def test_a_longer_head_keeps_the_entries(tmp_path: Path) -> None:
    file = GrowingFile(tmp_path / "dump.json", head={"task": "tensor"}, entries_key="data")
    file.add('"a": 1')
    file.change(file.path, {"task": "tensor", "ranks": {"rank": 1, "groups": {"world": [0, 1]}}})
    file.add('"b": 2')
    assert json.loads(file.path.read_text())["data"] == {"a": 1, "b": 2}
    file.change(file.path, {"task": "tensor"})
    file.add('"c": 3')
    file.close()
    assert json.loads(file.path.read_text()) == {"task": "tensor", "data": {"a": 1, "b": 2, "c": 3}}
    assert [path.name for path in tmp_path.iterdir()] == ["dump.json"]
