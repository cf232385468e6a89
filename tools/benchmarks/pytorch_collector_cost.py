"""Measures what collecting costs a training with PyTorch, beside the existing tool where its Python is named.

    python -m tools.benchmarks.pytorch_collector_cost [ROUNDS [STEPS]]

The environment variable MSPROBE_REFERENCE_PYTHON names the Python that has the existing tool.
A GPT of width 256 with 4 layers, batch 8 x 128, on the CPU, one thread. Each tool and level runs in processes of its
own, which take turns; in each of them bare and collected steps take turns. Printed are medians and, of CPU seconds,
minima: on a busy machine wall time says more about the others. A step is forward, backward, optimizer, and what the
tool does at its ends.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _HEADS, _LAYERS, _BATCH, _SEQUENCE, _LETTERS = 256, 4, 4, 8, 128, 512
_LEVELS = ("L0", "L1", "mix")
_OURS, _THEIRS = "msprobe_collector.pytorch", "msprobe.pytorch"


class Block(nn.Module):
    """Attention and a network of one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        shape = (_BATCH, _SEQUENCE, _HEADS, _WIDTH // _HEADS)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.attention(self.first(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(_BATCH, _SEQUENCE, _WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x))))


def timed(action: Callable[[], None]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one run."""
    wall, cpu = perf_counter(), process_time()
    action()
    return perf_counter() - wall, process_time() - cpu


def one_process(package: str, level: str, task: str, steps: int) -> None:
    """Print [bare step, collected step, plain `numpy.save` of what was collected] for each of the steps, as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(_LETTERS, _WIDTH), *(Block() for _ in range(_LAYERS)), nn.Linear(_WIDTH, _LETTERS)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    letters = torch.randint(0, _LETTERS, (_BATCH, _SEQUENCE))
    folder = Path(tempfile.mkdtemp())
    section = {"scope": [], "list": [], "data_mode": ["all"]}
    if task == "sketch":
        task, section = "statistics", {**section, "summary_mode": "sketch"}
    config = {"task": task, "level": level, "dump_path": str(folder / "dump"), "rank": [], "step": []}
    (folder / "config.json").write_text(json.dumps({**config, task: section}))
    debugger = importlib.import_module(package).PrecisionDebugger(config_path=str(folder / "config.json"))

    def train() -> None:
        functional.cross_entropy(model(letters).flatten(0, 1), letters.flatten()).backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def bare() -> None:
        train()
        update()

    def collected() -> None:
        debugger.start(model)
        train()
        debugger.stop()
        update()
        debugger.step()

    bare()
    times = []
    for number in range(steps + 1):
        pair = [timed(bare), timed(collected)]
        if task == "tensor":
            pair.append(timed_saves(folder, number))
        times.append(pair)
        shutil.rmtree(folder / "dump" / f"step{number}", ignore_errors=True)
    print("TIMES", json.dumps(times[1:]))
    shutil.rmtree(folder, ignore_errors=True)


def timed_saves(folder: Path, step: int) -> tuple[float, float]:
    """The time of `numpy.save` for each tensor that the step has collected."""
    files = sorted(folder.glob(f"dump/step{step}/*/dump_tensor_data/*.pt"))
    arrays = [torch.load(file, weights_only=True).numpy() for file in files]
    target = folder / "plain"
    target.mkdir()

    def save() -> None:
        for index, array in enumerate(arrays):
            np.save(target / f"{index}.npy", array)

    found = timed(save)
    shutil.rmtree(target)
    return found


def run(python: str, package: str, level: str, task: str, steps: int) -> list[list[tuple[float, float]]]:
    """The times of one process."""
    command = [python, __file__, "--process", package, level, task, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TIMES "))
    found: list[list[tuple[float, float]]] = json.loads(line.removeprefix("TIMES "))
    return found


def main(rounds: int, steps: int) -> None:
    """Print the ratios of every level and tool."""
    tools = [(sys.executable, _OURS)]
    if reference := os.environ.get("MSPROBE_REFERENCE_PYTHON"):
        tools.append((reference, _THEIRS))
    times: dict[tuple[str, str, str], list[list[tuple[float, float]]]] = {}
    for _ in range(rounds):
        for level in _LEVELS:
            for python, package in tools:
                key = (package, level, "statistics")
                times.setdefault(key, []).extend(run(python, package, level, "statistics", steps))
        times.setdefault((_OURS, "L1", "sketch"), []).extend(run(sys.executable, _OURS, "L1", "sketch", steps))
        for python, package in tools:
            times.setdefault((package, "L1", "tensor"), []).extend(run(python, package, "L1", "tensor", steps))
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, PyTorch {torch.__version__}")
    for (package, level, task), pairs in times.items():
        walls = median(collected[0] / bare[0] for bare, collected, *_ in pairs)
        cpus = median(collected[1] / bare[1] for bare, collected, *_ in pairs)
        least = [min(pair[place][1] for pair in pairs) for place in range(len(pairs[0]))]
        ratios = f"median wall {walls:.2f} x, median CPU {cpus:.2f} x, least CPU {least[1] / least[0]:.2f} x"
        print(f"{package:27} {level:4} {task:10} {ratios} ({least[1]:.3f} s / {least[0]:.3f} s) of {len(pairs)} steps")
        if task == "tensor":
            shares = median((pair[1][1] - pair[0][1]) / pair[2][1] for pair in pairs)
            share = (least[1] - least[0]) / least[2]
            print(f"  (collected - bare) / numpy.save, CPU: median {shares:.2f}, of the least {share:.2f}")
    sketched, plain = (times[_OURS, "L1", task] for task in ("sketch", "statistics"))
    ratio = min(pair[1][1] for pair in sketched) / min(pair[1][1] for pair in plain)
    print(f"a step at L1 with sketches takes {ratio:.2f} times the CPU seconds of one with statistics")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        one_process(*sys.argv[2:5], int(sys.argv[5]))
    elif "--help" in sys.argv:
        print(__doc__)
    else:
        main(*(int(text) for text in (*sys.argv[1:3], *("4", "6")[len(sys.argv[1:3]) :])))
