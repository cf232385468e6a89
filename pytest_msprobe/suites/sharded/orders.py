"""One order for what belongs together: the inputs of a call, the two directions of a call, a value and its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.suites.sharded.placements import Axis, Placement, distance, norm_of

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
            split = sorted({axis.dimension for axis in placement.axes if axis.kind == "S"})
            for d in split or [0] * bool(placement.pair[1].ndim):
                if d >= 0:
                    yield cls(path, placement, d, tolerance)

    @cached_property
    def kind(self) -> Kind:
        """Values of one kind are in one order."""
        assert self.placement.pair is not None
        return tuple(axis.group for axis in self._axes), self.placement.pair[1].shape[self.dimension]

    @property
    def _axes(self) -> list[Axis]:
        return [one for one in self.placement.axes if one.kind == "S" and one.dimension == self.dimension]

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
        count = math.prod(axis.size for axis in axes)
        if self.kind[1] % count or count == 1:
            return "its rows are in another order"
        expected = np.split(self._taken(whole, order), count, self.dimension)
        size = norm_of(whole)
        moved = [
            place
            for place, (one, other) in enumerate(zip(np.split(self._held, count, self.dimension), expected))
            if distance(one, other, size) > self.tolerance
        ]
        noun = "microbatches" if len(axes) == 1 and "microbatch" in axes[0].group else f"parts over {axes[0].group}"
        verb = "are exchanged" if len(moved) == 2 else "are in another order"
        return f"{noun} {', '.join(map(str, moved[:-1]))} and {moved[-1]} {verb}" if len(moved) > 1 else "rows differ"


def disordered(values: Iterable[Along], known: MutableMapping[Kind, Order]) -> Iterator[tuple[str, str]]:
    """(path, which parts) of the values that are in no order that fits those of their kind.

    Args:
        values: what belongs together.
        known: the orders that are known already; those that are found are added.
    """
    kinds: dict[Kind, list[Along]] = {}
    for value in values:
        kinds.setdefault(value.kind, []).append(value)
    for kind, members in kinds.items():
        candidates = [known[kind]] if kind in known else sorted({one.order for one in members})
        fitting = [sum(one.fits(order) for one in members) for order in candidates]
        best = candidates[fitting.index(max(fitting))]
        known.setdefault(kind, best)
        yield from ((one.path, one.words(best)) for one in members if not one.fits(best))
