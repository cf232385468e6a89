"""Errors of the script reach the script, also those that come up only when the collector reads a tensor."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from slow_parameters import slow

# MindSpore launches synchronously in the other tests, and cannot go back within a process.
SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from msprobe_collector import PrecisionDebugger

if len(sys.argv) > 2:
    from msprobe_collector.mindspore import tensor_values
    tensor_values.is_on_host = lambda: False

x = Tensor(np.ones((2, 3), np.float32))
debugger = PrecisionDebugger(config_path=sys.argv[1]) if sys.argv[1] else None

class Net(nn.Cell):
    def construct(self, x):
        return self.inner(x)

class Inner(nn.Cell):
    def construct(self, x):
        mint.matmul(x, x)
        return x

net = Net()
net.inner = Inner()

def unused_result():
    mint.matmul(x, x)
    ms.runtime.synchronize()
    ms.runtime.synchronize()  # on a CPU the first call waits for nothing

def inside_a_cell():
    net(x)
    ms.runtime.synchronize()
    ms.runtime.synchronize()

def before_a_recorded_call():
    y = mint.matmul(x, x)
    mint.add(y, 1).asnumpy()

for action in (unused_result, inside_a_cell, before_a_recorded_call):
    if debugger:
        debugger.start(net)
    try:
        action()
        print(action.__name__, "nothing")
    except Exception as error:
        print(action.__name__, type(error).__name__, str(error).splitlines()[0])
    if debugger:
        debugger.stop()
        debugger.step()
    assert (mint.add(x, x).asnumpy() == 2).all()
"""


def said(*arguments: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "training continues" not in done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("unused", "inside", "before"))]


@pytest.mark.parametrize(
    "configuration",
    [
        {"level": "mix", "task": "tensor"},
        *slow(
            {"level": "L0"},
            {"level": "L1"},
            {"level": "L1", "statistics": {"data_mode": ["backward"]}},
            {"level": "L1", "async_dump": True, "statistics": {"list": ["add"]}},
        ),
    ],
    ids=str,
)
def test_an_asynchronous_error_is_raised_as_without_the_collector(tmp_path, configuration, without_collector):
    (tmp_path / "config.json").write_text(
        json.dumps({"task": "statistics", "dump_path": str(tmp_path / "dump"), **configuration})
    )
    assert said(str(tmp_path / "config.json")) == without_collector


@pytest.mark.slow
def test_it_is_raised_also_where_values_are_read_at_the_end_of_a_step(tmp_path, without_collector):
    keys = {"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump")}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    assert said(str(tmp_path / "config.json"), "as on a device") == without_collector


@pytest.fixture(scope="module")
def without_collector() -> list[str]:
    lines = said("")
    assert all("RuntimeError For 'MatMulExt' op" in line for line in lines)
    assert len(lines) == 3
    return lines
