"""Random outputs against the law that their call names: range, distribution, and whether they repeat themselves.

Each test is a count of independent events, so the false-alarm rate holds at every sample size. Source of the bounds: W.
Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58 (1963), theorem 1. Of n independent
events with mean probability p, a share of at least q > p (or at most q < p) occurs with a probability of at most exp(-n
KL(q, p)), KL(q, p) = q ln(q/p) + (1-q) ln((1-q)/(1-p)); single probabilities may differ. What a dtype cannot show is
allowed for: a stored value represents anything within one spacing of the dtype around it, so that a bfloat16 sample
from a coarse grid is not a fault.

Counts see a shape that is wrong somewhere; mean and variance see what is a little wrong everywhere (a mean 0.01
deviations off: at each place the share of values below is off by at most 0.004). G. Bennett, Probability inequalities
for the sum of independent random variables, JASA 57 (1962): the mean of n independent numbers of variance s^2, none of
which is more than b off its expectation, is off by d or more in one direction with a probability of at most
exp(-n s^2/b^2 h(b d/s^2)), h(x) = (1+x) ln(1+x) - x. At every n too, and near the normal tail where n is large.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.dtypes import float_format, kind_of, round_once, unit_roundoff
from pytest_msprobe.numerics.expected import Chance, Share
from pytest_msprobe.numerics.judgement import count_of
from pytest_msprobe.numerics.measurement import unravelled, widened


@dataclass(frozen=True, slots=True)
class Count:
    """How many of `trials` independent events occurred, each with a probability that lies on average in [low, high].

    Attributes:
        what: which events, to be read after "12 of 20 ": `values are above 0`.
    """

    what: str
    hits: int
    trials: int
    low: float
    high: float

    @property
    def surprise(self) -> float:
        """-ln of the bound on the chance of so extreme a count on that side; 0 when the share is as expected."""
        if not self.trials:
            return 0.0
        share = self.hits / self.trials
        return self.trials * divergence(share, min(max(share, self.low), self.high))

    @property
    def surprise_of_extremes(self) -> float:
        """The surprise of all or of none, whichever is smaller: what this many trials show in any case."""
        return self.trials * min(divergence(1.0, self.high), divergence(0.0, self.low))

    def widened(self, slack: float) -> Count:
        """The same where the probability may be off by `slack`."""
        return replace(self, low=self.low - slack, high=self.high + slack)

    @property
    def sentence(self) -> str:
        """What was counted and what was to be expected."""
        middle = self.trials * (self.low + self.high) / 2
        return (
            f"{self.hits} of {self.trials} {self.what}, where the law expects about {middle:.6g} "
            f"({_chance(self.surprise)})."
        )


@dataclass(frozen=True, slots=True)
class Moment:
    """The mean of a bounded function of independent values.

    Attributes:
        what: the function, to be read after "The mean of ": `the values`.
        mean, trials: as found, over how many values.
        expected: by the law.
        moved: how far what a dtype cannot show may move it.
        deviation: standard deviation of one value of the function, at most.
        bound: how far one value of the function is off `expected`, at most.
    """

    what: str
    mean: float
    trials: int
    expected: float
    moved: float
    deviation: float
    bound: float

    @property
    def surprise(self) -> float:
        """-ln of the bound on the chance of a mean so far off on that side; 0 when it is as expected."""
        distance = abs(self.mean - self.expected) - self.moved
        if distance <= 0 or self.deviation == 0:
            return 0.0
        variance = self.deviation * self.deviation
        x = self.bound * distance / variance
        return self.trials * variance / self.bound**2 * ((1 + x) * math.log1p(x) - x)

    @property
    def sentence(self) -> str:
        """What was found and what was to be expected."""
        moved = f" and rounding moves it by {self.moved:.2g} at most" if self.moved else ""
        return (
            f"The mean of {self.what}, of {self.trials} elements in the law's standard units, is {self.mean:.6g}, "
            f"where the law has {self.expected:.6g}{moved} ({_chance(self.surprise)})."
        )


def _chance(surprise: float) -> str:
    return f"a correct output does so with a chance below 10^-{surprise / math.log(10):.0f}"


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What a random output was found to be.

    Attributes:
        reasons: whole sentences on what is wrong; empty for a pass.
        notes: what could not be tested, and why.
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: SampleResult) -> SampleResult:
        return SampleResult(self.reasons + other.reasons, tuple(dict.fromkeys(self.notes + other.notes)))


def divergence(share: float, probability: float) -> float:
    """KL(share, probability) in nats; inf for what has probability 0."""
    total = 0.0
    for q, p in ((share, probability), (1 - share, 1 - probability)):
        if q > 0:
            total += math.inf if p <= 0 else q * math.log(q / p)
    return max(total, 0.0)


def judge_counts(counts: Sequence[Count], law: str, *, share: float = 0.5) -> SampleResult:
    """The worst of `counts`, if it is so improbable that together they alarm at most at `share` of the rate.

    The other half is by default left to `judge_runs`; the share is shared out evenly (union bound over both sides of
    each count). Where not even all or none of the elements would have alarmed, at the place that splits them most
    evenly, a note says that there are too few to test `law`; none where that is "".
    """
    if not counts:
        return SampleResult()
    limit = _limit(len(counts), share)
    worst = max(counts, key=lambda count: count.surprise)
    if worst.surprise > limit:
        return SampleResult((worst.sentence,))
    size = max(count.trials for count in counts)
    middle = min((count for count in counts if count.trials == size), key=lambda count: abs(count.low + count.high - 1))
    if law and middle.surprise_of_extremes <= limit:
        return SampleResult(notes=(_too_few(size, law),))
    return SampleResult()


def _limit(tests: int, share: float) -> float:
    """The surprise beyond which one of so many tests alarms, each on two sides, together at `share` of the rate."""
    return math.log(2 * tests / (share * Chance.FALSE_ALARM))


def judge_moments(moments: Sequence[Moment]) -> SampleResult:
    """A reason for each of `moments` that is so improbable that together they alarm at half of the rate at most."""
    limit = _limit(max(len(moments), 1), 0.5)
    return SampleResult(tuple(moment.sentence for moment in moments if moment.surprise > limit))


def _too_few(size: int, law: str) -> str:
    """The note on a sample that is too small."""
    elements = "1 element is" if size == 1 else f"{size} elements are"
    rate = f"a false-alarm rate of {Chance.FALSE_ALARM:g}"
    return f"{elements} too few to test {law} at {rate}: judged by range and form only"


def judge_runs(repeats: npt.NDArray[np.bool_], chance: float, what: str) -> SampleResult:
    """A reason when too many events in a row occurred, each of a probability of at most `chance` given those before.

    The chance of r in a row somewhere among n is at most n * chance^r (union bound). `what` reads after "12 elements
    in a row ". Takes a quarter of the rate.
    """
    if not repeats.size or not 0 <= chance < 1:
        return SampleResult()
    length, end = longest_run(repeats)
    longest_likely = math.log(4 * repeats.size / Chance.FALSE_ALARM) / -math.log(chance) if chance else 0.0
    if length <= longest_likely:
        return SampleResult()
    return SampleResult(
        (f"{length} elements in a row {what}, up to element {end}; chance allows {longest_likely:.0f}.",)
    )


def longest_run(flags: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """(length of the longest run of True, flat index of its last element)."""
    gaps = np.concatenate(([-1], np.flatnonzero(~flags), [flags.size]))
    lengths = np.diff(gaps) - 1
    longest = int(lengths.argmax())
    return int(lengths[longest]), int(gaps[longest + 1]) - 1


def lag_counts(
    flags: npt.NDArray[np.bool_], shape: tuple[int, ...], probability: npt.NDArray[Any] | tuple[float, float]
) -> Iterator[Count]:
    """How often independent `flags` agree with those some places on: at powers of two, rows, planes and so on.

    A generator that repeats itself agrees too often. The pairs of one lag share no element, so they are independent.
    `probability` of True is one per element, or one range for all.
    """
    # A lag is tested on the first elements only: repetition shows there, and reading 27 lags of
    # all would cost the most.
    flags = flags[: 1 << 22]
    lags = {1 << power for power in range(max(flags.size // 2, 1).bit_length())}
    lags.update(math.prod(shape[axis:]) for axis in range(1, len(shape)))
    for lag in sorted(lag for lag in lags if 0 < lag <= flags.size // 2):
        count = flags.size // (2 * lag)
        blocks = flags[: count * 2 * lag].reshape(count, 2, lag)
        agreeing = int(np.count_nonzero(blocks[:, 0] == blocks[:, 1]))
        if isinstance(probability, tuple):
            ends = [p * p + (1 - p) * (1 - p) for p in (*probability, min(max(0.5, probability[0]), probability[1]))]
        else:
            p = probability[: count * 2 * lag].reshape(count, 2, lag)
            ends = [float(np.mean(p[:, 0] * p[:, 1] + (1 - p[:, 0]) * (1 - p[:, 1])))]
        yield Count(f"elements agree with those {lag} places on", agreeing, count * lag, min(ends), max(ends))


#: A parameter: one for all elements, or an array that broadcasts to their shape.
Parameter = Any

_NORMAL = NormalDist()
#: TruncatedNormal draws within two standard deviations (mindspore.ops.TruncatedNormal).
_TRUNCATED_AT = 2.0
_TRUNCATED_MASS = 2 * _NORMAL.cdf(_TRUNCATED_AT) - 1


@dataclass(frozen=True, slots=True)
class ElementLaw:
    """The law of an element: `location + scale * z`, where z has the distribution function `cdf` on [low, high].

    Attributes:
        text: for people: `normal(0, 1)`.
        quantile: inverse of `cdf` on (0, 1), only used to choose where to look; None for a discrete law.
        is_discrete: z is an integer.
        is_logarithmic: the law is that of the element's logarithm.
        outer: the share of values on each side that moments count as if they stood where that share begins.
    """

    text: str
    cdf: Callable[[float], float]
    quantile: Callable[[float], float] | None
    low: float = -math.inf
    high: float = math.inf
    location: Parameter = 0.0
    scale: Parameter = 1.0
    is_discrete: bool = False
    is_logarithmic: bool = False
    outer: float = Share.OUTER


def uniform(low: Parameter, high: Parameter) -> ElementLaw:
    """Uniform between `low` and `high`."""
    scale = np.asarray(high, np.float64) - np.asarray(low, np.float64)
    text = f"uniform({_shown(low)}, {_shown(high)})"
    return ElementLaw(text, _clipped, lambda p: p, low=0.0, high=1.0, location=low, scale=scale)


def normal(mean: Parameter, deviation: Parameter) -> ElementLaw:
    """Normal with mean and standard deviation."""
    text = f"normal({_shown(mean)}, {_shown(deviation)})"
    return ElementLaw(text, _NORMAL.cdf, _NORMAL.inv_cdf, location=mean, scale=deviation)


def truncated_normal() -> ElementLaw:
    """Standard normal, within two standard deviations."""

    def cdf(z: float) -> float:
        return _clipped((_NORMAL.cdf(z) - _NORMAL.cdf(-_TRUNCATED_AT)) / _TRUNCATED_MASS)

    def quantile(p: float) -> float:
        return _NORMAL.inv_cdf(_NORMAL.cdf(-_TRUNCATED_AT) + p * _TRUNCATED_MASS)

    return ElementLaw("truncated normal(0, 1)", cdf, quantile, -_TRUNCATED_AT, _TRUNCATED_AT)


def log_normal(mean: Parameter, deviation: Parameter) -> ElementLaw:
    """Log-normal: the logarithm is normal, with this mean and deviation."""
    text = f"log-normal({_shown(mean)}, {_shown(deviation)})"
    return ElementLaw(text, _NORMAL.cdf, _NORMAL.inv_cdf, location=mean, scale=deviation, is_logarithmic=True)


def exponential(rate: Parameter) -> ElementLaw:
    """Exponential with mean 1/rate."""
    scale = 1 / np.asarray(rate, np.float64)
    return ElementLaw(
        f"exponential({_shown(rate)})",
        lambda z: -math.expm1(-max(z, 0.0)),
        lambda p: -math.log1p(-p),
        low=0.0,
        scale=scale,
    )


def laplace(mean: Parameter, scale: Parameter) -> ElementLaw:
    """Laplace (double exponential) with variance 2 scale^2."""

    def cdf(z: float) -> float:
        return 0.5 * math.exp(z) if z < 0 else 1 - 0.5 * math.exp(-z)

    def quantile(p: float) -> float:
        return math.log(2 * p) if p < 0.5 else -math.log(2 * (1 - p))

    return ElementLaw(f"Laplace({_shown(mean)}, {_shown(scale)})", cdf, quantile, location=mean, scale=scale)


def cauchy(median: Parameter, half_width: Parameter) -> ElementLaw:
    """Cauchy with median and half width at half maximum."""
    return ElementLaw(
        f"Cauchy({_shown(median)}, {_shown(half_width)})",
        lambda z: 0.5 + math.atan(z) / math.pi,
        lambda p: math.tan(math.pi * (p - 0.5)),
        location=median,
        scale=half_width,
        outer=Share.OUTER_OF_CAUCHY,
    )


def integers(low: int, high: int) -> ElementLaw:
    """Each integer from `low` to `high - 1` alike."""
    count = high - low
    return ElementLaw(
        f"integers({low}, {high})",
        lambda z: _clipped((math.floor(z) - low + 1) / count),
        None,
        low,
        high - 1,
        is_discrete=True,
    )


def geometric(probability: float) -> ElementLaw:
    """Trials until the first success, 1 and up (torch.Tensor.geometric_)."""
    return ElementLaw(
        f"geometric({_shown(probability)})",
        lambda z: 1 - (1 - probability) ** max(math.floor(z), 0),
        None,
        1,
        is_discrete=True,
    )


def poisson(mean: float) -> ElementLaw:
    """Poisson; its distribution function is a sum over all integers below."""

    def cdf(z: float) -> float:
        if z < 0 or mean == 0:
            return float(z >= 0)
        terms = (math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(math.floor(z) + 1))
        return _clipped(math.fsum(terms))

    return ElementLaw(f"Poisson({_shown(mean)})", cdf, None, 0, is_discrete=True)


def _clipped(probability: float) -> float:
    return min(max(probability, 0.0), 1.0)


def _shown(parameter: Parameter) -> str:
    array: npt.NDArray[Any] = np.asarray(parameter)
    return f"{float(array.reshape(-1)[0]):g}" if array.size == 1 else "one per element"


#: Where the distribution function is looked at: evenly, and into both tails.
_TAILS = [2.0**-exponent for exponent in range(7, 15)]
_LEVELS = sorted(np.concatenate([_TAILS, np.arange(1, 64) / 64, 1 - np.asarray(_TAILS)]).tolist())
#: With so many values moments of a law are computed.
_POINTS = 4096
#: Of so many possible values at most, each is counted by itself.
MOST_VALUES = 4096


def judge_sample(sample: npt.NDArray[Any], law: ElementLaw, *, rounded_to: np.dtype[Any] | None = None) -> SampleResult:
    """Whether every element of `sample`, of any real dtype, was drawn independently from `law`.

    `rounded_to` is the dtype that the values went through, if that is not their own. Elements whose `law` has scale 0
    must equal its location. NaN is outside every law. Nothing is said of an empty sample.

    Raises:
        ValueError: the law's parameters do not broadcast to the sample, or are not parameters (NaN, negative scale).
    """
    if not sample.size:
        return SampleResult()
    flat, location, scale = _wide(sample, law)
    resolution = _Resolution.of(rounded_to or sample.dtype, law, location, scale)
    is_fixed = np.broadcast_to(scale == 0, flat.shape)
    with np.errstate(all="ignore"):
        z = (flat - location) / np.where(is_fixed, 1.0, scale)
    is_wrong = np.where(
        is_fixed, ~(np.abs(z) <= 2 * resolution.relative * np.abs(location)), ~resolution.allows(z, law)
    )
    if is_wrong.any():
        return wrong_elements(is_wrong, sample, f"outside {law.text}")
    if is_fixed.all():
        return SampleResult()
    z = z[~is_fixed] if is_fixed.any() else z
    edges = _edges(law)
    chances = [resolution.chances(law, edge) for edge in edges]
    # Which values lie in the upper half must not repeat either.
    middle, (low, high) = min(zip(edges, chances), key=lambda pair: abs(sum(pair[1]) - 1))
    halves = lag_counts(z > middle, sample.shape, (1 - high, 1 - low))
    counts = [*_edge_counts(z, edges, chances), *halves]
    ties = judge_runs(z[1:] == z[:-1], resolution.tie_chance(law, edges), "hold the value of the one before")
    moves = _Moves.of(rounded_to or sample.dtype, law, location, scale)
    verdict = judge_counts(counts, law.text, share=0.125) + judge_moments(list(_moments(z, law, moves))) + ties
    if law.is_discrete and max(-law.low, law.high) < 1 / max(resolution.relative, unit_roundoff("float64")):
        verdict += judge_counts(_integer_counts(z, law), "", share=0.125)
    return verdict


def judge_bernoulli(sample: npt.NDArray[Any], probability: Any) -> SampleResult:
    """Whether `sample` holds 1 with `probability` (one, or an array that broadcasts to it) and 0 otherwise.

    Raises:
        ValueError: the probabilities do not broadcast, or are not between 0 and 1.
    """
    chances = np.broadcast_to(np.asarray(probability, np.float64), sample.shape).reshape(-1)
    if not np.all((chances >= 0) & (chances <= 1)):
        raise ValueError("its probabilities are not all between 0 and 1")
    flat = sample.reshape(-1)
    bits = np.asarray(flat == 1, np.bool_)
    is_wrong = ~(bits | np.asarray(flat == 0)) | (bits & (chances == 0)) | (~bits & (chances == 1))
    if is_wrong.any():
        return wrong_elements(is_wrong, sample, "neither 0 nor 1, or impossible at their probability")
    is_open = (chances > 0) & (chances < 1)
    chances = chances[is_open]
    is_one_law = bool(chances.size) and bool(np.all(chances == chances[0]))
    probability = (float(chances[0]), float(chances[0])) if is_one_law else chances
    return judge_bits(bits[is_open], probability, sample.shape, what="are 1")


def judge_bits(
    bits: npt.NDArray[np.bool_],
    probability: npt.NDArray[Any] | tuple[float, float],
    shape: tuple[int, ...],
    *,
    what: str,
) -> SampleResult:
    """Whether flat `bits` are independent and True with `probability`: one per bit, or one range for all.

    `shape` is how the bits lay, for what repeats row by row; `what` is the event, as in "12 of 20 elements are 1".
    """
    if not bits.size:
        return SampleResult()
    verdict = judge_counts([*_group_counts(bits, probability, what)], f"how many elements {what}", share=0.25)
    verdict += judge_counts([*lag_counts(bits, shape, probability)], "", share=0.25)
    if isinstance(probability, tuple):
        verdict += judge_runs(bits, probability[1], what)
        verdict += judge_runs(~bits, 1 - probability[0], f"do not: {what}")
    return verdict


def wrong_elements(is_wrong: npt.NDArray[np.bool_], sample: npt.NDArray[Any], what: str) -> SampleResult:
    """`3 of 8 elements are <what>, first at [1, 2] (tested 1.5).`; no fault where nothing is wrong."""
    if not is_wrong.any():
        return SampleResult()
    at = int(is_wrong.argmax())
    index = unravelled(at, sample.shape)
    place = f" at {list(index)}" if index else ""
    count = count_of(int(np.count_nonzero(is_wrong)), sample.size)
    verb = "is" if np.count_nonzero(is_wrong) == 1 else "are"
    return SampleResult((f"{count} {verb} {what}, first{place} (tested {sample[index].item()!r}).",))


@dataclass(frozen=True, slots=True)
class _Resolution:
    """How far, in standard units, a stored z may lie from the drawn one: `absolute + relative * |z|`."""

    relative: float
    absolute: float

    @classmethod
    def of(
        cls, dtype: np.dtype[Any], law: ElementLaw, location: npt.NDArray[Any], scale: npt.NDArray[Any]
    ) -> _Resolution:
        """Exact for integers; for floats one spacing of the value, of its location and of its scale."""
        if kind_of(dtype) != "float":
            return cls(0.0, 0.0)
        relative = 2 * unit_roundoff(dtype)
        if law.is_discrete:
            return cls(relative, 0.0)
        least = float(np.min(scale[scale > 0], initial=math.inf))
        # The logarithm of a relative error is an absolute one.
        extent = float(np.max(np.abs(location))) + law.is_logarithmic
        return cls(relative, relative * (1 + 2 * extent / least))

    def allows(self, z: npt.NDArray[Any], law: ElementLaw) -> npt.NDArray[np.bool_]:
        """Where z can be of the law; the ends are hard when nothing is added to z, as rounding keeps the order."""
        slack = 0.0 if self.absolute == self.relative else 2 * self.absolute
        high = law.high + slack + self.relative * abs(min(law.high, sys.float_info.max))
        is_allowed = (z >= law.low - slack) & (z <= high)
        return np.asarray(is_allowed & ((z == np.floor(z)) if law.is_discrete else np.isfinite(z)))

    def chances(self, law: ElementLaw, edge: float) -> tuple[float, float]:
        """Range of the probability that a stored z is at most `edge`."""
        slack = self.relative * abs(edge) + self.absolute
        if law.is_discrete and slack < 0.5:
            slack = 0.0
        return law.cdf(edge - slack), law.cdf(edge + slack)

    def tie_chance(self, law: ElementLaw, edges: list[float]) -> float:
        """More than the chance that an element equals the one before it."""
        if law.is_discrete:
            return 2 * max(law.cdf(edge) - law.cdf(edge - 1) for edge in edges)
        # No law here has a density above 1 in its standard units.
        return 2 * max(self.relative + self.absolute, Chance.TIE)


def _wide(
    sample: npt.NDArray[Any], law: ElementLaw
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(sample, location, scale), flat; parameters that are one for all stay one element."""
    parameters = []
    for parameter in (law.location, law.scale):
        array = np.asarray(parameter).astype(np.float64)
        np.broadcast_to(array, sample.shape)
        parameters.append(array.reshape(-1) if array.size == 1 else np.broadcast_to(array, sample.shape).reshape(-1))
    location, scale = parameters
    if not (np.all(np.isfinite(location)) and np.all(np.isfinite(scale)) and np.all(scale >= 0)):
        raise ValueError(f"the parameters of {law.text} are not all finite, or a scale is negative")
    flat = widened(sample.reshape(-1))
    if law.is_logarithmic:
        with np.errstate(all="ignore"):
            flat = np.log(flat)
    return flat, location, scale


def _edges(law: ElementLaw) -> list[float]:
    """Ascending places in standard units at which to count."""
    if law.quantile is not None:
        return [law.quantile(level) for level in _LEVELS]
    return sorted({_integer_quantile(law.cdf, int(law.low), level) + 0.5 for level in _LEVELS})


def _integer_quantile(cdf: Callable[[float], float], low: int, level: float) -> int:
    """The smallest integer k with cdf(k) >= level."""
    width = 1
    while cdf(low + width) < level:
        width *= 2
    first, last = low - 1, low + width
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (first, middle) if cdf(middle) >= level else (middle, last)
    return last


def _edge_counts(z: npt.NDArray[np.float64], edges: list[float], chances: list[tuple[float, float]]) -> Iterator[Count]:
    places = np.searchsorted(edges, z)
    below = np.bincount(places, minlength=len(edges) + 1).cumsum()
    for edge, hits, (low, high) in zip(edges, below, chances):
        yield Count(f"values, in the law's standard units, are at most {edge:.4g}", int(hits), z.size, low, high)


def _integer_counts(z: npt.NDArray[np.float64], law: ElementLaw) -> list[Count]:
    """Counts of the even ones among integers that are all alike, and of each value where there are few."""
    possible = int(law.high) - int(law.low) + 1
    share = (possible // 2 + (possible % 2 and int(law.low) % 2 == 0)) / possible
    counts = [Count("values are even", int(np.count_nonzero(z % 2 == 0)), z.size, share, share)]
    if possible <= MOST_VALUES:
        counts += value_counts(z, np.full(possible, 1 / possible), "values", first=int(law.low))
    return counts


def value_counts(
    drawn: npt.NDArray[Any], chances: npt.NDArray[np.float64], what: str, *, first: int = 0
) -> list[Count]:
    """How often each value occurs, `first` and up, given the probability of each."""
    counts = np.bincount((drawn.reshape(-1) - first).astype(np.int64), minlength=len(chances))
    return [
        Count(f"{what} are {value}", int(hits), drawn.size, float(chance), float(chance))
        for value, (hits, chance) in enumerate(zip(counts, chances), first)
    ]


@dataclass(frozen=True, slots=True)
class _Moves:
    """How far rounding may move a drawn z on average over its neighbours: `absolute + relative * |z|`.

    A value x is moved by half a spacing at most, u |x|, on average over the values that become the same one, whichever
    way it is rounded; by half the smallest subnormal at least. Location and scale are rounded to the dtype where that
    changes them, and uniform numbers in (0, 1) are multiples of u as generators of the dtype make them. Integers up to
    `exact` are not moved.
    """

    relative: float = 0.0
    absolute: float = 0.0
    exact: float = 0.0

    @classmethod
    def of(
        cls, dtype: np.dtype[Any], law: ElementLaw, location: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]
    ) -> _Moves:
        if kind_of(dtype) != "float":
            return cls()
        u, format_ = unit_roundoff(dtype), float_format(dtype)
        if law.is_discrete:
            return cls(u, exact=1 / u)
        location, scale = np.broadcast_arrays(location, scale)
        location, scale = location[scale > 0], scale[scale > 0]
        with np.errstate(all="ignore"):
            location_error = np.abs(round_once(location, dtype).astype(np.float64) - location)
            scale_error = np.abs(round_once(scale, dtype).astype(np.float64) - scale)
            least = format_.smallest_normal * 2.0**-format_.mantissa_bits / 2
            rounding = u if law.is_logarithmic else u * np.abs(location) + least
            absolute = float(np.mean((rounding + location_error) / scale))
            relative = float(np.mean(scale_error / scale)) + (0.0 if law.is_logarithmic else u)
        grid = u / 2 if math.isfinite(law.low) and math.isfinite(law.high) else 0.0
        return cls(relative, absolute + grid)

    def at(self, z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        size = np.abs(z)
        return np.where(size <= self.exact, 0.0, self.absolute + self.relative * size)


def _moments(z: npt.NDArray[np.float64], law: ElementLaw, moves: _Moves) -> Iterator[Moment]:
    """Mean and variance of the values, the outer ones moved in."""
    points, weights = _support(law)
    inside = np.clip(z, points[0], points[-1])
    mean = float(weights @ points)
    moved = moves.at(points)
    yield _moment("the values", inside, (points, weights), moved)
    squares = np.square(points - mean)
    inside -= mean
    np.square(inside, out=inside)
    what = f"the squared distances from {mean:.4g}" if mean else "the squares"
    yield _moment(what, inside, (squares, weights), 2 * np.abs(points - mean) * moved + np.square(moved))


def _moment(
    what: str,
    sample: npt.NDArray[np.float64],
    law: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]],
    moved: npt.NDArray[np.float64],
) -> Moment:
    """`sample` against the values of a `law` and their weights, each of which rounding may have `moved`."""
    values, weights = law
    expected = float(weights @ values)
    shift = float(weights @ moved)
    deviation = math.sqrt(weights @ np.square(values - expected)) + math.sqrt(weights @ np.square(moved))
    bound = float(np.max(np.abs(values - expected))) + shift
    mean = float(np.mean(sample))
    return Moment(what, mean, sample.size, expected, moved=shift, deviation=deviation, bound=bound)


def _support(law: ElementLaw) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(values of z in ascending order, their probabilities), the outer ones gathered where they begin."""
    if law.quantile is not None:
        # Closer together towards both ends, where quantiles are steep.
        ends = np.square(np.sin(np.linspace(0, np.pi / 2, _POINTS + 1)))
        levels = np.clip((ends[1:] + ends[:-1]) / 2, law.outer, 1 - law.outer)
        return np.array([law.quantile(float(level)) for level in levels]), np.diff(ends)
    first, last = (_integer_quantile(law.cdf, int(law.low), level) for level in (law.outer, 1 - law.outer))
    groups = [*range(first - 1, last, max(1, (last - first) // _POINTS)), last]
    points = np.array([(low + 1 + high) / 2 for low, high in pairwise(groups)])
    return points, np.diff([0.0, *(law.cdf(end) for end in groups[1:-1]), 1.0])


def _group_counts(
    bits: npt.NDArray[np.bool_], probability: npt.NDArray[Any] | tuple[float, float], what: str
) -> Iterator[Count]:
    if isinstance(probability, tuple):
        yield Count(f"elements {what}", int(np.count_nonzero(bits)), bits.size, *probability)
        return
    # Bits with a probability of their own are counted in this many groups of like probability.
    for group in np.array_split(np.argsort(probability, kind="stable"), 4):
        if group.size:
            mean = float(np.mean(probability[group]))
            text = f"elements with a probability of about {mean:.3g} {what}"
            yield Count(text, int(np.count_nonzero(bits[group])), group.size, mean, mean)
