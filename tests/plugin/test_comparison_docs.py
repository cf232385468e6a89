"""The example in docs/comparison.md, executed as printed."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from comparison_dumps import unpack_perturbed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "comparison.md"


def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester) -> None:
    unpack_perturbed(pytester.path)
    (example,) = re.findall(r"```console\n\$ pytest (.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    command, *lines = example.splitlines()
    result = pytester.runpytest(*shlex.split(command))
    result.stdout.fnmatch_lines(lines)


@pytest.mark.slow
@pytest.mark.needs("mindspore")
@pytest.mark.needs("torch")
def test_a_mindspore_and_a_pytorch_gpt_of_equal_weights_agree(pytester: pytest.Pytester) -> None:
    shutil.copytree(
        ROOT / "collector" / "examples",
        pytester.path / "collector" / "examples",
        ignore=shutil.ignore_patterns("*_dump"),
    )
    (example,) = re.findall(r"```console\n(\$ python .*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    *scripts, command = (line[2:] for line in example.splitlines() if line.startswith("$ "))
    for script in scripts:
        assert pytester.run(sys.executable, *shlex.split(script)[1:], "--steps=1").ret == 0
    # In a process of its own: both frameworks in this one would stay for all tests that follow.
    result = pytester.run(sys.executable, "-m", *shlex.split(command))
    result.stdout.fnmatch_lines([line for line in example.splitlines() if not line.startswith("$ ")])
    assert result.ret == pytest.ExitCode.OK


def test_the_script_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack_perturbed(pytester.path)
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    done = pytester.runpython(pytester.makepyfile(script))
    assert done.ret == 0
    done.stdout.fnmatch_lines(["False", "first divergence: Primitive.dense.Dense.4.forward.input.1:*"])
    assert len(list((pytester.path / "out").glob("compare_result_rank0_*.csv"))) == 2
