"""Measures pytest-msprobe on a dump: the whole process, the loop over the items, and the bare frameworks.

    python -m tools.benchmarks.measure DUMP [--device auto] [--bench auto] [--runs 3] [--profile FILE]
    python -m tools.benchmarks.measure DUMP --collect

Every run is a fresh process in an empty folder, after one that is not counted. The smallest and the median of all runs
are shown, since other work on the machine can only add to a time. hypothesis and pytest-cov are switched off, which
users do not have. Dumps of any size are made by make_dump, make_big and make_matmuls.

- whole process: `pytest --msprobe-dump=DUMP -q` from start to exit, with imports; CPU is user and system time of all
  threads.
- loop: pytest_runtestloop in a process in which every API call of the dump has run once on both sides.
- bare: the same calls in that process, straight into the frameworks: NumPy array to tensor, forward, backward, results
  back to NumPy; MindSpore synchronously, PyTorch in float64; for the device `recorded`, `numpy.load` of the recorded
  outputs. Calls that write in place, or that a side cannot run, are left out and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from tools import clone_environment
from tools.benchmarks.witness import WITNESS_FILE

#: What pytest itself may cost per item in the target for the loop.
_ITEM_SECONDS = 1e-3
_MOST_TIMES_BARE = 1.3
_MOST_TIMES_FLOOR = 2
_MEGABYTE = 1e6
#: Plugins of this project's own test environment that a user of pytest-msprobe does not have.
NOT_OURS = ("-p", "no:hypothesispytest", "-p", "no:pytest_cov")
#: So that child processes find these programs.
PATHS = {"PYTHONPATH": clone_environment()["PYTHONPATH"]}
#: Compiled modules are kept here, as an ordinary run keeps them, even where PYTHONDONTWRITEBYTECODE is set: without
#: them pytest compiles every plugin anew in each process.
_COMPILED = Path(tempfile.gettempdir()) / f"msprobe-benchmark-pycache-{os.getuid()}"


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a child process took.

    Attributes:
        wall_seconds, cpu_seconds: CPU is user and system together.
        peak_bytes: largest resident size.
        last_line: the last line that it printed.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    last_line: str


@dataclass(frozen=True, slots=True)
class InProcess:
    """The loop and the bare frameworks in one warm process, in seconds.

    Attributes:
        loop: pytest_runtestloop over all items.
        outcomes: items by outcome.
        bare, bare_tested, bare_benchmark: the faster of a pass before and a pass after the loop.
        bare_calls: API calls that ran bare.
        left_out: why the others did not.
    """

    loop: float
    outcomes: dict[str, int]
    bare: float
    bare_tested: float
    bare_benchmark: float
    bare_calls: int
    left_out: dict[str, int]

    @property
    def items(self) -> int:
        """Number of items that ran."""
        return sum(self.outcomes.values())


def run_process(
    command: Sequence[str], folder: Path, *, allowed: Sequence[int] = (0,), **environment: str
) -> ProcessCost:
    """Run `command` in `folder` and give what it took. SystemExit with its output when its exit code is not allowed.

    This process stays small on purpose: Linux counts a parent's size into the peak of the child that it starts.
    """
    output = folder / "output.txt"
    started = perf_counter()
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=measured_environment(environment)
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall_seconds = perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text(errors="replace").rstrip()
    if process.returncode not in allowed:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-3000:]}")
    return ProcessCost(
        wall_seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text.rpartition("\n")[2].strip("= ")
    )


def measure_process(dump: Path, options: Sequence[str]) -> ProcessCost:
    """One `pytest --msprobe-dump=DUMP -q`."""
    with empty_folder() as folder:
        command = [sys.executable, "-m", "pytest", *NOT_OURS, f"--msprobe-dump={dump}", "-q", *options]
        return run_process(command, Path(folder), allowed=(0, 1))


def measure_imports(device: str) -> ProcessCost:
    """A process that imports the frameworks of a run and ends."""
    frameworks = ("mindspore", "torch") if device.startswith("mindspore") else ("torch",)
    with empty_folder() as folder:
        return run_process([sys.executable, "-c", f"import {', '.join(frameworks)}"], Path(folder))


def measure_in_process(dump: Path, device: str, bench: str, profile: Path | None) -> InProcess:
    """One loop and two bare passes in a fresh process; with `profile`, cProfile writes there and slows the loop."""
    with empty_folder() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "tools.benchmarks.in_process", str(result), str(dump), device, bench]
        run_process(command + ([str(profile)] if profile else []), Path(folder), **PATHS)
        return _in_process(json.loads(result.read_text()))


def measure_collection(dump: Path) -> tuple[ProcessCost, list[str]]:
    """(cost of `pytest --co -q`, which heavy packages it imported)."""
    with empty_folder() as folder:
        seen = Path(folder) / "imported.txt"
        options = ["-p", "tools.benchmarks.witness", *NOT_OURS, "--co", "-q", f"--msprobe-dump={dump}"]
        command = [sys.executable, "-m", "pytest", *options]
        environment = {WITNESS_FILE: str(seen), **PATHS}
        cost = run_process(command, Path(folder), **environment)
        return cost, seen.read_text().split()


def empty_folder() -> tempfile.TemporaryDirectory[str]:
    """A rootdir of its own, so that no ini file of this repository has a say."""
    folder = tempfile.TemporaryDirectory(prefix="msprobe-benchmark-")
    (Path(folder.name) / "pytest.ini").write_text("[pytest]\n")
    return folder


def report_processes(costs: Sequence[ProcessCost]) -> None:
    """Print what whole processes took."""
    print(f"  wall {_spread([cost.wall_seconds for cost in costs])}")
    print(f"  CPU  {_spread([cost.cpu_seconds for cost in costs])}")
    print(f"  peak RSS {max(cost.peak_bytes for cost in costs) / _MEGABYTE:.0f} MB (largest)")
    print(f"  {costs[-1].last_line}")


def report_floor(whole: Sequence[ProcessCost], imports: Sequence[ProcessCost], runs: Sequence[InProcess]) -> None:
    """Print the whole process beside what no tool avoids: Python, imports of the frameworks, the bare calls."""
    bare = min(run.bare for run in runs)
    print(f"whole process / (Python with imports + bare calls); target <= {_MOST_TIMES_FLOOR}")
    for name in ("wall_seconds", "cpu_seconds"):
        taken, imported = (min(getattr(cost, name) for cost in costs) for costs in (whole, imports))
        kind = name.partition("_")[0]
        print(f"  {kind} {taken:.2f} s / ({imported:.2f} s + {bare:.2f} s): {taken / (imported + bare):.2f}")


def report_in_process(runs: Sequence[InProcess]) -> None:
    """Print the loop, the bare frameworks and their ratio."""
    items = runs[0].items
    print(f"loop over {items} items {runs[0].outcomes}, frameworks warm")
    print(f"  {_spread([run.loop for run in runs])}; per item {median(run.loop for run in runs) / items * 1e3:.2f} ms")
    print(f"bare frameworks, {runs[0].bare_calls} API calls, same processes")
    print(f"  both sides {_spread([run.bare for run in runs])}")
    print(f"  tested     {_spread([run.bare_tested for run in runs])}")
    print(f"  benchmark  {_spread([run.bare_benchmark for run in runs])}")
    for reason, number in runs[0].left_out.items():
        print(f"  left out {number}: {reason}")
    # From the smallest figures: a disturbed bare pass would flatter the loop.
    loop, bare, framework = min(run.loop for run in runs), min(run.bare for run in runs), _ITEM_SECONDS * items
    print(f"(loop - 1 ms x items) / bare: {(loop - framework) / bare:.2f}; target <= {_MOST_TIMES_BARE}")
    print(f"loop {loop:.2f} s, allowed {_MOST_TIMES_BARE * bare + framework:.2f} s")


def describe_machine() -> str:
    """Processor count and versions, to give beside figures."""
    packages = ("pytest", "numpy", "mindspore", "torch")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return f"{os.cpu_count()} CPU cores, {platform.platform()}, Python {platform.python_version()}, {versions}"


def measured_environment(extra: dict[str, str]) -> dict[str, str]:
    """What a measured process gets: ours and `extra`, with compiled modules kept."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(_COMPILED), **extra}


def _in_process(found: dict[str, Any]) -> InProcess:
    bare = min(found["bare"], key=lambda passed: passed["total"])
    return InProcess(
        loop=found["loop"],
        outcomes=found["outcomes"],
        bare=bare["total"],
        bare_tested=bare["tested"],
        bare_benchmark=bare["benchmark"],
        bare_calls=found["bare_calls"],
        left_out=found["left_out"],
    )


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} s min, {median(values):.2f} s median of {len(values)}"


def _check(dump: Path, arguments: argparse.Namespace) -> None:
    options = [f"--msprobe-device={arguments.device}", f"--msprobe-bench={arguments.bench}"]
    if arguments.profile:
        profile = arguments.profile.absolute()
        report_in_process([measure_in_process(dump, arguments.device, arguments.bench, profile)])
        return
    print(f"whole process: pytest --msprobe-dump=DUMP -q {' '.join(options)}")
    measure_process(dump, options)  # fills the caches of compiled modules and of the disk
    whole: list[ProcessCost] = []
    imports: list[ProcessCost] = []
    runs: list[InProcess] = []
    for _ in range(arguments.runs):  # in turn, so that other work on the machine reaches all of them alike
        whole.append(measure_process(dump, options))
        imports.append(measure_imports(arguments.device))
        runs.append(measure_in_process(dump, arguments.device, arguments.bench, None))
    report_processes(whole)
    report_in_process(runs)
    report_floor(whole, imports, runs)


def _collect(dump: Path, runs: int) -> None:
    print("collection: pytest --co -q --msprobe-dump=DUMP")
    measure_collection(dump)
    measured = [measure_collection(dump) for _ in range(runs)]
    report_processes([cost for cost, _ in measured])
    print(f"  imported of the heavy packages: {', '.join(measured[-1][1]) or 'none'}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, metavar="DUMP", help="dump.json or its folder")
    parser.add_argument("--device", default="auto", help="as --msprobe-device: recorded, mindspore:cpu, torch:cpu")
    parser.add_argument("--bench", default="auto", help="as --msprobe-bench")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes per figure")
    parser.add_argument("--collect", action="store_true", help="measure collection only")
    parser.add_argument("--profile", type=Path, help="cProfile of the loop into this file; no whole processes")
    arguments = parser.parse_args()
    dump = arguments.dump.absolute()
    dump = dump / "dump.json" if dump.is_dir() else dump
    print(f"{dump}\n{describe_machine()}\nload average {os.getloadavg()[0]:.1f}")
    if arguments.collect:
        _collect(dump, arguments.runs)
    else:
        _check(dump, arguments)


if __name__ == "__main__":
    main()
