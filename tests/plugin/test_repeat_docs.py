"""The examples in docs/repeat.md and docs/precheck.md, executed as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["repeat.md", "precheck.md"])
def test_the_example_prints_what_the_page_says(pytester: pytest.Pytester, dumps: Path, page: str) -> None:
    pytest.importorskip("mindspore")
    shutil.copytree(dumps / "gpt_tiny_statistics", pytester.path / "tests" / "dumps" / "gpt_tiny_statistics")
    (example,) = re.findall(r"```console\n\$ pytest (.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    command, *lines = example.splitlines()
    result = pytester.runpytest_subprocess(*shlex.split(command))
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in lines])
