"""Small dumps in which NaN and Inf begin, spread and vanish in known places."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dump_builder import DumpBuilder

F16, F32 = np.float16, np.float32
INF, NAN = np.inf, np.nan
X = np.array([1.0, 2.0, 4.0], F32)


def edited(path: Path, record: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """The dump at `path` after `change(record)`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["data"][record])
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def chain(folder: Path, *, real: bool = True) -> Path:
    """A step that computes exp of large float16 numbers, passes the Inf on, and cuts it off."""
    builder = DumpBuilder(folder, real=real)
    large = np.array([1.0, 12.0, 3.0], F16)
    exploded = np.array([np.exp(1.0), INF, np.exp(3.0)], F16)
    builder.call("Mint.mul.0", [np.array([0.5, 6.0, 1.5], F16), 2.0], [large])
    builder.call("Mint.exp.0", [large], [exploded])
    builder.call("Mint.add.0", [exploded, exploded], [exploded + exploded])
    builder.call("Mint.clamp.0", [exploded], [np.minimum(exploded, F16(100))], keywords={"max": 100.0})
    return builder.write()


def parallel(folder: Path) -> list[Path]:
    """Two ranks of a step: rank 1 takes the logarithm of 0, and an all-reduce brings the result to rank 0."""
    paths = []
    for rank in (0, 1):
        builder = DumpBuilder(folder / "step0" / f"rank{rank}")
        zero = np.array([1.0, 0.0 if rank else 1.0, 4.0], F32)
        with np.errstate(all="ignore"):
            logarithm = np.log(zero)
        summed = np.array([0.0, -INF, np.log(16.0)], F32)
        builder.call("Mint.log.0", [zero], [logarithm])
        builder.call("MintDistributed.all_reduce.0", [logarithm], [summed])
        builder.call("Mint.add.0", [summed, X], [summed + X])
        paths.append(builder.write())
    return paths
