"""Folders of ranks: one writer at a time, and one dump at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from msprobe_collector.recording.folders import FolderInUseError, FolderLocks, dumps_before, remove_earlier_dump

TAKE = """
import sys
from pathlib import Path
from msprobe_collector.recording.folders import FolderInUseError, FolderLocks
try:
    FolderLocks().take(Path(sys.argv[1]))
    print("taken")
except FolderInUseError as error:
    print(error.strerror)
"""


def taken_elsewhere(folder):
    command = [sys.executable, "-c", TAKE, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_folder_has_one_writer_until_it_is_released(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    locks = FolderLocks()
    for folder in (*folders, folders[0]):
        locks.take(folder)
    with pytest.raises(FolderInUseError):
        FolderLocks().take(folders[0])
    locks.release(but_first=True)
    assert [taken_elsewhere(folder) for folder in folders] == ["another process writes there", "taken"]
    locks.release()
    assert taken_elsewhere(folders[0]) == "taken"


def test_an_earlier_dump_goes_whole_and_nothing_else(tmp_path):
    (tmp_path / "dump_tensor_data").mkdir()
    for name in ("dump.json", "stack.json", "mine.txt", "dump_tensor_data/a.npy", "dump_tensor_data/b.pt"):
        (tmp_path / name).touch()
    assert remove_earlier_dump(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine.txt"]
    assert not remove_earlier_dump(tmp_path)


def test_a_link_to_other_tensors_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.npy").touch()
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "dump_tensor_data").symlink_to(tmp_path / "elsewhere")
    remove_earlier_dump(tmp_path / "rank0")
    assert (tmp_path / "elsewhere" / "a.npy").exists()


def test_dumps_of_earlier_runs_are_those_not_written_to_since(tmp_path):
    for name, age in (("step0/rank0", 100), ("step1/rank0", -100)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dump.json").touch()
        os.utime(tmp_path / name / "dump.json", (time.time() - age,) * 2)
    assert list(dumps_before(tmp_path, time.time())) == [tmp_path / "step0" / "rank0"]
