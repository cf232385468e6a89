"""Whether a sharded run without the collector ends with the norm, gradients and parameters of the run on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quality.sharded.entries import Entry
from quality.sharded.process import RESULT

#: Relative distances that rounding explains, by dtype of the training.
_ROUNDING = {"torch.float32": 2e-5, "torch.bfloat16": 8e-2}


def differences(entry: Entry, sharded: Path, single: Path) -> Iterator[str]:
    """What of a rank is not what the run on one rank has.

    Values of other shapes are shards of it, which the norm of all gradients covers; losses are those of a rank's own
    tokens. Blocks that a stage counts from 0 and experts that a rank counts from 0 have the names of others.
    """
    whole = _read(single, 0)
    limit = _ROUNDING[str(entry.settings.get("dtype", "torch.float32"))]
    renamed = entry.settings.get("local_names") or entry.settings.get("single_experts")
    for rank in range(entry.world):
        for name, value in _read(sharded, rank).items():
            wanted = whole.get(name.replace("module.", ""))
            is_same_name = not renamed or not name.partition(".")[2].startswith("blocks")
            if wanted is None or wanted.shape != value.shape or name == "loss" or not is_same_name:
                continue
            distance = float(np.linalg.norm(value - wanted) / (np.linalg.norm(wanted) or 1.0))
            if not distance <= limit:
                yield f"{name} of rank {rank} is {distance:.2g} away"


def _read(folder: Path, rank: int) -> dict[str, Any]:
    file = folder / RESULT.format(rank=rank)
    if not file.is_file():
        with np.load(file.with_suffix(".npz")) as found:
            return {name: found[name].astype(np.float64) for name in found.files}
    import torch

    return {name: value.double().numpy() for name, value in torch.load(file).items()}
