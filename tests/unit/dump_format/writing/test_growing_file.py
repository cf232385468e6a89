"""A JSON object that is whole after every entry, whatever a full disk or a kill leaves behind."""

from __future__ import annotations

import errno
import json
import os
import stat

import pytest

from msprobe_collector.dump_format.writing.files import GrowingFile, quoted


def test_a_growing_file_is_whole_after_each_entry(tmp_path):
    file = GrowingFile(tmp_path / "dump.json", head={"task": "tensor", "dump_data_dir": None}, entries_key="data")
    file.create()
    for count in range(5):
        content = json.loads(file.path.read_text())
        assert list(content) == ["task", "dump_data_dir", "data"]
        assert list(content["data"]) == [f"a.{number}" for number in range(count)]
        file.add(f'"a.{count}": {{"é": {count}}}')
    file.close()
    assert stat.S_IMODE(file.path.stat().st_mode) & 0o137 == 0


def test_entries_may_wait_but_close_writes_them(tmp_path):
    file = GrowingFile(tmp_path / "construct.json", entries_per_write=3)
    for name in "abcd":
        file.add(f'"{name}": null')
    assert list(json.loads(file.path.read_text())) == ["a", "b", "c"]
    file.close()
    assert list(json.loads(file.path.read_text())) == ["a", "b", "c", "d"]


def test_a_file_of_an_earlier_run_is_replaced(tmp_path):
    (tmp_path / "dump.json").write_text("x" * 1000)
    file = GrowingFile(tmp_path / "dump.json", entries_key="data")
    file.create()
    assert json.loads(file.path.read_text()) == {"data": {}}
    file.close()


@pytest.mark.parametrize("name", ["Mint.add.0.forward", 'a"b', "a\\b", "é", "a\nb", "\x7f", ""])
def test_quoted_is_json(name):
    assert json.loads(quoted(name)) == name


def grown(path, name, value):
    file = GrowingFile(path, head={"task": "tensor"}, entries_key="data")
    keys = file.reopen()
    file.add(f"{json.dumps(name)}: {json.dumps(value)}")
    file.close()
    return keys


def test_it_goes_on_where_another_process_closed_it(tmp_path):
    path = tmp_path / "dump.json"
    for number in range(4):
        keys = grown(path, f'a"{number}\n', {"value": [number, None, float("nan"), "text\n"]})
        assert keys == {f'a"{i}\n' for i in range(number)}
        assert list(json.loads(path.read_text())["data"]) == [f'a"{i}\n' for i in range(number + 1)]
    assert path.stat().st_mode & 0o137 == 0


def test_what_a_kill_cut_off_is_mended_when_it_goes_on(tmp_path):
    path = tmp_path / "dump.json"
    for name in "abc":
        grown(path, name, {"values": list(range(9))})
    whole = path.read_bytes()
    second_begins, third_begins = whole.index(b',\n"b"'), whole.index(b',\n"c"')
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        grown(path, "d", 1)
        names = list(json.loads(path.read_text())["data"])
        assert names[-1] == "d"
        assert ("a" in names) == (cut >= second_begins + 2)
        assert ("b" in names) == (cut >= third_begins + 2)


def test_a_full_disk_leaves_no_empty_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        GrowingFile(tmp_path / "dump.json", entries_key="data").create()
    assert list(tmp_path.iterdir()) == []
