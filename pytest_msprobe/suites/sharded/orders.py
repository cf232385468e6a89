"""In which order values stand that ranks hold parts of: one for what belongs together, and parameters in a row."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.judgement import all_loaded, form_of, leaves_of, loaded
from pytest_msprobe.suites.sharded.matching import named, parameter_of
from pytest_msprobe.suites.sharded.placements import Axis, Placement, distance, norm_of, sharded_dimensions, sizes_along
from pytest_msprobe.suites.sharded.ranks import RankDump

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]


#: The process groups over which a value is sharded along a dimension, and how long it is there.
Kind = tuple[tuple[str, ...], int]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Along:
    """A value that the ranks, or calls of one rank, hold in parts along a dimension.

    Attributes:
        path: of the value in its record.
        placement: how they hold it.
        dimension: along which.
        tolerance: largest relative distance of an order that fits.
    """

    path: str
    placement: Placement
    dimension: int
    tolerance: float

    @classmethod
    def of(cls, path: str, placement: Placement | None, tolerance: float) -> Iterator[Along]:
        """What is known of a value along each dimension in which it is sharded; of a whole one along the first."""
        if placement is not None and placement.pair is not None and placement.apart <= Relative.ORDERED:
            split = set(sharded_dimensions(placement.axes))
            if not split and placement.pair[1].ndim:
                split = {0}
            for dimension in sorted(split):
                if dimension >= 0:
                    yield cls(path, placement, dimension, tolerance)

    @cached_property
    def kind(self) -> Kind:
        """Values of one kind are in one order."""
        assert self.placement.pair is not None
        return tuple(axis.group for axis in self._axes), self.placement.pair[1].shape[self.dimension]

    @property
    def _axes(self) -> list[Axis]:
        return [axis for axis in self.placement.axes if axis.is_along(self.dimension)]

    @cached_property
    def order(self) -> Order:
        """Which index of the logical value stands at each place of the ranks' parts; () for that of the ranks."""
        places = tuple(self.placement.orders.get(self.dimension, ()))
        return () if places == tuple(range(len(places))) else places

    def _taken(self, value: Any, order: Order) -> Any:
        return np.take(value, order, self.dimension) if order else value

    @cached_property
    def _held(self) -> Any:
        """The value in the order of the ranks."""
        assert self.placement.pair is not None
        return self._taken(self.placement.pair[0], self.order)

    def fits(self, order: Order) -> bool:
        """Whether the parts are those of the logical value in this order as well."""
        assert self.placement.pair is not None
        whole = self.placement.pair[1]
        return order == self.order or distance(self._held, self._taken(whole, order), norm_of(whole)) <= self.tolerance

    def words(self, order: Order) -> str:
        """Which of the parts stand elsewhere than in this order."""
        assert self.placement.pair is not None
        axes, whole = self._axes, self.placement.pair[1]
        count = math.prod(sizes_along(axes, self.dimension))
        if self.kind[1] % count or count == 1:
            return "its rows are in another order"
        actual = np.split(self._held, count, self.dimension)
        expected = np.split(self._taken(whole, order), count, self.dimension)
        scale = norm_of(whole)
        away = [distance(part, other, scale) for part, other in zip(actual, expected)]
        moved = [str(place) for place, part_away in enumerate(away) if part_away > self.tolerance]
        if len(moved) < 2:
            return "rows differ"
        is_of_calls = len(axes) == 1 and "microbatch" in axes[0].group
        noun = "microbatches" if is_of_calls else f"parts over {axes[0].group}"
        verb = "are exchanged" if len(moved) == 2 else "are in another order"
        return f"{noun} {', '.join(moved[:-1])} and {moved[-1]} {verb}"


def disordered(values: Iterable[Along], orders: Mapping[Kind, Order]) -> tuple[dict[str, str], dict[Kind, Order]]:
    """Which parts of values, by their paths, are in no order that fits those of their kind; and the order of each kind.

    Args:
        values: what belongs together.
        orders: those of kinds that are known already.
    """
    kinds: dict[Kind, list[Along]] = defaultdict(list)
    for value in values:
        kinds[value.kind].append(value)
    moved: dict[str, str] = {}
    all_orders = dict(orders)
    for kind, members in kinds.items():
        if kind not in orders:
            candidates = sorted({value.order for value in members})
            all_orders[kind] = max(candidates, key=lambda order: sum(value.fits(order) for value in members))
        best = all_orders[kind]
        moved |= {value.path: value.words(best) for value in members if not value.fits(best)}
    return moved, all_orders


_BEFORE = "input.parameters."


class Rows:
    """The rows of one step of the ranks' optimizers.

    What a row holds before the step tells in which order the parameters of the logical run are.
    """

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
