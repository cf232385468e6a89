"""A JSON object that is whole after every entry, whatever a kill left behind."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_msprobe.reports.growing_json import GrowingObject


def grown(path: Path) -> GrowingObject:
    return GrowingObject(path, '{"task": "tensor", "data": {', "}}")


def test_it_can_be_read_after_every_entry(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    for number in range(4):
        grown(path).add(f'a"{number}\n', {"value": [number, None, float("nan"), "text\n"]})
        content = json.loads(path.read_text())
        assert list(content["data"]) == [f'a"{i}\n' for i in range(number + 1)]
    assert grown(path).keys() == set(content["data"])
    assert path.stat().st_mode & 0o137 == 0


def test_a_file_that_is_not_there_has_no_keys(tmp_path: Path) -> None:
    assert grown(tmp_path / "dump.json").keys() == set()


def test_what_a_kill_cut_off_is_mended_by_the_next_entry(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    for name in "abc":
        grown(path).add(name, {"values": list(range(9))})
    whole = path.read_bytes()
    second_begins = whole.index(b',\n"b"')
    third_begins = whole.index(b',\n"c"')
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        grown(path).add("d", 1)
        names = list(json.loads(path.read_text())["data"])
        assert names[-1] == "d"
        assert ("a" in names) == (cut >= second_begins + 2)
        assert ("b" in names) == (cut >= third_begins + 2)
