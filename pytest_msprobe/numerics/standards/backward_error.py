"""The standard `backward-error`: is the output the exact result of inputs that are off by a few rounding errors?

docs/standards.md derives the model, states its assumptions and says where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from pytest_msprobe.numerics.standards.direct_sums import largest_error_of_sums, largest_partial_sums
from pytest_msprobe.numerics.standards.elementwise import early_judgement, judge_plain
from pytest_msprobe.numerics.standards.error_statistics import FEW, STANDS_OUT, ErrorStatistics
from pytest_msprobe.numerics.standards.screening import LeastTolerance, in_question
from pytest_msprobe.numerics.standards.sensitivity import (
    Factors,
    KnownResponse,
    Probes,
    Response,
    TypicalResponse,
    in_reach,
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
        metrics = pair.metrics
        verdict = early_judgement(metrics)
        if verdict is not None:
            return verdict
        if metrics.nonfinite_mismatches:
            if "saturation" in self.strict:
                return plain_judgement(unforgivable_reasons(metrics))
            pair = _without_forced_overflows(pair)
            metrics = pair.metrics
            verdict = early_judgement(metrics)
            if verdict is not None:
                return verdict
        bias = find_rounding_bias(pair.tested, pair.reference)
        if bias is not None:
            reason = (
                f"The errors are one-sided: {bias.count} of {bias.total} elements that rounding to nearest moves the "
                f"other way were rounded {bias.direction}."
            )
            return Judgement("error", (reason,), ratio=bias.count / bias.total / Share.ONE_DIRECTION)
        if not metrics.nonfinite_mismatches and metrics.max_ulp is not None and metrics.max_ulp <= self.rounding:
            return Judgement("pass", ratio=metrics.max_ulp / self.rounding if self.rounding else 0.0)
        known = None if self.has_exact_inputs else pair.deviations()
        if known is not None and pair.tested.size >= _LARGE:
            found = self._by_sample(pair, known)
            if found is not None:
                return found
        search, found = self._searched(pair, known)
        found = found if found.is_pass else search.closer(found)
        # Narrow sums are known to be so coarse: that a run has one is no reason why it differs from another.
        if found.is_pass and self.narrow_sums is None and search.forgives_the_signal():
            return Judgement("skip", (_FORGIVEN,))
        return found

    def tolerances(self, pair: OutputPair) -> Floats:
        """Tolerance of each element of an output of floats, in its shape and unit, float64.

        All that explains errors is asked for first.
        """
        return self._searched(pair, None if self.has_exact_inputs else pair.deviations())[0].tolerances()

    def _searched(self, pair: OutputPair, known: Deviations | None) -> tuple[_Search, Judgement]:
        """The search that decided, and what it decided."""
        values = None if known is None else known.values()
        found = self._by_parts(pair) if values is None else None
        if found is None and not self.has_exact_inputs:
            search = _Search(pair, self, ()) if known is None or values is None else self._by_known(pair, values, known)
            # Rounding of the output and the error of kernels forgive least: answers to inputs can only add to them.
            judgement = search.judgement()
            if known is not None and known.have_terms:
                judgement = search.closer(judgement)
            if judgement.is_pass:
                return search, judgement
        return found or self._by_runs(pair)

    def _by_known(self, pair: OutputPair, deviations: Floats, known: Deviations) -> _Search:
        """The search of elements whose moves are known.

        Large sums whose elements cannot be looked at for nothing are forgiven as much as by two moved runs, and at once
        what chance leaves the furthest of all.
        """
        is_close = known.have_terms or (pair.drawn_from or pair.tested.size) <= MOST_PROBED
        format_ = float_format(part_dtype(pair.tested.dtype))
        response = KnownResponse(deviations, pair.reference, format_, is_close=is_close, chosen=pair.chosen)
        tail = 1.0 if known.have_terms else _deviations_of_all(self, pair) / self.sensitivity
        return _Search(pair, self, [response], is_close=is_close, tail=tail)

    def _by_sample(self, pair: OutputPair, known: Deviations) -> Judgement | None:
        """The pass of a large output by a sample of it and the elements that may be wrong; None where that is none."""
        least = known.least() if pair.tested.dtype.kind != "c" else None
        sample, deviations_of_sample = known.sample()
        if least is None or not np.isfinite(deviations_of_sample).all():
            return None

        def searched(chosen: Array) -> _Search:
            others = ~np.isin(sample, chosen)
            places = np.concatenate([chosen, sample[others]])
            deviations = np.concatenate([known.of(chosen), deviations_of_sample[others]])
            part = pair.selected(places, deviations, chosen=chosen.size, have_terms=known.have_terms)
            return self._by_known(part, deviations, known)

        search = searched(sample[:0])
        errors = search.gathered()
        places = None
        if errors.is_measure:
            most = max(_FEW_OF_LARGE, int(_SHARE_OF_LARGE * pair.tested.size))

            def of_chunk(start: int, reference: Array) -> Floats:
                return least[start : start + reference.size]

            places = in_question(pair, of_chunk, search.least_tolerance(), errors, most)
        if places is None:
            return None
        search = searched(places)
        found = search.judgement()
        if known.have_terms:
            found = search.closer(found)
        return found if found.is_pass else None

    def _by_parts(self, pair: OutputPair) -> tuple[_Search, Judgement] | None:
        """The search of a large output that passes by small calls alone; None where they do not decide it.

        By a sample of the output all its elements answer at least so much. Those for which that is not enough, and
        those that may stand out, are judged in a small call of their own.
        """
        sample = pair.restricted(pair.tested, ())
        if sample is None:
            return None
        first, count = self._asked_first(sample), len(sample.tested)
        errors = _Search(sample, self, [first]).gathered()
        places = self._in_question(sample, TypicalResponse(first, count, sample.reference), errors)
        if places is None or np.unique(places // sample.row_size).size > _MOST_ROWS * count:
            return None
        least = TypicalResponse(first, count, pair.reference)
        places = self._in_question(pair, least, errors)
        if places is None or (places.size and not errors.is_measure):
            return None
        part = pair.restricted(pair.tested, places) if places.size else sample
        if part is None:
            return None
        own, found = self._by_runs(part)
        found = found if found.is_pass else own.closer(found)
        return (_Search(pair, self, [least]), found) if found.is_pass else None

    def _in_question(self, pair: OutputPair, least: TypicalResponse, errors: ErrorStatistics) -> Array | None:
        """Elements that a floor under the answers of all does not settle; None for complex values."""
        if pair.tested.dtype.kind == "c":
            return None
        allowed = _Search(pair, self, [least]).least_tolerance()
        return in_question(pair, least.of_chunk, allowed, errors, pair.tested.size)

    def _by_runs(self, pair: OutputPair) -> tuple[_Search, Judgement]:
        """The same by moved runs of the whole call."""
        first = self._asked_first(pair)
        if self.has_exact_inputs:
            return self._probed(pair, [first], _HOPELESS)
        search, found = self._probed(pair, [first], 1.0)
        if found.is_pass:
            return search, found
        # What is saved for gradients is moved with the inputs: it is not forgiven twice.
        arithmetic = _inside(pair, pair.arithmetic_probes)
        return self._probed(pair, [first, arithmetic], _HOPELESS) if arithmetic.is_known else (search, found)

    def _asked_first(self, pair: OutputPair) -> Response:
        if self.has_exact_inputs:
            return _inside(pair, pair.inside_probes)
        format_ = float_format(part_dtype(pair.tested.dtype))
        return Response(pair.perturbed(), pair.probes, pair.reference, format_, chosen=pair.chosen)

    def _probed(self, pair: OutputPair, responses: Sequence[Response], hopeless: float) -> tuple[_Search, Judgement]:
        """The search with two runs of each kind, and with more of them where these do not decide it.

        An error beyond `hopeless` times what two runs forgive is none that more of them explain.
        """
        search = _Search(pair, self, responses)
        found = search.judgement()
        if found.ratio is None or found.ratio > hopeless:
            return search, found
        if _Search(pair, self, [one.measured() for one in responses], is_close=True).judgement().is_pass:
            return search, found
        for count in _PROBES:
            closer = [one.probed(count) for one in responses]
            if closer == responses:
                break
            search = _Search(pair, self, closer, is_close=True)
            found = search.judgement()
            if found.is_pass:
                break
        return search, found


def _inside(pair: OutputPair, probes: Probes) -> Response:
    """The answers to moved arithmetic."""
    format_ = float_format(part_dtype(pair.tested.dtype))
    return Response(pair.rounded_inside(), probes, pair.reference, format_, is_for_all=True, chosen=pair.chosen)


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
    sums = pair.sums_of_magnitudes()
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


class _Search:
    """Looks for what no rounding explains in one output."""

    def __init__(
        self,
        pair: OutputPair,
        standard: BackwardError,
        responses: Sequence[Response],
        *,
        is_close: bool = False,
        tail: float = 1.0,
    ) -> None:
        """Judge by `responses`; by rounding and kernels alone where there are none, which forgives least.

        Sums are allowed `tail` times five standard deviations.
        """
        self._is_close = is_close
        self._pair = pair
        self._standard = standard
        self._responses = responses
        self._format = float_format(part_dtype(pair.tested.dtype))
        self._flushed = _flushed(self._format, is_strict="subnormals" in standard.strict)
        self._roundoff = unit_roundoff(pair.tested.dtype)
        self._input_roundoff = pair.operand_roundoff or self._roundoff
        # Squares of what shorter types hold are within the range of float64, and a tenth of the work.
        self._hypot = _root_of_squares if self._roundoff >= FLOAT32_ROUNDOFF else np.hypot
        self._factors = Factors(standard.sensitivity, standard.single_sensitivity)
        # float64 is computed with better functions than the wide ones of shorter types.
        self._kernel = pair.kernel_error if self._roundoff >= FLOAT32_ROUNDOFF else 0.0
        #: What rounding their partial sums leaves of all elements; None until that is asked for.
        self._of_partial_sums: Floats | None = None
        #: Tolerances of elements that are judged by themselves, by flat position.
        self._own: dict[int, float] = {}
        self._errors = ErrorStatistics()
        #: Relative error of adding up the terms of an element.
        self._summation = 0.0
        if standard.has_exact_inputs or (responses and not responses[0].sensitivity.is_single):
            self._summation = _SUMMATION * math.sqrt(pair.accumulated - 1) * min(self._roundoff, FLOAT32_ROUNDOFF)
        if standard.narrow_sums is not None:
            count, self._input_roundoff = standard.narrow_sums
            self._summation = _SUMMATION * math.sqrt(count - 1) * self._input_roundoff
        elif pair.narrow_sums > 1:
            self._summation = _SUMMATION * math.sqrt(pair.narrow_sums - 1) * self._roundoff
        self._summation *= tail

    def judgement(self) -> Judgement:
        """An error in one line, or a pass; with the largest error over its tolerance."""
        errors = self.gathered()
        limit = self._slope_limit(errors)
        reason = self._fault(errors, limit)
        slope = abs(errors.slope) / limit if errors.is_large and limit else 0.0
        ratio = max(errors.largest_use, errors.outlier_over_chance, errors.rms_over_chance, slope)
        return Judgement.of(filter(None, [reason]), ratio)

    def gathered(self) -> ErrorStatistics:
        """Statistics of all elements."""
        self._errors = errors = ErrorStatistics(self._pair.chosen)
        for start, tested, reference in self._chunks():
            rounding, response, tolerance = self._bounds(start, reference)
            errors.add(start, _error(tested, reference), (rounding, response, tolerance))
            errors.add_projection(start, reference, self._without_settled(start, tested, reference))
        return errors

    def least_tolerance(self) -> LeastTolerance:
        """What every element is allowed at least by a single response."""
        (response,) = self._responses
        change, forgiven = response.least_forgiven(self._factors)
        terms = change / self._input_roundoff
        move = math.hypot(self._summation * _ROOT_HALF * terms, forgiven)
        rounding = 2 * self._standard.rounding * self._roundoff
        return LeastTolerance(rounding, self._kernel, self._summation, move, self._kernel * terms)

    def closer(self, found: Judgement) -> Judgement:
        """What `found`, an error, becomes when the few elements that it is about are judged by themselves.

        One that this does not explain leaves it as it is; where all are explained, the rest of the output decides. Many
        are judged by the partial sums of all, where these are known.
        """
        if self._errors.beyond > _LOOKED_AT and self._errors.largest_use < _HOPELESS:
            found = self._with_partial_sums(found)
        while not found.is_pass:
            # One that is not finite stays beyond: the benchmark's value in its place is no nearer.
            suspects = [each for each in self._suspects() if each[1] not in self._own]
            # Terms take a run of the benchmark each; elementary functions have none.
            most = _SETTLED if self._kernel and not self._errors.beyond else _LOOKED_AT
            if not suspects or len(self._own) + len(suspects) > most:
                return found
            for _, at, error, rounding in sorted(suspects, reverse=True):
                self._own[at] = rounding + self._of_element(at, error - rounding)
                # Terms beyond the range of float64 say nothing of how far rounding goes.
                if not error <= self._own[at] < math.inf:
                    return found
            found = self.judgement()
        return found

    def _without_settled(self, start: int, tested: Array, reference: Array) -> Array:
        """`tested` with the benchmark's values where elements are judged by themselves."""
        places = [at - start for at in self._own if start <= at < start + reference.size]
        if places:
            tested = tested.copy()
            tested[places] = reference[places]
        return tested

    def _with_partial_sums(self, found: Judgement) -> Judgement:
        sums = self._pair.partial_sums()
        if sums is None or sums.shape != self._pair.tested.shape:
            return found
        rounded = Roundoffs.ROOT_MEAN_SQUARE * min(self._roundoff, FLOAT32_ROUNDOFF)
        self._of_partial_sums = self._standard.sensitivity * rounded * sums.reshape(-1)
        return self.judgement()

    def _suspects(self) -> list[tuple[float, int, float, float]]:
        """(error over tolerance, flat position, error, rounding) of elements beyond, else of those that stand out."""
        if self._errors.beyond > _LOOKED_AT or not (self._errors.beyond or self._errors.outlier_over_chance > 1):
            return []
        suspects = []
        for start, tested, reference in self._chunks():
            rounding, response, tolerance = self._bounds(start, reference)
            error = _error(tested, reference)
            is_suspect = error > tolerance
            if not self._errors.beyond:
                is_suspect = self._errors.stand_out(error, rounding, response)
                at = self._errors.largest_at - start
                if 0 <= at < error.size:
                    is_suspect[at] = True
            places = np.flatnonzero(is_suspect)
            suspects += [
                (error.item(at) / tolerance.item(at), start + int(at), error.item(at), rounding.item(at))
                for at in places
            ]
        return suspects

    def _of_element(self, at: int, needed: float) -> float:
        """How far more than its own rounding the element at a flat position may be off; its terms only if `needed`.

        Beyond the tolerance of all, an element may be off by what moving arithmetic makes of this one: how far inputs
        may be off does not hang on the element, and narrow dtypes would forgive faults of a few roundings. One
        that stands out may be off by what is ordinary for it; by more where kernels compute a function piece by piece.
        """
        factor = _deviations_of_all(self._standard, self._pair)
        deviations = factor if self._errors.beyond or self._kernel else _ORDINARY
        own = deviations * math.hypot(*(each.deviation(at) for each in self._responses if each.is_for_all))
        own = max(own, self._to_other_side(at))
        # Polynomials by pieces: a few elements among very many may be in the worst of them.
        if own < needed and self._kernel and not self._errors.beyond and self._are_several_so_far_off():
            own = max(own, self._kernel * self._size_of_terms(at))
        orders = self._pair.terms(at) if own < needed else ()
        rounded = Roundoffs.ROOT_MEAN_SQUARE * min(self._roundoff, FLOAT32_ROUNDOFF)
        for terms in orders:
            own = max(own, factor * rounded * largest_partial_sums(terms), 2 * largest_error_of_sums(terms))
        return own

    def _are_several_so_far_off(self) -> bool:
        """Whether the element that stands out has others beside it, off by a tenth as much at least."""
        limit = self._errors.largest_error / STANDS_OUT
        return sum(np.count_nonzero(_error(*pair) > limit) for _, *pair in self._chunks()) >= FEW

    def _size_of_terms(self, at: int) -> float:
        """What errors of the functions inside are relative to, in the element at a flat position."""
        reference = in_reach(widened(self._pair.reference.reshape(-1)[at : at + 1]), self._format)
        terms = 0.0
        if self._responses and not self._standard.has_exact_inputs:
            terms = self._responses[0].largest_move(at, reference) / self._input_roundoff
        return terms + magnitude_of(reference).item()

    def _to_other_side(self, at: int) -> float:
        """How far the benchmark's derivative beyond a kink is from that before it, if the tested one is that; else 0.

        The derivative of hardswish at 3 is 1.5 or 1: both are right, and a device need not choose the benchmark's.
        """
        if not self._pair.has_kinks:
            return 0.0
        tested, reference = (side.reshape(-1)[at].item() for side in (self._pair.tested, self._pair.reference))
        share = (self._standard.sensitivity + 2 * self._standard.rounding) * self._roundoff
        moved = (*(run.result for run in self._pair.perturbed()), *self._pair.probes(_PROBES[-1]))
        results = (result.reshape(-1)[at].item() for result in moved)
        sides = (side for side in results if abs(side - reference) > _KINK * max(abs(side), abs(reference)))
        is_met = any(abs(tested - side) <= share * abs(side) for side in sides)
        return float(abs(tested - reference)) if is_met else 0.0

    def forgives_the_signal(self) -> bool:
        """Whether most elements that are more than rounding may be off by a large share of themselves.

        What one rounding makes as large as it is, such as a gradient that is 0 but for rounding, is no such element:
        it is judged by the size of what cancels.
        """
        present = forgiven = 0
        for start, _, reference in self._chunks():
            magnitude = magnitude_of(reference)
            present += int(np.count_nonzero(magnitude))
            is_large = (self._bounds(start, reference)[2] >= _SIGNAL * magnitude) & (magnitude > 0)
            if is_large.any():
                rounded = sum((response.smooth(start, reference) for response in self._responses), np.zeros(1))
                forgiven += int(np.count_nonzero(is_large & (magnitude > rounded + self._flushed)))
        return 2 * forgiven > present

    def tolerances(self) -> Floats:
        """Tolerance of each element, float64, in the shape and unit of the output."""
        found = np.concatenate([self._bounds(start, reference)[2] for start, _, reference in self._chunks()])
        for at, own in self._own.items():
            found[at] = own
        return found.reshape(self._pair.tested.shape)

    def _bounds(self, start: int, reference: Array) -> tuple[Floats, Floats, Floats]:
        """Rounding, response and tolerance of each element of a chunk.

        One judged by itself is settled, and no measure of others.
        """
        magnitude = magnitude_of(reference)
        rounding = self._rounding(magnitude)
        if not self._responses:  # each element then says how accurate the others are
            response, tolerance = rounding.copy(), rounding + (self._kernel + self._summation) * magnitude
        else:
            changes = [each.of_chunk(start, reference) for each in self._responses]
            response, tolerance = np.sum(changes, axis=0), self._tolerance(start, reference, changes)
        for at in self._own:
            if start <= at < start + reference.size:
                response[at - start], tolerance[at - start] = 0.0, math.inf
        return rounding, response, tolerance

    def _slope_limit(self, errors: ErrorStatistics) -> float:
        """How much rounding scales the output as a whole."""
        limit = 2 * self._standard.rounding * self._roundoff + self._kernel + self._summation
        limit += sum(response.scaling(self._factors) for response in self._responses)
        return limit + self._flushed / max(errors.size, _TINY)

    def _fault(self, errors: ErrorStatistics, limit: float) -> str:
        """What is wrong, in one line; "" when rounding explains every error."""
        if errors.beyond:
            return self._beyond(errors)
        if errors.outlier_over_chance > 1:
            return f"One element stands out{self._place(errors.largest_at)}: all others are far more accurate than it."
        if errors.rms_over_chance > 1:
            used = number(errors.rms_of_tolerance)
            return f"The errors are {used} of their tolerances on average, where chance leaves 0.3."
        if errors.is_large and abs(errors.slope) > limit:
            return (
                f"The output is {number(1 + errors.slope)} times the benchmark as a whole; rounding leaves {limit:.2g}."
            )
        return ""

    def _beyond(self, errors: ErrorStatistics) -> str:
        verb = "is" if errors.beyond == 1 else "are"
        times = f"{number(errors.largest_use)} times" if errors.largest_use < Times.COUNTABLE else "beyond"
        is_known = any(response.is_known for response in self._responses)
        caveat = "" if is_known else " of rounding alone, as the benchmark did not run on perturbed inputs"
        what = "inside and of the output" if self._standard.has_exact_inputs else "of inputs and output"
        return (
            f"{count_of(errors.beyond, self._pair.tested.size)} {verb} further off than rounding {what} "
            f"explains, worst{self._place(errors.worst_at)}: {times} its tolerance{caveat}."
        )

    def _place(self, at: int) -> str:
        tested, reference = self._pair.tested, self._pair.reference
        return place_and_values(Element(unravelled(at, tested.shape), tested.item(at), reference.item(at)))

    def _tolerance(self, start: int, reference: Array, changes: list[Floats]) -> Floats:
        magnitude = magnitude_of(reference)
        tolerance = self._rounding(magnitude)
        terms = 0.0 if self._standard.has_exact_inputs else changes[0] / self._input_roundoff
        tolerance += self._kernel * (terms + magnitude)
        summation = self._summation * self._hypot(magnitude, _ROOT_HALF * terms)
        if self._of_partial_sums is not None:
            summation = np.maximum(summation, self._of_partial_sums[start : start + reference.size])
        forgiven = (
            response.forgiven(start, reference, change, self._factors)
            for response, change in zip(self._responses, changes)
        )
        # Independent errors add up as standard deviations do; two runs may have seen too little of each.
        tolerance += reduce(self._hypot if self._is_close else np.add, forgiven, summation)
        return tolerance

    def _rounding(self, magnitude: Floats) -> Floats:
        """What rounding the output leaves, and the last step before where that may be of the same dtype."""
        if self._standard.has_exact_inputs:
            return self._standard.rounding * spacings(magnitude, self._format) + self._flushed
        return 2 * self._standard.rounding * self._roundoff * magnitude + self._flushed

    def _chunks(self) -> Iterator[tuple[int, Array, Array]]:
        """Flat start, tested and reference values in reach of the dtype."""
        for start, sides in chunks(self._pair.tested, self._pair.reference):
            tested, reference = (in_reach(widened(side), self._format) for side in sides)
            yield start, tested, reference


def _root_of_squares(left: Floats, right: Floats | float) -> Floats:
    found: Floats = np.square(left)
    found += np.square(right)
    return np.sqrt(found, out=found)


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
