"""`python -m pytest_msprobe selfcheck` on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_msprobe.__main__ import main

COMMAND = (sys.executable, "-m", "pytest_msprobe", "selfcheck")


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_one_page_says_whether_all_works(tmp_path: Path, framework: str) -> None:
    pytest.importorskip(framework)
    command = [*COMMAND, f"--device={framework}:cpu", "-o", "page.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert page["works"]
    assert {level: set(found.values()) for level, found in page["bit_identical"].items()} == {
        level: {True} for level in ("tensors", "L0", "L1", "mix")
    }
    assert [entry["outcome"] for entry in page["judged"].values()] == ["right"] * 3
    assert all(cost["records"] > 0 and cost["collected_ms"] > 0 for cost in page["cost"].values())
    assert len(done.stdout.splitlines()) <= 12


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("recorded", "--device=recorded: nothing can be trained on it"),
        ("torch:cuda", "--device=torch:cuda: this machine has no NVIDIA GPU"),
        ("mindspore:ascend", "--device=mindspore:ascend: "),
        ("jax", "--device: 'jax' is not a device"),
    ],
)
def test_a_device_that_is_not_there_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, device: str, reason: str
) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert main(["selfcheck", f"--device={device}"]) == 2
    assert reason in capsys.readouterr().err
