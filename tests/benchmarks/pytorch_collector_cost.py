"""Measures what collecting costs a training with PyTorch: CPU seconds of one thread, in bare steps.

    python tests/benchmarks/pytorch_collector_cost.py [ROUNDS]

A GPT of width 256 with 4 layers, batch 8 x 128, on the CPU. Modes take turns in one process and the smallest time of
each counts. CPU seconds, and one thread: on a busy machine threads that wait for each other say more about the others.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import process_time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger

_WIDTH, _HEADS, _LAYERS, _BATCH, _SEQUENCE, _LETTERS = 256, 4, 4, 8, 128, 512
_MODES = {"L0": "statistics", "L1": "statistics", "mix": "statistics"}


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


def measure(rounds: int) -> None:
    """Print the step time of every mode, and the tensor task against `numpy.save` of the same arrays."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(_LETTERS, _WIDTH), *(Block() for _ in range(_LAYERS)), nn.Linear(_WIDTH, _LETTERS)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    letters = torch.randint(0, _LETTERS, (_BATCH, _SEQUENCE))

    def step(collecting: AbstractContextManager[object]) -> None:
        with collecting:
            functional.cross_entropy(model(letters).flatten(0, 1), letters.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    def collected(folder: Path, level: str, task: str) -> float:
        PrecisionDebugger._the_one = None
        debugger = PrecisionDebugger(level=level, task=task, dump_path=str(folder / "dump"))
        times = []
        for _ in range(2):
            began = process_time()
            step(debugger.collect(model, rank_id=0))
            times.append(process_time() - began)
        debugger._at_exit()
        return min(times)

    step(nullcontext())
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(rounds):
            began = process_time()
            step(nullcontext())
            best["bare"] = min(best.get("bare", 9e9), process_time() - began)
            for level, task in _MODES.items():
                best[level] = min(best.get(level, 9e9), collected(folder, level, task))
                shutil.rmtree(folder / "dump")
        for mode, seconds in best.items():
            print(f"{mode:5} {seconds:.3f} s = {seconds / best['bare']:.2f} x")
        tensor = min(collected(folder, "L1", "tensor") for _ in range(2))
        files = sorted((folder / "dump" / "step0" / "rank0" / "dump_tensor_data").iterdir())
        arrays = [torch.load(file, weights_only=True).numpy() for file in files]
        saves = []
        for number in range(2):
            target = folder / f"plain{number}"
            target.mkdir()
            began = process_time()
            for index, array in enumerate(arrays):
                np.save(target / f"{index}.npy", array)
            saves.append(process_time() - began)
        print(f"{len(files)} files, {sum(array.nbytes for array in arrays) / 1e6:.0f} MB")
        print(f"task tensor: (task - bare) / numpy.save = {(tensor - best['bare']) / min(saves):.2f}")


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
