"""What the suite `repeat` costs beyond the repeats: its checks against the bare frameworks, in one process.

    python -m tools.benchmarks.repeat_cost DUMP [--device torch:cpu] [--repeat 50] [--rounds 5] [--every 1]

For each API call that the bare framework can run, the check of `repeat` and as many bare runs take turns; the figures
are sums of the smallest processor times of each call. *Engine* is as many runs through this project's engine alone.
"""

from __future__ import annotations

import argparse
import cProfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines.protocol import DeviceEngine, NotJudged, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.repeat import RepeatSettings
from pytest_msprobe.suites.repeat.check import RepeatCheck
from tools.benchmarks.bare import CannotRunError, Side, Step, _first, _read, _tested_side, call_names
from tools.benchmarks.in_process import be_as_patient_as_a_run

_NO_LIMIT = 1 << 62


class Measured:
    """One API call, ready to be repeated in each way."""

    def __init__(self, dump: Dump, name: str, engine: DeviceEngine, side: Side, runs: int) -> None:
        """The call `name` of `dump`. Raises CannotRunError and NotJudged where it cannot run."""
        case, incoming = _read(dump, name)
        step = _first([side], case, incoming)
        directions: Any = ("forward", "backward") if incoming else ("forward",)
        settings = RepeatSettings(runs=runs, max_memory_bytes=_NO_LIMIT)

        def through_engine() -> None:
            run_once = engine.repeated(case.call, differentiate=case.wanted if incoming else ())
            for _ in range(runs):
                execution = run_once()
                if incoming:
                    execution.gradients(incoming)

        def check() -> None:
            made = RepeatCheck(dump, name, engine, "cpu", settings, directions=directions)
            found = {made.run(direction).status for direction in directions}
            if found != {"pass"}:
                raise CannotRunError(f"{name}: {found}")

        self.ways: dict[str, Callable[[], None]] = {
            "bare": lambda: _times(runs, step),
            "engine": through_engine,
            "check": check,
        }


def _times(count: int, step: Step | Callable[[], None]) -> None:
    for _ in range(count):
        step()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path)
    parser.add_argument("--device", default="torch:cpu")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=1, help="take every so many calls")
    parser.add_argument("--profile", type=Path, help="write a profile of the checks alone, and no figures")
    given = parser.parse_args()
    be_as_patient_as_a_run()
    dump = Dump(given.dump)
    engines = Engines(EngineChoice(parse_device(given.device), "auto", None))
    engine = engines.device(engines.device_for(dump, runs=True))
    side = _tested_side(dump, engines)
    calls: list[Measured] = []
    left_out: Counter[str] = Counter()
    for name in call_names(dump)[:: given.every]:
        try:
            call = Measured(dump, name, engine, side, given.repeat)
            call.ways["check"]()
        except (CannotRunError, NotJudged) as stop:
            left_out[str(stop)[:120]] += 1
        else:
            calls.append(call)
    if given.profile is not None:
        with cProfile.Profile() as profile:
            for call in calls:
                call.ways["check"]()
        profile.dump_stats(given.profile)
        return
    sums: Counter[str] = Counter()
    for call in calls:
        least = dict.fromkeys(call.ways, float("inf"))
        for _ in range(given.rounds):
            for way, action in call.ways.items():
                started = process_time()
                action()
                least[way] = min(least[way], process_time() - started)
        sums.update(least)  # type: ignore[arg-type]  # seconds
    runs = len(calls) * given.repeat
    for way, seconds in sums.items():
        print(f"{way:8} {seconds:7.3f} s, {seconds / runs * 1e6:7.1f} us a run, {seconds / sums['bare'] - 1:+.1%}")
    print(f"{len(calls)} calls of {given.repeat} runs; left out: {dict(left_out)}")


if __name__ == "__main__":
    main()
