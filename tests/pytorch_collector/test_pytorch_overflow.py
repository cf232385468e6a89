"""The suite overflow on dumps of the collector: it names the call that made the first NaN or Inf."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes  # noqa: F401  # pytester's runs inside this process would load it twice
import pytest
import torch
from torch import nn

SUITE = "--msprobe-suite=overflow"


def half_exponential(net: nn.Module) -> None:
    large = torch.tensor([1.0, 12.0, 3.0], dtype=torch.float16) * 1
    exploded = torch.exp(large)
    exploded + exploded


def bfloat16_layer(net: nn.Module) -> None:
    out = net(torch.full((2, 4), 1e38, dtype=torch.bfloat16))
    out.relu()


def division(net: nn.Module) -> None:
    count = torch.tensor([2.0, 0.0]).abs()
    (torch.ones(2) / count).sqrt()


def root_of_zero(net: nn.Module) -> None:
    x = torch.tensor([4.0, 0.0], requires_grad=True)
    (torch.sqrt(x) * 2).sum().backward()


#: Script: record that is the origin, what is said of it, and the line of the script that is shown.
SCRIPTS: dict[Callable[[nn.Module], None], tuple[str, str, str]] = {
    half_exponential: ("Torch.exp.0.forward", "the range of its dtype is too small", "exploded = torch.exp(large)"),
    bfloat16_layer: ("Functional.linear.0.forward", "float64 gives NaN or Inf, too", "out = net("),
    division: ("Tensor.__truediv__.0.forward", "float64 gives NaN or Inf, too", "(torch.ones(2) / count).sqrt()"),
    root_of_zero: ("Torch.sqrt.0.backward", "float64 gives NaN or Inf, too", ""),
}


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_origin_is_named(script, level, make_debugger, tmp_path: Path, pytester: pytest.Pytester) -> None:
    net = nn.Sequential(nn.Linear(4, 4, dtype=torch.bfloat16))
    with torch.no_grad():
        net[0].weight.fill_(8.0)
    debugger = make_debugger(level=level, task="tensor")
    with debugger.collect(net, rank_id=0):
        script(net)
    result = pytester.runpytest(f"--msprobe-dump={tmp_path / 'dump'}", SUITE, "-v")
    name, said, line = SCRIPTS[script]
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"first anomaly of step 0: rank 0, {name}: {said}", f"*called from *{line}*"])


TWO_RANKS = """
import sys
import torch
import torch.distributed as dist
from msprobe_collector.pytorch import PrecisionDebugger
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
debugger = PrecisionDebugger(dump_path=sys.argv[3], level="L1")
x = torch.tensor([1.0, 0.0 if rank else 1.0, 4.0])
with debugger.collect():
    logarithm = torch.log(x)
    dist.all_reduce(logarithm)
    logarithm + x
dist.destroy_process_group()
"""


def test_the_origin_is_in_the_rank_that_made_it(tmp_path: Path, pytester: pytest.Pytester) -> None:
    command = [sys.executable, "-c", TWO_RANKS]
    folders = [str(tmp_path / "store"), str(tmp_path / "dump")]
    processes = [subprocess.Popen([*command, str(rank), *folders], stderr=subprocess.PIPE) for rank in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()[-3000:]
    result = pytester.runpytest(f"--msprobe-dump={tmp_path / 'dump'}", SUITE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["Wrong: Torch.log.0.forward, *"])
