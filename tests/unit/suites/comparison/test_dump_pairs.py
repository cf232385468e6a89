from __future__ import annotations

from pathlib import Path

import pytest

from pytest_msprobe.suites.comparison.sides import find_files, pair_dumps, table_stem


def make(root: Path, *folders: str) -> list[Path]:
    for folder in folders:
        (root / folder).mkdir(parents=True)
        (root / folder / "dump.json").write_text("{}")
    return find_files(root)


def names(root: Path, golden_root: Path) -> dict[str, str | None]:
    pairs = pair_dumps(find_files(root), golden_root)
    return {
        target.parent.relative_to(root).as_posix(): golden and golden.parent.relative_to(golden_root).as_posix()
        for target, golden in pairs.golden.items()
    }


def test_ranks_and_steps_are_paired_by_number(tmp_path: Path) -> None:
    make(tmp_path / "a", "step0/rank0", "step0/rank2", "step10/rank0")
    make(tmp_path / "b", "step10/rank0", "step0/rank0", "step0/rank1", "step0/rank2")
    assert names(tmp_path / "a", tmp_path / "b") == {
        "step0/rank0": "step0/rank0",
        "step0/rank2": "step0/rank2",
        "step10/rank0": "step10/rank0",
    }


def test_missing_ranks_are_named_on_both_sides(tmp_path: Path) -> None:
    targets = make(tmp_path / "a", "step0/rank0", "step0/rank3")
    make(tmp_path / "b", "step0/rank0", "step0/rank1")
    pairs = pair_dumps(targets, tmp_path / "b")
    assert list(pairs.problems.values()) == [f"{tmp_path / 'b'} has no golden dump for step 0 rank 3"]
    assert pairs.golden_only == (tmp_path / "b/step0/rank1/dump.json",)


def test_a_number_that_one_side_does_not_have_agrees_with_any(tmp_path: Path) -> None:
    make(tmp_path / "a", "rank0", "rank1")
    make(tmp_path / "b", "step7/rank0", "step7/rank1")
    assert names(tmp_path / "a", tmp_path / "b") == {"rank0": "step7/rank0", "rank1": "step7/rank1"}


@pytest.mark.parametrize(("left", "right"), [("proc12", "rank0"), ("step0/rank0", "step5/rank3"), ("x", "y")])
def test_a_single_dump_on_each_side_is_a_pair(tmp_path: Path, left: str, right: str) -> None:
    make(tmp_path / "a", left)
    make(tmp_path / "b", right)
    assert names(tmp_path / "a", tmp_path / "b") == {left: right}


def test_what_could_go_two_ways_is_not_guessed(tmp_path: Path) -> None:
    targets = make(tmp_path / "a", "proc1", "proc2")
    make(tmp_path / "b", "proc3", "proc4")
    pairs = pair_dumps(targets, tmp_path / "b")
    assert set(pairs.golden.values()) == {None}
    assert "compare them one by one" in pairs.problems[targets[0]]


def test_tables_are_named_after_the_target_folder() -> None:
    assert table_stem(Path("step0/rank3/dump.json")) == "compare_result_rank3"
    assert table_stem(Path("step0/proc31/dump.json")) == "compare_result_proc31"
    assert table_stem(Path("step0/rank3/dump.json"), several_steps=True) == "compare_result_step0_rank3"
    assert table_stem(Path("mine/debug.json")) == "debug_compare_result"
