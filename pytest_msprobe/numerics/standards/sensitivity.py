"""How strongly an output answers to rounding errors of its inputs, from runs of the benchmark that were moved by them.

What rounding does to an element that is the sum of known terms follows from the orders in which
kernels add.

Chunks are arrays of shape (n,); magnitudes, changes and tolerances are float64, in the unit of the output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.dtypes import FloatFormat, float_format, part_dtype
from pytest_msprobe.numerics.judgement import Moved, OutputPair
from pytest_msprobe.numerics.measurement import Array, Floats, chunks, inner, widened

#: Two perturbations move an element that hangs on one input by the same amount, up to terms of second order.
_SAME = 0.9
_MOSTLY = 0.995
#: By chance one element in 15 does so though it adds up many: fewer than so many elements say nothing.
_FEWEST = 6
_FLOOR = 1.5
#: The typical answer of a sample is that of the output within so many standard errors of its rows.
_SURE = 3.0
#: Elements, and many rows, are taken together in so many groups.
_GROUPS = 64
#: A jump: what answers to a perturbation far below rounding by more than this share of itself...
_JUMP_OF_VALUE = 2.0**-8
#: ... and by more than this share of its answer to a perturbation 2**12 times as large.
_JUMP_OF_CHANGE = 2.0**-5
#: Where both perturbations draw how far they move, the larger one may move an element by less than a hundredth of what
#: it moves others by, in one of 100. A jump is as high in both within this share of it, or in one of them only.
_JUMP_IN_BOTH = 2.0**-4
#: An output is constant between jumps when no larger share of its elements answers...
_FEW_ANSWER = 0.2
#: ... and those that answer by more than this share of themselves are at a jump.
_JUMP_OF_CONSTANT = 2.0**-4


@dataclass(frozen=True, slots=True)
class Typical:
    """The typical change of an element for one rounding error.

    Attributes:
        absolute: in the unit of the output, where changes are about as large everywhere; else 0.
        relative: relative to the element, where that is the more uniform; else 0.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def floor(self, magnitude: Floats) -> Floats:
        """Typical change of the elements of a chunk, from their |b|."""
        return self.absolute + self.relative * magnitude


class LogMeans:
    """Gathers changes, chunk by chunk, for their geometric mean.

    One element with a huge change must not raise the floor under all the others.
    """

    def __init__(self) -> None:
        self.count = 0
        self._absolute = np.zeros(2)
        self._relative = np.zeros(2)

    def add(self, magnitude: Floats, change: Floats) -> None:
        """Take the |b| and the changes of a chunk into account.

        A change that is 0 or NaN, or an element that is 0 or infinite, does not count.
        """
        used = (change > 0) & (magnitude > 0) & np.isfinite(magnitude)
        logarithms = np.log(change[used])
        self.count += logarithms.size
        self._absolute += logarithms.sum(), np.square(logarithms).sum()
        logarithms -= np.log(magnitude[used])
        self._relative += logarithms.sum(), np.square(logarithms).sum()

    def mean(self, *, is_relative: bool) -> float:
        """Mean of the logarithms of changes, absolute or relative to the element; 0 where there is none."""
        sums = self._relative if is_relative else self._absolute
        return float(sums[0]) / max(1, self.count)

    def finish(self) -> Typical:
        """The typical change, once all chunks are in: absolute or relative, whichever varies less."""
        if not self.count:
            return Typical()
        absolute, relative = (sums / self.count for sums in (self._absolute, self._relative))
        if relative[1] - relative[0] ** 2 < absolute[1] - absolute[0] ** 2:
            return Typical(relative=math.exp(relative[0]))
        return Typical(absolute=math.exp(absolute[0]))


@dataclass(frozen=True, slots=True)
class OverallResponse:
    """What is known of the whole output.

    Attributes:
        is_single: each element answers to one input element only, so that changes cannot have cancelled by chance.
        typical: the typical change of an element where it is not.
        slope: how much the output as a whole is scaled by a perturbation, relative to 1.
        is_constant: nearly no element answers at all, as those of floor: the few that do sit at a jump.
    """

    is_single: bool
    typical: Typical = Typical()
    slope: float = 0.0
    is_constant: bool = False

    def response(self, magnitude: Floats, changes: Sequence[Floats]) -> Floats:
        """Largest change of each element of a chunk, and no less than typical.

        Args:
            magnitude: |b| of the benchmark's result.
            changes: absolute ones of each run per rounding error; NaN is unknown, exactly 0 is no change.
        """
        if not changes:
            return np.zeros_like(magnitude)
        # That of the larger of two normal moves is 0.85 standard deviations.
        floor = _FLOOR * self.typical.floor(magnitude)
        largest = reduce(np.fmax, changes)
        if self.is_constant:
            largest[largest > _JUMP_OF_CONSTANT * magnitude] = math.nan
        # What answers to nothing, such as the zeros of a mask, has no error to expect.
        return np.where(largest == 0, 0.0, np.fmax(largest, floor))


class ChangeStatistics:
    """Gathers how the changes are distributed, chunk by chunk."""

    def __init__(self) -> None:
        self._alike = 0
        self._nonzero = 0
        self._changed = 0
        self._log_means = LogMeans()
        self._squares = 0.0
        self._projections: list[float] = []

    def add(self, reference: Array, moves: Sequence[Array]) -> None:
        """Take a chunk of the unperturbed result and its moves in one or two runs into account.

        Args:
            reference: float64 or complex128.
            moves: signed changes of each run in the shape, dtype and unit of `reference`; NaN for unknown.
        """
        changes = [np.abs(move) for move in moves]
        largest, smallest = reduce(np.fmax, changes), reduce(np.minimum, changes)
        self._changed += int(np.count_nonzero(largest > 0))
        if len(changes) > 1:
            self._alike += int(np.count_nonzero((largest > 0) & (smallest >= _SAME * largest)))
        magnitude = np.abs(reference)
        self._nonzero += int(np.count_nonzero(magnitude))
        finite = np.where(np.isfinite(magnitude), reference, 0)
        self._squares += inner(finite, finite)
        self._projections = self._projections or [0.0] * len(moves)
        for number, move in enumerate(moves):
            self._projections[number] += inner(finite, np.where(np.isnan(move), 0, move))
        self._log_means.add(magnitude, largest)

    def finish(self) -> OverallResponse:
        """How the whole output answers, once all chunks are in."""
        slope = max(map(abs, self._projections), default=0.0) / self._squares if self._squares else 0.0
        is_constant = self._changed <= _FEW_ANSWER * self._nonzero
        is_single = self._changed >= _FEWEST and self._alike >= _MOSTLY * self._changed
        if is_constant or self._log_means.count == 0 or is_single:
            return OverallResponse(is_single=True, slope=0.0 if is_constant else slope, is_constant=is_constant)
        return OverallResponse(is_single=False, typical=self._log_means.finish(), slope=slope)


def without_jumps(reference: Array, moves: Sequence[Array], size: float, *, is_drawn: bool = False) -> None:
    """Set `moves` to NaN where an output jumps, as floor does at a whole number: exact inputs need an exact output.

    Args:
        reference: a chunk of the unperturbed result, float64 or complex128.
        moves: the answers to perturbations of size 1 and of `size`, the second divided by `size`, in the shape, dtype
            and unit of `reference`; changed in place.
        size: much smaller than 1; else jumps cannot be determined.
        is_drawn: how far each element is moved was drawn anew for each of the two perturbations.
    """
    large, small = np.abs(moves[0]), np.abs(moves[1]) * size
    jumps = (small > _JUMP_OF_VALUE * np.abs(reference)) & (small > _JUMP_OF_CHANGE * large)
    if is_drawn:
        jumps &= np.minimum(large, np.abs(large - small)) <= _JUMP_IN_BOTH * small
    for move in moves:
        move[jumps] = math.nan


#: The largest of 16 probes is about two standard deviations, 3.5 of what rounding itself does: a device may round its
#: inputs twice, and a quarter for what the probes did not meet.
_PROBED = 2.25
#: In standard deviations of an element: the largest move of 16 probes, ...
_LARGEST_PROBE = 2.0
#: ... and the larger one of two runs that move elements by different distances.
_LARGER_OF_TWO = 1.17
#: Two runs that move an element by its terms say the same of one rounding within this factor.
_ALIKE = 64.0
#: So many elements show what is typical.
_TYPICAL = 1 << 16


class Factors(NamedTuple):
    """How many answers to one rounding error are forgiven: where several inputs may add up by chance, and where not."""

    several: float
    single: float


class Response:
    """The answers of one output to a set of moved runs.

    Attributes:
        is_known: whether there was any run.
        reference: raw result of the benchmark, flat, float64 or complex128.
        format: that of the tested values, whose reach counts.
        is_for_all: whether every device makes this rounding, not only an inexact one.
        overall: what the answers say of the output as a whole.
        chosen: so many elements come first that say nothing of others.
    """

    chosen = 0

    def __init__(self, pair: OutputPair, moved: Moved, *, probed: Moved | None = None) -> None:
        """How the output of `pair` answers when inputs, or the arithmetic inside, are `moved`.

        Every device moves the arithmetic inside, and only an inexact one the inputs. Probes move the same, or what is
        `probed`.
        """
        runs = pair.sensitivity.runs(moved)
        self._sizes = [run.size for run in runs]
        self._results = [run.result.reshape(-1) for run in runs]
        self._probes = partial(pair.sensitivity.probes, probed or moved)
        self.reference = pair.reference.reshape(-1)
        self.format = float_format(part_dtype(pair.tested.dtype))
        self.is_for_all, self.chosen = moved != "inputs", pair.chosen
        self.is_known = bool(runs)
        statistics = ChangeStatistics()
        for start, chunk in self.chunks() if self.is_known else ():
            sample = slice(max(0, self.chosen - start), None)
            statistics.add(chunk[sample], [move[sample] for move in self.moves(start, chunk)])
        self.overall = statistics.finish()

    def measured(self) -> Response:
        """The response with nothing forgiven beyond what the runs themselves have shown."""
        return MeasuredResponse(self)

    def probed(self, count: int) -> Response:
        """The response with `count` probes; `self` where there are none."""
        probes = self._probes(count) if self.is_known else ()
        return ProbedResponse(self, probes) if probes else self

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """(flat position of the first, benchmark's values in reach of the format: float64 or complex128)."""
        for start, (reference,) in chunks(self.reference):
            yield start, in_reach(widened(reference), self.format)

    def of_chunk(self, start: int, reference: Array) -> Floats:
        """Move of each element of a chunk for one rounding error of everything that was moved.

        `start` and `reference` are as `chunks` has them.
        """
        magnitude = magnitude_of(reference)
        return self.overall.response(magnitude, [np.abs(move) for move in self.moves(start, reference)])

    def smooth(self, start: int, reference: Array) -> Floats:
        """Move of each element for one rounding error, 0 where it jumps or nothing is known.

        A jump is as high however little the inputs move, so that the two runs say different things of one rounding.
        """
        moves = [np.nan_to_num(np.abs(move), nan=0.0) for move in self.moves(start, reference)]
        if not moves:
            return np.zeros(reference.shape)
        smallest, largest = reduce(np.minimum, moves), reduce(np.maximum, moves)
        return np.where(largest <= _ALIKE * smallest, largest, 0.0)

    def forgiven(self, start: int, reference: Array, response: Floats, factors: Factors) -> Floats:
        """Tolerance of each element of a chunk, whose `of_chunk` is `response`.

        It is for what was moved alone: the standard adds the rounding of the output.
        """
        return (factors.single if self.overall.is_single else factors.several) * response

    def least_forgiven(self, factors: Factors) -> tuple[float, float]:
        """(no more than `of_chunk`, no more than `forgiven`), both times the least that is known of an element's move.

        That is `of_chunk` itself.
        """
        return 1.0, factors.single if self.overall.is_single else factors.several

    def deviation(self, at: int) -> float:
        """Root mean square of the moves of the element at a flat position; 0 where there were no probes."""
        return 0.0

    def largest_move(self, at: int, reference: Array) -> float:
        """How far the runs have moved the element at a flat position, whose benchmark is `reference`; 0 if unknown."""
        moves = [abs(move.item()) for move in self.moves(at, reference)]
        return max((move for move in moves if not math.isnan(move)), default=0.0)

    def scaling(self, factors: Factors) -> float:
        """Largest scaling of the output as a whole that is forgiven, relative to 1."""
        return factors.several * self.overall.slope

    def moves(self, start: int, reference: Array) -> list[Array]:
        """Signed moves of the elements of a chunk in each run, over its size: float64 or complex128.

        NaN where nothing is known. `start` and `reference` are as `chunks` has them.
        """
        moves = [_move(result, start, reference, size) for result, size in zip(self._results, self._sizes)]
        if len(moves) > 1 and self._sizes[1] < self._sizes[0]:
            without_jumps(reference, moves, self._sizes[1], is_drawn=self.is_for_all)
        return moves


class KnownResponse(Response):
    """A response known without a run: how far each element moves, as standard deviations.

    They are exact for each element, so that nothing is forgiven for what a few runs may have missed.
    """

    def __init__(self, deviations: Floats, pair: OutputPair, *, is_close: bool) -> None:
        """The answer to one rounding error of every input; `deviations` has the flat shape of the output.

        What is forgiven is that of many probes where `is_close`, else that of two moved runs. The chosen elements of
        `pair` say nothing of others.
        """
        self._is_close = is_close
        self.is_known, self.is_for_all = True, False
        self.reference, self.format = pair.reference.reshape(-1), float_format(part_dtype(pair.tested.dtype))
        self._deviations = deviations
        log_means = LogMeans()
        places = np.arange(pair.chosen, self.reference.size)
        if places.size > _TYPICAL:
            places = np.random.default_rng(0).integers(pair.chosen, self.reference.size, _TYPICAL)
        changes = _LARGER_OF_TWO * deviations[places].astype(np.float64)
        log_means.add(magnitude_of(in_reach(widened(self.reference[places]), self.format)), changes)
        self.overall = OverallResponse(is_single=False, typical=log_means.finish())

    def of_chunk(self, start: int, reference: Array) -> Floats:
        """What the larger of two moved runs shows on average, and no less than typical."""
        change = _LARGER_OF_TWO * self._of(start, reference)
        return self.overall.response(magnitude_of(reference), [change])

    def smooth(self, start: int, reference: Array) -> Floats:
        """See `Response`: sums of products do not jump."""
        return self.of_chunk(start, reference)

    def forgiven(self, start: int, reference: Array, response: Floats, factors: Factors) -> Floats:
        """What the largest move of many probes, or that of two runs, would be forgiven."""
        return _PROBED * _LARGEST_PROBE * self._of(start, reference) if self._is_close else factors.several * response

    def least_forgiven(self, factors: Factors) -> tuple[float, float]:
        """See `Response`; that is the deviation of an element."""
        return _LARGER_OF_TWO, _PROBED * _LARGEST_PROBE if self._is_close else factors.several * _LARGER_OF_TWO

    def largest_move(self, at: int, reference: Array) -> float:
        """See `Response`."""
        return _LARGER_OF_TWO * self._of(at, reference).item()

    def scaling(self, factors: Factors) -> float:
        """0: the effects of many independent errors do not scale the output as a whole."""
        return 0.0

    def _of(self, start: int, reference: Array) -> Floats:
        return self._deviations[start : start + reference.size].astype(np.float64)


class TypicalResponse(Response):
    """What every element of a large output answers at least, by a sample of it: the floor under all."""

    def __init__(self, sample: Response, rows: int, reference: Array) -> None:
        """The floor by the response of a sample of so many rows; none where some of that answers to nothing."""
        self.is_known, self.is_for_all = sample.is_known, sample.is_for_all
        self.reference, self.format = reference.reshape(-1), sample.format
        self.overall = sample.overall
        for start, chunk in sample.chunks():
            if ((magnitude_of(chunk) > 0) & (sample.of_chunk(start, chunk) == 0)).any():
                self.overall = replace(sample.overall, typical=Typical())
        groups = np.array_split(np.arange(sample.reference.size), min(rows, _GROUPS))
        means = [_log_of_typical(sample, group) for group in groups]
        self._surely = math.exp(-_SURE * float(np.std(means)) / math.sqrt(len(groups)))

    def of_chunk(self, start: int, reference: Array) -> Floats:
        """The floor; nothing for an element that is 0, which may answer to nothing."""
        magnitude = magnitude_of(reference)
        return np.where(magnitude > 0, self._surely * _FLOOR * self.overall.typical.floor(magnitude), 0.0)

    def smooth(self, start: int, reference: Array) -> Floats:
        """See `Response`."""
        return self.of_chunk(start, reference)

    def scaling(self, factors: Factors) -> float:
        """0: a sample does not say how far moved inputs scale the output as a whole."""
        return 0.0


def _log_of_typical(sample: Response, places: Array) -> float:
    """Logarithm of the typical answer in one row of a sample, in the way in which that of the sample is known."""
    start, reference = int(places[0]), in_reach(widened(sample.reference[places[0] : places[-1] + 1]), sample.format)
    log_means, moves = LogMeans(), sample.moves(start, reference)
    log_means.add(magnitude_of(reference), reduce(np.fmax, [np.abs(move) for move in moves], np.zeros(reference.size)))
    return log_means.mean(is_relative=sample.overall.typical.relative > 0)


class MeasuredResponse(Response):
    """A response with nothing forgiven beyond what the runs themselves have shown."""

    def __init__(self, wide: Response) -> None:
        """The response with all that the `wide` one, to two moved runs, knows."""
        vars(self).update(vars(wide))

    def forgiven(self, start: int, reference: Array, response: Floats, factors: Factors) -> Floats:
        """The larger of the two moves of each element, without a floor."""
        largest = np.zeros(reference.shape)
        for move in self.moves(start, reference):
            np.fmax(largest, np.abs(move), out=largest)
        return np.minimum(largest, response)

    def scaling(self, factors: Factors) -> float:
        """Largest scaling by a run, relative to 1."""
        return self.overall.slope


class ProbedResponse(MeasuredResponse):
    """A response with probes that say more closely how far rounding takes each element.

    Two moved runs say little of one element: where their effects cancelled by chance it answers too little, and the
    allowance for that is too much for all others. The largest move of many probes is neither.
    """

    def __init__(self, wide: Response, probes: Sequence[Array]) -> None:
        """Add the answers to `probes`, results of the benchmark in the shape of the output, to those of two runs.

        Where every device makes this rounding, an element whose probes are all small by chance gets the typical move.
        """
        super().__init__(wide)
        self._probe_results = [probe.reshape(-1) for probe in probes]
        self._slope = self._largest_slope()
        log_means = LogMeans()
        for start, chunk in self.chunks() if self.is_for_all else ():
            sample = slice(max(0, self.chosen - start), None)
            log_means.add(magnitude_of(chunk)[sample], self._largest_move(start, chunk)[sample])
        self._typical = log_means.finish()

    def forgiven(self, start: int, reference: Array, response: Floats, factors: Factors) -> Floats:
        """`_PROBED` times the largest move of each element by a probe."""
        largest = self._largest_move(start, reference)
        wide = Response.forgiven(self, start, reference, response, factors)
        forgiven = _PROBED * np.fmax(largest, self._typical.floor(magnitude_of(reference)))
        # What answered to nothing sits at a jump; where the probes left the domain the two runs have to do.
        return np.where((wide == 0) | np.isinf(largest), wide, forgiven)

    def deviation(self, at: int) -> float:
        """See `Response`; a probe that left the domain does not count."""
        moves = [probe[at] - self.reference[at] for probe in self._probe_results]
        return math.sqrt(np.mean(np.square(np.abs([move for move in moves if np.isfinite(move)] or [0.0]))))

    def scaling(self, factors: Factors) -> float:
        """`_PROBED` times the largest scaling by a probe, relative to 1."""
        return _PROBED * self._slope

    def _largest_move(self, start: int, reference: Array) -> Floats:
        largest = np.full(reference.shape, -np.inf)
        for probe in self._probe_results:
            np.fmax(largest, np.abs(_move(probe, start, reference)), out=largest)
        return largest

    def _largest_slope(self) -> float:
        squares, projections = 0.0, [0.0] * len(self._probe_results)
        for start, chunk in self.chunks():
            finite = np.where(np.isfinite(chunk), chunk, 0)
            squares += inner(finite, finite)
            for number, probe in enumerate(self._probe_results):
                move = _move(probe, start, chunk)
                projections[number] += inner(finite, np.where(np.isfinite(move), move, 0))
        return max(map(abs, projections)) / squares if squares else 0.0


def _move(result: Array, start: int, reference: Array, size: float = 1.0) -> Array:
    """The move of a chunk in a run, over its size; NaN where a perturbed input that left the domain tells nothing."""
    with np.errstate(invalid="ignore"):
        move: Array = (widened(result[start : start + reference.size]) - reference) / size
    move[~np.isfinite(move)] = math.nan
    return move


def in_reach(array: Array, format_: FloatFormat) -> Array:
    """Values clipped to one spacing beyond the largest of `format_`, in the shape and dtype of `array`.

    A finite result at the end of the range and Inf are then neighbours. Complex values are left as they are.
    """
    if array.dtype.kind == "c":
        return array
    limit = format_.largest + format_.largest_spacing
    return np.clip(array, -limit, limit)


def magnitude_of(reference: Array) -> Floats:
    """|b| of each element, float64, in the shape of `reference` (float64 or complex128); 0 where it is NaN."""
    magnitude: Floats = np.abs(reference)
    magnitude[np.isnan(magnitude)] = 0
    return magnitude


#: Vector kernels keep so many sums side by side, and add them up at the end: 1 is one term after the other.
_LANES = (1, 4, 8, 16, 32)
#: Blocked kernels and split-k add up so many terms first.
_BLOCKS = (64, 256, 1024)


def largest_partial_sums(terms: Floats) -> float:
    """The 2-norm of all partial sums, in the order of adding where it is largest.

    Rounding each partial sum c to nearest leaves errors that are independent and proportional to c; their standard
    deviation is proportional to this norm (Higham, *Accuracy and Stability of Numerical Algorithms*, 4.2).

    Args:
        terms: shape (n,), float64.
    """
    squares = [_in_rows(terms[::-1], 1, 0)]
    squares += [_in_rows(terms, lanes, 0) for lanes in _LANES if lanes <= max(1, terms.size)]
    squares += [_in_rows(terms, length, 1) for length in _BLOCKS if length < terms.size]
    return math.sqrt(max(squares))


def largest_error_of_sums(terms: Floats) -> float:
    """The largest error of adding up `terms` in float32, over orders of adding, in the unit of `terms`.

    Rounding errors are no chance where terms are equal: each addition then rounds to the same side.

    Args:
        terms: shape (n,), float64; rounded to float32 for all but one of the orders,
            which adds products as they are, as fused multiply-adds do.
    """
    exact, fused = float(terms.sum()), np.float32(0)
    with np.errstate(all="ignore"):
        rounded = terms.astype(np.float32)
        for term in terms.tolist():
            fused = np.float32(float(fused) + term)
        sums = [fused, *(_sum_in_lanes(order, lanes) for order in (rounded, rounded[::-1]) for lanes in _LANES)]
    return max(abs(float(total) - exact) for total in sums)


def _sum_in_lanes(terms: npt.NDArray[np.float32], lanes: int) -> np.float32:
    rows = _rows(terms, lanes)
    total: np.float32 = np.cumsum(np.cumsum(rows, axis=0)[-1:])[-1:].sum()
    return total


def _in_rows(terms: Floats, length: int, axis: int) -> float:
    """The square of the norm of all partial sums of lanes, which axis 0 adds up, or of blocks."""
    rows = _rows(terms, length)
    return _squares(np.cumsum(rows, axis=axis)) + _squares(np.cumsum(rows.sum(axis=axis))[1:])


def _rows(terms: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = np.concatenate([terms, np.zeros(-terms.size % length, terms.dtype)])
    return rows.reshape(-1, length)


def _squares(sums: Floats) -> float:
    return float(np.vdot(sums, sums))
