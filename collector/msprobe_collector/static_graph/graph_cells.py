"""Which Cells are tapped inside graphs, and how the taps go in and out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msprobe_collector.hooking.cells import named_cells
from msprobe_collector.mindspore_internals import graph_executors
from msprobe_collector.recording.faults import FaultLog

logger = logging.getLogger("msprobe_collector")

#: Makes a tapped construct for (cell, label).
TapMaker = Callable[[Any, str], Callable[..., Any]]


@dataclass(slots=True)
class _Tap:
    """A Cell, and its tapped construct once a graph was compiled."""

    cell: Any
    label: str
    construct: Callable[..., Any] | None = None


class GraphCells:
    """Puts tapped constructs on the Cells that run inside graphs.

    A graph keeps the code with which it was compiled, so taps go in at the first start() and stay until the end; they
    pass on nothing while nothing is collected. In PyNative mode any Cell may be called by a jit function: there taps
    are in place only while the compiler reads. When the compiler refuses a graph with taps, they come out of every
    Cell, and it is compiled once more as if they had never been.

    Attributes:
        may_have_run: whether a graph may have been compiled with taps.
        always_inside: labels of Cells that run in no other way than inside a graph.
    """

    def __init__(self, make_tap: TapMaker, faults: FaultLog) -> None:
        self._make_tap = make_tap
        self._faults = faults
        self._tapped: list[tuple[Any, dict[str, Any]]] = []
        #: Cells that run in a graph only when a jit function calls them.
        self._callable: list[_Tap] = []
        self._known: set[int] = set()
        self._swaps: list[tuple[Any, Any]] = []
        self.may_have_run = False
        self.always_inside: set[str] = set()

    def put_in(self, models: Sequence[Any], *, is_graph_mode: bool) -> dict[str, str]:
        """Tap the Cells of `models`, those that are not tapped yet.

        Args:
            models: the watched models.
            is_graph_mode: whether all Cells run inside a graph, or only those below a Cell whose construct is jitted
                and those that a jit function calls.

        Returns:
            Label of each Cell of `models` that can be tapped, with that of the nearest one around it in the same
            graph, or "".
        """
        paths, jitted = {}, set()
        for path, cell in named_cells(models):
            if not path or not _can_be_tapped(cell):
                continue
            label = f"Cell.{path}.{type(cell).__name__}"
            if is_graph_mode or _is_below_jit(models, path):
                self._tap(cell, label)
                self.always_inside.add(label)
            elif is_jitted(cell):
                # Seen from outside, where its backward is.
                jitted.add(path)
                continue
            elif id(cell) not in self._known:
                self._known.add(id(cell))
                self._callable.append(_Tap(cell, label))
            paths[path] = label
        if paths:
            self._guard_compiler()
        return {label: _around(path, paths, jitted) for path, label in paths.items()}

    def take_out(self) -> None:
        """Put every original construct back."""
        self._callable.clear()
        self.always_inside.clear()
        while self._tapped:
            cell, attributes = self._tapped.pop()
            cell.__dict__.pop("construct", None)
            cell.__dict__.update(attributes)
        while self._swaps:
            owner, original = self._swaps.pop()
            owner.compile = original

    def _tap(self, cell: Any, label: str) -> None:
        if id(cell) in self._known:
            return
        self._known.add(id(cell))
        tapped = self._make_tap(cell, label)
        self._tapped.append((cell, {"construct": cell.__dict__["construct"]} if "construct" in cell.__dict__ else {}))
        # Past Cell.__setattr__, which looks for parameters and other Cells.
        cell.__dict__["construct"] = tapped
        self.may_have_run = True

    @contextmanager
    def _all_tapped(self) -> Iterator[None]:
        """Taps on the Cells that a jit function may call."""
        made: list[tuple[Any, dict[str, Any]]] = []
        try:
            for tap in self._callable:
                if tap.construct is None:
                    tap.construct = self._make_tap(tap.cell, tap.label)
                attributes = tap.cell.__dict__
                made.append((attributes, {"construct": attributes["construct"]} if "construct" in attributes else {}))
                attributes["construct"] = tap.construct
            self.may_have_run = self.may_have_run or bool(made)
            yield
        finally:
            for attributes, before in made:
                attributes.pop("construct", None)
                attributes.update(before)

    def _guard_compiler(self) -> None:
        if self._swaps:
            return
        api = graph_executors()
        for owner in (api._JitExecutor, api._CellGraphExecutor):
            self._swaps.append((owner, owner.compile))
            owner.compile = self._guarded(owner.compile)

    def _guarded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile_with_taps(executor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                with self._all_tapped():
                    return original(executor, *args, **kwargs)
            except Exception as error:
                if not self._tapped and not self._callable:
                    raise
                self.take_out()
                self._faults.note("compiling a graph whose Cells are collected", error)
                logger.warning("the graph is compiled without taps; nothing inside graphs is collected from now on")
                return original(executor, *args, **kwargs)

        return compile_with_taps


def _can_be_tapped(cell: Any) -> bool:
    from mindspore import nn

    # Its own backward or its in-place updates would see other tensors; containers have no code.
    if isinstance(cell, nn.Optimizer) or hasattr(cell, "bprop"):
        return False
    name = type(cell).__name__
    has_code = type(cell).construct is not nn.Cell.construct and not isinstance(cell, (nn.CellList, nn.CellDict))
    return has_code and name != "DistributedGradReducer" and not name.startswith("_")


def _is_below_jit(models: Sequence[Any], path: str) -> bool:
    return any(is_jitted(cell) for cell in _cells_around(models, path))


def _cells_around(models: Sequence[Any], path: str) -> Iterator[Any]:
    cell, names = (models[0], path.split(".")) if len(models) == 1 else (None, path.split("."))
    if cell is None:
        cell = models[int(names.pop(0))]
    for name in names:
        yield cell
        cell = cell._cells[name]


def is_jitted(cell: Any) -> bool:
    """Whether the construct of `cell` is decorated by `mindspore.jit`."""
    return hasattr(cell.construct, "__wrapped_by_jit__")


def _around(path: str, paths: dict[str, str], jitted: set[str]) -> str:
    front = path.rpartition(".")[0]
    while front and front not in jitted:
        if front in paths:
            return paths[front]
        front = front.rpartition(".")[0]
    return ""
