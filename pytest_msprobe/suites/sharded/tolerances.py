"""How far the values of ranks may be from the logical value: what rounding explains.

Rounding of a long run is a random walk: 8 unit roundoffs of the coarsest dtype so far, times the square root of the
number of records before. What a call gets from what is known to be near is held to more: a linear operation hands
relative errors on (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1), and adds one
roundoff for its output and for each term that the ranks add up, the errors of which add up as a random walk as well.

A gradient that cancels is measured by what it is a sum of. Behind an optimizer, elements of which the gradient is
within its own noise are left out: Adam makes an update of full size of the sign of noise. Where such a step was before,
parameters begin apart by it, and what is computed from them is held to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.leaves import Leaf
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from pytest_msprobe.apis.fact_table import text_of
from pytest_msprobe.numerics.expected import Relative, Roundoffs, Times
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.suites.sharded.judgement import Form, Phase, ValueFinding, form_of, forward_of, loaded, roundoff_of
from pytest_msprobe.suites.sharded.matching import layer_path, parameter_of, without_wrappers
from pytest_msprobe.suites.sharded.outline import LogicalRun
from pytest_msprobe.suites.sharded.ranks import RankDump

if TYPE_CHECKING:
    import numpy as np

    from pytest_msprobe.suites.sharded.placements import Placement

    Array = np.ndarray[Any, Any]

_Held = Sequence[tuple[RankDump, Leaf]]


class Tolerances:
    """The tolerances of one step.

    Attributes:
        begins: by how much the parameters of a step behind the first one begin apart, by their names.
    """

    def __init__(
        self,
        run: LogicalRun,
        phase: Callable[[Operation], Phase],
        steps: int = 0,
        half_from: float = math.inf,
    ) -> None:
        """For the values of `run`, behind so many `steps`, of which ranks have half dtypes from a record on.

        `phase` says which pass a record is of.
        """
        logical = run.leader
        self._run, self._logical, self._phase, self._steps = run, logical, phase, steps
        self.begins: dict[str, float] = {}
        fine, half = roundoff_of("Float32"), Relative.HALF_DTYPES
        self._roundoffs: list[float] = []
        for place, name in enumerate(logical.record_names):
            is_half = half in self._roundoffs[-1:] or place >= half_from or logical.holds_half(name)
            self._roundoffs.append(half if is_half else fine)
        self._inside: dict[str, int] = {}
        self._amplifying: set[str] = set()
        self._arrived: dict[tuple[str, str], float] = {}
        self._apart: dict[object, float] = {}
        self._before: dict[tuple[str, str], Leaf] = {}
        self._of_elements: dict[str, Array] = {}
        for operation in logical.operations:
            if not operation.is_cell and operation.phase == "forward":
                for around in logical.ancestors(operation.record):
                    self._inside[around] = self._inside.get(around, 0) + 1
                    if _amplifies(operation):
                        self._amplifying.add(around)

    def of(self, operation: Operation, leaf: Leaf, path: str) -> float:
        """The largest distance that the run up to here explains: parameters are as they were, the rest came far.

        From `Relative.LARGEST_OF_A_RUN` on, what the value is made of is within its own noise, and so is the value.
        """
        finest = roundoff_of(leaf.dtype)
        if not finest:
            return 0.0
        unit = max(finest, self._roundoffs[operation.index])
        if path.startswith(("parameters.", "input.parameters.")) and self._phase(operation) != "backward":
            begin = min(Relative.LARGEST_OF_A_RUN, self._of_begin(operation, leaf, path, unit))
            return max(Roundoffs.SAME_VALUE * finest, begin)
        rounded = Roundoffs.RUN * unit * math.sqrt(max(Roundoffs.FIRST_RECORDS, operation.index))
        rounded += Times.GROWTH_ON_RANKS * max(self.begins.values(), default=0.0)
        return max(min(Relative.LARGEST_OF_A_RUN, rounded), self._handed(operation, leaf, path))

    def arrived(self, operation: Operation, value: ValueFinding, leaf: Leaf, best: Placement | None = None) -> None:
        """Take note of a value, of which the logical run has `leaf`, and of how the ranks hold it."""
        if not roundoff_of(value.dtype):
            return
        is_known = value.apart is not None and (value.state == "placed" or value.is_noise)
        distance = value.apart if is_known and value.apart is not None else math.inf
        norm, floor = _norm(leaf), self.floor(operation, leaf, value.path)
        level = floor * max(roundoff_of(leaf.dtype), self._roundoffs[operation.index])  # noise, whatever is seen of it
        distance = max(distance, level / norm) if norm else distance
        self._apart[f"{operation.record}.{value.path}"] = self._apart[_content(leaf)] = distance
        if value.is_output:
            return
        is_update, name = operation.record.startswith("Optimizer."), parameter_of(value.path)
        if is_update and value.path.startswith("input.parameters."):
            self._before[operation.record, name] = leaf
            if self._steps and is_known and distance > Roundoffs.SAME_VALUE * roundoff_of(leaf.dtype):
                self.begins[name] = value.distance or 0.0
                self._apart[name] = distance
        is_gradient = is_known and is_update and value.path.startswith("input.gradients.")
        if is_gradient and best is not None and best.pair is not None:
            self._of_elements[name] = _noise_of(*best.pair, level)
        key = operation.record, name if is_update else ""
        self._arrived[key] = max(self._arrived.get(key, 0.0), distance)

    def unknown(self, operation: Operation, leaf: Leaf, path: str) -> None:
        """Take note of a value at an optimizer that no rank has by its name: what the logical run alone tells of it."""
        name = parameter_of(path)
        if path.startswith("input.gradients."):
            level, norm = self.floor(operation, leaf, path) * self._roundoffs[operation.index], _norm(leaf)
            self._apart[f"{operation.record}.{path}"] = level / norm if norm else math.inf
            with suppress(DumpError):
                if form_of([leaf]) == "tensor" and len(held := self._run.held(leaf)) == 1:
                    whole = loaded(held[0][1], held[0][0])
                    self._of_elements[name] = _noise_of(whole, whole, level)
        elif path.startswith("input.parameters."):
            self._before[operation.record, name] = leaf
            if self._steps:
                self._apart[name] = self.begins[name] = self.of(operation, leaf, path)

    def close(self, operation: Operation, leaf: Leaf, path: str, ranks: int) -> float:
        """What the operation itself explains, from what went into it; infinite where that is not known."""
        finest = roundoff_of(leaf.dtype)
        if not leaf.is_output or not finest or operation.phase == GRADIENTS:
            return math.inf
        unit = max(finest, self._roundoffs[operation.index])
        if operation.record.startswith("Optimizer."):
            return self._of_update(operation, leaf, path, unit)
        arrived = max(self._arrived.get((name, ""), math.inf) for name in self._sources(operation))
        terms = 1 + ranks + self._inside.get(forward_of(operation), 0)
        return Times.GROWTH_ON_RANKS * (arrived + unit * math.sqrt(terms))

    def is_only_close(self, operation: Operation) -> bool:
        """Whether what the operation itself explains is all that it may be off."""
        if operation.record.startswith("Optimizer."):
            return True
        if operation.is_cell and self._inside.get(forward := forward_of(operation)):
            return forward not in self._amplifying
        return not _amplifies(operation)

    def floor(self, operation: Operation, leaf: Leaf, path: str) -> float:
        """The norm of what a gradient is a sum of, which may cancel: of a bias, a scale, what was broadcast."""
        if operation.record.startswith("Optimizer."):
            name, (scale, sums) = parameter_of(path), self._sums
            return scale * sums.get(name, 0.0) if path.startswith("input.gradients.") else 0.0
        if not leaf.is_output or operation.phase not in ("backward", GRADIENTS):
            return 0.0
        backward = f"{operation.name}.backward.{operation.number}" if operation.is_cell else operation.record
        if backward not in self._logical:
            return 0.0
        with suppress(DumpError):
            for incoming in self._logical.leaves(backward):
                if incoming.path == "input.0" and _is_sum(leaf.shape, incoming.shape):
                    return math.hypot(*(_norm(held) for _, held in self._run.held(incoming)))
        return 0.0

    def room(self, leaf: Leaf, path: str) -> Array | None:
        """How far each element of a parameter may be off behind steps of an optimizer; None for no more than rounding.

        An element of which the gradient is within its noise is left out: its update may be anything.
        """
        name = self._name(leaf, path)
        if not name or (noise := self._of_elements.get(name)) is None or not noise.size:
            return None
        import numpy as np

        if path.startswith("output."):
            begins = [begin for (_, of), begin in self._before.items() if of == name]
            if not begins or form_of((begins[0], leaf)) == "statistics":
                return None
            pairs = _pairs(self._run.held(begins[0]), self._run.held(leaf), "tensor")
            largest = max(abs(after - before).max(initial=0) for before, after in pairs)
            return np.where(noise * Times.ELEMENT_OF_UPDATE >= 1, np.inf, noise * Times.ELEMENT_OF_UPDATE * largest)
        return np.where(noise * Times.ELEMENT_OF_UPDATE >= 1, np.inf, 0.0) if self._steps else None

    @staticmethod
    def _name(leaf: Leaf, path: str) -> str:
        """The parameter that a value is, as a record holds it; "" for none."""
        if path.startswith(("input.parameters.", "output.")) and ".parameters." in path:
            return parameter_of(path)
        if path.startswith("parameters."):
            return f"{layer_path(Operation.of(leaf.place.record, 0).name)}.{path.removeprefix('parameters.')}"
        return without_wrappers(leaf.provenance.leaf or "")

    def _of_begin(self, operation: Operation, leaf: Leaf, path: str, unit: float) -> float:
        """How far a parameter may be off where a step begins, by what steps before have made of it."""
        if not self._steps:
            return 0.0
        if not path.startswith("input."):
            away = Times.HANDED_ON * self._apart.get(self._name(leaf, path), 0.0)
            return away or (0.0 if self._before else Roundoffs.RUN * unit * math.sqrt(self._steps))
        name = parameter_of(path)
        for after in self._leaves(operation):
            if after.path.startswith("output.") and ".parameters." in after.path and parameter_of(after.path) == name:
                break
        else:
            return 0.0
        if form_of((leaf, after)) == "statistics":
            return 0.0
        with suppress(DumpError):
            share = apart(self._run.held(leaf), self._run.held(after))
            return self._signs(operation, name, unit) * math.sqrt(self._steps) * share if share else 0.0
        return 0.0

    def _signs(self, operation: Operation, name: str, error: float) -> float:
        """How far an update may be off, of its own size, by an `error` of its gradient; all that it is within noise.

        Where elements are not known, those that are noise are not known either.
        """
        noise = self._apart.get(f"{operation.record}.input.gradients.{name}", 0.0)
        if math.isfinite(noise) and Times.ELEMENT_OF_UPDATE * noise >= 1:
            return math.inf
        are_unknown = name not in self._of_elements and self._sums[1].get(name, 0.0) > 0
        return max(Times.UNSURE_SIGNS_ON_RANKS * math.sqrt(error), 2.0 if are_unknown else 0.0)

    def _handed(self, operation: Operation, leaf: Leaf, path: str) -> float:
        """What is handed on to a value: of an input the distance of what made it, of an output those of its inputs."""
        if not leaf.is_output and not operation.record.startswith("Optimizer."):
            made = leaf.provenance.made_by or without_wrappers(leaf.provenance.leaf or "") or _content(leaf)
            return Times.HANDED_ON * _if_finite(self._apart.get(made, 0.0))
        if not operation.record.startswith("Optimizer."):
            arrived = (self._arrived.get((name, ""), 0.0) for name in self._sources(operation))
            return Times.GROWTH_ON_RANKS * max(map(_if_finite, arrived))
        if ".state." in path:
            gradient = f"{operation.record}.input.gradients.{parameter_of(path)}"
            return Times.GROWTH_ON_RANKS * _if_finite(self._apart.get(gradient, 0.0))
        if not leaf.is_output:
            return 0.0
        unit = max(roundoff_of(leaf.dtype), self._roundoffs[operation.index])
        return _if_finite(self._of_update(operation, leaf, path, unit))

    @cached_property
    def _sums(self) -> tuple[float, dict[str, float]]:
        """How many times those of the backward the gradients at the optimizer are; norms of what those are sums of."""
        sums: dict[str, float] = {}
        made: dict[str, float] = {}
        for operation in self._logical.operations:
            for name, leaf in self._gradients(operation):
                sums[name] = math.hypot(sums.get(name, 0.0), self.floor(operation, leaf, leaf.path))
                made[name] = _norm(leaf)
        gets: dict[str, float] = {}
        for operation in self._logical.operations:
            for leaf in self._leaves(operation) if operation.record.startswith("Optimizer.") else ():
                if leaf.path.startswith("input.gradients."):
                    gets[parameter_of(leaf.path)] = _norm(leaf)
        both = list(filter(made.__contains__, gets))
        total = math.hypot(*map(made.__getitem__, both))
        if not total:
            return 0.0, sums
        return math.hypot(*map(gets.__getitem__, both)) / total, sums

    def _gradients(self, operation: Operation) -> Iterator[tuple[str, Leaf]]:
        """The gradients of parameters that a record of the backward has, with the names of the parameters."""
        if operation.phase == GRADIENTS:
            for leaf in self._leaves(operation):
                yield f"{layer_path(operation.name)}.{leaf.path}", leaf
            return
        forward = forward_of(operation)
        if operation.phase != "backward" or operation.is_cell or forward not in self._logical:
            return
        inputs = {leaf.path.removeprefix("input."): leaf for leaf in self._logical.leaves(forward)}
        for leaf in self._leaves(operation):
            made_of = inputs.get(leaf.path.removeprefix("output.")) if leaf.is_output else None
            if made_of is not None and made_of.provenance.leaf:
                yield without_wrappers(made_of.provenance.leaf), leaf

    def _sources(self, operation: Operation) -> list[str]:
        """The records whose inputs make the outputs of one: a gradient comes from those of its forward, too."""
        records = [operation.record]
        if operation.phase == GRADIENTS:
            records.append(f"{operation.name}.backward.{operation.number}")
        return [*records, forward_of(operation)] if operation.phase in ("backward", GRADIENTS) else records

    def _of_update(self, operation: Operation, leaf: Leaf, path: str, unit: float) -> float:
        """Of what an optimizer leaves: of the update that it makes, not of all that a parameter is."""
        key = operation.record, parameter_of(path)
        arrived, before = self._arrived.get(key), self._before.get(key)
        if arrived is None or not math.isfinite(arrived):
            return math.inf
        if ".state." in f".{path}":
            return Times.GROWTH_ON_RANKS * (arrived + unit)
        if before is None or form_of((before, leaf)) == "statistics":
            return math.inf
        try:
            share = apart(self._run.held(leaf), self._run.held(before))
        except DumpError:
            return math.inf
        begin = Times.HANDED_ON * self.begins.get(key[1], 0.0)
        signs = self._signs(operation, key[1], max(arrived, unit))
        rounding = Roundoffs.SAME_VALUE * roundoff_of(leaf.dtype)
        return min(Relative.LARGEST_OF_A_RUN, rounding + begin + signs * share) if share else rounding

    def _leaves(self, operation: Operation) -> list[Leaf]:
        with suppress(DumpError):
            return self._logical.leaves(operation.record)
        return []


def apart(held: _Held, other: _Held) -> float:
    """Distance of two values on the same ranks, relative to the first one. Raises DumpError."""
    from pytest_msprobe.suites.sharded.placements import distance, norm_of

    pairs = list(_pairs(held, other, form_of(leaf for _, leaf in (*held, *other))))
    if len(held) != len(other) or any(first.shape != second.shape for first, second in pairs):
        return math.inf
    scale = math.hypot(*(norm_of(first) for first, _ in pairs))
    away = math.hypot(*(distance(second, first, 1.0) for first, second in pairs))
    return relative(away, scale)


def _pairs(held: _Held, other: _Held, form: Form) -> Iterator[tuple[Any, Any]]:
    """Two values on each rank that has them."""
    for (dump, first), (beside, second) in zip(held, other):
        yield loaded(first, dump, form), loaded(second, beside, form)


def _if_finite(distance: float) -> float:
    """The distance; 0 where it is not known."""
    return distance if math.isfinite(distance) else 0.0


def _noise_of(value: Array, whole: Array, level: float) -> Array:
    """The noise of each element of a gradient of both runs, relative to it; no elements where none needs room.

    It is as what is seen of it is, and at least as in a gradient of which the noise has the norm `level`.
    """
    import numpy as np

    off, size = abs(value - whole), np.maximum(abs(value), abs(whole))
    level = max(float(np.linalg.norm(off)), level) / math.sqrt(max(1, off.size))
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = np.where(size > 0, np.maximum(off, level) / size, 0.0)
    noise = np.where(noise < Relative.NEAR_ELEMENT, 0.0, noise)
    return noise.astype(np.float32) if noise.any() else noise[:0]


def _is_sum(shape: Sequence[int], incoming: Sequence[int]) -> bool:
    """Whether a gradient is a sum over elements of an incoming one, as that of what was broadcast is."""
    along = zip(reversed(shape), reversed(incoming))
    return len(shape) <= 1 or (
        math.prod(shape) < math.prod(incoming) and all(length in (1, two) for length, two in along)
    )


def _content(leaf: Leaf) -> tuple[object, ...]:
    return math.prod(leaf.shape), *leaf.statistics


def _amplifies(operation: Operation) -> bool:
    """Whether relative errors may change by any factor, as far as is known of the operation."""
    return text_of("linearity", operation.name) != "linear"


def _norm(leaf: Leaf) -> float:
    norm = leaf.statistics[3]
    return float(norm) if isinstance(norm, (int, float)) and math.isfinite(norm) else 0.0
