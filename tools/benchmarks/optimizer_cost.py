"""Measures what the records of optimizers add to a collected step, in CPU seconds.

    python -m tools.benchmarks.optimizer_cost pytorch|mindspore|fsdp2 [--rounds 5]

A step is forward, backward, the clipping of gradients (PyTorch) and the update, at level L1 and, of FSDP2 on two gloo
ranks, at level mix, which takes the gradients that it reduces. Models are those of the other measurements of the
collectors: GPTs of width 256 with 4 layers and AdamW (PyTorch), of width 64 with 24 layers and SGD (MindSpore). Bare
steps and those with `"optimizer"` false and true take turns in one process. The smallest time of each part of a step
counts: what the records add is read from the part in which the optimizer runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

#: What is collected; None: nothing.
_MODES: tuple[tuple[str, bool] | None, ...] = (
    None,
    *((task, wants) for task in ("statistics", "tensor") for wants in (False, True)),
)


#: A model, and the two parts of a step of it.
Training = tuple[Any, Callable[[], None], Callable[[], None]]


def pytorch(*, is_sharded: bool = False) -> Training:
    """GPT of width 256 with 4 layers."""
    import torch
    from torch import nn
    from torch.nn import functional

    from tools.benchmarks.pytorch_collector_cost import _BATCH, _LAYERS, _LETTERS, _SEQUENCE, _WIDTH, Block

    torch.set_num_threads(1)
    torch.manual_seed(0)
    embedding, head = nn.Embedding(_LETTERS, _WIDTH), nn.Linear(_WIDTH, _LETTERS)
    model = nn.Sequential(embedding, *(Block() for _ in range(_LAYERS)), head)
    if is_sharded:
        from torch.distributed.fsdp import fully_shard

        for block in model:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    letters = torch.randint(0, _LETTERS, (_BATCH, _SEQUENCE))

    def train() -> None:
        functional.cross_entropy(model(letters).flatten(0, 1), letters.flatten()).backward()

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return model, train, update


def mindspore() -> Training:
    """GPT of width 64 with 24 layers."""
    import mindspore

    from tools.benchmarks.collector_cost import training

    mindspore.runtime.launch_blocking()
    made = training()
    return made.net, made.step, made.update


def timed(action: Callable[[], object]) -> float:
    """CPU seconds of all threads."""
    before = process_time()
    action()
    return process_time() - before


def collecting(kind: str, folder: Path, mode: tuple[str, bool] | None) -> Any:
    """What makes the context of a step in `mode`."""
    package: Any = import_module(f"msprobe_collector.{'mindspore' if kind == 'mindspore' else 'pytorch'}")
    if mode is None:
        return lambda model: nullcontext()
    package.PrecisionDebugger._the_one = None
    path = folder / "config.json"
    path.write_text(json.dumps({"task": mode[0], "level": "mix" if kind == "fsdp2" else "L1", "optimizer": mode[1]}))
    return package.PrecisionDebugger(str(path), dump_path=str(folder / "dump")).collect


def measure(kind: str, rounds: int) -> None:
    """Print the smallest times of each mode."""
    model, train, update = mindspore() if kind == "mindspore" else pytorch(is_sharded=kind == "fsdp2")
    best = dict.fromkeys(_MODES, (9e9, 9e9))
    for number in range(rounds * len(_MODES)):
        mode = _MODES[number % len(_MODES)]
        with tempfile.TemporaryDirectory() as folder:
            collect = collecting(kind, Path(folder), mode)
            for _ in range(3):
                with collect(model):
                    times = timed(train), timed(update)
                best[mode] = min(best[mode][0], times[0]), min(best[mode][1], times[1])
    print("\n".join(table(kind, best)))


def table(kind: str, best: dict[tuple[str, bool] | None, tuple[float, float]]) -> list[str]:
    """A line for each task."""
    lines = [f"{kind}: bare step {sum(best[None]):.3f} s"]
    for task in ("statistics", "tensor"):
        off, on = best[task, False], best[task, True]
        added = f"the records of the update add {on[1] - off[1]:.3f} s: {100 * (on[1] - off[1]) / sum(off):.1f} %"
        lines.append(f"  {task:10} step without them {sum(off):.3f} s; {added}")
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["pytorch", "mindspore", "fsdp2"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.kind != "fsdp2":
        measure(arguments.kind, arguments.rounds)
    elif "RANK" in os.environ:
        from torch import distributed

        distributed.init_process_group("gloo")
        measure(arguments.kind, arguments.rounds)
        distributed.destroy_process_group()
    else:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run([*launch, "-m", __spec__.name, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
