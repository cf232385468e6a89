"""How a run is pointed at its dumps, and what a project that has other tests keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def dump_of(folder: Path) -> None:
    DumpBuilder(folder).call("Mint.neg.0", [A], [-A]).write()


def test_an_ini_file_that_names_a_dump_keeps_the_tests_of_the_project(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path / "dumps")
    pytester.mkdir("tests")
    (pytester.path / "tests" / "test_own.py").write_text("def test_own(): pass\n")
    pytester.makeini("[pytest]\ntestpaths = tests\nmsprobe_dump = dumps\n")
    pytester.runpytest("-v").stdout.fnmatch_lines(
        ["tests/test_own.py::test_own PASSED*", "dumps/dump.json::Mint*PASSED*"]
    )
    pytester.runpytest("--msprobe-dump=dumps").assert_outcomes(passed=1)


def test_a_folder_with_a_dump_as_a_plain_argument_says_how_to_check_it(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path / "dumps")
    result = pytester.runpytest("dumps")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*dumps/dump.json looks like a dump; check it with --msprobe-dump=*dumps/dump.json"])


def test_two_dumps_without_a_common_operation_are_no_agreement(pytester: pytest.Pytester) -> None:
    dump_of(pytester.path / "target")
    DumpBuilder(pytester.path / "golden").call("Mint.exp.0", [A], [A]).write()
    result = pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-accept=unmatched")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "no divergence" not in result.stdout.str()


def test_files_of_one_folder_have_names_of_their_own(pytester: pytest.Pytester) -> None:
    for name in ("one", "two"):
        dump_of(pytester.path / name)
        (pytester.path / name / "dump.json").rename(pytester.path / f"{name}.json")
        (pytester.path / name / "dump_tensor_data").rename(pytester.path / name / "tensors")
    result = pytester.runpytest("--msprobe-dump=one.json", "--msprobe-dump=two.json", "--msprobe-device=torch")
    assert sum(result.parseoutcomes().get(word, 0) for word in ("passed", "failed", "skipped")) == 2
    (file,) = pytester.path.glob("accuracy_checking_result_*.csv")
    names = [line.partition(",")[0] for line in file.read_text(encoding="utf-8-sig").splitlines()[1:]]
    assert names == ["one/Mint.neg.0", "two/Mint.neg.0"]
