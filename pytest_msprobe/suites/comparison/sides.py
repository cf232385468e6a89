"""One of two dumps that are compared, and its tensors, each read once.

Which dump is compared with which: steps and ranks are paired by their numbers.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import Dump, DumpError, TensorFolder, TensorValue
from msprobe_collector.dump_format.dump import RANK, STEP, Slot, natural, number_in, own_frames
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.manifest import CompiledCode, gaps_beside
from msprobe_collector.dump_format.records import Operation, is_cell_record, is_compiled_record
from msprobe_collector.dump_format.unread_files import NOT_READ, holds_kernel_dump
from msprobe_collector.dump_format.values import FieldPath

if TYPE_CHECKING:
    import numpy as np

_COMPARABLE = ("tensor", "statistics")


class SharedTensors(TensorFolder):
    """Tensors that all who need them read once: verdicts, accounts and pictures of one API call.

    Attributes:
        keeps: whether what is loaded stays in memory until `release`.
    """

    def __init__(self, files: TensorFolder) -> None:
        super().__init__(files.folder)
        self.keeps = False
        self._files = files
        self._loaded: dict[object, np.ndarray[Any, Any]] = {}

    def load(self, value: TensorValue, place: FieldPath) -> np.ndarray[Any, Any]:
        """The values of `value`; see `TensorFolder.load`.

        Raises:
            DumpError: they cannot be read.
        """
        key = value.data_name, value.dtype, value.shape
        tensor = self._loaded.get(key)
        if tensor is None:
            tensor = self._files.load(value, place)
            if self.keeps:
                self._loaded[key] = tensor
        return tensor

    def release(self) -> None:
        """Let go of all tensors, and keep none any more."""
        self.keeps = False
        self._loaded.clear()


class ComparedDump(Dump):
    """A dump whose records, those of Cells included, can be read as lists of values.

    Attributes:
        operations: its records in the order of the file, which is that of execution.
    """

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file; `data_dirs` as for `Dump`.

        Raises:
            DumpError: it cannot be read, or is not a dump of values.
        """
        super().__init__(path, data_dirs)
        if self.task not in _COMPARABLE:
            raise DumpError(
                f"a dump of task {self.task!r} holds no values to compare; dump with statistics or tensor",
                file=str(path),
                field="task",
            )
        self.operations = [Operation.of(name, index) for index, name in enumerate(self._records)]

    @cached_property
    def tensors(self) -> SharedTensors:
        """The tensor files, see `Dump`; those of one API call may stay loaded."""
        return SharedTensors(super().tensors)

    @cached_property
    def holds_md5(self) -> bool:
        """Whether tensors carry a checksum instead of statistics."""
        return any(b'"md5"' in memoryview(raw).tobytes() for raw in self._records.values())

    def other_floats(self, other: ComparedDump) -> float:
        """Return the share of the tensors of floats that have another dtype than those of the `other` dump."""
        mine, theirs = self._floats, other._floats
        return (mine - theirs).total() / max(mine.total(), 1)

    @cached_property
    def _floats(self) -> Counter[bytes]:
        """Tensors of floats by dtype."""
        return Counter(chain.from_iterable(_FLOAT.findall(memoryview(raw)) for raw in self._records.values()))

    @cached_property
    def sketches_problem(self) -> str:
        """Why the file of the sketches cannot be used, one line; "" where it can."""
        try:
            self.sketches  # noqa: B018  # reads the header
        except DumpError as error:
            return str(error)
        return ""

    @cached_property
    def has_calls(self) -> bool:
        """Whether there are records of API calls, not of layers alone."""
        return not all(map(attrgetter("holds_calls"), self.operations))

    @cached_property
    def layers_of_calls(self) -> frozenset[str]:
        """Calls of Cells or Modules in which, forward or backward, an API was called that the dump holds."""
        layers: set[str | None] = {None}
        for operation in self.operations:
            parent = None if operation.is_cell else self.parents.get(operation.record)
            while parent not in layers:
                layers.add(parent)
                parent = self.parents.get(parent) if parent is not None else None
        return frozenset(Operation.of(record, 0).call for record in layers if record is not None)

    def compiled_in(self, other: ComparedDump, operation: Operation) -> CompiledCode | None:
        """Return the compiled code of this run or the `other` one that a call of this one is a part of; None without.

        Its gradients are recorded in both, and may come in another order.
        """
        compiled = (*other.compiled, *self.compiled)
        if not compiled or is_compiled_record(operation.record):
            return None
        frames = self.stacks.frames(f"{operation.call}.forward") or self.stacks.frames(operation.record)
        # Of PyTorch's own functions the names say nothing: each layer has a forward.
        names = {frame: frame.function for frame in own_frames(frames)}
        places = [(frame.file, frame.line, names.get(frame, "")) for frame in frames]
        cells = filter(is_cell_record, (*self.ancestors(operation.record), operation.record))
        layers = {Operation.of(cell, 0).name.partition(".")[2].rpartition(".")[0] for cell in cells}
        api = operation.name.rpartition(".")[2]
        return next((code for code in compiled if code.holds(api, places, layers)), None)

    def leaves(self, record: str) -> list[Leaf]:
        """The values of `record`.

        Raises:
            DumpError: the record cannot be decoded.
        """
        return flatten(self.record(record))

    def readable_leaves(self, record: str) -> list[Leaf]:
        """Return the values of `record`; none where the dump lacks it, or it cannot be decoded."""
        with suppress(DumpError):
            return self.leaves(record) if record in self else []
        return []


_FLOAT = re.compile(rb'"dtype": *"[\w.]*?([bB]?[fF]loat\w*)"')
_PROCESS = re.compile(r"proc(\d+)")
FILE_NAMES = ("dump.json", "debug.json")


@dataclass(frozen=True, slots=True)
class DumpPairs:
    """The pairs of a run.

    Attributes:
        golden: golden dump by target dump; None for one that has none.
        golden_only: golden dumps that no target dump asks for.
        problems: one line for each target dump without partner, by its path.
    """

    golden: dict[Path, Path | None]
    golden_only: tuple[Path, ...]
    problems: dict[Path, str]

    @property
    def matched(self) -> list[tuple[Path, Path]]:
        """Target and golden dump of each pair."""
        return [(target, golden) for target, golden in self.golden.items() if golden is not None]

    def lone(self) -> list[str]:
        """A line for each dump, of either side, that is not compared."""
        golden = [f"{path}: no target dump for this golden dump" for path in self.golden_only]
        return [*self.problems.values(), *golden]


def find_files(root: Path) -> list[Path]:
    """The dump at `root`, or those in the folders below, in natural order. [] when there are none."""
    if root.is_file():
        return [root]
    for name in FILE_NAMES:
        if files := [Path(folder) / name for folder, names in _folders(root) if name in names]:
            return sorted(files, key=natural)
    return []


def why_no_dump(root: Path) -> str:
    """Return why a comparison reads nothing at `root`."""
    return NOT_READ if holds_kernel_dump(root) else "holds no dump.json; give a dump, step or rank folder"


def why_not_exact(root: Path) -> str:
    """Why the dumps at `root` are no exact run; "" where they may be. Raises OSError."""
    paths = find_files(root)
    if not paths:
        return "holds no dump.json; give a dump, step or rank folder"
    ended_in = gaps_beside(paths[0])[1]
    if ended_in is not None:
        return f"its step is not whole, since the script ended in {ended_in.kind}: {ended_in.message}"
    if b"float64" in paths[0].read_bytes().lower():
        return ""
    return "computes nothing in float64; make it by python -m msprobe_collector collect --dtype=float64 SCRIPT"


def pair_dumps(targets: Sequence[Path], golden_root: Path) -> DumpPairs:
    """The golden dump of every target dump.

    A single dump on each side is a pair whatever their numbers are. Of several, those are paired whose steps and ranks
    agree and are the only ones that do; a number that one side does not have agrees with any.
    """
    goldens = find_files(golden_root)
    if len(targets) == len(goldens) == 1:
        return DumpPairs({targets[0]: goldens[0]}, (), {})
    golden: dict[Path, Path | None] = {}
    problems: dict[Path, str] = {}
    for target in targets:
        fitting = [path for path in goldens if Slot.of(target).agrees(Slot.of(path))]
        rivals = [path for path in targets if fitting and Slot.of(path).agrees(Slot.of(fitting[0]))]
        golden[target] = fitting[0] if len(fitting) == len(rivals) == 1 else None
        if not fitting:
            problems[target] = f"{golden_root} has no golden dump for {Slot.of(target)}"
        elif golden[target] is None:
            problems[target] = (
                f"{golden_root} has {len(fitting)} dumps for {Slot.of(target)}, which {len(rivals)} target dumps "
                f"would fit; name the folders step<N> and rank<N>, or compare them one by one"
            )
    taken = set(golden.values())
    return DumpPairs(golden, tuple(path for path in goldens if path not in taken), problems)


def table_stem(target: Path, *, several_steps: bool = False) -> str:
    """How tables of the target dump at `target` are called: `compare_result_rank0`, `debug_compare_result`, ..."""
    stem = "debug_compare_result" if target.name == FILE_NAMES[1] else "compare_result"
    folder = target.parent.name
    if several_steps and (step := number_in(target, STEP)) is not None:
        stem = f"{stem}_step{step}"
    return f"{stem}_{folder}" if RANK.fullmatch(folder) or _PROCESS.fullmatch(folder) else stem


def _folders(root: Path) -> Iterator[tuple[str, list[str]]]:
    for folder, folders, names in os.walk(root):
        # A tensor folder can hold 100,000 files; it never holds a dump.
        folders[:] = [name for name in folders if name != "dump_tensor_data"]
        yield folder, names
