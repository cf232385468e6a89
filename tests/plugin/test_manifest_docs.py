"""The example of docs/manifest.md, executed as printed, and entries of the catalogue of planted differences."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "manifest.md"


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python train\.py\n(.*?)```", text, re.DOTALL)
    (console,) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    commands = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    assert len(commands) == 3
    for command, _, output in (part.partition("\n") for part in commands):
        words = shlex.split(command)
        assert words[0] == "python"
        done = subprocess.run([sys.executable, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == (output, int("pytest_msprobe" in command)), done.stderr


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_entries_of_the_catalogue_are_named_first(tmp_path: Path) -> None:
    from tools.manifests.__main__ import answered
    from tools.manifests.catalogue import SEEN

    for name in ("dropout", "loss scale"):
        (entry,) = [one for one in SEEN if (one.framework, one.name) == ("torch", name)]
        answer = answered(entry, tmp_path)
        assert answer.is_right, answer


def test_every_entry_of_the_catalogue_can_fail() -> None:
    from tools.manifests.catalogue import HELD_OUT, SEEN

    assert len(SEEN) >= 20
    assert len(HELD_OUT) >= 10
    assert {entry.framework for entry in SEEN} == {"torch", "mindspore"}
    for entry in (*SEEN, *HELD_OUT):
        assert re.search(entry.expected, "equal: 1 manifest of a and b") is None
