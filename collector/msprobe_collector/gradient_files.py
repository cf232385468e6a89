"""The files of one rank: a summary per step and, beside it, the signs of each gradient.

What is said about one gradient, computed in float64 over chunks of it.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msprobe_collector.recording.folders import FolderLocks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SUMMARY = re.compile(r"grad_summary_\d+\.csv", re.ASCII)
_STEP = re.compile(r"step\d+", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-]", re.ASCII)
_MAX_NAME_BYTES = 255
_PARTIAL = ".partial"


class RankFolder:
    """The folder of a rank, emptied of an earlier run's files. It has one writer at a time, until `release`.

    A file appears under its name only when it is complete, and the summary of a step after the signs of all its
    gradients: a step that has a summary is whole, wherever the process was killed.
    """

    def __init__(self, path: Path) -> None:
        """Make the folder at `path`.

        Raises:
            FolderInUseError: another process, or another monitor of this one, writes there.
            OSError: it cannot be made or emptied.
        """
        self.path = path
        self._locks = FolderLocks()
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.take()
        self._remove_earlier_run()

    def take(self) -> None:
        """Lock the folder, if it is not locked already. Raises FolderInUseError."""
        self._locks.take(self.path)

    def release(self) -> None:
        """Let others write to the folder."""
        self._locks.release()

    def write_signs(self, step: int, parameter: str, is_positive: npt.NDArray[np.bool_]) -> None:
        """Write `step{step}/{parameter}.npy`.

        Raises:
            ValueError: the parameter's name cannot be a file name.
            OSError: the file cannot be written.
        """
        import numpy as np

        name = f"{parameter}.npy"
        if _UNSAFE.search(name) or len(name) + len(_PARTIAL) > _MAX_NAME_BYTES:
            raise ValueError(f"{parameter!r} cannot name a file: use up to 240 letters, digits, '_', '.' and '-'")
        folder = self.path / f"step{step}"
        folder.mkdir(mode=0o750, exist_ok=True)
        _write_whole(folder / name, lambda file: np.save(file, is_positive, allow_pickle=False))

    def write_summary(self, step: int, rows: Iterable[list[str]]) -> None:
        """Write `grad_summary_{step}.csv`, header first. Raises OSError."""

        def write(file: IO[Any]) -> None:
            csv.writer(file, lineterminator="\n").writerows(rows)

        _write_whole(self.path / f"grad_summary_{step}.csv", write, mode="w")

    def _remove_earlier_run(self) -> None:
        """Remove what this class writes and nothing else: a step of an earlier run would be compared as one of this."""
        for entry in self.path.iterdir():
            if entry.is_symlink():
                continue
            if _SUMMARY.fullmatch(entry.name.removesuffix(_PARTIAL)) and entry.is_file():
                entry.unlink()
            elif _STEP.fullmatch(entry.name) and entry.is_dir():
                _remove_signs(entry)


def _remove_signs(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name.endswith((".npy", f".npy{_PARTIAL}")):
            file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _write_whole(path: Path, write: Callable[[IO[Any]], None], *, mode: str = "wb") -> None:
    """Have `write` fill a file that gets its name when it is complete, readable by owner and group."""
    partial = path.with_name(path.name + _PARTIAL)
    newline = None if "b" in mode else ""
    with open(partial, mode, newline=newline, opener=lambda path, flags: os.open(path, flags, 0o640)) as file:
        write(file)
    os.replace(partial, path)


#: Elements that are held in float64 at a time (512 KiB: they stay in the cache), however large the gradient is.
_CHUNK_ELEMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class GradientFigures:
    """Figures of one gradient.

    Attributes:
        size: number of elements.
        max, min: NaN if any element is, and of an empty gradient.
        norm: L2; NaN if any element is, 0 of an empty gradient.
        nans, infs: numbers of elements.
        zeros: number of elements that are 0.
        interval_counts: elements in (-inf, b0], (b0, b1], ..., (bn, inf); a NaN is in none.
    """

    size: int
    max: float
    min: float
    norm: float
    nans: int
    infs: int
    zeros: int
    interval_counts: tuple[int, ...]


def measure_gradient(values: npt.NDArray[np.floating[Any]], bounds: Sequence[float] = ()) -> GradientFigures:
    """Figures of a gradient of any float dtype and shape. Without `bounds`, no intervals are counted."""
    import numpy as np

    counts_up_to = [0] * len(bounds)
    highest, lowest, square_sum = (-math.inf, math.inf, 0.0) if values.size else (math.nan, math.nan, 0.0)
    nans = infs = zeros = 0
    for chunk in _chunks(values):
        # np.maximum, unlike max(), lets a NaN win.
        highest = float(np.maximum(highest, chunk.max()))
        lowest = float(np.minimum(lowest, chunk.min()))
        squares = float(np.dot(chunk, chunk))
        square_sum += squares
        if not math.isfinite(squares):
            nans += int(np.count_nonzero(np.isnan(chunk)))
            infs += int(np.count_nonzero(np.isinf(chunk)))
        zeros += int(np.count_nonzero(chunk == 0))
        # For the few bounds that there are, comparing is ten times faster than searching; a NaN is up to none.
        for place, bound in enumerate(bounds):
            counts_up_to[place] += int(np.count_nonzero(chunk <= bound))
    edges = (0, *counts_up_to, values.size - nans) if bounds else ()
    return GradientFigures(
        size=values.size,
        max=highest,
        min=lowest,
        norm=math.sqrt(square_sum),
        nans=nans,
        infs=infs,
        zeros=zeros,
        interval_counts=tuple(upper - lower for lower, upper in pairwise(edges)),
    )


def md5_of_gradient(values: npt.NDArray[np.floating[Any]]) -> str:
    """Hexadecimal MD5 of the gradient's C-order bytes in float32."""
    import numpy as np

    return hashlib.md5(np.ascontiguousarray(values, dtype=np.float32).data, usedforsecurity=False).hexdigest()


def _chunks(values: npt.NDArray[np.floating[Any]]) -> Iterator[npt.NDArray[np.float64]]:
    import numpy as np

    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS].astype(np.float64)
