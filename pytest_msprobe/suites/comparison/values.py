"""One value of the target against its partner: state, verdict, figures and reasons.

Two tensors compared by the best that both dumps hold: real data, checksums, sketches, fingerprints, else statistics.

When two dumps agree: the largest differences that are rounding, by dtype.

The rule is one number per dtype, the largest *distance* |t-g| / |g| in the 2-norm of target t and golden g. All else
follows from it:

- real data: distance within the limit, and no element off by more than 10 limits of the largest magnitude, so that a
  single wrong element of many is seen;
- sketches: an estimate of the distance, see `estimates`; Max and Min as single elements, and what follows for
  statistics besides;
- statistics: |Norm(t) - Norm(g)| <= |t-g| (triangle inequality) and |Mean(t) - Mean(g)| <= |t-g| / sqrt(n)
  (Cauchy-Schwarz) must hold for a distance within the limit; Max and Min as single elements above;
- checksums: equal or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from msprobe_collector.dump_format import DumpError, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.values import STATISTICS, OpaqueValue, printable
from pytest_msprobe.numerics.expected import DTYPES, Relative, Times
from pytest_msprobe.verdicts import Difference

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.estimates import Estimate, Sketches
    from pytest_msprobe.suites.comparison.figures import Figures, PairFigures
    from pytest_msprobe.suites.comparison.noise import Tolerance


@dataclass(frozen=True, slots=True)
class DistanceLimits:
    """The limits of a run.

    Attributes:
        distances: largest distance by canonical dtype name.
    """

    distances: Mapping[str, float]

    @classmethod
    def with_changes(cls, changes: tuple[tuple[str, float], ...]) -> DistanceLimits:
        """The default limits, some of them replaced."""
        return cls({**{name: row.step for name, row in DTYPES.items()}, **dict(changes)})

    def limit(self, *dtypes: str) -> float:
        """The largest distance between tensors of `dtypes`: that of the coarsest of them."""
        largest = 0.0
        for text in dtypes:
            dtype = find_dtype(text)
            if dtype is not None:
                largest = max(largest, self.distances.get(dtype.name, 0.0))
        return largest

    def element_limit(self, distance_limit: float, peak: float) -> float:
        """The largest difference of one element of a tensor whose largest magnitude is `peak`."""
        return Times.ELEMENT * distance_limit * peak

    def excess(self, figures: Figures, *dtypes: str, limit: float | None = None) -> float:
        """How many times the limit of the coarsest of `dtypes` a difference is, by its distance or its worst element.

        1.0 is at the limit, 0.0 for no difference. The dtypes need not be those of the values: what went through a
        coarser one before is as far off as that allows; `limit` is in place of theirs. Infinite where shapes or kinds
        differ, where NaN or infinity meets something else, and for any difference where no dtype has a limit, as
        between integers.
        """
        metrics = figures.metrics
        if metrics.structural or metrics.nonfinite_mismatches:
            return math.inf
        limit = self.limit(*dtypes) if limit is None else limit
        differences = (figures.distance, limit), (metrics.max_abs or 0.0, self.element_limit(limit, figures.peak))
        times = [off / allowed if allowed else math.inf if off else 0.0 for off, allowed in differences]
        return math.inf if any(map(math.isnan, times)) else max(times)


def statistics_reasons(
    target: TensorValue, golden: TensorValue, limit: float, agreement: DistanceLimits
) -> tuple[tuple[str, ...], float]:
    """(what disagrees between the statistics of two tensors in whole sentences, largest distance that they prove).

    A statistic that one side lacks is not compared. NaN agrees with NaN, inf with the same inf.
    """
    pairs = {
        name: (left, right)
        for name, left, right in zip(STATISTICS, statistics_of(target), statistics_of(golden))
        if left is not None and right is not None
    }
    kind = golden.dtype.kind if golden.dtype is not None else "float"
    reasons, distances = [], [0.0]
    for name, (left, right) in pairs.items():
        if left == right or (math.isnan(left) and math.isnan(right)):
            continue
        if not (math.isfinite(left) and math.isfinite(right)):
            reasons.append(f"{name} is {left!r} in the target and {right!r} in the golden dump.")
            distances.append(math.inf)
            continue
        allowed, scale = (
            _allowed(name, golden, limit, agreement) if kind in ("float", "complex") else _exactly(name, right)
        )
        distances.append(abs(left - right) / scale if scale > 0 else math.inf)
        if abs(left - right) > allowed:
            reasons.append(
                f"{name} is {left:.9g}, golden {right:.9g}: off by {abs(left - right):.3g}, allowed {allowed:.3g}."
            )
    return tuple(reasons), max(distances)


def has_common_statistics(target: TensorValue, golden: TensorValue) -> bool:
    """Whether there is a statistic that both dumps hold; an empty tensor has none to hold."""
    common = any(a is not None and b is not None for a, b in zip(statistics_of(target), statistics_of(golden)))
    return common or (target.size == 0 and golden.size == 0)


def statistics_of(tensor: TensorValue) -> Iterator[float | None]:
    """Max, Min, Mean and Norm as numbers; None for what the dump has not."""
    for value in (tensor.maximum, tensor.minimum, tensor.mean, tensor.norm):
        yield None if value is None else float(value)


def _allowed(name: str, golden: TensorValue, limit: float, agreement: DistanceLimits) -> tuple[float, float]:
    """(largest difference of a statistic, what a difference is divided by to be a distance)."""
    peak = _peak(golden)
    norm = abs(float(golden.norm)) if golden.norm is not None and math.isfinite(golden.norm) else peak
    if name == "Norm":
        return limit * norm, norm
    if name == "Mean":
        rms = norm / math.sqrt(max(1, golden.size))
        return limit * rms, rms
    return agreement.element_limit(limit, peak), Times.ELEMENT * peak


def _exactly(name: str, golden: float) -> tuple[float, float]:
    return (Relative.STATISTICS * abs(golden) if name in ("Mean", "Norm") else 0.0), max(abs(golden), 1.0)


def _peak(tensor: TensorValue) -> float:
    found = [abs(float(value)) for value in (tensor.maximum, tensor.minimum) if value is not None]
    return max((value for value in found if math.isfinite(value)), default=0.0)


#: `unmatched` and `unreadable` are not verdicts: nothing was compared. `skip` is what no comparison can judge.
ValueStatus = Literal["pass", "warning", "error", "unmatched", "unreadable", "skip"]

FUZZY_NOTE = "Fuzzy matching data, the comparison accuracy may be affected."


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """What became of one pair of values.

    Attributes:
        target, golden: the values; None where a side has none.
        status: see `ValueStatus`.
        reasons: whole sentences; empty for a plain pass.
        distance: relative distance of the two, what their sketches estimate or their statistics prove of it; 0 for
            equal ones, inf where it cannot be determined; None where nothing was compared, or bits differ with equal
            statistics.
        figures: of real data of one shape and kind.
        explanation: several lines for a failure of real data, else "".
        tolerance: of this value, where a noise run gives each its own.
        limit: largest distance of a pass; None where nothing was compared.
        contents: keys of the content of both, where real data or sketches were compared.
        estimate: of the distance, where sketches were compared.
        is_beyond: whether its elements are farther off than they may be beyond doubt, where sketches were compared.
        path: place in the record.
        name: full name, the target's where there is one.
        is_tensor: whether either side has a tensor here.
        is_output: whether the operation made it.
    """

    target: Leaf | None
    golden: Leaf | None
    status: ValueStatus
    reasons: tuple[str, ...] = ()
    distance: float | None = None
    figures: Figures | None = None
    explanation: str = ""
    tolerance: Tolerance | None = None
    limit: float | None = None
    contents: tuple[str, str] | None = None
    estimate: Estimate | None = None
    is_beyond: bool = False
    path: str = field(init=False)
    name: str = field(init=False)
    is_tensor: bool = field(init=False)
    is_output: bool = field(init=False)

    def __post_init__(self) -> None:
        leaf, other = self.target or self.golden, self.golden
        assert leaf is not None
        is_tensor = leaf.is_tensor or (other is not None and other.is_tensor)
        for name, value in zip(
            ("path", "name", "is_tensor", "is_output"), (leaf.path, leaf.name, is_tensor, leaf.is_output)
        ):
            object.__setattr__(self, name, value)  # the class is frozen

    @property
    def difference(self) -> Difference:
        """Which kind of difference a value has that fails."""
        if not self.is_tensor:
            return "argument"
        if self.target is None or self.golden is None:
            return "form"
        metrics = self.figures.metrics if self.figures is not None else None
        pairs = zip(self.target.statistics, self.golden.statistics)
        if (metrics is not None and metrics.nonfinite_mismatches) or any(map(_is_finite_on_one_side, pairs)):
            return "nonfinite"
        if self.distance is not None and math.isfinite(self.distance):
            return "size"
        forms = ((leaf.shape, canonical_dtype(leaf.dtype), leaf.requires_grad) for leaf in (self.target, self.golden))
        return "form" if len(set(forms)) > 1 else "bits"

    @property
    def differs_in_bits(self) -> bool:
        """Whether checksums or fingerprints of both sides show that it does."""
        target, golden = self.target, self.golden
        if target is None or golden is None or self.status == "skip":
            return False
        if target.md5 and golden.md5 and target.md5 != golden.md5:
            return True
        left, right = target.value, golden.value
        if not (isinstance(left, TensorValue) and isinstance(right, TensorValue)):
            return False
        return bool(left.fingerprint and right.fingerprint) and left.fingerprint != right.fingerprint

    @property
    def message(self) -> str:
        """The reasons on one line."""
        return " ".join(self.reasons)


def _is_finite_on_one_side(pair: tuple[object, object]) -> bool:
    finite = [math.isfinite(value) for value in pair if isinstance(value, (int, float))]
    return len(set(finite)) > 1


def judge_plain(target: Leaf, golden: Leaf, agreement: DistanceLimits) -> ValueComparison:
    """The verdict on two values that are not tensors: equal as text or as numbers.

    Floats may be results, so they have float32's distance; the number of a process says nothing.
    """
    left, right = target.statistics[0], golden.statistics[0]
    if target.is_peer:
        return ValueComparison(target, golden, "pass", distance=0.0, limit=0.0)
    numbers = _number(left), _number(right)
    if left == right or (numbers[0] is not None and numbers[0] == numbers[1]):
        return ValueComparison(target, golden, "pass", distance=0.0, limit=0.0)
    if numbers[0] is not None and numbers[1] is not None and "float" in target.dtype + golden.dtype:
        if math.isnan(numbers[0]) and math.isnan(numbers[1]):
            return ValueComparison(target, golden, "pass", distance=0.0, limit=0.0)
        distance = abs(numbers[0] - numbers[1]) / abs(numbers[1]) if numbers[1] else math.inf
        if distance <= agreement.limit("Float32"):
            return ValueComparison(target, golden, "pass", distance=distance, limit=0.0)
    return _other_argument(target, golden, left, right)


def _other_argument(target: Leaf, golden: Leaf, left: object, right: object) -> ValueComparison:
    reason = f"The value is {_shown(left)} in the target and {_shown(right)} in the golden dump."
    return ValueComparison(target, golden, "error", (reason,), distance=math.inf, limit=0.0)


def judge_place(target: Leaf | None, golden: Leaf | None) -> ValueComparison:
    """The verdict on an argument that says where or how, which one side may lack: no difference.

    Of two groups of processes whose ranks are known, other ranks are one.
    """
    ranks = [leaf.value.content for leaf in (target, golden) if leaf and isinstance(leaf.value, OpaqueValue)]
    if target and golden and len(ranks) == 2 and all(isinstance(one, list) for one in ranks) and ranks[0] != ranks[1]:
        return _other_argument(target, golden, *ranks)
    return ValueComparison(target, golden, "pass", distance=0.0, limit=0.0)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two tensors, and what is said of them before their numbers are looked at.

    Attributes:
        target, golden: the values.
        left, right: what the dumps hold of them.
        limit: largest distance of a pass.
        is_one_dtype: whether both have the same dtype, in the words of either framework.
        hard, soft: differences that make an error, and that make a warning.
    """

    target: Leaf
    golden: Leaf
    left: TensorValue
    right: TensorValue
    limit: float
    is_one_dtype: bool
    hard: tuple[str, ...]
    soft: tuple[str, ...]

    def verdict(self, reasons: tuple[str, ...], distance: float, *soft: str) -> ValueComparison:
        """An error where there are `reasons`, else what was said before; the warnings `soft` besides."""
        warnings = (*self.soft, *soft)
        status: ValueStatus = "error" if self.hard or reasons else "warning" if warnings else "pass"
        distance = math.inf if self.hard else distance
        return ValueComparison(
            self.target, self.golden, status, self.hard + reasons + warnings, distance, limit=self.limit
        )


@dataclass(frozen=True)
class TensorComparison:
    """How tensors are compared.

    Attributes:
        folders: tensor files of the target and of the golden dump.
        limits: of the run.
        accept: differences that only warn.
        sketches: of both dumps.
    """

    folders: tuple[TensorFolder, TensorFolder]
    limits: DistanceLimits
    accept: frozenset[str]
    sketches: Sketches

    def judge(self, target: Leaf, golden: Leaf, *, limit: float | None = None) -> ValueComparison:
        """The verdict on two tensors; `limit` is in place of the dtype's."""
        left, right = target.tensor, golden.tensor
        if left is None or right is None:
            lacking = [leaf for leaf, tensor in ((target, left), (golden, right)) if tensor is None]
            faults = tuple(leaf.fault or f"{leaf.name} is not a tensor." for leaf in lacking)
            is_unreadable = target.fault or golden.fault
            return ValueComparison(target, golden, "unreadable" if is_unreadable else "error", faults)
        limit = self.limits.limit(target.dtype, golden.dtype) if limit is None else limit
        pair = self._pair((target, golden), (left, right), limit)
        if target.data_name and golden.data_name:
            return self._by_data(pair)
        if target.md5 and golden.md5:
            if target.md5 == golden.md5:
                return pair.verdict((), 0.0)
            reason = f"The checksum is {target.md5} in the target and {golden.md5} in the golden dump."
            return pair.verdict((reason,), math.inf)
        try:
            estimate = "" if target.shape != golden.shape else self.sketches.estimate(target, golden, limit)
        except DumpError as error:
            return ValueComparison(target, golden, "unreadable", (str(error),))
        if not isinstance(estimate, str):
            return self._by_sketch(pair, estimate)
        if not has_common_statistics(left, right):
            if not (target.is_known or golden.is_known):
                return ValueComparison(target, golden, "skip", ("Neither dump holds anything about this value.",))
            return ValueComparison(target, golden, "unmatched", ("The dumps hold nothing in common about this value.",))
        if pair.hard:
            return pair.verdict((), math.inf)
        reasons, distance = statistics_reasons(left, right, limit, self.limits)
        soft = (estimate,) if estimate else ()
        if not (left.fingerprint and right.fingerprint and pair.is_one_dtype):
            return pair.verdict(reasons, distance, *soft)
        return self._by_fingerprint(pair, reasons, distance, *soft)

    def _by_sketch(self, pair: _Pair, estimate: Estimate) -> ValueComparison:
        """By the estimate and, for single elements, Max and Min; statistics may prove a distance besides."""
        reasons, soft = estimate.judged(pair.limit)
        reasons += statistics_reasons(pair.left, pair.right, pair.limit, self.limits)[0]
        if pair.left.fingerprint and pair.right.fingerprint and pair.is_one_dtype:
            found = self._by_fingerprint(pair, reasons, estimate.distance, *soft)
        else:
            found = pair.verdict(reasons, estimate.distance, *soft)
        is_beyond = bool(reasons) and found.status == "error"  # not of equal fingerprints
        return replace(found, estimate=estimate, contents=estimate.contents, is_beyond=is_beyond)

    def _pair(self, leaves: tuple[Leaf, Leaf], tensors: tuple[TensorValue, TensorValue], limit: float) -> _Pair:
        target, golden = leaves
        hard: list[str] = []
        soft: list[str] = []
        is_one_dtype = target.dtype == golden.dtype or canonical_dtype(target.dtype) == canonical_dtype(golden.dtype)
        if not is_one_dtype:
            kinds = [tensor.dtype.kind if tensor.dtype is not None else "" for tensor in tensors]
            is_accepted = "dtype" in self.accept or (kinds[0] == "int" and "integers" in self.accept)
            is_rounding = kinds[0] == kinds[1] and is_accepted
            (soft if is_rounding else hard).append(f"Dtypes differ: target {target.dtype}, golden {golden.dtype}.")
        if target.shape != golden.shape:
            hard.append(f"Shapes differ: target {list(target.shape)}, golden {list(golden.shape)}.")
        if target.requires_grad and golden.requires_grad and target.requires_grad != golden.requires_grad:
            words = f"Requires_grad differs: target {target.requires_grad}, golden {golden.requires_grad}."
            (soft if "requires_grad" in self.accept else hard).append(words)
        return _Pair(*leaves, *tensors, limit, is_one_dtype, tuple(hard), tuple(soft))

    def _by_fingerprint(self, pair: _Pair, reasons: tuple[str, ...], distance: float, *soft: str) -> ValueComparison:
        """Equal fingerprints are equal bits. For others sketches or statistics say how far apart they are."""
        left, right = pair.left.fingerprint, pair.right.fingerprint
        if left == right:
            return pair.verdict((), 0.0)
        bits = f"The bits differ: fingerprint {left}, golden {right}"
        bits += f", statistics {distance:.3g} apart." if distance else ", with equal statistics."
        if reasons or "bits" not in self.accept:
            verdict = pair.verdict((*reasons, bits), distance, *soft)
        else:
            verdict = pair.verdict((), distance, bits, *soft)
        # Equal statistics do not say that the distance is 0.
        return verdict if distance else replace(verdict, distance=None)

    @cached_property
    def _figures(self) -> PairFigures:
        from pytest_msprobe.suites.comparison.figures import PairFigures

        return PairFigures()

    def _by_data(self, pair: _Pair) -> ValueComparison:
        from pytest_msprobe.numerics import Judgement, explain, summarise, unforgivable_reasons

        target, golden = pair.target, pair.golden
        try:
            left = self.folders[0].load(pair.left, target.place)
            right = self.folders[1].load(pair.right, golden.place)
        except DumpError as error:
            return ValueComparison(target, golden, "unreadable", (str(error),))
        if left.shape != right.shape and left.squeeze().shape == right.squeeze().shape:
            left, right = left.squeeze(), right.squeeze()
        figures, contents = self._figures.of(left, right)
        metrics = figures.metrics
        if metrics.structural:
            hard = pair.hard or (metrics.structural,)
            return ValueComparison(target, golden, "error", hard, math.inf, limit=pair.limit, contents=contents)
        reasons = pair.hard + unforgivable_reasons(metrics)
        is_measured = not (metrics.nonfinite_mismatches or pair.hard)
        distance = figures.distance if is_measured else math.inf
        if not metrics.is_exact and is_measured and metrics.size:
            element_limit = self.limits.element_limit(pair.limit, figures.peak)
            reasons += _too_far(distance, pair.limit, metrics.max_abs or 0.0, element_limit)
        status: ValueStatus = "error" if reasons else "warning" if pair.soft else "pass"
        words, said = "", pair.soft
        if reasons:
            judgement = Judgement("error", reasons)
            words = explain(metrics, judgement, label=printable(target.name), dtype=target.dtype, shape=target.shape)
            said = (summarise(metrics, judgement), *pair.soft)
        return ValueComparison(
            target, golden, status, said, distance, figures, words, limit=pair.limit, contents=contents
        )


def _too_far(distance: float, limit: float, max_abs: float, element_limit: float) -> tuple[str, ...]:
    reasons = []
    if distance > limit:
        reasons.append(f"Relative distance {distance:.3g} is above {limit:g}.")
    if max_abs > element_limit:
        reasons.append(f"An element is off by {max_abs:.3g}, allowed is {element_limit:.3g}.")
    return tuple(reasons)
