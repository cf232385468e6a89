"""Gradient monitoring: statistics and signs of every parameter's gradient at each optimizer step, in small files.

- Watching an optimizer's gradients.
- Columns and cells of grad_summary_{step}.csv.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.configuration.configuration import Configuration, GradientMonitorSettings, Refusal
from msprobe_collector.framework import Framework
from msprobe_collector.gradient_files import RankFolder, md5_of_gradient, measure_gradient
from msprobe_collector.log import logger
from msprobe_collector.recording.folders import FolderInUseError
from msprobe_collector.recording.guard import Activity, FaultLog, Guard

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
