"""Threads of MindSpore, which wait for the next kernel."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.protocol import Call

pytestmark = pytest.mark.needs("mindspore")
_NAMES = ("ActorThread", "KernelThread")
#: A kernel of this size is done in less than a millisecond; MindSpore's threads looked for the next one for 70.
_MOST_NANOSECONDS = 10_000_000
_CALLS = 10


def spent_until_asleep() -> int:
    """Time on a processor that MindSpore's threads have had, once all of them sleep."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().startswith(_NAMES)]
    while any((task / "stat").read_text().rpartition(")")[2].split()[0] == "R" for task in tasks):
        os.sched_yield()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def test_threads_sleep_between_small_calls() -> None:
    engine = MindSporeEngine(is_raised=False)
    call = Call(parse_api_name("Mint.transpose.0"), "mindspore", (np.ones((2, 16, 16), np.float32), 0, 1), {})
    engine.forward(call, differentiate=())
    before = spent_until_asleep()
    for _ in range(_CALLS):
        engine.forward(call, differentiate=())
        after = spent_until_asleep()
    assert after - before < _CALLS * _MOST_NANOSECONDS
