"""Measures what collecting costs a training: step time, one API call, tensor files, memory.

    python -m tools.benchmarks.collector_cost steps [--rounds 5] [--asynchronous] [--profile MODE FILE]
    python -m tools.benchmarks.collector_cost call
    python -m tools.benchmarks.collector_cost tensors
    python -m tools.benchmarks.collector_cost memory [--records 100000]

The model is the GPT of tests/collector/small_gpt.py with 24 blocks of width 64. Modes take turns in one process and the
smallest time of each counts, since other work on the machine can only add to a time. CPU seconds are those of all
threads: they say more than wall time where the machine is busy.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from tools import TESTS

sys.path.insert(0, str(TESTS / "collector"))

import mindspore as ms
import small_gpt
from mindspore import mint

from msprobe_collector import PrecisionDebugger

_BLOCKS, _WIDTH = 24, 64
_STEPS_PER_ROUND = 3
#: Mode: arguments of PrecisionDebugger, and the largest step time in bare steps where one is set.
_MODES: dict[str, tuple[dict[str, str], float | None]] = {
    "L0": ({"level": "L0", "task": "statistics"}, 1.8),
    "L1": ({"level": "L1", "task": "statistics"}, 3.0),
    "mix": ({"level": "mix", "task": "statistics"}, 3.5),
    "off": ({"level": "mix", "task": "statistics"}, 1.0),
    "L1 fingerprint": ({"level": "L1", "task": "statistics", "summary_mode": "fingerprint"}, None),
    "L1 sketch": ({"level": "L1", "task": "statistics", "summary_mode": "sketch"}, None),
    "L0 tensor": ({"level": "L0", "task": "tensor"}, None),
    "L1 tensor": ({"level": "L1", "task": "tensor"}, None),
}


@contextmanager
def debugger_of(folder: Path, **arguments: str) -> Iterator[PrecisionDebugger]:
    """A debugger that writes below `folder`, ended and forgotten afterwards."""
    section = {"summary_mode": arguments.pop("summary_mode", "statistics")}
    config = folder / "summary.json"
    config.write_text(json.dumps({"statistics": section}))
    path = arguments.pop("config_path", str(config))
    debugger = PrecisionDebugger(path, dump_path=str(folder / "dump"), **arguments)
    try:
        yield debugger
    finally:
        debugger._at_exit()
        PrecisionDebugger._the_one = None
        shutil.rmtree(folder / "dump", ignore_errors=True)


def training() -> small_gpt.Training:
    """The model of all measurements."""
    small_gpt.WIDTH = _WIDTH
    return small_gpt.Training(blocks=_BLOCKS)


def timed(action: Callable[[], Any]) -> tuple[float, float]:
    """(wall seconds, CPU seconds of all threads) of one run."""
    wall, cpu = perf_counter(), process_time()
    action()
    return perf_counter() - wall, process_time() - cpu


def one_mode(mode: str, train: small_gpt.Training, folder: Path) -> list[tuple[float, float]]:
    """Times of a few steps in `mode`, after one that is not counted; start, stop and step belong to it."""
    if mode == "bare":
        train.step()
        return [timed(train.step) for _ in range(_STEPS_PER_ROUND)]
    with debugger_of(folder, **_MODES[mode][0]) as debugger:

        def collected() -> None:
            with debugger.collect(train.net, rank_id=0):
                train.step()

        collected()
        return [timed(train.step if mode == "off" else collected) for _ in range(_STEPS_PER_ROUND)]


def measure_steps(rounds: int, modes: list[str]) -> None:
    """Print the step time of every mode in bare steps."""
    train = training()
    best: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for mode in ("bare", *modes):
                times = [*one_mode(mode, train, Path(folder)), best.get(mode, (9e9, 9e9))]
                best[mode] = min(wall for wall, _ in times), min(cpu for _, cpu in times)
    bare = best["bare"]
    for mode, (wall, cpu) in best.items():
        limit = _MODES[mode][1] if mode != "bare" else None
        wanted = f"; wanted <= {limit}" if limit else ""
        print(f"{mode:14} wall {wall:.3f} s = {wall / bare[0]:.2f} x, CPU {cpu:.3f} s = {cpu / bare[1]:.2f} x{wanted}")


def profile_steps(mode: str, path: str) -> None:
    """cProfile of a few steps of `mode` into the file `path`."""
    train = training()
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder, debugger_of(Path(folder), **_MODES[mode][0]) as debugger:
        for number in range(_STEPS_PER_ROUND + 1):
            if number == 1:
                profiler.enable()
            with debugger.collect(train.net, rank_id=0):
                train.step()
        profiler.disable()
    profiler.dump_stats(path)


def measure_call(calls: int = 2000, repeats: int = 15) -> None:
    """Print what `mint.add` costs before a debugger exists, while it collects, and after it stopped."""
    one, other = (ms.Tensor(np.ones(8), ms.float32) for _ in range(2))

    def loop() -> None:
        for _ in range(calls):
            mint.add(one, other)

    def microseconds() -> float:
        return min(timed(loop)[0] for _ in range(repeats)) / calls * 1e6

    original = mint.add
    loop()
    print(f"before a debugger is made: {microseconds():.2f} us")
    with tempfile.TemporaryDirectory() as folder, debugger_of(Path(folder), level="L1") as debugger:
        print(f"made, not started:         {microseconds():.2f} us; the same object: {mint.add is original}")
        debugger.start(rank_id=0)
        print(f"collecting statistics:     {microseconds():.2f} us; the same object: {mint.add is original}")
        debugger.stop()
        print(f"after stop:                {microseconds():.2f} us; the same object: {mint.add is original}")
        debugger.step()


def measure_tensors(rounds: int) -> None:
    """Print the tensor task against numpy.save of the very arrays that it writes, into the same file system."""
    train = training()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = min(timed(train.step)[0] for _ in range(3))
        with debugger_of(folder, level="L1", task="tensor") as debugger:
            tasks = []
            for _ in range(rounds):

                def collected() -> None:
                    with debugger.collect(train.net, rank_id=0):
                        train.step()

                tasks.append(timed(collected)[0])
            tensors = sorted((folder / "dump" / "step0" / "rank0" / "dump_tensor_data").iterdir())
            arrays = [(path.name, np.load(path)) for path in tensors]
        saves = []
        for number in range(rounds):
            target = folder / f"plain{number}"
            target.mkdir()
            saves.append(timed(lambda target=target: [np.save(target / name, array) for name, array in arrays])[0])
        megabytes = sum(array.nbytes for _, array in arrays) / 1e6
        print(f"{len(arrays)} files, {megabytes:.1f} MB of values; bare step {bare:.3f} s")
        print(f"task tensor {min(tasks):.3f} s; plain numpy.save of the same arrays {min(saves):.3f} s")
        print(f"(task - bare step) / numpy.save: {(min(tasks) - bare) / min(saves):.2f}")


def measure_memory(records: int) -> None:
    """Print the resident size while one step's dump grows to `records` records."""
    train = training()
    for asynchronous in (False, True):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "config.json"
            path.write_text(json.dumps({"dump_path": name, "level": "mix", "async_dump": asynchronous}))
            with debugger_of(Path(name), config_path=str(path)) as debugger:
                debugger.start(train.net, rank_id=0)
                train.step()
                (file,) = Path(name).glob("**/dump.json")
                per_step = file.read_bytes().count(b"\n") - 6
                sizes = []
                for number in range(2, records // per_step + 2):
                    train.step()
                    sizes.append((number * per_step, _resident_megabytes()))
                debugger.stop()
            shown = [sizes[0], *(sizes[len(sizes) * part // 4 - 1] for part in range(1, 5))]
            text = ", ".join(f"{size:.0f} MB at {count}" for count, size in shown)
            print(f"{'async_dump' if asynchronous else 'synchronous'}: resident {text} records")


def _resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "call", "tensors", "memory"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", nargs="+", default=list(_MODES), choices=list(_MODES))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--asynchronous", action="store_true", help="leave MindSpore's launches asynchronous")
    parser.add_argument("--profile", nargs=2, metavar=("MODE", "FILE"), help="cProfile of one mode instead")
    arguments = parser.parse_args()
    if not arguments.asynchronous:
        ms.runtime.launch_blocking()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, MindSpore {ms.__version__}")
    if arguments.profile:
        profile_steps(*arguments.profile)
    elif arguments.what == "steps":
        measure_steps(arguments.rounds, arguments.modes)
    elif arguments.what == "call":
        measure_call()
    elif arguments.what == "tensors":
        measure_tensors(arguments.rounds)
    else:
        measure_memory(arguments.records)


if __name__ == "__main__":
    main()
