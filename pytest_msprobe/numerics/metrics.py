"""The figures that one comparison yields; plain values, so that old results can be judged again without any array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pytest_msprobe.numerics.kinds import Kind

Scalar: TypeAlias = bool | int | float | complex | str | None


@dataclass(frozen=True, slots=True)
class Element:
    """One place in an output with both values there, as Python scalars.

    `index` is a multi-dimensional index, () for a 0-d array; for Python values it is the path through the nested
    sequences. `reference` is the benchmark's value as compared, that is already rounded to the tested dtype.
    """

    index: tuple[int, ...]
    tested: Scalar
    reference: Scalar


def unravelled(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element at a flat position (np.unravel_index, a tenth of its time)."""
    index = []
    for length in reversed(shape):
        at, place = divmod(at, length)
        index.append(place)
    return tuple(reversed(index))


@dataclass(frozen=True, slots=True)
class Metrics:
    """How far a tested output is from its benchmark; t and b are the two values of one element.

    A figure that does not apply is None: all of them for a structural mismatch or an empty output.
    """

    kind: Kind
    size: int
    #: sum(b*t) / (||b|| * ||t||); NaN when a NaN or Inf stands on one side only.
    cosine: float | None = None
    #: max |b-t|; inf when a NaN or Inf stands on one side only.
    max_abs: float | None = None
    #: max |b-t| / (|b|, or 1e-8 where b is 0).
    max_rel: float | None = None
    #: max |b-t| / (spacing of the tested dtype at b); only for floats.
    max_ulp: float | None = None
    #: The element of `max_abs`, the first one of equals; None when nothing differs.
    worst: Element | None = None
    #: The element of `max_rel`.
    worst_relative: Element | None = None
    #: Elements with |b-t| >= `off_bound`; of integers, bools and strings those that differ at all.
    off_count: int = 0
    off_bound: float | None = None
    #: Places where a NaN or Inf is not matched by the same on the other side.
    nonfinite_mismatches: int = 0
    first_nonfinite: Element | None = None
    #: Elements that had to be equal (integers, bools, strings, indices) and are not.
    unequal_count: int = 0
    first_unequal: Element | None = None
    #: Why the first unequal element is wrong, where that is not plain from its values.
    unequal_note: str = ""
    #: Why nothing could be measured: shapes, kinds or types disagree.
    structural: str | None = None

    @property
    def is_exact(self) -> bool:
        """True when elements must be equal and no tolerance applies."""
        return self.kind not in ("float", "complex")

    @property
    def is_empty(self) -> bool:
        """True when both sides agree that there is no element."""
        return self.size == 0 and self.structural is None
