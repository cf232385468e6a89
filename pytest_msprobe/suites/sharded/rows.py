"""Parameters that the ranks hold in a row, each a part of it, as ZeRO by hand does: where each of them stands.

What the row holds before the step tells in which order the parameters of the logical run are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.copies import named, parameter_of
from pytest_msprobe.suites.sharded.judgement import all_loaded, form_of, leaves_of, loaded
from pytest_msprobe.suites.sharded.placements import distance, norm_of
from pytest_msprobe.suites.sharded.ranks import RankDump

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

_BEFORE = "input.parameters."


class Rows:
    """The rows of one step of the ranks' optimizers."""

    def __init__(
        self, leaves: Mapping[str, Leaf], logical: RankDump, held: Sequence[tuple[RankDump, Mapping[str, Leaf]]]
    ) -> None:
        """Rows on the ranks `held`, for the values `leaves` of the logical run. Raises DumpError."""
        self._leaves, self._held = leaves, held
        self._last: tuple[str, Array | None] = "", None
        names = [parameter_of(path) for path in leaves if path.startswith(_BEFORE)]
        self._names: list[str] = []
        row = self._row(_BEFORE) if names else None
        if row is None or row.size < sum(map(self._size, names)):
            return
        values = [loaded(leaves[_BEFORE + name], logical).ravel() for name in names]
        for order in (-1, 1):
            joined = np.concatenate(values[::order])
            if distance(row[: joined.size], joined, norm_of(joined)) <= Relative.ROW:
                self._names = names[::order]

    def value(self, path: str) -> Array | None:
        """What the ranks have of the value at `path`; None where it is in no row. Raises DumpError."""
        leaf, name = self._leaves[path], parameter_of(path)
        if name not in self._names or (row := self._row(named(path, lambda _: ""))) is None:
            return None
        start = sum(map(self._size, self._names[: self._names.index(name)]))
        part = row[start : start + self._size(name)]
        return part.reshape(leaf.shape) if part.size == math.prod(leaf.shape) else None

    def _size(self, name: str) -> int:
        """Number of elements of a parameter."""
        return math.prod(self._leaves[_BEFORE + name].shape)

    def _row(self, kind: str) -> Array | None:
        """The row of all values of a kind, the parts in the order of the ranks; None for none."""
        if self._last[0] != kind:
            self._last = kind, self._joined(kind)
        return self._last[1]

    def _joined(self, kind: str) -> Array | None:
        parts = []
        for dump, tensors in self._held:
            others = tensors.keys() - self._leaves.keys()
            leaves = [tensors[path] for path in others if named(path, lambda _: "") == kind]
            if len(leaves) != 1 or len(leaves[0].shape) != 1 or form_of(leaves) != "tensor":
                return None
            parts.append((dump, leaves[0]))
        if not parts or sum(math.prod(leaf.shape) for leaf in leaves_of(parts)) > 1 << 27:
            return None
        row: Array = np.concatenate(all_loaded(parts))
        return row
