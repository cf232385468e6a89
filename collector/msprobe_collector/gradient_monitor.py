"""Gradient monitoring: statistics and signs of every parameter's gradient at each optimizer step, in small files.

- The files of one rank: a summary per step and, beside it, the signs of each gradient.
- Figures of one gradient, and columns and cells of grad_summary_{step}.csv.
- Watching an optimizer's gradients.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msprobe_collector import logger
from msprobe_collector.configuration import Configuration, GradientMonitorSettings, Refusal
from msprobe_collector.framework import Framework
from msprobe_collector.recording.folders import FolderInUseError, FolderLocks
from msprobe_collector.recording.guard import Activity, FaultLog, Guard

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
    """Figures of one gradient, computed in float64 over chunks of it.

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


def columns(settings: GradientMonitorSettings) -> list[str]:
    """Header of the file. `nan` and `inf` stand last, where readers of the older tool's columns pass over them."""
    middle = {"L0": ["MD5"], "L1": [], "L2": [*interval_labels(settings.bounds), "=0"]}[settings.level]
    return ["param_name", *middle, "max", "min", "norm", "shape", "nan", "inf"]


def interval_labels(bounds: Sequence[float]) -> list[str]:
    """`(-inf, -1]`, `(-1, 0]`, ..., `(1, inf)`."""
    inner = [f"({lower}, {upper}]" for lower, upper in pairwise(bounds)]
    return [f"(-inf, {bounds[0]}]", *inner, f"({bounds[-1]}, inf)"]


def row(name: str, values: npt.NDArray[np.floating[Any]], settings: GradientMonitorSettings) -> list[str]:
    """Cells for the gradient of the parameter `name`: floats so that they read back equal, shares of all elements."""
    figures = measure_gradient(values, settings.bounds if settings.level == "L2" else ())
    middle: list[str] = []
    if settings.level == "L0":
        middle = [md5_of_gradient(values)]
    elif settings.level == "L2":
        middle = [repr(count / max(1, figures.size)) for count in (*figures.interval_counts, figures.zeros)]
    numbers = map(repr, (figures.max, figures.min, figures.norm))
    return [name, *middle, *numbers, str(list(values.shape)), str(figures.nans), str(figures.infs)]


class AlreadyMonitored(Refusal, RuntimeError):
    """`monitor` was called while an optimizer is watched."""


class GradientMonitor:
    """Writes statistics and signs of all gradients at each call of an optimizer (task `grad_probe`).

    Files, under `{dump_path}/rank{R}`, where R is the communication rank, or 0, or under `{dump_path}/proc{pid}` while
    another process or another monitor writes there:

    - `grad_summary_{step}.csv`: a row per parameter. Level L0 has an MD5 of the gradient in float32, level L2 the share
      of its elements in each interval of `bounds`; all have max, min, L2 norm, shape and the counts of NaN and Inf.
    - `step{step}/{parameter}.npy` (levels L1 and L2): bool, of the gradient's shape, true where it is above 0.

    Steps count calls of the optimizer from 0: an update that a loss scaler skips has no number. Gradients are seen as
    the optimizer gets them: reduced over ranks and clipped, where the script does that before the call, and without the
    weight decay, loss scale or centralisation that the optimizer applies inside.

    Seen are calls from Python, as in PyNative mode; an optimizer inside a graph shows nothing, which a warning says.
    A fault while watching never reaches training: it is logged once per kind.
    """

    def __init__(self, configuration: Configuration, framework: Framework) -> None:
        """Watch optimizers of `framework` as `configuration` says.

        Raises:
            ValueError: its task is not `grad_probe`.
        """
        if configuration.task != "grad_probe":
            raise ValueError(f"gradients are monitored by task 'grad_probe', not {configuration.task!r}")
        self._configuration = configuration
        self._settings = configuration.gradients
        self._folder: RankFolder | None = None
        self._framework = framework
        self._optimizers = framework.optimizers()
        self._stop_watching: Callable[[], None] | None = None
        self._names: tuple[str, ...] = ()
        self._step = 0
        self._logged: set[str] = set()
        self._guard = Guard(Activity(), FaultLog())

    def monitor(self, optimizer: Any) -> None:
        """Watch `optimizer` until `stop` or past the last step of the configuration.

        Raises:
            NoOptimizer: it is not an optimizer of the framework; a TypeError.
            AlreadyMonitored: one is being watched already; a RuntimeError.
            OSError: the folder of the files cannot be made, or is in use.
        """
        self._guard.outside = self._framework.outside
        names = self._optimizers.names(optimizer)
        if self._stop_watching is not None:
            raise AlreadyMonitored("monitor: an optimizer is being watched; call stop() before watching another")
        if warning := self._optimizers.warning():
            logger.warning("%s", warning)
        if not self._open():
            return
        self._names = names
        self._warn_of_absent()
        self._stop_watching = self._optimizers.watch(optimizer, self._seen)
        atexit.register(self.stop)

    def observe(self, gradients: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Write one step's gradients, Tensors by parameter name, where no optimizer is there to be watched."""
        self._guard.enter("grad_probe", self._observe, gradients)

    def _observe(self, gradients: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        step, self._step = self._step, self._step + 1
        if self._configuration.steps.admits(step):
            try:
                if self._open():
                    self._write(step, gradients.items() if isinstance(gradients, Mapping) else gradients)
            except Exception as error:  # training continues whatever happens here
                self._log(step, error)

    def stop(self) -> None:
        """Watch no more. All files are complete already, and others may write to the folder."""
        self._guard.enter("grad_probe", self._stop)

    def _stop(self) -> None:
        if self._folder is not None:
            self._folder.release()
        if self._stop_watching is None:
            return
        self._stop_watching()
        self._stop_watching = None
        atexit.unregister(self.stop)
        if self._step == 0:
            logger.warning(
                "no gradients were seen: the optimizer was not called, or only in a graph (GRAPH_MODE, mindspore.jit)"
            )

    def _open(self) -> bool:
        """Whether this rank is watched; its folder is ready then. Raises OSError."""
        if self._folder is not None:
            self._folder.take()
        else:
            rank = self._framework.rank() or 0
            if not self._configuration.ranks.admits(rank):
                logger.info("rank %d is not among the ranks %s: no gradients", rank, self._configuration.ranks)
                return False
            self._folder = self._free_folder(self._configuration.dump_path / f"rank{rank}")
        return True

    def _free_folder(self, path: Path) -> RankFolder:
        """`path`, or the folder of the process beside it."""
        try:
            return RankFolder(path)
        except FolderInUseError:
            beside = path.with_name(f"proc{os.getpid()}")
            logger.warning(
                "%s is being written by another process or monitor; the gradients of this one are written to %s: "
                "give each its own rank_id or dump_path",
                path,
                beside.name,
            )
            return RankFolder(beside)

    def _seen(self, gradients: Callable[[], Any]) -> None:
        self._guard.enter("grad_probe", self._before_update, gradients)

    def _before_update(self, fetch: Callable[[], Any]) -> None:
        gradients = fetch()
        is_sequence = isinstance(gradients, tuple | list)
        if is_sequence and len(gradients) == len(self._names):
            self._observe(zip(self._names, gradients))
        else:
            count = len(gradients) if is_sequence else type(gradients).__name__
            error = ValueError(f"the optimizer has {len(self._names)} parameters and was given {count} gradients")
            self._log(self._step, error)
            self._step += 1
        last = self._configuration.steps.last
        if last is not None and self._step > last:
            self._stop()

    def _write(self, step: int, gradients: Iterable[tuple[str, Any]]) -> None:
        assert self._folder is not None
        rows = [columns(self._settings)]
        for name, gradient in gradients:
            if self._settings.parameters and name not in self._settings.parameters:
                continue
            try:
                values = self._optimizers.values(gradient)
                rows.append(row(name, values, self._settings))
                if self._settings.level != "L0":
                    self._folder.write_signs(step, name, values > 0)
            except (TypeError, ValueError) as error:
                self._log(step, type(error)(f"the gradient of {name!r} is left out: {error}"))
        self._folder.write_summary(step, rows)

    def _warn_of_absent(self) -> None:
        absent = [name for name in self._settings.parameters if name not in self._names]
        if absent:
            logger.warning(
                "grad_probe.param_list: the optimizer has no parameter %s; it has %s",
                ", ".join(absent),
                ", ".join(self._names),
            )

    def _log(self, step: int, error: Exception) -> None:
        # the text of an OSError names the file, another one at each step
        kind = f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error("step %d: %s", step, error, exc_info=error if error.__traceback__ else None)
