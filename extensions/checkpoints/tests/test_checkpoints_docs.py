"""The example in extensions/checkpoints/README.md, executed as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "README.md"


@pytest.mark.needs("torch")
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (example,) = re.findall(r"```console\n\$ python (.*?)```", text, re.DOTALL)
    command, _, expected = example.partition("\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == expected
    assert done.returncode == 1
