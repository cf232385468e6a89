"""How far the values of ranks may be from the logical value: what rounding explains, or a second logical run shows.

Rounding of a long run is a random walk: 8 unit roundoffs of the coarsest dtype so far, times the square root of the
number of records before. What a call gets from what is known to be near is held to more: a linear operation hands
relative errors on (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1), and adds one
roundoff for its output and for each term that the ranks add up, the errors of which add up as a random walk as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis.topics import text_of
from pytest_msprobe.suites.sharded.copies import parameter_of
from pytest_msprobe.suites.sharded.judgement import Phase, ValueFinding, form_of, loaded, roundoff_of
from pytest_msprobe.suites.sharded.logical import LogicalRun
from pytest_msprobe.suites.sharded.ranks import RankDump

_Held = Sequence[tuple[RankDump, Leaf]]
#: Distances of right runs stay this many roundings below the tolerance, per square root of the records before.
_ROUNDINGS = 8
#: However long and coarse a run is: wrong placements are farther away than this.
_LARGEST = 0.25
_FEWEST_RECORDS = 4
#: How many times what goes in and one rounding a linear operation may be off: right runs of the catalogue stay below 4.
_GROWTH = 16
#: Relative errors of an update are as the square root of those of gradients where it is made of their signs: the share
#: of elements that change sign is about the relative error, and each of them changes the update by twice its size.
_SIGNS = 4
#: How many times its distance from the logical run a second one tells; see the noise run of comparisons.
_NOISE_FACTOR = 10


class Tolerances:
    """The tolerances of one step."""

    def __init__(self, run: LogicalRun, phase: Callable[[Operation], Phase], noise: LogicalRun | None = None) -> None:
        """For the values of `run`; `phase` says which pass a record is of, `noise` is a second logical run."""
        logical = run.leader
        self._run, self._logical, self._phase, self._noise = run, logical, phase, noise
        fine, half = 2.0**-24, 2.0**-9
        each = (half if logical.holds_half(name) else fine for name in logical.record_names)
        self._roundoffs = list(accumulate(each, max))
        self._inside: dict[str, int] = {}
        self._amplifying: set[str] = set()
        self._arrived: dict[tuple[str, str], float] = {}
        self._before: dict[tuple[str, str], Leaf] = {}
        for operation in logical.operations:
            if not operation.is_cell and operation.phase == "forward":
                for around in logical.ancestors(operation.record):
                    self._inside[around] = self._inside.get(around, 0) + 1
                    if _amplifies(operation):
                        self._amplifying.add(around)

    def of(self, operation: Operation, leaf: Leaf, path: str) -> float:
        """The largest distance that the run up to here explains: parameters are as they were, the rest came far."""
        own = roundoff_of(leaf.dtype)
        if not own:
            return 0.0
        if path.startswith(("parameters.", "input.parameters.")) and self._phase(operation) != "backward":
            return 4 * own
        if (noise := self._of_noise(operation, leaf)) is not None:
            return max(4 * own, _NOISE_FACTOR * noise)
        coarsest = max(own, self._roundoffs[operation.index])
        return min(_LARGEST, _ROUNDINGS * coarsest * math.sqrt(max(_FEWEST_RECORDS, operation.index)))

    def arrived(self, operation: Operation, value: ValueFinding, leaf: Leaf) -> None:
        """Take note of a value that goes into a record; `leaf` is what the logical run has."""
        if value.is_output or not roundoff_of(value.dtype):
            return
        if value.path.startswith("input.parameters."):
            self._before[operation.record, parameter_of(value.path)] = leaf
        distance = value.distance if value.state == "placed" and value.distance is not None else math.inf
        key = operation.record, parameter_of(value.path) if operation.record.startswith("Optimizer.") else ""
        self._arrived[key] = max(self._arrived.get(key, 0.0), distance)

    def close(self, operation: Operation, leaf: Leaf, path: str, ranks: int) -> float:
        """What the operation itself explains, from what went into it; infinite where that is not known."""
        own = roundoff_of(leaf.dtype)
        if not leaf.is_output or not own or operation.phase == GRADIENTS:
            return math.inf
        unit = max(own, self._roundoffs[operation.index])
        if operation.record.startswith("Optimizer."):
            return self._of_update(operation, leaf, path, unit)
        before = [self._arrived.get((name, "")) for name in self._sources(operation)]
        if any(one is None for one in before):
            return math.inf
        terms = 1 + ranks + self._inside.get(_forward(operation), 0)
        return _GROWTH * (max(one for one in before if one is not None) + unit * math.sqrt(terms))

    def is_only_close(self, operation: Operation) -> bool:
        """Whether what the operation itself explains is all that it may be off."""
        if operation.record.startswith("Optimizer."):
            return True
        if operation.is_cell and self._inside.get(forward := _forward(operation)):
            return forward not in self._amplifying
        return not _amplifies(operation)

    def floor(self, operation: Operation, leaf: Leaf) -> float:
        """The norm of what a gradient of a bias or scale is a sum of, which may cancel: the incoming gradient."""
        if operation.phase != GRADIENTS or len(leaf.shape) > 1:
            return 0.0
        backward = f"{operation.name}.backward.{operation.number}"
        with suppress(DumpError, StopIteration):
            if backward in self._logical:
                incoming = next(one for one in self._logical.leaves(backward) if one.path == "input.0")
                return math.hypot(*(_norm(one) for _, one in self._run.held(incoming)))
        return 0.0

    def _sources(self, operation: Operation) -> list[str]:
        """The records whose inputs make the outputs of one: a gradient comes from those of its forward, too."""
        own = [operation.record]
        return [*own, _forward(operation)] if operation.phase == "backward" else own

    def _of_update(self, operation: Operation, leaf: Leaf, path: str, unit: float) -> float:
        """Of what an optimizer leaves: of the update that it makes, not of all that a parameter is."""
        key = operation.record, parameter_of(path)
        arrived, before = self._arrived.get(key), self._before.get(key)
        if arrived is None or not math.isfinite(arrived):
            return math.inf
        if ".state." in f".{path}":
            return _GROWTH * (arrived + unit)
        if before is None or form_of((before, leaf)) == "statistics":
            return math.inf
        try:
            share = apart(self._run.held(leaf), self._run.held(before))
        except DumpError:
            return math.inf
        return 4 * roundoff_of(leaf.dtype) + _SIGNS * math.sqrt(max(arrived, unit)) * share

    def _leaves(self, operation: Operation) -> list[Leaf]:
        with suppress(DumpError):
            return self._logical.leaves(operation.record)
        return []

    def _of_noise(self, operation: Operation, leaf: Leaf) -> float | None:
        """The distance of a second logical run; of a number the largest of the record: one may be small by chance."""
        if self._noise is None or operation.record not in self._noise.leader:
            return None
        found = {one.path: one for one in self._noise.leader.leaves(operation.record)}
        own = [one for one in self._leaves(operation) if one.path == leaf.path or math.prod(leaf.shape) == 1]
        apart = [away for one in own if (away := self._apart(one, found.get(one.path))) is not None]
        return max(apart, default=None)

    def _apart(self, leaf: Leaf, other: Leaf | None) -> float | None:
        if other is None or self._noise is None or leaf.shape != other.shape:
            return None
        if form_of((leaf, other)) == "statistics":
            return None
        try:
            away = apart(self._run.held(leaf), self._noise.held(other))
        except DumpError:
            return None
        return away if math.isfinite(away) else None


def apart(held: _Held, other: _Held) -> float:
    """Distance of two values on the same ranks, relative to the first one. Raises DumpError."""
    from pytest_msprobe.suites.sharded.placements import distance, norm_of

    form = form_of(one for _, one in (*held, *other))
    pairs = [(loaded(one, dump, form), loaded(two, beside, form)) for (dump, one), (beside, two) in zip(held, other)]
    if len(held) != len(other) or any(one.shape != two.shape for one, two in pairs):
        return math.inf
    scale = math.hypot(*(norm_of(one) for one, _ in pairs))
    away = math.hypot(*(distance(two, one, 1.0) for one, two in pairs))
    return away / scale if scale else math.inf if away else 0.0


def _forward(operation: Operation) -> str:
    """The forward record of a call or layer."""
    if operation.is_cell:
        return f"{operation.name}.forward.{operation.number}"
    return f"{operation.call}.forward"


def _amplifies(operation: Operation) -> bool:
    """Whether relative errors may change by any factor, as far as is known of the operation."""
    return text_of("linearity", operation.name) != "linear"


def _norm(leaf: Leaf) -> float:
    norm = leaf.statistics[3]
    return float(norm) if isinstance(norm, (int, float)) and math.isfinite(norm) else 0.0
