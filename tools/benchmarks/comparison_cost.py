"""Measures what comparison with accounting costs beside comparison by distances and a precheck of one side.

    python -m tools.benchmarks.comparison_cost FOLDER [--runs 3] [--workers 0 2] [--ways accounting distances ...]

FOLDER is one that make_pair.py wrote. Every run is a fresh process in an empty folder, the ways in turn; the smallest
of each counts. CPU seconds are those of all processes of a run, the peak is that of its largest process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.benchmarks.measure import NOT_OURS, ProcessCost, describe_machine, empty_folder, run_process

_LARGEST_SHARE = 1.5
_MEGABYTE = 1e6
#: What is given to pytest beside the number of workers.
_WAYS: dict[str, Sequence[str]] = {
    "precheck": ("--msprobe-dump={folder}/target",),
    "distances": (
        "--msprobe-dump={folder}/target",
        "--msprobe-golden={folder}/golden",
        "--msprobe-accounting=off",
    ),
    "accounting": ("--msprobe-dump={folder}/target", "--msprobe-golden={folder}/golden"),
    "plain accounting": ("--msprobe-dump={folder}/plain/target", "--msprobe-golden={folder}/plain/golden"),
}


def measure(folder: Path, way: str, workers: int) -> ProcessCost:
    """One run of a way."""
    options = [option.format(folder=folder) for option in _WAYS[way]]
    command = [sys.executable, "-m", "pytest", *NOT_OURS, "-q", "--tb=no", "-rN", "-n", str(workers), *options]
    with empty_folder() as empty:
        return run_process(command, Path(empty), allowed=(0, 1))


def report(way: str, workers: int, costs: Sequence[ProcessCost], precheck: Sequence[ProcessCost]) -> None:
    """Print what a way took, beside the precheck."""
    wall, cpu = min(cost.wall_seconds for cost in costs), min(cost.cpu_seconds for cost in costs)
    peak = max(cost.peak_bytes for cost in costs) / _MEGABYTE
    line = f"{way:16} -n {workers}  wall {wall:6.1f} s  CPU {cpu:6.1f} s  peak {peak:5.0f} MB"
    if precheck and way != "precheck":
        times = (wall / min(cost.wall_seconds for cost in precheck), cpu / min(cost.cpu_seconds for cost in precheck))
        line += f"  {times[0]:.2f} x precheck (CPU {times[1]:.2f} x), allowed {_LARGEST_SHARE}"
    print(line)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with target, golden and plain")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes per figure")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="of pytest-xdist")
    parser.add_argument("--ways", nargs="+", choices=_WAYS, default=list(_WAYS), help="which to measure")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    print(f"{folder}\n{describe_machine()}\nload average {os.getloadavg()[0]:.1f}")
    for workers in arguments.workers:
        costs: dict[str, list[ProcessCost]] = {way: [] for way in arguments.ways}
        for _ in range(arguments.runs):
            for way, found in costs.items():
                found.append(measure(folder, way, workers))
        for way, found in costs.items():
            report(way, workers, found, costs.get("precheck", ()))


if __name__ == "__main__":
    main()
