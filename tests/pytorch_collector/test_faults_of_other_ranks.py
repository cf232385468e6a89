"""A comparison of two ranks: a fault of one reaches the other, which is not to blame."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401  # pytester's runs inside this process would load it twice
import pytest

TWO_RANKS = """
import sys
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from msprobe_collector.pytorch import PrecisionDebugger

rank, factor = int(sys.argv[1]), float(sys.argv[4])

class Device(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out * factor if function is torch.ops.aten.exp.default and rank == 1 else out

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
debugger = PrecisionDebugger(dump_path=sys.argv[3], level="L1", task="tensor")
x = torch.linspace(0.5, 2, 64) + rank
with Device(), debugger.collect():
    grown = torch.exp(x)
    dist.all_reduce(grown)
    torch.square(grown + x)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_value_that_another_rank_sent_is_not_the_fault_of_this_one(tmp_path: Path, pytester: pytest.Pytester) -> None:
    for name, factor in (("target", "1.02"), ("golden", "1")):
        store, dump = str(tmp_path / f"store_{name}"), str(tmp_path / name)
        ranks = [
            subprocess.Popen([sys.executable, "-c", TWO_RANKS, str(rank), store, dump, factor]) for rank in range(2)
        ]
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    result = pytester.runpytest(
        f"--msprobe-dump={tmp_path / 'target' / 'step0'}",
        f"--msprobe-golden={tmp_path / 'golden' / 'step0'}",
        "--msprobe-diagnosis=diagnosis.json",
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = json.loads((pytester.path / "diagnosis.json").read_text())
    assert [(fault["place"]["ranks"], fault["kind"], fault["place"]["record"]) for fault in found["findings"]] == [
        ([1], "born", "Torch.exp.0.forward"),
        ([0], "another_rank", "Distributed.all_reduce.0.forward"),
    ]
    assert found["findings"][1]["figures"]["inheriting"] == 2
