"""Names of groups in reports: no two share one."""

from __future__ import annotations

from pathlib import Path

from pytest_msprobe.suites.contract import CallNames


def names(*files: str, tell_files: bool = False) -> list[str]:
    found = CallNames([Path(file) for file in files], tell_files=tell_files)
    return [found.of(file, "Mint.exp.0") for file in files]


def test_one_file_needs_no_place() -> None:
    assert names("/a/dump.json") == ["Mint.exp.0"]


def test_ranks_are_named_by_their_folders() -> None:
    assert names("/a/step0/rank0/dump.json", "/a/step0/rank1/dump.json") == ["rank0/Mint.exp.0", "rank1/Mint.exp.0"]


def test_files_of_one_folder_are_named_by_their_stem() -> None:
    assert names("/same/one.json", "/same/two.json") == ["one/Mint.exp.0", "two/Mint.exp.0"]


def test_a_dump_json_beside_another_file_cannot_be_taken_for_a_folder() -> None:
    found = names("/a/dump.json", "/a/dump/dump.json", "/a/other.json")
    assert found == ["dump.json/Mint.exp.0", "dump/Mint.exp.0", "other/Mint.exp.0"]
    assert len(set(found)) == 3


def test_files_whose_calls_differ_anyway_keep_short_names() -> None:
    assert names("/same/step0.csv", "/same/step1.csv", tell_files=True) == ["Mint.exp.0", "Mint.exp.0"]
