"""Dumps of single kernels, which the framework writes itself (level L2): recognised, not read."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

#: `{OpType}.{OpName}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.npy`, as MindSpore documents it.
_FILE = re.compile(r"[^.]+\..+\.\d+\.\d+\.\d+\.(input|output)\..+\.npy")
_STATISTICS = "statistic.csv"
_MOST_NAMES = 100_000

#: What to say of one, after its path.
NOT_READ = (
    "holds a dump of kernels (level L2 or static graph), which nothing here reads or compares; dump at level L0, L1 or "
    "mix, which give a dump.json"
)


def is_of_kernel_dump(name: str) -> bool:
    """Return whether a file of this name belongs to a kernel dump."""
    return name == _STATISTICS or _FILE.fullmatch(name) is not None


def holds_kernel_dump(folder: Path) -> bool:
    """Whether `folder`, or one below it, holds files of a kernel dump; looks at 100,000 names at most."""
    names = (name for _, _, names in os.walk(folder) for name in names)
    return any(is_of_kernel_dump(name) for name in islice(names, _MOST_NAMES))
