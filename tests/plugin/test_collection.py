"""Node ids, selection and what collecting may load."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

ONE = np.ones((2, 3), np.float32)


def small_dump(folder: Path) -> Path:
    builder = DumpBuilder(folder)
    builder.call("Mint.add.0", [ONE, ONE], [2 * ONE], incoming=[ONE], gradients=[ONE, ONE])
    builder.call("Mint.linalg.inv.0", [2 * np.eye(2, dtype=np.float32)], [np.eye(2, dtype=np.float32) / 2])
    builder.call("Tensor.__mul__.0", [ONE, 3.0], [3 * ONE], incoming=[ONE], gradients=[3 * ONE])
    return builder.write()


def ids(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if "::" in line]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dump.json::Mint.add.0::backward"], ["Mint.add.0.backward"]),
        (["dump.json", "-k", "Mint.add.0 and forward"], ["Mint.add.0.forward"]),
        (["dump.json", "-k", "inv.0.forward"], []),
    ],
    ids=["node id", "words", "no word goes beyond a node"],
)
def test_items_carry_the_name_of_the_call(pytester: pytest.Pytester, arguments: list[str], expected: list[str]) -> None:
    """As in JUnit, for IDEs and Allure; what selects them is what stands in the node id."""
    small_dump(pytester.path)
    pytester.makeconftest(
        "def pytest_runtest_setup(item): print('called', item.name)\n"
        "def pytest_deselected(items): print('left', *{item.name for item in items})"
    )
    result = pytester.runpytest("-s", *arguments)
    assert [line.partition("called ")[2] for line in result.outlines if "called " in line] == expected
    assert not [line for line in result.outlines if line.startswith("left") and "." in line]


def test_ids_inside_rootdir_are_relative(pytester: pytest.Pytester) -> None:
    small_dump(pytester.path / "step0" / "rank0")
    result = pytester.runpytest("--msprobe-dump=step0", "--co", "-q")
    assert ids(result) == [
        "step0/rank0/dump.json::Mint.add.0::forward",
        "step0/rank0/dump.json::Mint.add.0::backward",
        "step0/rank0/dump.json::Mint.linalg.inv.0::forward",
        "step0/rank0/dump.json::Tensor.__mul__.0::forward",
        "step0/rank0/dump.json::Tensor.__mul__.0::backward",
    ]


def test_ids_outside_rootdir_are_absolute_and_two_ranks_do_not_collide(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("dumps")
    small_dump(outside / "rank0")
    broken = DumpBuilder(outside / "rank1")
    broken.call("Mint.add.0", [ONE, ONE], [3 * ONE])
    broken.write()
    result = pytester.runpytest(f"--msprobe-dump={outside}", "-q", "-rf")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines([f"FAILED *{outside}/rank1/dump.json::Mint.add.0::forward*"])
    again = pytester.runpytest(f"--msprobe-dump={outside}", "--lf")
    again.assert_outcomes(failed=1, deselected=5)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["-k", "linalg"], 1),
        (["-k", "add and backward"], 1),
        (["-m", "backward"], 2),
        (["-m", "forward and Tensor"], 1),
        (["-m", "Mint"], 3),
        (["--deselect=dump.json::Mint.add.0"], 3),
        (["--deselect=dump.json::Mint.add.0::backward"], 4),
    ],
)
def test_selection(pytester: pytest.Pytester, arguments: list[str], count: int) -> None:
    small_dump(pytester.path)
    result = pytester.runpytest("--msprobe-dump=dump.json", "--strict-markers", *arguments)
    assert result.parseoutcomes()["passed"] == count


def test_an_api_call_is_selected_by_its_id(pytester: pytest.Pytester) -> None:
    small_dump(pytester.path)
    pytester.runpytest("dump.json::Mint.add.0").assert_outcomes(passed=2)
    pytester.runpytest("dump.json::Mint.add.0::backward").assert_outcomes(passed=1)


def test_a_plain_argument_is_collected_and_a_stray_dump_is_not(pytester: pytest.Pytester) -> None:
    small_dump(pytester.mkdir("named"))
    small_dump(pytester.mkdir("stray"))
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest("named/dump.json").assert_outcomes(passed=5)
    pytester.runpytest().assert_outcomes(passed=1)
    pytester.runpytest(
        "named/dump.json", "test_a_plain_argument_is_collected_and_a_stray_dump_is_not.py"
    ).assert_outcomes(passed=6)


def test_with_the_option_and_no_paths_only_the_dumps_are_collected(pytester: pytest.Pytester) -> None:
    small_dump(pytester.path)
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest("--msprobe-dump=dump.json").assert_outcomes(passed=5)
    pytester.runpytest("--msprobe-dump=dump.json", ".").assert_outcomes(passed=6)


def test_dumps_are_ordered_by_step_number_and_may_repeat(pytester: pytest.Pytester) -> None:
    for step in (10, 2):
        small_dump(pytester.path / f"step{step}" / "rank0")
    result = pytester.runpytest("--msprobe-dump=.", "--msprobe-dump=step2", "--co", "-q")
    assert [line.partition("/")[0] for line in ids(result)] == ["step2"] * 5 + ["step10"] * 5


def test_rows_of_several_dumps_say_which(pytester: pytest.Pytester, reports: object) -> None:
    for rank in (0, 1):
        small_dump(pytester.path / f"rank{rank}")
    pytester.runpytest("--msprobe-dump=.").assert_outcomes(passed=10)
    names = list(reports.results)  # type: ignore[attr-defined]
    assert names[:2] == ["rank0/Mint.add.0", "rank0/Mint.linalg.inv.0"]
    assert len(names) == 6


def test_hostile_names_stay_one_selectable_id(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("npu.ns::op[x] y@é.0", [ONE], [ONE])
    builder.write()
    (node_id,) = ids(pytester.runpytest("--msprobe-dump=dump.json", "--co", "-q"))
    assert node_id.isascii()
    assert not set("[]@ ") & set(node_id)
    pytester.runpytest(node_id, "-rs").assert_outcomes(skipped=1)


LOADED = """
import sys
def pytest_sessionfinish():
    print("LOADED", sorted(m for m in ("numpy", "torch", "mindspore", "ml_dtypes", "yaml") if m in sys.modules))
"""


@pytest.mark.parametrize("arguments", [[], ["--msprobe-dump=dump.json", "--co"]], ids=["no dump", "collect only"])
def test_neither_start_nor_collection_imports_numpy_or_a_framework(tmp_path: Path, arguments: list[str]) -> None:
    small_dump(tmp_path)
    (tmp_path / "conftest.py").write_text(LOADED)
    # The test extra's own plugins import NumPy; they are not part of what is tested here.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "LOADED []" in done.stdout, done.stdout + done.stderr


def test_recorded_values_against_pytorch_never_load_mindspore(tmp_path: Path) -> None:
    small_dump(tmp_path)
    (tmp_path / "conftest.py").write_text(LOADED)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--msprobe-dump=dump.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "'torch'" in done.stdout
    assert "'mindspore'" not in done.stdout


def test_help_explains_options_with_their_defaults(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest("--help").stdout.str()
    for option in ("--msprobe-device=DEVICE", "--msprobe-golden=PATH", "--msprobe-out=DIR", "default: 1e-4)"):
        assert option in text


def test_a_copied_dump_finds_its_tensors_beside_it(pytester: pytest.Pytester) -> None:
    small_dump(pytester.path / "a")
    shutil.copytree(pytester.path / "a", pytester.path / "b")
    shutil.rmtree(pytester.path / "a")
    pytester.runpytest("--msprobe-dump=b").assert_outcomes(passed=5)
