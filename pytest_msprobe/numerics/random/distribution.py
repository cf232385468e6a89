"""Random outputs against the law that their call names: range, distribution, and whether they repeat themselves.

Each test is a count of independent events (`chance.py`), so the false-alarm rate holds at every size. What a dtype
cannot show is allowed for: a stored value represents anything within one spacing of the dtype around it, so that a
bfloat16 sample from a coarse grid is not a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.kinds import kind_of
from pytest_msprobe.numerics.metrics import unravelled
from pytest_msprobe.numerics.random.chance import Count, SampleResult, judge_counts, judge_runs, lag_counts
from pytest_msprobe.numerics.random.laws import Law
from pytest_msprobe.numerics.ulp import unit_roundoff
from pytest_msprobe.numerics.wording import count_of

#: Where the distribution function is looked at: evenly, and into both tails.
_LEVELS = sorted({step / 64 for step in range(1, 64)} | {end for k in range(7, 15) for end in (2.0**-k, 1 - 2.0**-k)})
#: The chance of two equal neighbours, at least: generators draw from fewer values than float32 and float64 can hold.
_LEAST_TIE = 2.0**-16
#: Bits with a probability of their own are counted in this many groups of like probability.
_BIT_GROUPS = 4


def judge_sample(sample: npt.NDArray[Any], law: Law, *, rounded_to: np.dtype[Any] | None = None) -> SampleResult:
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
    is_fixed = scale == 0
    with np.errstate(all="ignore"):
        z = (flat - location) / np.where(is_fixed, 1.0, scale)
    is_wrong = np.where(
        is_fixed, ~(np.abs(z) <= 2 * resolution.relative * np.abs(location)), ~resolution.allows(z, law)
    )
    if is_wrong.any():
        return SampleResult((located(is_wrong, sample, f"outside {law.text}"),))
    z = z[~is_fixed] if is_fixed.any() else z
    edges = _edges(law)
    chances = [resolution.chances(law, edge) for edge in edges]
    counts = [*_edge_counts(z, edges, chances), *_half_counts(z, edges, chances, sample.shape), *_even_counts(z, law)]
    ties = judge_runs(z[1:] == z[:-1], resolution.tie_chance(law, edges), "hold the value of the one before")
    return judge_counts(counts, law.text) + ties


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
        return SampleResult((located(is_wrong, sample, "neither 0 nor 1, or impossible at their probability"),))
    is_open = (chances > 0) & (chances < 1)
    chances = chances[is_open]
    is_one_law = bool(chances.size) and bool(np.all(chances == chances[0]))
    given = (float(chances[0]), float(chances[0])) if is_one_law else chances
    return judge_bits(bits[is_open], given, sample.shape, what="are 1")


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
    counts = [*_group_counts(bits, probability, what), *lag_counts(bits, shape, probability)]
    verdict = judge_counts(counts, f"how many elements {what}")
    if isinstance(probability, tuple):
        verdict += judge_runs(bits, probability[1], what)
        verdict += judge_runs(~bits, 1 - probability[0], f"do not: {what}")
    return verdict


def located(is_wrong: npt.NDArray[np.bool_], sample: npt.NDArray[Any], what: str) -> str:
    """`3 of 8 elements are <what>, first at [1, 2] (tested 1.5).`; `is_wrong` is flat."""
    at = int(is_wrong.argmax())
    index = unravelled(at, sample.shape)
    place = f" at {list(index)}" if index else ""
    count = count_of(int(np.count_nonzero(is_wrong)), sample.size)
    verb = "is" if np.count_nonzero(is_wrong) == 1 else "are"
    return f"{count} {verb} {what}, first{place} (tested {sample[index].item()!r})."


@dataclass(frozen=True, slots=True)
class _Resolution:
    """How far, in standard units, a stored z may lie from the drawn one: `absolute + relative * |z|`."""

    relative: float
    absolute: float

    @classmethod
    def of(cls, dtype: np.dtype[Any], law: Law, location: npt.NDArray[Any], scale: npt.NDArray[Any]) -> _Resolution:
        """Exact for integers; for floats one spacing of the value, of its location and of its scale."""
        if kind_of(dtype) != "float":
            return cls(0.0, 0.0)
        relative = 2 * unit_roundoff(dtype)
        if law.is_discrete:
            return cls(relative, 0.0)
        least = float(np.min(scale[scale > 0], initial=math.inf))
        # The logarithm of a relative error is an absolute one.
        extent = float(np.max(np.abs(location))) + (1.0 if law.is_logarithmic else 0.0)
        return cls(relative, relative * (1 + 2 * extent / least))

    def allows(self, z: npt.NDArray[Any], law: Law) -> npt.NDArray[np.bool_]:
        """Where z can be of the law; the ends are hard when nothing is added to z, as rounding keeps the order."""
        slack = 0.0 if self.absolute == self.relative else 2 * self.absolute
        is_allowed = (z >= law.low - slack) & (z <= law.high + slack + self.relative * abs(min(law.high, 1e300)))
        return np.asarray(is_allowed & ((z == np.floor(z)) if law.is_discrete else np.isfinite(z)))

    def chances(self, law: Law, edge: float) -> tuple[float, float]:
        """Range of the probability that a stored z is at most `edge`."""
        slack = self.relative * abs(edge) + self.absolute
        if law.is_discrete and slack < 0.5:
            slack = 0.0
        return law.cdf(edge - slack), law.cdf(edge + slack)

    def tie_chance(self, law: Law, edges: list[float]) -> float:
        """More than the chance that an element equals the one before it."""
        if law.is_discrete:
            return 2 * max(law.cdf(edge) - law.cdf(edge - 1) for edge in edges)
        # No law here has a density above 1 in its standard units.
        return 2 * max(self.relative + self.absolute, _LEAST_TIE)


def _wide(
    sample: npt.NDArray[Any], law: Law
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
    flat = sample.reshape(-1).astype(np.float64)
    if law.is_logarithmic:
        with np.errstate(all="ignore"):
            flat = np.log(flat)
    return flat, location, scale


def _edges(law: Law) -> list[float]:
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


def _half_counts(
    z: npt.NDArray[np.float64], edges: list[float], chances: list[tuple[float, float]], shape: tuple[int, ...]
) -> Iterator[Count]:
    """Which values lie in the upper half must not repeat either."""
    edge, (low, high) = min(zip(edges, chances), key=lambda pair: abs(sum(pair[1]) - 1))
    return lag_counts(z > edge, shape, (1 - high, 1 - low))


def _even_counts(z: npt.NDArray[np.float64], law: Law) -> Iterator[Count]:
    """Count of even values, for integers that are alike: the share to be expected is that of the range."""
    if law.is_discrete and math.isfinite(law.high):
        possible = int(law.high) - int(law.low) + 1
        share = (possible // 2 + (possible % 2 and int(law.low) % 2 == 0)) / possible
        if law.high < 2**53:
            yield Count("values are even", int(np.count_nonzero(z % 2 == 0)), z.size, share, share)


def _group_counts(
    bits: npt.NDArray[np.bool_], probability: npt.NDArray[Any] | tuple[float, float], what: str
) -> Iterator[Count]:
    if isinstance(probability, tuple):
        yield Count(f"elements {what}", int(np.count_nonzero(bits)), bits.size, *probability)
        return
    for group in np.array_split(np.argsort(probability, kind="stable"), _BIT_GROUPS):
        if group.size:
            mean = float(np.mean(probability[group]))
            text = f"elements with a probability of about {mean:.3g} {what}"
            yield Count(text, int(np.count_nonzero(bits[group])), group.size, mean, mean)
