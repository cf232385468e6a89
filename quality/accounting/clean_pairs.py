"""Pairs in which nothing is wrong: other dtypes, other orders of summation, other numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from planted_networks import Training

from quality.accounting.torch_recorder import record_step


@dataclass(frozen=True)
class CleanPair:
    """Two runs that differ by rounding only.

    Attributes:
        name: of the row.
        network: `gpt` or `cnn`.
        target, golden: settings of both runs.
        is_reordered: whether the target's products are summed in two halves.
        threads: of the target; the golden run has one.
    """

    name: str
    network: str
    target: dict[str, Any] = field(default_factory=dict)
    golden: dict[str, Any] = field(default_factory=dict)
    is_reordered: bool = False
    threads: int = 1

    def write(self, folder: Path) -> tuple[Path, Path]:
        """(target, golden) dumps."""
        before, found = torch.get_num_threads(), []
        try:
            for side, options, threads in (("target", self.target, self.threads), ("golden", self.golden, 1)):
                torch.set_num_threads(threads)
                training = Training.of(self.network, **options)
                change = _in_halves if side == "target" and self.is_reordered else None
                found.append(record_step(folder / side, training.step, training.net, change=change))
        finally:
            torch.set_num_threads(before)
        return found[0], found[1]


def _in_halves(call: str, function: Any, args: Any, kwargs: Any) -> Any:
    """Products summed in two halves; None for other calls."""
    if call.startswith("Functional.linear"):
        left, right = args[0], args[1].transpose(-1, -2)
        bias = args[2] if len(args) > 2 else None
    elif call.startswith("Torch.matmul"):
        (left, right), bias = args, None
    else:
        return None
    half = right.shape[-2] // 2
    out = torch.matmul(left[..., half:], right[..., half:, :]) + torch.matmul(left[..., :half], right[..., :half, :])
    return out if bias is None else out + bias


def _pairs() -> Iterator[CleanPair]:
    wide, scaled = torch.float64, {"loss_scale": 1024.0}  # without it gradients are below the range of float16
    for seed in (0, 1):
        for network in ("gpt", "cnn"):
            of, same = f"{network}, seed {seed}", {"seed": seed}
            half = {**same, **scaled}
            yield CleanPair(f"bfloat16 against float32, {of}", network, {**same, "dtype": torch.bfloat16}, same)
            yield CleanPair(f"float16 against float32, {of}", network, {**half, "dtype": torch.float16}, half)
            yield CleanPair(f"float32 against float64, {of}", network, same, {**same, "dtype": wide})
    low, half = {"dtype": torch.bfloat16, **scaled}, {"dtype": torch.float16, **scaled}
    yield CleanPair("bfloat16 against float16, gpt", "gpt", low, half)
    for seed in (0, 1, 2):
        yield CleanPair(f"other order of summation, gpt, seed {seed}", "gpt", {"seed": seed}, {"seed": seed}, True)
    yield CleanPair("other order of summation in bfloat16, gpt", "gpt", low, low, True)
    for network in ("gpt", "cnn"):
        yield CleanPair(f"2 threads against 1, {network}", network, threads=2)
    yield CleanPair("the same twice, cnn", "cnn")


CLEAN = tuple(_pairs())
