"""Examples of pages that need dumps or scripts of their own, executed as printed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from comparison_dumps import unpack_perturbed
from documented import ROOT, Command, code, example


def assert_printed(result: pytest.RunResult, command: Command) -> None:
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in command.output])


def copy_dump(dumps: Path, name: str, target: Path) -> None:
    shutil.copytree(dumps / name, target / "tests" / "dumps" / name)


def test_the_comparison_of_two_runs(pytester: pytest.Pytester) -> None:
    unpack_perturbed(pytester.path)
    (command,) = example("docs/two_runs.md", "pytest --msprobe-dump=target --msprobe-golden=golden -q")
    assert_printed(pytester.runpytest(*command.words[1:]), command)


def test_the_overflow(pytester: pytest.Pytester, dumps: Path) -> None:
    copy_dump(dumps, "overflow_attention", pytester.path)
    (command,) = example("docs/overflow.md", "pytest")
    assert_printed(pytester.runpytest(*command.words[1:]), command)


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize("page", ["docs/repeat.md", "docs/precheck.md"])
def test_runs_of_a_statistics_dump(pytester: pytest.Pytester, dumps: Path, page: str) -> None:
    copy_dump(dumps, "gpt_tiny_statistics", pytester.path)
    (command,) = example(page, "pytest --msprobe-dump=tests/dumps/gpt_tiny_statistics")
    assert_printed(pytester.runpytest_subprocess(*command.words[1:]), command)


@pytest.mark.slow
def test_the_noise_run(pytester: pytest.Pytester) -> None:
    with tarfile.open(ROOT / "tests" / "dumps" / "noise" / "dumps.tar.xz") as archive:
        archive.extractall(pytester.path, filter="data")
    for command in example("docs/two_runs.md", "pytest --msprobe-dump=silu"):
        assert_printed(pytester.runpytest(*command.words[1:]), command)


@pytest.mark.slow
@pytest.mark.needs("mindspore")
@pytest.mark.needs("torch")
def test_a_mindspore_and_a_pytorch_gpt_of_equal_weights_agree(pytester: pytest.Pytester) -> None:
    shutil.copytree(
        ROOT / "collector" / "examples",
        pytester.path / "collector" / "examples",
        ignore=shutil.ignore_patterns("*_dump"),
    )
    *scripts, command = example("docs/two_runs.md", "python collector/examples")
    for script in scripts:
        assert pytester.run(sys.executable, *script.words[1:], "--steps=1").ret == 0
    # In a process of its own: both frameworks in this one would stay for all tests that follow.
    result = pytester.run(sys.executable, "-m", *command.words)
    assert_printed(result, command)
    assert result.ret == pytest.ExitCode.OK


def test_the_script_that_compares(pytester: pytest.Pytester) -> None:
    unpack_perturbed(pytester.path)
    done = pytester.runpython(pytester.makepyfile(code("docs/two_runs.md", "from pytest_msprobe.suites.comparison")))
    assert done.ret == 0
    done.stdout.fnmatch_lines(["False", "Wrong: differs first in an input of Primitive.dense.Dense.4"])
    assert len(list((pytester.path / "out").glob("compare_result_rank0_*.csv"))) == 2


@pytest.mark.needs("torch")
def test_set_ups_that_differ(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code("docs/two_runs.md", "import sys"))
    commands = example("docs/two_runs.md", "python train.py")
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command.words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        shown = "".join(f"{line}\n" for line in command.output)
        assert (done.stdout, done.returncode) == (shown, int("pytest_msprobe" in command.words)), done.stderr
    assert shlex.join(commands[-1].words).endswith("manifest target golden")
