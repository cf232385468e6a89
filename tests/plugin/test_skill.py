"""The page for coding agents: it is shipped and printed, and each of its commands does what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_msprobe.__main__ import main

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "localise-numerics"
PAGE = (SKILL / "SKILL.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]

#: A training in which the second gelu is 1 % too large, below autograd, where `SCALE` is not 1.
SCRIPT = """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x

class Kernels(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.gelu.default:
                self.calls += 1
                return result * SCALE if self.calls == 2 else result
            return result

torch.manual_seed(0)
model = Network()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(2, 16, 12)
with Kernels():
    while True:  # --exit ends it
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
#: Where the wrong call is.
LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "functional.gelu(" in line)


def test_the_page_has_the_usual_front_matter_and_is_one_page() -> None:
    _, front, text = PAGE.split("---\n", 2)
    keys = yaml.safe_load(front)
    assert keys["name"] == SKILL.name
    assert 100 < len(keys["description"]) <= 1024
    assert len(text.splitlines()) <= 80
    assert re.findall(r"^## \d\. (\w+)", text, re.MULTILINE) == ["Collect", "Diagnose", "Narrow", "Prove", "Report"]


@pytest.mark.slow
def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("SCALE", "1.01"))
    (tmp_path / "known_good.py").write_text(SCRIPT.replace("SCALE", "1"))
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": os.pathsep.join((scripts, os.environ["PATH"])), "OMP_NUM_THREADS": "1"}
    codes = {}
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        codes[command] = done.returncode
        assert done.returncode in (0, 1), f"{command}\n{done.stdout}\n{done.stderr}"

    differing = [command for command in COMMANDS if " manifest " in command or " diagnose " in command]
    on_recorded, on_device = (command for command in COMMANDS if command.startswith("pytest "))
    assert [command for command, code in codes.items() if code] == [*differing, on_recorded]
    assert "--msprobe-device=torch:cpu" in on_device
    first, proof = (json.loads((tmp_path / file).read_text()) for file in ("answer.json", "proof.json"))
    for found, outcome, confidence in ((first, "wrong", "first difference only"), (proof, "wrong", "proved")):
        cause = found["findings"][0]
        assert (found["outcome"], cause["confidence"]) == (outcome, confidence)
        assert cause["place"]["record"] == "Functional.gelu.1.forward"
        assert cause["place"]["source"] == f"{tmp_path / 'train.py'}:{LINE}"


def test_what_the_page_reads_is_in_the_schema() -> None:
    from pytest_msprobe.answers import CONFIDENCES, EXIT_CODES, Answer, Finding, Gap, NextStep, Place

    known = {name for kind in (Answer, Finding, Gap, NextStep, Place) for name in kind.__struct_fields__}
    known |= {*EXIT_CODES, *CONFIDENCES}
    words = set(re.findall(r"`([a-z_]+)(?:\[\d?\](?:\.[a-z]+)?)?`", PAGE)) - {"good"}
    assert words <= known


def test_the_command_prints_the_page_and_copies_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == PAGE
    assert main(["skill", "-o", str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / SKILL.name).iterdir()) == ["SKILL.md"]
    assert main(["skill", "verify-kernel", "-o", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [SKILL.name, "verify-kernel"]
    assert main(["skill", "-o", str(tmp_path)]) == 2
    assert "exists and is left as it is" in capsys.readouterr().err
