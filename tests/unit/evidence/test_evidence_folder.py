"""A folder that the processes of a run share: reservation, budget, whole files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_msprobe.evidence import EvidenceFolder, dump_folder, file_stem, reserve, write_file


def test_the_budget_is_shared_by_everyone_who_opens_the_folder(tmp_path: Path) -> None:
    taken = []
    for needed in (60, 60, 30):
        folder = EvidenceFolder(tmp_path / "e", 100)
        with folder.locked() as state:
            taken.append(folder.take(state, needed))
    assert taken == [True, False, True]
    state = EvidenceFolder(tmp_path / "e", 100).state()
    assert (state.used_bytes, state.left_out) == (90, 1)


def test_processes_do_not_lose_each_others_counts(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path / "e", 10**6)
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            for _ in range(50):
                with folder.locked() as state:
                    folder.take(state, 1)
                    state.saved += 1
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert (folder.state().saved, folder.state().used_bytes) == (200, 200)


def test_a_state_that_was_cut_off_begins_anew(tmp_path: Path) -> None:
    (tmp_path / ".msprobe-state").write_bytes(b'{"used_by')
    assert EvidenceFolder(tmp_path, 1).state().used_bytes == 0


def test_an_empty_folder_is_taken_and_a_full_one_is_left_alone(tmp_path: Path) -> None:
    assert reserve(tmp_path / "a" / "e", "--x") == tmp_path / "a" / "e"
    assert reserve(tmp_path / "a" / "e", "--x") == tmp_path / "a" / "e"
    (tmp_path / "a" / "e" / "file").touch()
    assert reserve(tmp_path / "a" / "e", "--x") == tmp_path / "a" / "e_2"
    EvidenceFolder(tmp_path / "a" / "e", 1).tidy()
    assert (tmp_path / "a" / "e" / "file").exists()
    EvidenceFolder(tmp_path / "a" / "e_2", 1).tidy()
    assert not (tmp_path / "a" / "e_2").exists()


def test_a_file_in_the_way_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pytest.UsageError, match=r"--x=.*file: is not a folder"):
        reserve(tmp_path / "file", "--x")
    with pytest.raises(pytest.UsageError, match=r"--x=.*cannot be written"):
        reserve(tmp_path / "file" / "below", "--x")


def test_a_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "x", fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "stem"),
    [("Mint.add.0", "Mint.add.0"), ("a/b\0:", "a%2Fb%00%3A"), ("%2F", "%252F"), ("\ud800", "%ED%A0%80")],
)
def test_a_stem_holds_no_character_that_a_path_could_trip_over(name: str, stem: str) -> None:
    assert file_stem(name) == stem


def test_long_names_stay_different_and_short_enough() -> None:
    stems = {file_stem("a" * 1000 + end) for end in "xyz"}
    assert len(stems) == 3
    assert max(map(len, stems)) <= 180


def test_each_of_several_dumps_has_its_folder() -> None:
    one, two, other = Path("/d/step0/dump.json"), Path("/d/step1/dump.json"), Path("/d/step1/other.json")
    assert dump_folder(one, [one]) == Path()
    assert [dump_folder(path, [one, two]) for path in (one, two)] == [Path("step0"), Path("step1")]
    assert dump_folder(other, [one, two, other]) == Path("step1/other")


def test_error_data_of_edge_cases_has_a_folder_that_no_dump_has() -> None:
    one, two = Path("/e/dump.json"), Path("/e/edge_nan/dump.json")
    assert dump_folder(one, [one], "nan") == Path("edge_nan")
    assert dump_folder(one, [one, two], "nan") == Path("edge_nan_2")
    assert dump_folder(two, [one, two], "nan") == Path("edge_nan/edge_nan")
