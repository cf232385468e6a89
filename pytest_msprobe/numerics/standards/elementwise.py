"""The standards that msProbe defines: rules for the elements of an output, each with its bounds by dtype.

The table of constants names its sources: S is `standard_config.py` of msProbe 26.2.0
(pytorch/api_accuracy_checker/precision_standard), D its documents, Y its `api_precision_standard.yaml`. Where S and D
disagree, the entry says which was taken and why. A dtype that has no entry cannot be judged by that standard, unless
bounds are given. The standard `benchmark` asks whether the device is about as accurate as an ordinary run in the same
dtype.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from pytest_msprobe.numerics.dtypes import float_format, in_spacings, part_dtype, round_once
from pytest_msprobe.numerics.expected import Absolute
from pytest_msprobe.numerics.judgement import (
    Judgement,
    OutputPair,
    count_of,
    limit_above,
    limit_below,
    number,
    place_and_values,
    plain_judgement,
    remedy_above,
    share,
    unforgivable_reasons,
)
from pytest_msprobe.numerics.measurement import (
    Array,
    Element,
    Floats,
    Metrics,
    chunks,
    is_same,
    settle_nonfinite,
    unravelled,
    widened,
)
from pytest_msprobe.numerics.pair import relative

Bounds = TypeVar("Bounds")


class Chunk(NamedTuple):
    """Some elements in float64 or complex128, 0 on both sides where one of them is not finite.

    Attributes:
        start: flat position of the first.
        tested, reference: values, shape (n,), float64 or complex128.
        error: |t-b|, shape (n,), float64, in the unit of the output.
        magnitude: |b|, of the same shape, dtype and unit.
    """

    start: int
    tested: Array
    reference: Array
    error: Floats
    magnitude: Floats

    @property
    def relative(self) -> Floats:
        """|t-b| / |b|, shape (n,), float64; 0 where the two are equal, infinite where only b is 0."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative: Floats = self.error / self.magnitude
        relative[self.error == 0] = 0
        return relative


def rounded_chunks(tested: Array, reference: Array) -> Iterator[Chunk]:
    """Chunks of two outputs of one shape; `tested` has the dtype of the device, `reference` is float64 or complex128.

    The reference is rounded once to the tested dtype: what a perfect device returns has no error.
    """
    for start, *sides in wide_chunks(tested, reference):
        finite, expected, _ = settle_nonfinite(*sides)
        with np.errstate(over="ignore"):
            error = np.abs(finite - expected)
        yield Chunk(start, finite, expected, error, np.abs(expected))


def wide_chunks(tested: Array, reference: Array) -> Iterator[tuple[int, Array, Array]]:
    """(flat start, tested values, rounded reference values) of chunks, as they are: shape (n,), float64 or complex128.

    The two outputs are of one shape; the reference is rounded once to the dtype of `tested`.
    """
    for start, (values, expected) in chunks(tested, reference):
        yield start, widened(values), widened(round_once(expected, tested.dtype))


@dataclass(slots=True)
class Beyond:
    """Counts figures above a limit and keeps the largest of all.

    Attributes:
        limit: a figure above it counts.
        count: how many did.
        worst, worst_at: the largest figure and its flat position; 0 and 0 while all are 0.
    """

    limit: float
    count: int = 0
    worst: float = 0.0
    worst_at: int = 0

    @property
    def ratio(self) -> float:
        """The largest figure over the limit."""
        return relative(self.worst, self.limit)

    def add(self, start: int, figures: Floats) -> None:
        """Take a chunk of figures into account, shape (n,), float64; the first stands at the flat position `start`."""
        at = int(figures.argmax())
        if figures.item(at) > self.worst:
            self.worst, self.worst_at = figures.item(at), start + at
        self.count += int(np.count_nonzero(figures > self.limit))

    def elements(self, pair: OutputPair) -> str:
        """`3 of 8 elements (37.5 %)`."""
        return share(self.count, pair.tested.size)

    def place(self, pair: OutputPair) -> str:
        """Where the largest figure is, with both values there: ` at [1, 2] (tested 1.0, benchmark 2.0)`."""
        at, tested = self.worst_at, pair.tested
        rounded = round_once(pair.reference.reshape(-1)[at : at + 1], tested.dtype)
        return place_and_values(Element(unravelled(at, tested.shape), tested.item(at), rounded.item()))

    def worst_and_remedy(self, pair: OutputPair) -> str:
        """The largest figure, its place, and the limit that would pass."""
        return f"worst{self.place(pair)}: {number(self.worst, self.limit)}{remedy_above(self.worst)}."


def early_judgement(metrics: Metrics) -> Judgement | None:
    """The verdict where there is nothing to weigh: structure, exact or no elements, all equal; else None."""
    if metrics.structural or metrics.is_exact or metrics.is_empty:
        return judge_plain(metrics)
    return plain_judgement(()) if metrics.max_abs == 0 and not metrics.nonfinite_mismatches else None


def judge_plain(metrics: Metrics) -> Judgement:
    """The verdict on a value without elements to look at, such as a Python float: within 1 ULP of its dtype."""
    reasons = unforgivable_reasons(metrics)
    if reasons or metrics.is_exact or not metrics.max_abs:
        return plain_judgement(reasons)
    if metrics.max_ulp is None:
        return plain_judgement(("The values differ, and no ULP is defined for their type.",))
    if metrics.max_ulp > 1:
        return Judgement("error", (f"Error of {number(metrics.max_ulp, 1)} ULP is above 1.",), ratio=metrics.max_ulp)
    return Judgement("pass", ratio=metrics.max_ulp)


class ElementRule(ABC, Generic[Bounds]):
    """A standard that weighs the elements of an output, by bounds that may hang on the dtype."""

    __slots__ = ()

    name: ClassVar[str]
    #: Each rule counts elements itself.
    off_bound: ClassVar[float] = math.inf
    #: Bounds of dtypes, by their names in NumPy, where the standard is not given others.
    table: ClassVar[Mapping[str, Any]] = {}

    def _bounds(self, dtype: str) -> Bounds | None:
        """Return the bounds for a float dtype; None where it cannot be judged."""
        return getattr(self, "bounds", None) or self.table.get(dtype)

    @abstractmethod
    def _weigh(self, pair: OutputPair, bounds: Bounds) -> Judgement:
        """The verdict on elements that differ."""

    def _dtype_of(self, pair: OutputPair) -> str:
        """The name of the dtype that `pair` has bounds by: that of its parts."""
        return part_dtype(pair.tested.dtype).name

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output; a skip that says so where no bounds are known for its dtype."""
        early = early_judgement(pair.metrics)
        if early is not None:
            return early
        bounds = self._bounds(self._dtype_of(pair))
        if bounds is None:
            reason = f"{self.name} has no bounds for {pair.tested.dtype}; choose another standard for it."
            return Judgement("skip", (reason,))
        return self._weigh(pair, bounds)


@dataclass(frozen=True, slots=True)
class Binary:
    """Passes when no element differs from the benchmark rounded once to the tested dtype.

    0 equals -0 and NaN equals NaN: it compares values, not bits.
    """

    name: ClassVar[str] = "binary"
    off_bound: ClassVar[float] = Absolute.ANY_DIFFERENCE

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on one output or value."""
        reasons = unforgivable_reasons(metrics)
        if not metrics.is_exact and metrics.max_abs and not metrics.nonfinite_mismatches:
            verb = "differs" if metrics.off_count == 1 else "differ"
            rounded = "the benchmark, rounded once to the tested dtype"
            reasons += (f"{count_of(metrics.off_count, metrics.size)} {verb} from {rounded}; none may.",)
        return plain_judgement(reasons)


@dataclass(frozen=True, slots=True)
class AbsoluteBounds:
    """Bounds of `absolute-threshold`.

    Attributes:
        small_value: up to this |b| an element is judged by its absolute error, above by its relative error.
        relative: largest |t-b| / |b|.
        absolute: largest |t-b|.
    """

    small_value: float
    relative: float
    absolute: float


@dataclass(frozen=True, slots=True)
class UlpBounds:
    """Bounds of `ulp`.

    Attributes:
        ulps: an element that is further off than this counts.
        share: the share of such elements must be below this.
        mean: a mean error below this is enough whatever the share; 0 where it never is.
    """

    ulps: float
    share: float
    mean: float


@dataclass(frozen=True, slots=True)
class AccumulativeBounds:
    """Bounds of `accumulative-error`.

    Attributes:
        bound: largest |t-b| up to |b| = 1, largest |t-b| / |b| above.
        balance: largest |elements that are too large - elements that are too small| / elements.
    """

    bound: float
    balance: float


@dataclass(frozen=True, slots=True)
class ErrorMultiples:
    """How many times the error of the second opinion the tested one may be.

    Attributes:
        small: of the share of small elements that are further off than `SecondOpinionConstants.absolute`.
        rmse, max_relative, mean_relative: of these figures over all other elements.
    """

    small: float
    rmse: float
    max_relative: float
    mean_relative: float


@dataclass(frozen=True, slots=True)
class SecondOpinionConstants:
    """What `benchmark` has for a dtype.

    Attributes:
        small_value: up to this |b| an element is small.
        absolute: a small element that is further off counts.
        least: an error of the second opinion below this counts as this, which bounds the ratio.
    """

    small_value: float
    absolute: float
    least: float


#: S. `absolute` of bfloat16 is D: S has 1e-16, below which nothing but equality lies: a slip for 2**-16.
ABSOLUTE: Mapping[str, AbsoluteBounds] = {
    "float16": AbsoluteBounds(2.0**-10, 2.0**-10, 2.0**-16),
    "bfloat16": AbsoluteBounds(2.0**-10, 2.0**-8, 2.0**-16),
    "float32": AbsoluteBounds(2.0**-20, 2.0**-20, 2.0**-30),
}

#: S. `absolute` of float16 and bfloat16 is D, for the same slip. D has other small values (2**-11, 2**-8, 2**-14).
SECOND_OPINION: Mapping[str, SecondOpinionConstants] = {
    "float16": SecondOpinionConstants(2.0**-10, 2.0**-16, 2.0**-11),
    "bfloat16": SecondOpinionConstants(2.0**-10, 2.0**-16, 2.0**-8),
    "float32": SecondOpinionConstants(2.0**-20, 2.0**-30, 2.0**-14),
}

#: S: levels 0, 1 and 2. Which API has which level: `apis/facts/benchmark_levels.txt`.
ERROR_MULTIPLES = (
    ErrorMultiples(2.0, 2.0, 10.0, 2.0),
    ErrorMultiples(2.0, 1.5, 5.0, 1.5),
    ErrorMultiples(2.0, 1.2, 2.0, 1.2),
)

_NARROW = UlpBounds(ulps=1.0, share=0.001, mean=0.0)
#: S. The narrow rule for float8 is S for the 8-bit float of Ascend, applied to the formats that dumps can hold.
ULP: Mapping[str, UlpBounds] = {
    "float16": _NARROW,
    "bfloat16": _NARROW,
    "float8_e4m3fn": _NARROW,
    "float8_e5m2": _NARROW,
    "float32": UlpBounds(ulps=32.0, share=0.05, mean=64.0),
}

#: S.
ACCUMULATIVE: Mapping[str, AccumulativeBounds] = {
    "float16": AccumulativeBounds(2.0**-8, 2.0**-20),
    "bfloat16": AccumulativeBounds(2.0**-7, 2.0**-7),
    "float32": AccumulativeBounds(2.0**-11, 2.0**-14),
}
ACCUMULATIVE_SMALL_VALUE = 1.0

#: S: at least this share of the elements ... (D: more than this share)
THOUSANDTH_SHARE = 0.999
#: ... has a relative error below this.
THOUSANDTH_RELATIVE = 0.001


@dataclass(frozen=True, slots=True)
class AbsoluteThreshold(ElementRule[AbsoluteBounds]):
    """Passes when every element is within its bound: absolute up to `small_value`, relative above.

    NaN must meet NaN. Inf counts as the largest value of the dtype, so that it may meet a value close to that one.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: AbsoluteBounds | None = None

    name: ClassVar[str] = "absolute-threshold"
    table: ClassVar[Mapping[str, Any]] = ABSOLUTE

    def _weigh(self, pair: OutputPair, bounds: AbsoluteBounds) -> Judgement:
        relative, absolute = Beyond(bounds.relative), Beyond(bounds.absolute)
        for chunk in rounded_chunks(pair.tested, pair.reference):
            is_small = chunk.magnitude <= bounds.small_value
            absolute.add(chunk.start, np.where(is_small, chunk.error, 0))
            relative.add(chunk.start, np.where(is_small, 0, chunk.relative))
        reasons = _nonfinite_reasons(pair, bounds.relative)
        ratio = math.inf if reasons else max(relative.ratio, absolute.ratio)
        for beyond, figure in ((relative, "relative error, for |b| >"), (absolute, "absolute error, for |b| <=")):
            if beyond.count:
                verb = "is" if beyond.count == 1 else "are"
                what = f"{verb} above {number(beyond.limit)} ({figure} {number(bounds.small_value)})"
                reasons += (f"{beyond.elements(pair)} {what}, {beyond.worst_and_remedy(pair)}",)
        return Judgement.of(reasons, ratio)


def _nonfinite_reasons(pair: OutputPair, relative: float) -> tuple[str, ...]:
    """What is wrong with NaN and Inf that the end of the range does not explain."""
    reasons = unforgivable_reasons(pair.metrics)
    if not pair.metrics.nonfinite_mismatches or pair.tested.dtype.kind == "c":
        return reasons
    largest = float_format(part_dtype(pair.tested.dtype)).largest
    for _, tested, reference in wide_chunks(pair.tested, pair.reference):
        apart = ~(np.isfinite(tested) & np.isfinite(reference)) & ~(np.isnan(tested) & np.isnan(reference))
        actual, expected = (np.clip(side[apart], -largest, largest) for side in (tested, reference))
        with np.errstate(invalid="ignore"):
            error = np.abs(actual - expected)
        # Not "any above": every comparison with NaN is false.
        if not np.all(error <= relative * np.abs(expected)):
            return reasons
    return ()


#: Heads minus tails of n tosses of a fair coin is within this many roots of n, but for one time in two million.
_CHANCE = 5.0


@dataclass(frozen=True, slots=True)
class AccumulativeError(ElementRule[AccumulativeBounds]):
    """Passes when every element is within the bound and the errors balance.

    Unbalanced is |elements too large - elements too small| / elements above `balance`, unless that many come out of
    fair chance: signs that are random differ by about the root of their number, which no fixed share allows for.
    Complex numbers have no sign, so their balance is that of the real parts.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: AccumulativeBounds | None = None

    name: ClassVar[str] = "accumulative-error"
    table: ClassVar[Mapping[str, Any]] = ACCUMULATIVE

    def _weigh(self, pair: OutputPair, bounds: AccumulativeBounds) -> Judgement:
        beyond = Beyond(bounds.bound)
        above = below = 0
        for chunk in rounded_chunks(pair.tested, pair.reference):
            is_small = chunk.magnitude <= ACCUMULATIVE_SMALL_VALUE
            beyond.add(chunk.start, np.where(is_small, chunk.error, chunk.relative))
            above += int(np.count_nonzero(chunk.tested.real > chunk.reference.real))
            below += int(np.count_nonzero(chunk.tested.real < chunk.reference.real))
        size = pair.tested.size
        balance = abs(above - below) / size
        allowed = max(bounds.balance, _CHANCE * math.sqrt(above + below) / size)
        imbalance = balance / allowed if allowed else math.inf
        reasons = unforgivable_reasons(pair.metrics)
        ratio = math.inf if reasons else max(beyond.ratio, imbalance)
        if beyond.count:
            what = f"above {number(bounds.bound)} (absolute error up to |b| = 1, else relative)"
            reasons += (f"{beyond.elements(pair)} {what}, {beyond.worst_and_remedy(pair)}",)
        if imbalance > 1:
            reasons += (
                f"{above} elements are too large and {below} too small, of {size}: the errors are unbalanced by "
                f"{number(balance)}, above {number(bounds.balance)} and beyond chance; {limit_above(balance)} would "
                "pass.",
            )
        return Judgement.of(reasons, ratio)


@dataclass(frozen=True, slots=True)
class Ulp(ElementRule[UlpBounds]):
    """Passes when few elements are far off, or the mean error is small, or a second opinion has more that are far off.

    The spacing at b is 2**(floor(log2|b|) - mantissa bits) down to the smallest subnormal, which also counts at b = 0.
    The second opinion is asked for only where the others fail.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: UlpBounds | None = None

    name: ClassVar[str] = "ulp"
    table: ClassVar[Mapping[str, Any]] = ULP

    def _weigh(self, pair: OutputPair, bounds: UlpBounds) -> Judgement:
        reasons = unforgivable_reasons(pair.metrics)
        if reasons:
            return plain_judgement(reasons)
        beyond, mean = _spacings_off(pair.tested, pair.reference, bounds)
        ratio = min(below(beyond.count / pair.tested.size, bounds.share), below(mean, bounds.mean))
        if ratio < 1:
            return Judgement("pass", ratio=ratio)
        opinion = pair.sensitivity.second_opinion()
        second = None if opinion is None else _spacings_off(opinion, pair.reference, bounds)[0].count
        ratio = min(ratio, below(beyond.count, second or 0))
        if ratio < 1:
            return Judgement("pass", ratio=ratio)
        needed = limit_above(beyond.count / pair.tested.size * (1 + 1e-9))
        rules = [f"a share below {number(bounds.share)} would pass (here {needed} would)"]
        if bounds.mean:
            rules.append(f"a mean below {number(bounds.mean)} ULP (measured {number(mean, bounds.mean)})")
        if second is not None:
            rules.append(f"fewer than those of the second opinion ({second})")
        what = f"off by more than {number(bounds.ulps)} ULP, worst{beyond.place(pair)}: {number(beyond.worst)} ULP"
        return Judgement("error", (f"{beyond.elements(pair)} {what}; {' or '.join(rules)}.",), ratio=ratio)


def below(figure: float, bound: float) -> float:
    """Return a figure in parts of a bound that it must be below: below 1 only where it is."""
    return figure / bound if bound else math.inf


def _spacings_off(tested: Array, reference: Array, bounds: UlpBounds) -> tuple[Beyond, float]:
    """The elements beyond the bound, and the mean error in spacings."""
    format_ = float_format(part_dtype(tested.dtype))
    beyond, total = Beyond(bounds.ulps), 0.0
    for chunk in rounded_chunks(tested, reference):
        spacings = in_spacings(chunk.error, chunk.magnitude, format_)
        beyond.add(chunk.start, spacings)
        total += float(spacings.sum())
    return beyond, total / tested.size


@dataclass(frozen=True, slots=True)
class Thousandth(ElementRule[float]):
    """Passes when at least `share` of the elements have a relative error below `relative`, in any float dtype.

    Where the benchmark is 0 only 0 has such an error.
    """

    relative: float = THOUSANDTH_RELATIVE
    share: float = THOUSANDTH_SHARE

    name: ClassVar[str] = "thousandth"

    def _bounds(self, dtype: str) -> float:
        """The neighbour below `relative`: "not below" is above it."""
        return float(np.nextafter(self.relative, 0))

    def _weigh(self, pair: OutputPair, bounds: float) -> Judgement:
        reasons = unforgivable_reasons(pair.metrics)
        if reasons:
            return plain_judgement(reasons)
        beyond = Beyond(bounds)
        for chunk in rounded_chunks(pair.tested, pair.reference):
            beyond.add(chunk.start, chunk.relative)
        within = 1 - beyond.count / pair.tested.size
        ratio = (1 - within) / (1 - self.share) if self.share < 1 else math.inf
        if within >= self.share:
            return Judgement("pass", ratio=min(1.0, ratio) if within < 1 else 0.0)
        reason = (
            f"{beyond.elements(pair)} not below a relative error of {number(self.relative)}, "
            f"worst{beyond.place(pair)}: {number(beyond.worst)}; a share of {number(within, self.share)} is, "
            f"which is not {number(self.share)} or more; {limit_below(within)} would pass."
        )
        return Judgement("error", (reason,), ratio=ratio)


@dataclass(frozen=True, slots=True)
class AgainstSecondOpinion(ElementRule[SecondOpinionConstants]):
    """Passes when each figure of the tested error is at most so many times that of the second opinion.

    Both errors are measured from the benchmark's raw result. NaN and Inf must stand where the benchmark or the second
    opinion has the same. Without a second opinion it is a skip, except for what equals the rounded benchmark.

    Attributes:
        levels: how many times.
    """

    levels: ErrorMultiples = ERROR_MULTIPLES[0]

    name: ClassVar[str] = "benchmark"
    #: Which elements are small, and which errors count.
    table: ClassVar[Mapping[str, Any]] = SECOND_OPINION

    def _weigh(self, pair: OutputPair, bounds: SecondOpinionConstants) -> Judgement:
        second = pair.sensitivity.second_opinion()
        if second is None:
            reason = (
                "There is no second opinion: PyTorch is not installed, or cannot run this call in "
                f"{pair.tested.dtype}; install it, or choose another standard for this API."
            )
            return Judgement("skip", (reason,))
        tested_figures, opinion_figures = _Figures(bounds), _Figures(bounds)
        alone = 0
        for tested, opinion, reference, unmatched in _chunks(pair, second):
            alone += unmatched
            magnitude = np.abs(reference)
            tested_figures.add(np.abs(tested - reference), magnitude)
            opinion_figures.add(np.abs(opinion - reference), magnitude)
        reasons = []
        ratio = math.inf if alone else 0.0
        if alone:
            verb = "has" if alone == 1 else "have"
            elements = count_of(alone, pair.tested.size)
            reasons.append(
                f"{elements} {verb} a NaN or Inf that neither benchmark nor second opinion has there, or lacks theirs."
            )
        limits = self.levels.small, self.levels.rmse, self.levels.max_relative, self.levels.mean_relative
        for label, mine, theirs, limit in zip(_LABELS, tested_figures.values(), opinion_figures.values(), limits):
            floored = max(theirs, bounds.least)
            ratio = max(ratio, relative(mine, limit * floored))
            if not mine <= limit * floored:
                reasons.append(_failure(label, (mine, theirs, bounds.least), mine / floored, limit))
        return Judgement.of(reasons, ratio)


_LABELS = ("Share of small elements that are off", "RMSE", "Max relative error", "Mean relative error")


def _failure(label: str, figures: tuple[float, float, float], ratio: float, limit: float) -> str:
    mine, theirs, least = figures
    counted = f"{number(theirs)}" if theirs >= least else f"{number(theirs)}, counted as {number(least)}"
    return (
        f"{label} {number(mine)} is {number(ratio, limit)} times that of the second opinion ({counted}), above "
        f"{number(limit)}{remedy_above(ratio)}."
    )


class _Figures:
    """Errors of one side, gathered chunk by chunk."""

    def __init__(self, constants: SecondOpinionConstants) -> None:
        self._constants = constants
        self._small = self._small_off = self._large = 0
        self._squares = self._relative = self._largest = 0.0

    def add(self, error: Floats, magnitude: Floats) -> None:
        """Take the errors and |b| of a chunk into account, both shape (n,), float64, in the unit of the output."""
        is_small = magnitude <= self._constants.small_value
        self._small += int(np.count_nonzero(is_small))
        self._small_off += int(np.count_nonzero(error[is_small] > self._constants.absolute))
        error, magnitude = error[~is_small], magnitude[~is_small]
        if error.size == 0:
            return
        self._large += error.size
        self._squares += float(np.square(error).sum())
        relative = error / magnitude
        self._relative += float(relative.sum())
        self._largest = max(self._largest, float(relative.max()))

    def values(self) -> tuple[float, float, float, float]:
        """Figures in the order of `_LABELS`; 0 where no element counts."""
        large = max(1, self._large)
        return (
            self._small_off / max(1, self._small),
            math.sqrt(self._squares / large),
            self._largest,
            self._relative / large,
        )


def _chunks(pair: OutputPair, second: Array) -> Iterator[tuple[Array, Array, Array, int]]:
    """Tested, second and raw reference values, and how many NaN or Inf of the tested side stand alone.

    Values that are not finite are left out of the figures: the tested ones with the reference, those of the second
    opinion by a stand-in without error, since it must not excuse anything there.
    """
    dtype = pair.tested.dtype
    for _, sides in chunks(pair.tested, second, pair.reference):
        rounded = widened(round_once(sides[2], dtype))
        tested, opinion, reference = (np.array(widened(side)) for side in sides)
        is_left_out = ~(np.isfinite(tested) & np.isfinite(rounded))
        unmatched = is_left_out & ~is_same(tested, rounded) & ~is_same(tested, opinion)
        reference[is_left_out] = tested[is_left_out] = opinion[is_left_out] = 0
        is_silent = ~np.isfinite(opinion)
        opinion[is_silent] = reference[is_silent]
        yield tested, opinion, reference, int(np.count_nonzero(unmatched))
