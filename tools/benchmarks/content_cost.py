"""Measures what it costs to find the values of one run in another one, by statistics, as the number of values grows.

    python -m tools.benchmarks.content_cost FOLDER [--values 12500 25000 50000 100000] [--dtype bfloat16] [--whole]

The target computes each layer of the golden run in three calls instead of two, under other names. Prints for each
number of values of the target the seconds of reading and of finding, and the peak of memory of the process; with
--whole those of a comparison by pytest: of the clock, of the processor, and the peak.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.benchmarks.measure import NOT_OURS, empty_folder, run_process

#: Of a layer: APIs of both runs, and which of the values that the layer makes each of them gives.
_CALLS = {
    "golden": (("Functional.linear", 0), ("Functional.gelu", 2)),
    "target": tuple(zip(("Torch.matmul", "Torch.erf", "Tensor.mul"), range(3))),
}


def values_of(layer: int, dtype: str) -> list[dict[str, Any]]:
    """The statistics of the three values that a layer makes."""
    draw = random.Random(layer)
    return [
        {
            "type": "torch.Tensor",
            "dtype": f"torch.{dtype}",
            "shape": [8, 64],
            "Max": 3 + draw.random(),
            "Min": -3 - draw.random(),
            "Mean": draw.gauss(0, 0.04),
            "Norm": 22 + draw.random(),
            "requires_grad": False,
        }
        for _ in range(3)
    ]


def records(side: str, count: int, dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, record) of the calls of as many layers as have `count` values in the target, two of each call."""
    last: dict[str, Any] = {**values_of(-1, dtype)[0], "made_by": None}
    layers = count // 2 // len(_CALLS["target"])
    for number in range(layers * len(_CALLS[side])):
        layer, place = divmod(number, len(_CALLS[side]))
        api, value = _CALLS[side][place]
        made = values_of(layer, dtype)[value]
        made = {key: it * (1 + 1e-8) if isinstance(it, float) and side == "target" else it for key, it in made.items()}
        name = f"{api}.{layer}.forward"
        yield name, {"input_args": [last], "input_kwargs": {}, "output": [made]}
        last = {**made, "made_by": f"{name}.output.0"}


def write(folder: Path, side: str, count: int, dtype: str) -> Path:
    """Write a dump, and return its path."""
    path = folder / f"{side}_{count}_{dtype}" / "dump.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"task": "statistics", "level": "L1", "framework": "pytorch", "data": dict(records(side, count, dtype))}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def measure(target: Path, golden: Path) -> dict[str, float]:
    """Seconds of reading both dumps, and of finding the values of each in the other one."""
    from pytest_msprobe.suites.comparison.content.regions import locate
    from pytest_msprobe.suites.comparison.content.values import held_run
    from pytest_msprobe.suites.comparison.sides import ComparedDump

    start = time.perf_counter()
    runs = [held_run(ComparedDump(path)) for path in (target, golden)]
    read = time.perf_counter()
    located = locate(*runs)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = len(located.in_golden.partners)
    return {"found": found, "reading": read - start, "finding": time.perf_counter() - read, "MiB": memory}


def compare(target: Path, golden: Path) -> dict[str, float]:
    """The cost of a comparison by pytest."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *NOT_OURS,
        "-q",
        f"--msprobe-dump={target}",
        f"--msprobe-golden={golden}",
    ]
    with empty_folder() as empty:
        cost = run_process(command, Path(empty))
    return {"wall": cost.wall_seconds, "CPU": cost.cpu_seconds, "MiB": cost.peak_bytes / 2**20}


def main() -> None:
    """Make the dumps, and measure each pair in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--values", type=int, nargs="+", default=[12_500, 25_000, 50_000, 100_000])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--whole", action="store_true", help="compare by pytest")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for count in options.values:
        if options.alone or options.whole:
            target, golden = (
                write(options.folder.resolve(), side, count, options.dtype) for side in ("target", "golden")
            )
            figures = compare(target, golden) if options.whole else measure(target, golden)
            values = f"{count} values a side: " if options.whole else ""
            sys.stdout.write(values + "  ".join(f"{name} {figure:.3g}" for name, figure in figures.items()) + "\n")
            sys.stdout.flush()
            continue
        module = [
            sys.executable,
            "-m",
            "tools.benchmarks.content_cost",
            str(options.folder),
            "--alone",
            "--dtype",
            options.dtype,
        ]
        run = subprocess.run([*module, "--values", str(count)], check=True, capture_output=True, text=True)
        sys.stdout.write(f"{count} values a side: {run.stdout}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
