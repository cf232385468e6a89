"""Whether a damaged dump, tensor file or checkpoint costs more than its records, and does anything but be read.

    python -m quality.fuzz tensors 20000
    python -m quality.fuzz dumps 10000
    python -m quality.fuzz checkpoints 10000

The same seeds give the same files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    """Fuzz and print what came of it; 1 when something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(_KINDS))
    parser.add_argument("count", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--suites", nargs="*", help="of dumps: which suites; default all")
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.count)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        problems = _KINDS[arguments.kind](Path(folder).resolve(), seeds, arguments.suites)
    print(f"{arguments.count} {arguments.kind}, {len(problems)} problems, {time.perf_counter() - started:.0f} s")
    for problem in problems[:50]:
        print(f"  {problem}")
    return 1 if problems else 0


def _tensors(folder: Path, seeds: range, _: list[str]) -> list[str]:
    from quality.fuzz.tensor_files import read_many

    outcome = read_many(folder, seeds)
    print(dict(outcome.counts))
    print(f"largest allocation: {outcome.largest_share:.2f} times the tensor; {outcome.largest_fixed} bytes for small")
    return outcome.problems


def _dumps(folder: Path, seeds: range, suites: list[str]) -> list[str]:
    from quality.fuzz.dump_runs import SUITES, run_many

    outcome = run_many(folder / "run", seeds, suites=tuple(suites or SUITES))
    print(dict(sorted(outcome.counts.items())))
    return outcome.problems


def _checkpoints(folder: Path, seeds: range, _: list[str]) -> list[str]:
    from quality.fuzz.checkpoints import compare_many

    outcome = compare_many(folder, seeds)
    print(dict(sorted(outcome.counts.items())))
    return outcome.problems


_KINDS = {"tensors": _tensors, "dumps": _dumps, "checkpoints": _checkpoints}


if __name__ == "__main__":
    sys.exit(main())
