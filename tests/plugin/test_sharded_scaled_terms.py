"""A right training whose terms of a sum are scaled and expanded before the ranks add them up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from msprobe_collector.pytorch import PrecisionDebugger


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, inputs, targets):
        terms = (self.net(inputs) - targets).square().sum(0) * 0.5
        shown = terms.detach().expand(2, 16).clone()
        if dist.is_initialized():
            dist.all_reduce(shown)
        return terms.sum()


if "RANK" in os.environ:
    dist.init_process_group("gloo")
ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
torch.manual_seed(0)
model = Training()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(2, 8, 16)
mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="L1")
debugger.start(model)
model(inputs[mine], targets[mine]).backward()
for parameter in model.parameters() if dist.is_initialized() else ():
    dist.all_reduce(parameter.grad)
optimizer.step()
debugger.stop()
debugger.step()
if dist.is_initialized():
    dist.destroy_process_group()
"""
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.slow
def test_terms_of_a_sum_may_be_scaled_and_expanded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    run(tmp_path, "train.py", "single")
    run(tmp_path, *TWO_RANKS, "train.py", "ranks")
    options = ("--msprobe-dump=ranks/step0", "--msprobe-logical=single/step0", "--msprobe-out=answers")
    run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir=.", *options)
    (table,) = (tmp_path / "answers").glob("sharded_result_*.csv")
    rows = table.read_text(encoding="utf-8").splitlines()
    for api in ("__mul__", "expand"):
        (row,) = [row for row in rows if f"Tensor.{api}.0.forward" in row and ",input.0," in row]
        assert ",placed,P(sum) over 2 ranks," in row


def run(folder: Path, *command: str) -> None:
    """Run a program of Python; one that fails fails the test with what it said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
