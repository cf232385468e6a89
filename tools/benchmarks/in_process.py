"""The child process of measure.py: pytest's loop and the bare frameworks in one process that is warm already.

Its arguments are RESULT_FILE DUMP DEVICE BENCH [PROFILE_FILE]. RESULT_FILE becomes a JSON object; every API call has
run once on both sides before anything is timed.
"""

from __future__ import annotations

import cProfile
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines.protocol import parse_bench, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from tools.benchmarks.bare import BareTime, prepare_calls, time_calls


class LoopClock:
    """A pytest plugin that takes the time of the loop over the items.

    Attributes:
        seconds: time in pytest_runtestloop.
        outcomes: number of items by outcome.
    """

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.seconds = 0.0
        self.outcomes: dict[str, int] = {"passed": 0, "failed": 0, "skipped": 0}
        self._profile = profile

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Take the time."""
        if self._profile is not None:
            self._profile.enable()
        started = perf_counter()
        result = yield
        self.seconds = perf_counter() - started
        if self._profile is not None:
            self._profile.disable()
        return result

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Count the outcomes, outside the time taken."""
        self.outcomes = {outcome: len(terminalreporter.stats.get(outcome, ())) for outcome in self.outcomes}


def run_loop(dump: Path, device: str, bench: str, profile: cProfile.Profile | None) -> LoopClock:
    """One pytest run over `dump` in this process."""
    clock = LoopClock(profile)
    options = [f"--msprobe-dump={dump}", f"--msprobe-device={device}", f"--msprobe-bench={bench}", "-q"]
    code = pytest.main(
        [*options, "--msprobe-out=out", "-p", "no:hypothesispytest", "-p", "no:pytest_cov"], plugins=[clock]
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest ended with {code!r}")
    return clock


def be_as_patient_as_a_run() -> None:
    """Set what `load_framework` sets: here the frameworks load before pytest starts."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def measure(dump_path: Path, device: str, bench: str, profile: cProfile.Profile | None) -> dict[str, Any]:
    """Seconds of the loop, and of the bare frameworks right before and right after it."""
    be_as_patient_as_a_run()
    dump = Dump(dump_path)
    calls, left_out = prepare_calls(dump, Engines(EngineChoice(parse_device(device), parse_bench(bench), None)))
    before = time_calls(calls)
    clock = run_loop(dump_path, device, bench, profile)
    after = time_calls(calls)
    return {
        "loop": clock.seconds,
        "outcomes": clock.outcomes,
        "bare": [_seconds(before), _seconds(after)],
        "bare_calls": len(calls),
        "left_out": dict(left_out),
    }


def _seconds(time: BareTime) -> dict[str, float]:
    return {"tested": time.tested, "benchmark": time.benchmark, "total": time.total}


def main() -> None:
    """The command line."""
    result, dump, device, bench, *rest = sys.argv[1:]
    profile = cProfile.Profile() if rest else None
    found = measure(Path(dump), device, bench, profile)
    if profile is not None:
        profile.dump_stats(rest[0])
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
