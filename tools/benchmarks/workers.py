"""Measures what several workers gain and cost.

    python -m tools.benchmarks.workers DUMP [--device auto] [--runs 3]

Per variant the smallest of several fresh processes: the whole process, and the loop behind the first item, in which
every worker loads its frameworks. The variants: one process with all threads, one worker with all, one worker with
one thread, two workers. The peak is that of the process that was started, which under workers only schedules the work.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from tools.benchmarks.loop_clock import CLOCK_FILE
from tools.benchmarks.measure import NOT_OURS, PATHS, describe_machine, empty_folder, measured_environment

VARIANTS = {
    "one process, all threads": ((), {}),
    "one worker, all threads": (("-n1",), {}),
    "one worker, one thread": (("-n1",), {"OMP_NUM_THREADS": "1"}),
    "two workers": (("-n2",), {}),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a run, and bytes of the process that was started."""

    whole: float
    loop: float
    items: int
    peak_bytes: int


def measure(dump: Path, device: str, variant: str) -> Cost:
    """One run in a fresh process."""
    options, extra = VARIANTS[variant]
    with empty_folder() as folder:
        clock = Path(folder) / "clock.txt"
        environment = measured_environment({**extra, **PATHS, CLOCK_FILE: str(clock)})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.benchmarks.loop_clock", *NOT_OURS]
        command += [f"--msprobe-dump={dump}", f"--msprobe-device={device}", *options]
        started = monotonic()
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=nowhere, stderr=nowhere)
        peak = 0
        while process.poll() is None:
            peak = _peak_bytes(process.pid) or peak
            sleep(0.05)
        whole = monotonic() - started
        loop, items = clock.read_text().split()
        return Cost(whole, float(loop), int(items), peak)


def _peak_bytes(pid: int) -> int:
    """Largest resident size of one process, without its children; 0 when it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, metavar="DUMP", help="dump.json or its folder")
    parser.add_argument("--device", default="auto", help="as --msprobe-device")
    parser.add_argument("--runs", type=int, default=3, help="fresh processes per figure")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="which to run")
    arguments = parser.parse_args()
    print(f"{arguments.dump}\n{describe_machine()}\nload average {os.getloadavg()[0]:.1f}")
    for variant in arguments.variants:
        costs = [measure(arguments.dump.absolute(), arguments.device, variant) for _ in range(arguments.runs)]
        loop, whole = min(cost.loop for cost in costs), min(cost.whole for cost in costs)
        per_item = 1e3 * loop / max(1, costs[0].items - 1)
        peak = max(cost.peak_bytes for cost in costs) / 1e6
        print(f"{variant:26} whole {whole:6.2f} s  loop {loop:6.2f} s  {per_item:5.2f} ms an item  peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
