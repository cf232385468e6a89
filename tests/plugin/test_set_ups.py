"""Runs that are set up differently: the setting is the answer, and no operation is blamed for what it makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import sys

import torch
from torch import nn

seed, lr, width, batch = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.drop = nn.LayerNorm(width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(32, width), nn.Sequential(Block(), Block())
        self.head = nn.Linear(width, 32)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


torch.manual_seed(seed)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
tokens = torch.arange(batch * 6).reshape(batch, 6) % 20
nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
optimizer.step()
"""
RUNS = {
    "base": ("0", "0.01", "16", "4"),
    "again": ("0", "0.01", "16", "4"),
    "seed": ("1", "0.01", "16", "4"),
    "lr": ("0", "0.001", "16", "4"),
    "model": ("0", "0.01", "8", "4"),
    "batch": ("0", "0.01", "16", "2"),
}
pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one collected step for each of `RUNS`."""
    folder = tmp_path_factory.mktemp("set_ups")
    (folder / "train.py").write_text(TRAINING)
    for name, arguments in RUNS.items():
        started = run(folder, "-m", "msprobe_collector", "collect", f"--dump-path={name}", "train.py", *arguments)
        assert started.returncode == 0, started.stderr
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("seed", "seed 1, golden 0, 7 of 11 parameters differ"),
        ("lr", "lr 0.001, golden 0.01"),
        ("model", "two different models: embedding.weight [32, 8] against [32, 16]"),
        ("batch", "two different models: shape of the batch [2, 6] against [4, 6]"),
    ],
)
def test_the_setting_is_the_only_finding(runs: Path, name: str, headline: str) -> None:
    done = run(runs, "-m", "pytest_msprobe", "diagnose", name, "base", "--json", f"{name}.json")
    assert done.returncode == 1, done.stdout
    answer = json.loads((runs / f"{name}.json").read_text())
    assert answer["headline"].endswith(headline)
    assert [fault["kind"] for fault in answer["findings"]] in (["setting"], ["model"])


def test_the_same_script_twice_is_equal(runs: Path) -> None:
    done = run(runs, "-m", "pytest_msprobe", "diagnose", "again", "base")
    assert done.returncode == 0, done.stdout
    assert "Right: all compared values of" in done.stdout
