"""The example in docs/comparison.md, executed as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from comparison_dumps import unpack_perturbed

DOCS = Path(__file__).parents[2] / "docs" / "comparison.md"


def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester) -> None:
    unpack_perturbed(pytester.path)
    (example,) = re.findall(r"```console\n\$ pytest (.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    command, *lines = example.splitlines()
    result = pytester.runpytest(*shlex.split(command))
    result.stdout.fnmatch_lines(lines)


def test_the_script_runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack_perturbed(pytester.path)
    (script,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    done = pytester.runpython(pytester.makepyfile(script))
    assert done.ret == 0
    done.stdout.fnmatch_lines(["False", "first divergence: Primitive.dense.Dense.4.forward.input.1:*"])
    assert len(list((pytester.path / "out").glob("compare_result_rank0_*.csv"))) == 2
