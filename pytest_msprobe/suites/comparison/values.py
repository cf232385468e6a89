"""One value of the target against its partner: state, verdict, figures and reasons.

Tensors are compared by the best that both dumps hold: real data, checksums, sketches,
fingerprints, else statistics. The rule of when they agree is one number per dtype, the largest
*distance* |t-g| / |g| in the 2-norm of target t and golden g. All else follows from it:

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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from msprobe_collector.dump_format import DumpError, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.values import STATISTICS, OpaqueValue, printable
from pytest_msprobe.numerics.expected import DTYPES, Relative, Times
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.verdicts import Difference

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.estimates import Estimate, Sketches
    from pytest_msprobe.suites.comparison.figures import Figures, PairFigures


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
        for dtype in filter(None, map(find_dtype, dtypes)):
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
        of_distance = relative(figures.distance, limit)
        of_element = relative(metrics.max_abs or 0.0, self.element_limit(limit, figures.peak))
        return math.inf if math.isnan(of_distance + of_element) else max(of_distance, of_element)


def farthest_of(distances: Collection[float | None]) -> float:
    """Return the largest of some distances; infinity where one of them is not known."""
    return math.inf if None in distances else max(filter(None, distances), default=0.0)


def statistics_reasons(
    target: TensorValue, golden: TensorValue, limit: float, agreement: DistanceLimits
) -> tuple[tuple[str, ...], float]:
    """(what disagrees between the statistics of two tensors in whole sentences, largest distance that they prove).

    A statistic that one side lacks is not compared. NaN agrees with NaN, inf with the same inf.
    """
    is_float = golden.dtype is None or golden.dtype.kind in ("float", "complex")
    reasons, distances = [], [0.0]
    for name, mine, theirs in zip(STATISTICS, statistics_of(target), statistics_of(golden)):
        if mine is None or theirs is None or mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
            continue
        if not (math.isfinite(mine) and math.isfinite(theirs)):
            reasons.append(f"{name} is {mine!r} in the target and {theirs!r} in the golden dump.")
            distances.append(math.inf)
            continue
        off = abs(mine - theirs)
        allowed, scale = _allowed(name, golden, limit, agreement) if is_float else _exactly(name, theirs)
        distances.append(off / scale if scale > 0 else math.inf)
        if off > allowed:
            reasons.append(f"{name} is {mine:.9g}, golden {theirs:.9g}: off by {off:.3g}, allowed {allowed:.3g}.")
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
    extremes = [abs(float(value)) for value in (golden.maximum, golden.minimum) if value is not None]
    peak = max(filter(math.isfinite, extremes), default=0.0)
    norm = abs(float(golden.norm)) if golden.norm is not None and math.isfinite(golden.norm) else peak
    if name == "Norm":
        return limit * norm, norm
    if name == "Mean":
        rms = norm / math.sqrt(max(1, golden.size))
        return limit * rms, rms
    return agreement.element_limit(limit, peak), Times.ELEMENT * peak


def _exactly(name: str, golden: float) -> tuple[float, float]:
    return (Relative.STATISTICS * abs(golden) if name in ("Mean", "Norm") else 0.0), max(abs(golden), 1.0)


#: `unmatched` and `unreadable` are not verdicts: nothing was compared. `skip` is what no comparison can judge.
ValueStatus = Literal["pass", "warning", "error", "unmatched", "unreadable", "skip"]

#: What the tolerance of a value is from, where there is a noise run.
Basis = Literal["noise", "floor", "dtype"]
FUZZY_NOTE = "Fuzzy matching data, the comparison accuracy may be affected."


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest distance that one value may have.

    Attributes:
        limit: |target - golden| / |golden| (2-norms) at most.
        basis: where it is from: the noise run, the floor of the dtype because the noise run differs less, or the limit
            of the dtype because the noise run has no such value.
        noise: distance of the noise run from the golden run in this record.
    """

    limit: float
    basis: Basis
    noise: float = 0.0

    def __str__(self) -> str:
        if self.basis == "noise":
            return f"The tolerance is {self.limit:.3g}, {Times.NOISE} times what the noise run differs by."
        if self.basis == "floor":
            return f"The tolerance is {self.limit:.3g}, the least of this dtype: the noise run hardly differs."
        return f"The tolerance is {self.limit:.3g}, that of the dtype: the noise run has no such value."


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
    leaf: Leaf = field(init=False)
    path: str = field(init=False)
    name: str = field(init=False)
    is_tensor: bool = field(init=False)
    is_output: bool = field(init=False)
    is_wrong: bool = field(init=False)
    is_lone: bool = field(init=False)

    def __post_init__(self) -> None:
        leaf, golden = self.target or self.golden, self.golden
        assert leaf is not None
        is_tensor = leaf.is_tensor or (golden is not None and golden.is_tensor)
        is_wrong, is_lone = self.status in ("error", "unreadable"), self.status == "unmatched" and is_tensor
        stored: dict[str, object] = {"leaf": leaf, "path": leaf.path, "name": leaf.name, "is_output": leaf.is_output}
        stored |= {"is_tensor": is_tensor, "is_wrong": is_wrong, "is_lone": is_lone}
        for name, value in stored.items():
            object.__setattr__(self, name, value)  # the class is frozen

    @property
    def difference(self) -> Difference:
        """Which kind of difference a value has that fails; "" for another one."""
        target, golden = self.target, self.golden
        if self.status != "error":
            return ""
        if not self.is_tensor:
            return "argument"
        if target is None or golden is None:
            return "form"
        is_nonfinite = any(map(_is_finite_on_one_side, zip(target.statistics, golden.statistics)))
        if is_nonfinite or (self.figures is not None and self.figures.metrics.nonfinite_mismatches):
            return "nonfinite"
        if self.distance is not None and math.isfinite(self.distance):
            return "size"
        forms = {(leaf.shape, canonical_dtype(leaf.dtype), leaf.requires_grad) for leaf in (target, golden)}
        return "form" if len(forms) > 1 else "bits"

    @property
    def differs_in_bits(self) -> bool:
        """Whether checksums or fingerprints of both sides show that it does."""
        target, golden = self.target, self.golden
        if target is None or golden is None or self.status == "skip":
            return False
        if target.md5 and golden.md5 and target.md5 != golden.md5:
            return True
        mine, theirs = target.value, golden.value
        if not (isinstance(mine, TensorValue) and isinstance(theirs, TensorValue)):
            return False
        return bool(mine.fingerprint and theirs.fingerprint) and mine.fingerprint != theirs.fingerprint

    @property
    def message(self) -> str:
        """The reasons on one line."""
        return " ".join(self.reasons)


def is_whole(leaf: Leaf | None) -> bool:
    """Return whether a value is a tensor of integers or truth values."""
    value = leaf.value if leaf is not None else None
    return isinstance(value, TensorValue) and value.dtype is not None and value.dtype.kind in ("int", "bool")


def _is_finite_on_one_side(pair: tuple[object, object]) -> bool:
    finite = [math.isfinite(value) for value in pair if isinstance(value, (int, float))]
    return len(set(finite)) > 1


def judge_plain(target: Leaf, golden: Leaf, agreement: DistanceLimits) -> ValueComparison:
    """The verdict on two values that are not tensors: equal as text or as numbers.

    Floats may be results, so they have float32's distance; the number of a process says nothing.
    """
    mine, theirs = target.statistics[0], golden.statistics[0]
    number, other = _number(mine), _number(theirs)
    if target.is_peer or mine == theirs or (number == other and number is not None):
        return _equal(target, golden)
    if number is not None and other is not None and "float" in target.dtype + golden.dtype:
        if math.isnan(number) and math.isnan(other):
            return _equal(target, golden)
        distance = abs(number - other) / abs(other) if other else math.inf
        if distance <= agreement.limit("Float32"):
            return ValueComparison(target, golden, "pass", distance=distance, limit=0.0)
    return _other_argument(target, golden, mine, theirs)


def _equal(target: Leaf | None, golden: Leaf | None) -> ValueComparison:
    return ValueComparison(target, golden, "pass", distance=0.0, limit=0.0)


def _other_argument(target: Leaf, golden: Leaf, mine: object, theirs: object) -> ValueComparison:
    reason = f"The value is {_shown(mine)} in the target and {_shown(theirs)} in the golden dump."
    return ValueComparison(target, golden, "error", (reason,), distance=math.inf, limit=0.0)


def judge_place(target: Leaf | None, golden: Leaf | None) -> ValueComparison:
    """The verdict on an argument that says where or how, which one side may lack: no difference.

    Of two groups of processes whose ranks are known, other ranks are one.
    """
    if target is not None and golden is not None:
        mine, theirs = target.value, golden.value
        if isinstance(mine, OpaqueValue) and isinstance(theirs, OpaqueValue):
            ranks = mine.content, theirs.content
            if ranks[0] != ranks[1] and {*map(type, ranks)} == {list}:
                return _other_argument(target, golden, *ranks)
    return _equal(target, golden)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class _TensorPair:
    """Two tensors, and what is said of them before their numbers are looked at.

    Attributes:
        target, golden: the values.
        target_tensor, golden_tensor: what the dumps hold of them.
        limit: largest distance of a pass.
        is_one_dtype: whether both have the same dtype, in the words of either framework.
        hard, soft: differences that make an error, and that make a warning.
    """

    target: Leaf
    golden: Leaf
    target_tensor: TensorValue
    golden_tensor: TensorValue
    limit: float
    is_one_dtype: bool
    hard: tuple[str, ...]
    soft: tuple[str, ...]

    def verdict(self, reasons: tuple[str, ...], distance: float, *soft: str) -> ValueComparison:
        """An error where there are `reasons`, else what was said before; the warnings `soft` besides."""
        warnings, errors = (*self.soft, *soft), self.hard + reasons
        status: ValueStatus = "warning" if warnings else "pass"
        if errors:
            status = "error"
        distance = math.inf if self.hard else distance
        return ValueComparison(self.target, self.golden, status, errors + warnings, distance, limit=self.limit)


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
        mine, theirs = target.tensor, golden.tensor
        if mine is None or theirs is None:
            lacking = (leaf for leaf in (target, golden) if leaf.tensor is None)
            faults = tuple(leaf.fault or f"{leaf.name} is not a tensor." for leaf in lacking)
            is_unreadable = target.fault or golden.fault
            return ValueComparison(target, golden, "unreadable" if is_unreadable else "error", faults)
        limit = self.limits.limit(target.dtype, golden.dtype) if limit is None else limit
        pair = self._pair((target, golden), (mine, theirs), limit)
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
        if not has_common_statistics(mine, theirs):
            if not (target.is_known or golden.is_known):
                return ValueComparison(target, golden, "skip", ("Neither dump holds anything about this value.",))
            return ValueComparison(target, golden, "unmatched", ("The dumps hold nothing in common about this value.",))
        if pair.hard:
            return pair.verdict((), math.inf)
        reasons, distance = statistics_reasons(mine, theirs, limit, self.limits)
        return self._by_fingerprint(pair, reasons, distance, *filter(None, [estimate]))

    def _by_sketch(self, pair: _TensorPair, estimate: Estimate) -> ValueComparison:
        """By the estimate and, for single elements, Max and Min; statistics may prove a distance besides."""
        reasons, soft = estimate.judged(pair.limit)
        reasons += statistics_reasons(pair.target_tensor, pair.golden_tensor, pair.limit, self.limits)[0]
        verdict = self._by_fingerprint(pair, reasons, estimate.distance, *soft)
        is_beyond = bool(reasons) and verdict.status == "error"  # not of equal fingerprints
        return replace(verdict, estimate=estimate, contents=estimate.contents, is_beyond=is_beyond)

    def _pair(self, leaves: tuple[Leaf, Leaf], tensors: tuple[TensorValue, TensorValue], limit: float) -> _TensorPair:
        target, golden = leaves
        hard: list[str] = []
        soft: list[str] = []
        is_one_dtype = target.dtype == golden.dtype or canonical_dtype(target.dtype) == canonical_dtype(golden.dtype)
        if not is_one_dtype:
            kinds = [getattr(tensor.dtype, "kind", "") for tensor in tensors]
            is_accepted = "dtype" in self.accept or (kinds[0] == "int" and "integers" in self.accept)
            is_rounding = kinds[0] == kinds[1] and is_accepted
            (soft if is_rounding else hard).append(f"Dtypes differ: target {target.dtype}, golden {golden.dtype}.")
        if target.shape != golden.shape:
            hard.append(f"Shapes differ: target {list(target.shape)}, golden {list(golden.shape)}.")
        if target.requires_grad and golden.requires_grad and target.requires_grad != golden.requires_grad:
            words = f"Requires_grad differs: target {target.requires_grad}, golden {golden.requires_grad}."
            (soft if "requires_grad" in self.accept else hard).append(words)
        return _TensorPair(*leaves, *tensors, limit, is_one_dtype, tuple(hard), tuple(soft))

    def _by_fingerprint(
        self, pair: _TensorPair, reasons: tuple[str, ...], distance: float, *soft: str
    ) -> ValueComparison:
        """Equal fingerprints are equal bits. For others sketches or statistics say how far apart they are."""
        mine, theirs = pair.target_tensor.fingerprint, pair.golden_tensor.fingerprint
        if not (mine and theirs and pair.is_one_dtype):
            return pair.verdict(reasons, distance, *soft)
        if mine == theirs:
            return pair.verdict((), 0.0)
        bits = f"The bits differ: fingerprint {mine}, golden {theirs}"
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

    def _by_data(self, pair: _TensorPair) -> ValueComparison:
        from pytest_msprobe.numerics.diagnosis import explain, summarise
        from pytest_msprobe.numerics.judgement import Judgement, unforgivable_reasons

        target, golden = pair.target, pair.golden
        try:
            mine = self.folders[0].load(pair.target_tensor, target.place)
            theirs = self.folders[1].load(pair.golden_tensor, golden.place)
        except DumpError as error:
            return ValueComparison(target, golden, "unreadable", (str(error),))
        if mine.shape != theirs.shape and mine.squeeze().shape == theirs.squeeze().shape:
            mine, theirs = mine.squeeze(), theirs.squeeze()
        figures, contents = self._figures.of(mine, theirs)
        metrics = figures.metrics
        if metrics.structural:
            hard = pair.hard or (metrics.structural,)
            return ValueComparison(target, golden, "error", hard, math.inf, limit=pair.limit, contents=contents)
        reasons, distance = pair.hard + unforgivable_reasons(metrics), math.inf
        if not (metrics.nonfinite_mismatches or pair.hard):
            distance = figures.distance
            if not metrics.is_exact and metrics.size:
                element_limit = self.limits.element_limit(pair.limit, figures.peak)
                reasons = (*reasons, *_too_far(distance, pair.limit, metrics.max_abs or 0.0, element_limit))
        status: ValueStatus = "warning" if pair.soft else "pass"
        said, words = pair.soft, ""
        if reasons:
            status, judgement = "error", Judgement("error", reasons)
            said = (summarise(metrics, judgement), *pair.soft)
            words = explain(metrics, judgement, label=printable(target.name), dtype=target.dtype, shape=target.shape)
        return ValueComparison(
            target, golden, status, said, distance, figures, explanation=words, limit=pair.limit, contents=contents
        )


def _too_far(distance: float, limit: float, max_abs: float, element_limit: float) -> Iterator[str]:
    if distance > limit:
        yield f"Relative distance {distance:.3g} is above {limit:g}."
    if max_abs > element_limit:
        yield f"An element is off by {max_abs:.3g}, allowed is {element_limit:.3g}."
