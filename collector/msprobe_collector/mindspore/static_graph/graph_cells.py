"""Which Cells are tapped inside graphs, and how the taps go in and out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msprobe_collector.mindspore.hooking.cells import named_cells
from msprobe_collector.mindspore.mindspore_internals import graph_executors
from msprobe_collector.recording.faults import FaultLog
from msprobe_collector.recording.method_swaps import MethodSwaps

logger = logging.getLogger("msprobe_collector")

#: Makes a tapped construct for (cell, label).
TapMaker = Callable[[Any, str], Callable[..., Any]]


class _Tap:
    """The tapped construct of a Cell, made when it is first put in."""

    def __init__(self, cell: Any, label: str, make: TapMaker) -> None:
        # Past Cell.__setattr__, which looks for parameters and other Cells.
        self._attributes: dict[str, Any] = vars(cell)
        self._make = functools.cache(lambda: make(cell, label))
        self._before: dict[str, Any] = {}

    def put_in(self) -> None:
        """Replace the construct; one of the Cell's own, not its class's, is kept aside."""
        tapped = self._make()
        self._before = {"construct": self._attributes["construct"]} if "construct" in self._attributes else {}
        self._attributes["construct"] = tapped

    def take_out(self) -> None:
        """Put the original back."""
        self._attributes.pop("construct", None)
        self._attributes.update(self._before)


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
        self._tapped: list[_Tap] = []
        #: Cells that run in a graph only when a jit function calls them.
        self._callable: list[_Tap] = []
        self._known: set[int] = set()
        self._compilers = MethodSwaps()
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
            is_inside = is_graph_mode or _is_below_jit(models, path)
            if not is_inside and is_jitted(cell):
                # Seen from outside, where its backward is.
                jitted.add(path)
                continue
            if is_inside:
                self.always_inside.add(label)
            if id(cell) not in self._known:
                self._known.add(id(cell))
                self._add(_Tap(cell, label, self._make_tap), stays=is_inside)
            paths[path] = label
        if paths:
            self._guard_compiler()
        return {label: _around(path, paths, jitted) for path, label in paths.items()}

    def take_out(self) -> None:
        """Put every original construct back."""
        self._callable.clear()
        self.always_inside.clear()
        while self._tapped:
            self._tapped.pop().take_out()
        self._compilers.take_out()

    def _add(self, tap: _Tap, *, stays: bool) -> None:
        if stays:
            tap.put_in()
            self._tapped.append(tap)
            self.may_have_run = True
        else:
            self._callable.append(tap)

    @contextmanager
    def _all_tapped(self) -> Iterator[None]:
        """Taps on the Cells that a jit function may call."""
        put_in: list[_Tap] = []
        try:
            for tap in self._callable:
                tap.put_in()
                put_in.append(tap)
            self.may_have_run = self.may_have_run or bool(put_in)
            yield
        finally:
            for tap in put_in:
                tap.take_out()

    def _guard_compiler(self) -> None:
        if not self._compilers.are_in:
            api = graph_executors()
            for owner in (api._JitExecutor, api._CellGraphExecutor):
                self._compilers.put(owner, "compile", self._guarded)

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
