"""docs/collecting.md: its commands, typed as they stand, lead from a training script to what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "collecting.md").read_text(encoding="utf-8")

#: What a stranger has: nothing in it knows of the collector.
SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    x, y = torch.randn(16, 8), torch.randint(2, (16,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
"""


def block(name: str, kind: str) -> str:
    found = re.search(rf"^<!-- {name} -->\n```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_last_commands_give_the_verdict_that_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    commands = block("first verdict", "bash").splitlines()
    assert len(commands) <= 3, "a stranger types three commands at most, behind the installation"
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join((scripts, os.environ["PATH"])), "OMP_NUM_THREADS": "1"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    # What is run is shown; the answer is that nothing is wrong, in whatever words.
    shown, answer = (
        re.sub(r"about \d+ s", "about N s", text).split("\n\n") for text in (block("verdict", "text"), done.stdout)
    )
    pytest.LineMatcher(answer[0].splitlines()).fnmatch_lines(shown[0].replace(" ...", "*").splitlines())
    assert answer[1].startswith("Right")
