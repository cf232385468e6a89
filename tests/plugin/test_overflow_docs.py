"""The example in docs/overflow.md, executed as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "overflow.md"


def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester, dumps: Path) -> None:
    shutil.copytree(dumps / "overflow_attention", pytester.path / "tests" / "dumps" / "overflow_attention")
    (example,) = re.findall(r"```console\n\$ pytest (.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    command, *lines = example.splitlines()
    result = pytester.runpytest(*shlex.split(command))
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in lines])
