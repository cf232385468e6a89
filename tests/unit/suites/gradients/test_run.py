"""Which ranks and steps two runs have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradient_runs import write_step

from pytest_msprobe.suites.gradients.run import RunError, RunPair, number_ranges


def make(root: Path, steps: dict[int, list[int]]) -> Path:
    for rank, numbers in steps.items():
        (root / f"rank{rank}").mkdir(parents=True)
        for step in numbers:
            write_step(root, step, {"w": [1.0]}, rank=rank)
    return root


def test_ranks_and_steps_are_paired_by_number(tmp_path: Path) -> None:
    pair = RunPair.of(make(tmp_path / "a", {0: [0, 2, 10], 1: [0]}), make(tmp_path / "b", {1: [0], 0: [2, 10, 0]}))
    assert [pair.steps(rank) for rank in pair.all_ranks()] == [[0, 2, 10], [0]]
    assert pair.all_unpaired() == []
    assert pair.find(tmp_path / "a" / "rank0" / "grad_summary_10.csv") == (0, 10)
    assert pair.find(tmp_path / "a" / "rank0" / "grad_summary_11.csv") is None
    assert pair.find(tmp_path / "b" / "rank0" / "grad_summary_10.csv") is None


def test_what_only_one_run_has_is_one_sentence_per_rank(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {0: [0, 1, 2, 5], 1: [0], 3: []})
    second = make(tmp_path / "b", {0: [2, 6], 2: [0]})
    assert RunPair.of(first, second).all_unpaired() == [
        f"rank 0: {first} has no step 6, and {second} has no steps 0-1, 5, which the other run has",
        f"rank 1: {second} has no such rank, which the other run has",
        f"rank 2: {first} has no such rank, which the other run has",
        f"rank 3: {second} has no such rank, which the other run has",
    ]
    assert RunPair.of(first, second).steps(0) == [2]
    assert RunPair.of(first, None).all_unpaired() == [f"rank 3: {first / 'rank3'} holds no grad_summary_<step>.csv"]


def test_two_folders_of_one_rank_are_a_pair_whatever_their_numbers(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a", {0: [0, 1]}), make(tmp_path / "b", {3: [0, 1]})
    pair = RunPair.of(first / "rank0", second / "rank3")
    assert pair.steps(0) == [0, 1]
    assert pair.all_unpaired() == []


@pytest.mark.parametrize("has_folder", [False, True])
def test_a_folder_without_gradients(tmp_path: Path, has_folder: bool) -> None:
    root = tmp_path / "nothing"
    if has_folder:
        root.mkdir()
    text = "holds no rank<N>/grad_summary_<step>.csv; give" if has_folder else "cannot be read: No such file"
    with pytest.raises(RunError) as raised:
        RunPair.of(make(tmp_path / "a", {0: [0]}), root)
    assert str(raised.value).startswith(f"--msprobe-golden: {root}: {text}")


def test_number_ranges() -> None:
    assert number_ranges([3, 0, 1, 2, 7, 9, 10]) == "0-3, 7, 9-10"
    assert number_ranges([]) == ""
