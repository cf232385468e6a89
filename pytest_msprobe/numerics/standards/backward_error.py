"""The standard `backward-error`: is the output the exact result of inputs that are off by a few rounding errors?

docs/standards.md derives the model, states its assumptions and says where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

import numpy as np

from pytest_msprobe.numerics.dtypes import (
    FLOAT32_ROUNDOFF,
    FloatFormat,
    float_format,
    part_dtype,
    spacings,
    unit_roundoff,
)
from pytest_msprobe.numerics.expected import Absolute, Roundoffs, Share, Times
from pytest_msprobe.numerics.judgement import (
    MOST_PROBED,
    Deviations,
    Judgement,
    OutputPair,
    count_of,
    number,
    place_and_values,
    plain_judgement,
    unforgivable_reasons,
)
from pytest_msprobe.numerics.measurement import (
    Array,
    Element,
    Floats,
    Metrics,
    chunks,
    is_same,
    measure,
    unravelled,
    widened,
)
from pytest_msprobe.numerics.patterns import find_rounding_bias
from pytest_msprobe.numerics.standards.elementwise import early_judgement, judge_plain
from pytest_msprobe.numerics.standards.error_statistics import (
    FEW,
    STANDS_OUT,
    ErrorStatistics,
    LeastTolerance,
    in_question,
)
from pytest_msprobe.numerics.standards.sensitivity import (
    Factors,
    KnownResponse,
    Response,
    TypicalResponse,
    in_reach,
    largest_error_of_sums,
    largest_partial_sums,
    magnitude_of,
)

#: Adding n terms one by one rounds n - 1 partial sums, each by 0.41 u of itself in the root mean square. They are part
#: of the result and a random walk, hypot(result / sqrt(3), norm of the terms / sqrt(6)) in the mean: five times that.
_SUMMATION = 1.2
_ROOT_HALF = math.sqrt(0.5)
#: So many elements at most are judged by themselves, ...
_LOOKED_AT = 128
#: ... and so many that stand out together, as elements of an elementary function do where it cancels.
_SETTLED = 1 << 14
#: ... and chance leaves the largest of all elements beyond them in one output of so many.
_UNLIKELY = 1e-4
#: An error of so many of its own standard deviations is no outlier.
_ORDINARY = 2.0
#: Where a larger share of the rows of a sample holds elements in question, no small call holds those of all.
_MOST_ROWS = 0.25
#: Derivatives on both sides of a kink are apart by more than this share of them; rounding inputs moves others by less.
_KINK = 2.0**-4
#: In outputs of so many elements a sample, and what may be beyond its tolerance, stand for all.
_LARGE = 1 << 17
#: ... unless more than so many, or a larger share of all, may be beyond.
_FEW_OF_LARGE, _SHARE_OF_LARGE = 512, 2.0**-10
#: An error so many times what two runs forgive is none that more of them explain.
_HOPELESS = 32.0
#: More runs forgive more, never less: what passes after four needs no others.
_PROBES = (4, 16)
_TINY = 2.0**-1022
#: In smallest normal values: what an operation flushes inside it multiplies by incoming gradients of a few deviations.
_FLUSHED = 32
#: What forgives this share of an element tells nothing of it.
_SIGNAL = 0.2
_FORGIVEN = (
    "about as large as its own rounding, as where terms cancel or a result jumps: right and wrong cannot be told apart"
)


@dataclass(frozen=True, slots=True)
class BackwardError:
    """Passes when every element is within its own tolerance, made of rounding, sensitivity and summation.

    Beyond that, a tensor must not use up its tolerance as a whole, one element must not stand out among accurate ones,
    and the rounding must not go to one side. Integers and bools must be equal, NaN must stand where the benchmark has
    NaN, and Inf where it is infinite or at the end of the dtype's range; either may stand where the magnitudes of the
    terms of a sum add up to more than the dtype holds. An empty output on both sides passes.

    Attributes:
        sensitivity: how many times the response to one rounding error of every input is allowed.
        single_sensitivity: the same where an element answers to one input only, so that nothing adds up by chance.
        rounding: ulps of the output that are allowed whatever the inputs.
        strict: what is not tolerated: `saturation` (the largest value of the dtype for Inf, or the reverse),
            `subnormals` (0 in their place).
        narrow_sums: (number of terms of each element, unit roundoff of their sums) where devices are known to add them
            up in a dtype narrower than float32.
    """

    sensitivity: float = 5.0
    single_sensitivity: float = 3.0
    rounding: float = 1.0
    strict: frozenset[str] = frozenset()
    narrow_sums: tuple[int, float] | None = None

    name: ClassVar[str] = "backward-error"
    #: Elements are off by their own tolerance, not by one bound for all.
    off_bound: ClassVar[float] = math.inf
    #: Whether inputs may be off, or only what is computed inside.
    has_exact_inputs: ClassVar[bool] = False

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements: within 1 ulp."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output; asks for perturbed results only where rounding does not explain the error.

        Those with moved inputs come first; those with arithmetic moved inside only where these do not explain it.
        """
        early = early_judgement(pair.metrics)
        if early is None and pair.metrics.nonfinite_mismatches:
            if "saturation" in self.strict:
                return plain_judgement(unforgivable_reasons(pair.metrics))
            pair = _without_forced_overflows(pair)
            early = early_judgement(pair.metrics)
        return early or self._judge_elements(pair)

    def _judge_elements(self, pair: OutputPair) -> Judgement:
        """The verdict on an output with elements that differ."""
        metrics = pair.metrics
        bias = find_rounding_bias(pair.tested, pair.reference)
        if bias is not None:
            reason = (
                f"The errors are one-sided: {bias.count} of {bias.total} elements that rounding to nearest moves the "
                f"other way were rounded {bias.direction}."
            )
            return Judgement("error", (reason,), ratio=bias.count / bias.total / Share.ONE_DIRECTION)
        if not metrics.nonfinite_mismatches and metrics.max_ulp is not None and metrics.max_ulp <= self.rounding:
            return Judgement("pass", ratio=metrics.max_ulp / self.rounding if self.rounding else 0.0)
        deviations = None if self.has_exact_inputs else pair.sensitivity.deviations()
        if deviations is not None and pair.tested.size >= _LARGE:
            judgement = self._by_sample(pair, deviations)
            if judgement is not None:
                return judgement
        weighed = self._weighed(pair, deviations).closer()
        # Narrow sums are known to be so coarse: that a run has one is no reason why it differs from another.
        if weighed.is_pass and self.narrow_sums is None and weighed.tolerances.forgive_the_signal():
            return Judgement("skip", (_FORGIVEN,))
        return weighed.judgement

    def tolerances(self, pair: OutputPair) -> Floats:
        """Tolerance of each element of an output of floats, in its shape and unit, float64.

        All that explains errors is asked for first.
        """
        deviations = None if self.has_exact_inputs else pair.sensitivity.deviations()
        return self._weighed(pair, deviations).tolerances.of_all()

    def _weighed(self, pair: OutputPair, deviations: Deviations | None) -> _Weighed:
        """The output by what decides it: known deviations, small calls, or moved runs of the whole call."""
        values = None if deviations is None else deviations.values()
        by_parts = self._by_parts(pair) if values is None else None
        if by_parts is None and not self.has_exact_inputs:
            tolerances = _Tolerances(pair, self)
            if deviations is not None and values is not None:
                tolerances = self._by_deviations(pair, values, deviations)
            # Rounding of the output and the error of kernels forgive least: answers to inputs can only add to them.
            weighed = _weigh(tolerances)
            if deviations is not None and deviations.have_terms:
                weighed = weighed.closer()
            if weighed.is_pass:
                return weighed
        return by_parts or self._by_runs(pair)

    def _by_deviations(self, pair: OutputPair, values: Floats, deviations: Deviations) -> _Tolerances:
        """The tolerances of elements whose moves, `values`, are known.

        Large sums whose elements cannot be looked at for nothing are forgiven as much as by two moved runs, and at once
        what chance leaves the furthest of all.
        """
        is_close = deviations.have_terms or (pair.drawn_from or pair.tested.size) <= MOST_PROBED
        response = KnownResponse(values, pair, is_close=is_close)
        tail = 1.0 if deviations.have_terms else _deviations_of_all(self, pair) / self.sensitivity
        return _Tolerances(pair, self, [response], is_close=is_close, tail=tail)

    def _by_sample(self, pair: OutputPair, deviations: Deviations) -> Judgement | None:
        """The pass of a large output by a sample of it and the elements that may be wrong; None where that is none."""
        least = deviations.least() if pair.tested.dtype.kind != "c" else None
        sample, values_of_sample = deviations.sample()
        if least is None or not np.isfinite(values_of_sample).all():
            return None

        def with_chosen(chosen: Array) -> _Tolerances:
            others = ~np.isin(sample, chosen)
            places = np.concatenate([chosen, sample[others]])
            values = np.concatenate([deviations.of(chosen), values_of_sample[others]])
            part = pair.selected(places, values, chosen=chosen.size, have_terms=deviations.have_terms)
            return self._by_deviations(part, values, deviations)

        tolerances = with_chosen(sample[:0])
        errors = tolerances.errors()
        if not errors.is_measure:
            return None
        most = max(_FEW_OF_LARGE, int(_SHARE_OF_LARGE * pair.tested.size))

        def of_chunk(start: int, reference: Array) -> Floats:
            return least[start : start + reference.size]

        places = in_question(pair, of_chunk, tolerances.least(), errors, most)
        if places is None:
            return None
        weighed = _weigh(with_chosen(places))
        if deviations.have_terms:
            weighed = weighed.closer()
        return weighed.judgement if weighed.is_pass else None

    def _by_parts(self, pair: OutputPair) -> _Weighed | None:
        """A large output that passes by small calls alone; None where they do not decide it.

        By a sample of the output all its elements answer at least so much. Those for which that is not enough, and
        those that may stand out, are judged in a small call of their own, whose errors and judgement are returned.
        """
        sample = pair.sensitivity.restricted(pair.tested, ())
        if sample is None:
            return None
        response, count = self._response(sample), len(sample.tested)
        errors = _Tolerances(sample, self, [response]).errors()
        places = self._in_question(sample, TypicalResponse(response, count, sample.reference), errors)
        if places is None or np.unique(places // sample.row_size).size > _MOST_ROWS * count:
            return None
        least = TypicalResponse(response, count, pair.reference)
        places = self._in_question(pair, least, errors)
        if places is None or (places.size and not errors.is_measure):
            return None
        part = pair.sensitivity.restricted(pair.tested, places) if places.size else sample
        if part is None:
            return None
        weighed = self._by_runs(part).closer()
        return replace(weighed, tolerances=_Tolerances(pair, self, [least])) if weighed.is_pass else None

    def _in_question(self, pair: OutputPair, least: TypicalResponse, errors: ErrorStatistics) -> Array | None:
        """Elements that a floor under the answers of all does not settle; None for complex values."""
        if pair.tested.dtype.kind == "c":
            return None
        allowed = _Tolerances(pair, self, [least]).least()
        return in_question(pair, least.of_chunk, allowed, errors, pair.tested.size)

    def _by_runs(self, pair: OutputPair) -> _Weighed:
        """The output by moved runs of the whole call."""
        response = self._response(pair)
        if self.has_exact_inputs:
            return self._by_probes(pair, [response], _HOPELESS)
        weighed = self._by_probes(pair, [response], 1.0)
        if weighed.is_pass:
            return weighed
        # What is saved for gradients is moved with the inputs: it is not forgiven twice.
        arithmetic = Response(pair, "inside", probed="arithmetic")
        return self._by_probes(pair, [response, arithmetic], _HOPELESS) if arithmetic.is_known else weighed

    def _response(self, pair: OutputPair) -> Response:
        """The answers that are asked for first."""
        return Response(pair, "inside" if self.has_exact_inputs else "inputs")

    def _by_probes(self, pair: OutputPair, responses: Sequence[Response], hopeless: float) -> _Weighed:
        """The output by two runs of each kind, and by more of them where these do not decide it.

        An error beyond `hopeless` times what two runs forgive is none that more of them explain.
        """
        weighed = _weigh(_Tolerances(pair, self, responses))
        if weighed.judgement.ratio is None or weighed.judgement.ratio > hopeless:
            return weighed
        measured = [response.measured() for response in responses]
        if _weigh(_Tolerances(pair, self, measured, is_close=True)).is_pass:
            return weighed
        for count in _PROBES:
            closer = [response.probed(count) for response in responses]
            if closer == responses:
                break
            weighed = _weigh(_Tolerances(pair, self, closer, is_close=True))
            if weighed.is_pass:
                break
        return weighed


@dataclass(frozen=True, slots=True)
class Fused(BackwardError):
    """`backward-error` for devices that keep the inputs of a fused kernel exact and compute in float32 inside.

    Only what is computed inside may be off, and what a forward saves for its gradients. Intermediate results in half
    precision are then too inaccurate, which `backward-error` forgives up to the rounding of the inputs.
    """

    name: ClassVar[str] = "fused"
    has_exact_inputs: ClassVar[bool] = True


def _without_forced_overflows(pair: OutputPair) -> OutputPair:
    """The pair with the benchmark's values where a NaN or Inf is what the range of the dtype makes of partial sums.

    Where the magnitudes of the terms add up to more than the dtype holds, an order of adding leaves its range, and
    terms of both signs make Inf - Inf. An Inf among the inputs forces nothing: the benchmark has it too.
    """
    sums = pair.sensitivity.sums_of_magnitudes()
    if sums is None:
        return pair
    largest = float_format(part_dtype(pair.tested.dtype)).largest
    is_forced = ~np.isfinite(pair.tested) & np.isfinite(pair.reference) & (sums > largest) & np.isfinite(sums)
    if not is_forced.any():
        return pair
    tested = pair.tested.copy()
    with np.errstate(over="ignore"):
        tested[is_forced] = pair.reference[is_forced].astype(tested.dtype)
    return replace(pair, tested=tested, metrics=measure(tested, pair.reference, off_bound=BackwardError.off_bound))


def _deviations_of_all(standard: BackwardError, pair: OutputPair) -> float:
    """So many standard deviations leave the furthest of all elements beyond in one output of many."""
    count = pair.drawn_from or pair.tested.size
    return max(standard.sensitivity, math.sqrt(2 * math.log(count / _UNLIKELY)))


@dataclass(eq=False)
class _Tolerances:
    """How far each element of one output may be off.

    Attributes:
        pair: the output.
        standard: what is forgiven.
        responses: how the output answers to what may be off; without one, rounding and kernels alone count, which
            forgives least.
        is_close: whether the responses are so well known that they add up as standard deviations do.
        tail: sums are allowed so many times five standard deviations.
        settled: tolerances of elements that are judged by themselves, by flat position.
        of_partial_sums: what rounding their partial sums leaves of all elements; None where that is not asked for.
    """

    pair: OutputPair
    standard: BackwardError
    responses: Sequence[Response] = ()
    is_close: bool = False
    tail: float = 1.0
    settled: Mapping[int, float] = field(default_factory=dict)
    of_partial_sums: Floats | None = None

    def __post_init__(self) -> None:
        pair, standard = self.pair, self.standard
        self.format = float_format(part_dtype(pair.tested.dtype))
        self._flushed = _flushed(self.format, is_strict="subnormals" in standard.strict)
        self.roundoff = unit_roundoff(pair.tested.dtype)
        self.input_roundoff = pair.operand_roundoff or self.roundoff
        # Squares of what shorter types hold are within the range of float64, and a tenth of the work.
        self._hypot = _root_of_squares if self.roundoff >= FLOAT32_ROUNDOFF else np.hypot
        self._factors = Factors(standard.sensitivity, standard.single_sensitivity)
        # float64 is computed with better functions than the wide ones of shorter types.
        self.kernel = pair.kernel_error if self.roundoff >= FLOAT32_ROUNDOFF else 0.0
        #: Relative error of adding up the terms of an element.
        self._summation = 0.0
        if standard.has_exact_inputs or (self.responses and not self.responses[0].overall.is_single):
            self._summation = _SUMMATION * math.sqrt(pair.accumulated - 1) * self.sum_roundoff
        if standard.narrow_sums is not None:
            count, self.input_roundoff = standard.narrow_sums
            self._summation = _SUMMATION * math.sqrt(count - 1) * self.input_roundoff
        elif pair.narrow_sums > 1:
            self._summation = _SUMMATION * math.sqrt(pair.narrow_sums - 1) * self.roundoff
        self._summation *= self.tail

    @property
    def sum_roundoff(self) -> float:
        """Unit roundoff of the sums that kernels keep."""
        return min(self.roundoff, FLOAT32_ROUNDOFF)

    def chunks(self) -> Iterator[tuple[int, Array, Array]]:
        """Flat start, tested and reference values in reach of the dtype."""
        for start, sides in chunks(self.pair.tested, self.pair.reference):
            tested, reference = (in_reach(widened(side), self.format) for side in sides)
            yield start, tested, reference

    def errors(self) -> ErrorStatistics:
        """How the errors of all elements compare with their tolerances."""
        errors = ErrorStatistics(self.pair.chosen)
        for start, tested, reference in self.chunks():
            rounding, response, tolerance = self.bounds(start, reference)
            errors.add(start, _error(tested, reference), (rounding, response, tolerance))
            errors.add_projection(start, reference, self._without_settled(start, tested, reference))
        return errors

    def bounds(self, start: int, reference: Array) -> tuple[Floats, Floats, Floats]:
        """Rounding, response and tolerance of each element of a chunk.

        One judged by itself is settled, and no measure of others.
        """
        magnitude = magnitude_of(reference)
        rounding = self._rounding(magnitude)
        if not self.responses:  # each element then says how accurate the others are
            response, tolerance = rounding.copy(), rounding + (self.kernel + self._summation) * magnitude
        else:
            changes = [response.of_chunk(start, reference) for response in self.responses]
            response, tolerance = np.sum(changes, axis=0), self._tolerance(start, reference, changes)
        for at in self.settled:
            if start <= at < start + reference.size:
                response[at - start], tolerance[at - start] = 0.0, math.inf
        return rounding, response, tolerance

    def least(self) -> LeastTolerance:
        """What every element is allowed at least by a single response."""
        (response,) = self.responses
        change, forgiven = response.least_forgiven(self._factors)
        terms = change / self.input_roundoff
        move = math.hypot(self._summation * _ROOT_HALF * terms, forgiven)
        rounding = 2 * self.standard.rounding * self.roundoff
        return LeastTolerance(rounding, self.kernel, self._summation, move, self.kernel * terms)

    def of_all(self) -> Floats:
        """Tolerance of each element, float64, in the shape and unit of the output."""
        tolerances = np.concatenate([self.bounds(start, reference)[2] for start, _, reference in self.chunks()])
        for at, tolerance in self.settled.items():
            tolerances[at] = tolerance
        return tolerances.reshape(self.pair.tested.shape)

    def of_slope(self, errors: ErrorStatistics) -> float:
        """How much rounding scales the output as a whole."""
        limit = 2 * self.standard.rounding * self.roundoff + self.kernel + self._summation
        limit += sum(response.scaling(self._factors) for response in self.responses)
        return limit + self._flushed / max(errors.size, _TINY)

    def forgive_the_signal(self) -> bool:
        """Whether most elements that are more than rounding may be off by a large share of themselves.

        What one rounding makes as large as it is, such as a gradient that is 0 but for rounding, is no such element:
        it is judged by the size of what cancels.
        """
        present = forgiven = 0
        for start, _, reference in self.chunks():
            magnitude = magnitude_of(reference)
            present += int(np.count_nonzero(magnitude))
            is_large = (self.bounds(start, reference)[2] >= _SIGNAL * magnitude) & (magnitude > 0)
            if is_large.any():
                rounded = sum((response.smooth(start, reference) for response in self.responses), np.zeros(1))
                forgiven += int(np.count_nonzero(is_large & (magnitude > rounded + self._flushed)))
        return 2 * forgiven > present

    def _without_settled(self, start: int, tested: Array, reference: Array) -> Array:
        """`tested` with the benchmark's values where elements are judged by themselves."""
        places = [at - start for at in self.settled if start <= at < start + reference.size]
        if places:
            tested = tested.copy()
            tested[places] = reference[places]
        return tested

    def _tolerance(self, start: int, reference: Array, changes: list[Floats]) -> Floats:
        magnitude = magnitude_of(reference)
        tolerance = self._rounding(magnitude)
        terms = 0.0 if self.standard.has_exact_inputs else changes[0] / self.input_roundoff
        tolerance += self.kernel * (terms + magnitude)
        summation = self._summation * self._hypot(magnitude, _ROOT_HALF * terms)
        if self.of_partial_sums is not None:
            summation = np.maximum(summation, self.of_partial_sums[start : start + reference.size])
        forgiven = (
            response.forgiven(start, reference, change, self._factors)
            for response, change in zip(self.responses, changes)
        )
        # Independent errors add up as standard deviations do; two runs may have seen too little of each.
        tolerance += reduce(self._hypot if self.is_close else np.add, forgiven, summation)
        return tolerance

    def _rounding(self, magnitude: Floats) -> Floats:
        """What rounding the output leaves, and the last step before where that may be of the same dtype."""
        if self.standard.has_exact_inputs:
            return self.standard.rounding * spacings(magnitude, self.format) + self._flushed
        return 2 * self.standard.rounding * self.roundoff * magnitude + self._flushed


def _weigh(tolerances: _Tolerances) -> _Weighed:
    """The errors of an output against these tolerances: an error in one line, or a pass.

    The ratio of the judgement is the largest error over its tolerance.
    """
    errors = tolerances.errors()
    limit = tolerances.of_slope(errors)
    reason = _fault(tolerances, errors, limit)
    slope = abs(errors.slope) / limit if errors.is_large and limit else 0.0
    ratio = max(errors.largest_use, errors.outlier_over_chance, errors.rms_over_chance, slope)
    return _Weighed(tolerances, errors, Judgement.of(filter(None, [reason]), ratio))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """One output, its errors and their tolerances, and what follows: one step on the way to its judgement."""

    tolerances: _Tolerances
    errors: ErrorStatistics
    judgement: Judgement

    @property
    def is_pass(self) -> bool:
        """Whether rounding explains every error."""
        return self.judgement.is_pass

    def closer(self) -> _Weighed:
        """The output once the few elements that an error is about were judged by themselves.

        One that this does not explain leaves it as it is; where all are explained, the rest of the output decides. Many
        are judged by the partial sums of all, where these are known.
        """
        if self.is_pass:
            return self
        weighed = self
        if self.errors.beyond > _LOOKED_AT and self.errors.largest_use < _HOPELESS:
            weighed = self._with_partial_sums()
        while not weighed.is_pass:
            settled = weighed._settled()
            if settled is None:
                break
            weighed = _weigh(replace(weighed.tolerances, settled=settled))
        return weighed

    def _with_partial_sums(self) -> _Weighed:
        tolerances = self.tolerances
        sums = tolerances.pair.sensitivity.partial_sums()
        if sums is None or sums.shape != tolerances.pair.tested.shape:
            return self
        rounded = Roundoffs.ROOT_MEAN_SQUARE * tolerances.sum_roundoff
        of_partial_sums = tolerances.standard.sensitivity * rounded * sums.reshape(-1)
        return _weigh(replace(tolerances, of_partial_sums=of_partial_sums))

    def _settled(self) -> dict[int, float] | None:
        """Tolerances of the elements judged by themselves, the suspects among them; None where one is unexplained."""
        settled = dict(self.tolerances.settled)
        # One that is not finite stays beyond: the benchmark's value in its place is no nearer.
        suspects = [suspect for suspect in self._suspects() if suspect[1] not in settled]
        # Terms take a run of the benchmark each; elementary functions have none.
        most = _SETTLED if self.tolerances.kernel and not self.errors.beyond else _LOOKED_AT
        if not suspects or len(settled) + len(suspects) > most:
            return None
        for _, at, error, rounding in sorted(suspects, reverse=True):
            settled[at] = rounding + self._of_element(at, error - rounding)
            # Terms beyond the range of float64 say nothing of how far rounding goes.
            if not error <= settled[at] < math.inf:
                return None
        return settled

    def _suspects(self) -> list[tuple[float, int, float, float]]:
        """(error over tolerance, flat position, error, rounding) of elements beyond, else of those that stand out."""
        if self.errors.beyond > _LOOKED_AT or not (self.errors.beyond or self.errors.outlier_over_chance > 1):
            return []
        suspects = []
        for start, tested, reference in self.tolerances.chunks():
            rounding, response, tolerance = self.tolerances.bounds(start, reference)
            error = _error(tested, reference)
            is_suspect = error > tolerance
            if not self.errors.beyond:
                is_suspect = self.errors.stand_out(error, rounding, response)
                at = self.errors.largest_at - start
                if 0 <= at < error.size:
                    is_suspect[at] = True
            for at in np.flatnonzero(is_suspect).tolist():
                use = error.item(at) / tolerance.item(at)
                suspects.append((use, start + at, error.item(at), rounding.item(at)))
        return suspects

    def _of_element(self, at: int, needed: float) -> float:
        """How far more than its own rounding the element at a flat position may be off; its terms only if `needed`.

        Beyond the tolerance of all, an element may be off by what moving arithmetic makes of this one: how far inputs
        may be off does not hang on the element, and narrow dtypes would forgive faults of a few roundings. One
        that stands out may be off by what is ordinary for it; by more where kernels compute a function piece by piece.
        """
        tolerances = self.tolerances
        factor = _deviations_of_all(tolerances.standard, tolerances.pair)
        deviations = factor if self.errors.beyond or tolerances.kernel else _ORDINARY
        moves = (response.deviation(at) for response in tolerances.responses if response.is_for_all)
        allowed = max(deviations * math.hypot(*moves), self._to_other_side(at))
        # Polynomials by pieces: a few elements among very many may be in the worst of them.
        if allowed < needed and tolerances.kernel and not self.errors.beyond and self._are_several_so_far_off():
            allowed = max(allowed, tolerances.kernel * self._size_of_terms(at))
        orders = tolerances.pair.sensitivity.terms(at) if allowed < needed else ()
        rounded = factor * Roundoffs.ROOT_MEAN_SQUARE * tolerances.sum_roundoff
        for terms in orders:
            allowed = max(allowed, rounded * largest_partial_sums(terms), 2 * largest_error_of_sums(terms))
        return allowed

    def _are_several_so_far_off(self) -> bool:
        """Whether the element that stands out has others beside it, off by a tenth as much at least."""
        limit = self.errors.largest_error / STANDS_OUT
        return sum(np.count_nonzero(_error(*pair) > limit) for _, *pair in self.tolerances.chunks()) >= FEW

    def _size_of_terms(self, at: int) -> float:
        """What errors of the functions inside are relative to, in the element at a flat position."""
        tolerances = self.tolerances
        reference = in_reach(widened(tolerances.pair.reference.reshape(-1)[at : at + 1]), tolerances.format)
        terms = 0.0
        if tolerances.responses and not tolerances.standard.has_exact_inputs:
            terms = tolerances.responses[0].largest_move(at, reference) / tolerances.input_roundoff
        return terms + magnitude_of(reference).item()

    def _to_other_side(self, at: int) -> float:
        """How far the benchmark's derivative beyond a kink is from that before it, if the tested one is that; else 0.

        The derivative of hardswish at 3 is 1.5 or 1: both are right, and a device need not choose the benchmark's.
        """
        pair, standard = self.tolerances.pair, self.tolerances.standard
        if not pair.has_kinks:
            return 0.0
        tested, reference = (side.reshape(-1)[at].item() for side in (pair.tested, pair.reference))
        share = (standard.sensitivity + 2 * standard.rounding) * self.tolerances.roundoff
        moved = [run.result for run in pair.sensitivity.runs("inputs")]
        for result in (*moved, *pair.sensitivity.probes("inputs", _PROBES[-1])):
            side = result.reshape(-1)[at].item()
            is_beyond = abs(side - reference) > _KINK * max(abs(side), abs(reference))
            if is_beyond and abs(tested - side) <= share * abs(side):
                return float(abs(tested - reference))
        return 0.0


def _fault(tolerances: _Tolerances, errors: ErrorStatistics, limit: float) -> str:
    """What is wrong, in one line; "" when rounding explains every error. `limit` is that of the slope."""
    if errors.beyond:
        return _beyond(tolerances, errors)
    if errors.outlier_over_chance > 1:
        place = _place(tolerances.pair, errors.largest_at)
        return f"One element stands out{place}: all others are far more accurate than it."
    if errors.rms_over_chance > 1:
        used = number(errors.rms_of_tolerance)
        return f"The errors are {used} of their tolerances on average, where chance leaves 0.3."
    if errors.is_large and abs(errors.slope) > limit:
        return f"The output is {number(1 + errors.slope)} times the benchmark as a whole; rounding leaves {limit:.2g}."
    return ""


def _beyond(tolerances: _Tolerances, errors: ErrorStatistics) -> str:
    verb = "is" if errors.beyond == 1 else "are"
    times = f"{number(errors.largest_use)} times" if errors.largest_use < Times.COUNTABLE else "beyond"
    is_known = any(response.is_known for response in tolerances.responses)
    caveat = "" if is_known else " of rounding alone, as the benchmark did not run on perturbed inputs"
    what = "inside and of the output" if tolerances.standard.has_exact_inputs else "of inputs and output"
    place = _place(tolerances.pair, errors.worst_at)
    return (
        f"{count_of(errors.beyond, tolerances.pair.tested.size)} {verb} further off than rounding {what} "
        f"explains, worst{place}: {times} its tolerance{caveat}."
    )


def _place(pair: OutputPair, at: int) -> str:
    index = unravelled(at, pair.tested.shape)
    return place_and_values(Element(index, pair.tested.item(at), pair.reference.item(at)))


def _root_of_squares(first: Floats, second: Floats | float) -> Floats:
    root: Floats = np.square(first)
    root += np.square(second)
    return np.sqrt(root, out=root)


def _error(tested: Array, reference: Array) -> Floats:
    """|t-b|; 0 where both are NaN or the same, inf where one of them is not a number."""
    with np.errstate(invalid="ignore"):
        error: Floats = np.abs(tested - reference)
    error[is_same(tested, reference)] = 0
    error[np.isnan(error)] = math.inf
    return error


def _flushed(format_: FloatFormat, *, is_strict: bool) -> float:
    """What may become 0: devices flush what is near the end of a wide exponent range; float16 needs its subnormals."""
    if format_.smallest_normal <= Absolute.FLUSHED_BELOW and not is_strict:
        return _FLUSHED * format_.smallest_normal
    return format_.smallest_normal * 2.0**-format_.mantissa_bits
