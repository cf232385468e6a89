"""One value of the target against its partner: state, verdict, figures and reasons.

Two tensors compared by the best that both dumps hold: real data, fingerprints or checksums, else statistics.

When two dumps agree: the largest differences that are rounding, by dtype.

The rule is one number per dtype, the largest *distance* |t-g| / |g| in the 2-norm of target t and golden g. All else
follows from it:

- real data: distance within the limit, and no element off by more than 10 limits of the largest magnitude, so that a
  single wrong element of many is seen;
- statistics: |Norm(t) - Norm(g)| <= |t-g| (triangle inequality) and |Mean(t) - Mean(g)| <= |t-g| / sqrt(n)
  (Cauchy-Schwarz) must hold for a distance within the limit; Max and Min as single elements above;
- checksums: equal or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from msprobe_collector.dump_format import DumpError, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.values import STATISTICS, printable

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.noise import Tolerance

#: Largest distance by dtype. A step is hundreds of operations long, so each limit is some roundings of its dtype
#: wide (float32: 839 epsilons, float16: 8, bfloat16: 4): far above what two right devices differ by in one operation,
#: below what a wrong weight or formula does. torch.testing.assert_close allows 1.3e-6, 1e-3 and 1.6e-2 per operation.
DISTANCES = {
    "Float64": 1e-8,
    "Complex128": 1e-8,
    "Float32": 1e-4,
    "Complex64": 1e-4,
    "Float16": 8e-3,
    "BFloat16": 3e-2,
    "Float8E4M3FN": 0.25,
    "Float8E5M2": 0.5,
    "HiFloat8": 0.5,
}
#: One element may be off by this many limits of the largest magnitude.
_ELEMENT_SHARE = 10
#: Mean and Norm of integers are sums that collectors take in float32.
_INTEGER_SUMS = 1e-5

Statistics = tuple[Any, Any, Any, Any]


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
        return cls({**DISTANCES, **dict(changes)})

    def limit(self, *dtypes: str) -> float:
        """The largest distance between tensors of `dtypes`: that of the coarsest of them."""
        canonical = [dtype.name for text in dtypes if (dtype := find_dtype(text)) is not None]
        return max((self.distances.get(name, 0.0) for name in canonical), default=0.0)

    def element_limit(self, distance_limit: float, peak: float) -> float:
        """The largest difference of one element of a tensor whose largest magnitude is `peak`."""
        return _ELEMENT_SHARE * distance_limit * peak


def statistics_reasons(
    target: TensorValue, golden: TensorValue, limit: float, agreement: DistanceLimits
) -> tuple[tuple[str, ...], float]:
    """(what disagrees between the statistics of two tensors in whole sentences, largest distance that they prove).

    A statistic that one side lacks is not compared. NaN agrees with NaN, inf with the same inf.
    """
    pairs = {
        name: (left, right)
        for name, left, right in zip(STATISTICS, _values(target), _values(golden))
        if left is not None and right is not None
    }
    kind = golden.dtype.kind if golden.dtype is not None else "float"
    reasons, distances = [], [0.0]
    for name, (left, right) in pairs.items():
        if _is_same(left, right):
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
    common = any(a is not None and b is not None for a, b in zip(_values(target), _values(golden)))
    return common or (target.size == 0 and golden.size == 0)


def _values(tensor: TensorValue) -> Iterator[float | None]:
    for value in (tensor.maximum, tensor.minimum, tensor.mean, tensor.norm):
        yield None if value is None else float(value)


def _is_same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def _allowed(name: str, golden: TensorValue, limit: float, agreement: DistanceLimits) -> tuple[float, float]:
    """(largest difference of a statistic, what a difference is divided by to be a distance)."""
    peak = _peak(golden)
    norm = abs(float(golden.norm)) if golden.norm is not None and math.isfinite(golden.norm) else peak
    if name == "Norm":
        return limit * norm, norm
    if name == "Mean":
        rms = norm / math.sqrt(max(1, golden.size))
        return limit * rms, rms
    return agreement.element_limit(limit, peak), _ELEMENT_SHARE * peak


def _exactly(name: str, golden: float) -> tuple[float, float]:
    return (_INTEGER_SUMS * abs(golden) if name in ("Mean", "Norm") else 0.0), max(abs(golden), 1.0)


def _peak(tensor: TensorValue) -> float:
    found = [abs(float(value)) for value in (tensor.maximum, tensor.minimum) if value is not None]
    return max((value for value in found if math.isfinite(value)), default=0.0)


#: `unmatched` and `unreadable` are not verdicts: nothing was compared. `skip` is what no comparison can judge.
ValueStatus = Literal["pass", "warning", "error", "unmatched", "unreadable", "skip"]

FUZZY_NOTE = "Fuzzy matching data, the comparison accuracy may be affected."


@dataclass(frozen=True, slots=True)
class RealFigures:
    """Figures of real data, for tables: see `figures.Figures`; None where they have no meaning."""

    cosine: float | None
    euclid: float | None
    max_abs: float | None
    max_rel: float | None
    shares: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """What became of one pair of values.

    Attributes:
        target, golden: the values; None where a side has none.
        status: see `ValueStatus`.
        reasons: whole sentences; empty for a plain pass.
        distance: relative distance of the two, or what their statistics prove of it; 0 for equal ones, inf where it
            cannot be determined; None where nothing was compared, or bits differ with equal statistics.
        figures: of real data.
        explanation: several lines for a failure of real data, else "".
        tolerance: of this value, where a noise run gives each its own.
    """

    target: Leaf | None
    golden: Leaf | None
    status: ValueStatus
    reasons: tuple[str, ...] = ()
    distance: float | None = None
    figures: RealFigures | None = None
    explanation: str = ""
    tolerance: Tolerance | None = None

    @property
    def path(self) -> str:
        """Place in the record."""
        leaf = self.target or self.golden
        assert leaf is not None
        return leaf.path

    @property
    def name(self) -> str:
        """Full name, the target's where there is one."""
        leaf = self.target or self.golden
        assert leaf is not None
        return leaf.name

    @property
    def is_tensor(self) -> bool:
        """Whether either side has a tensor here."""
        return any(leaf is not None and leaf.is_tensor for leaf in (self.target, self.golden))

    @property
    def is_output(self) -> bool:
        """Whether the operation made it."""
        leaf = self.target or self.golden
        return leaf is not None and leaf.is_output

    @property
    def differs_in_bits(self) -> bool:
        """Whether checksums or fingerprints of both sides show that it does."""
        target, golden = self.target, self.golden
        if target is None or golden is None or self.status == "skip":
            return False
        pairs = ((target.fingerprint, golden.fingerprint), (target.md5, golden.md5))
        return any(left and right and left != right for left, right in pairs)

    @property
    def message(self) -> str:
        """The reasons on one line."""
        return " ".join(self.reasons)


def judge_plain(target: Leaf, golden: Leaf, agreement: DistanceLimits) -> ValueComparison:
    """The verdict on two values that are not tensors: equal as text or as numbers.

    Floats may be results, so they have float32's distance; the number of a process or a group says nothing.
    """
    left, right = target.statistics[0], golden.statistics[0]
    if target.is_peer or "Group" in target.dtype:
        return ValueComparison(target, golden, "pass", distance=0.0)
    numbers = _number(left), _number(right)
    if left == right or (numbers[0] is not None and numbers[0] == numbers[1]):
        return ValueComparison(target, golden, "pass", distance=0.0)
    if numbers[0] is not None and numbers[1] is not None and "float" in target.dtype + golden.dtype:
        if math.isnan(numbers[0]) and math.isnan(numbers[1]):
            return ValueComparison(target, golden, "pass", distance=0.0)
        distance = abs(numbers[0] - numbers[1]) / abs(numbers[1]) if numbers[1] else math.inf
        if distance <= agreement.limit("Float32"):
            return ValueComparison(target, golden, "pass", distance=distance)
    reason = f"The value is {_shown(left)} in the target and {_shown(right)} in the golden dump."
    return ValueComparison(target, golden, "error", (reason,), distance=math.inf)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


#: Tensor files of the target and of the golden dump.
Folders = tuple[TensorFolder, TensorFolder]


@dataclass(frozen=True, slots=True)
class Differences:
    """What is said of a pair before its numbers are looked at: `hard` makes an error, `soft` a warning."""

    hard: tuple[str, ...]
    soft: tuple[str, ...]


def judge_tensors(
    target: Leaf,
    golden: Leaf,
    folders: Folders,
    agreement: DistanceLimits,
    *,
    accept: frozenset[str],
    limit: float | None = None,
) -> ValueComparison:
    """The verdict on two tensors; `accept` names differences that only warn, `limit` is in place of the dtype's."""
    if target.tensor is None or golden.tensor is None:
        faults = tuple(
            leaf.fault or f"{leaf.name} is not a tensor." for leaf in (target, golden) if leaf.tensor is None
        )
        status = "unreadable" if target.fault or golden.fault else "error"
        return ValueComparison(target, golden, status, faults)  # type: ignore[arg-type]  # both are ValueStatus
    found = _differences(target, golden, accept)
    limit = agreement.limit(target.dtype, golden.dtype) if limit is None else limit
    if target.data_name and golden.data_name:
        return _by_data(target, golden, folders, (limit, agreement), found)
    if target.md5 and golden.md5:
        return _by_checksum(target, golden, found)
    if not has_common_statistics(target.tensor, golden.tensor):
        return ValueComparison(target, golden, "unmatched", ("The dumps hold nothing in common about this value.",))
    if found.hard:
        return ValueComparison(target, golden, "error", found.hard + found.soft, float("inf"))
    reasons, distance = statistics_reasons(target.tensor, golden.tensor, limit, agreement)
    is_one_dtype = canonical_dtype(target.dtype) == canonical_dtype(golden.dtype)
    if not (target.fingerprint and golden.fingerprint and is_one_dtype):
        return _verdict(target, golden, found, reasons, distance)
    return _by_fingerprint(target, golden, found, (reasons, distance), accepts_bits="bits" in accept)


def _differences(target: Leaf, golden: Leaf, accept: frozenset[str]) -> Differences:
    assert target.tensor is not None
    assert golden.tensor is not None
    hard: list[str] = []
    soft: list[str] = []
    if canonical_dtype(target.dtype) != canonical_dtype(golden.dtype):
        kind = _kind(target.tensor)
        is_accepted = "dtype" in accept or (kind == "int" and "integers" in accept)
        is_rounding = kind == _kind(golden.tensor) and is_accepted
        (soft if is_rounding else hard).append(f"Dtypes differ: target {target.dtype}, golden {golden.dtype}.")
    if target.shape != golden.shape:
        hard.append(f"Shapes differ: target {list(target.shape)}, golden {list(golden.shape)}.")
    if target.requires_grad and golden.requires_grad and target.requires_grad != golden.requires_grad:
        words = f"Requires_grad differs: target {target.requires_grad}, golden {golden.requires_grad}."
        (soft if "requires_grad" in accept else hard).append(words)
    return Differences(tuple(hard), tuple(soft))


def _kind(tensor: TensorValue) -> str:
    return tensor.dtype.kind if tensor.dtype is not None else ""


def _verdict(
    target: Leaf, golden: Leaf, found: Differences, reasons: tuple[str, ...], distance: float
) -> ValueComparison:
    if found.hard or reasons:
        distance = float("inf") if found.hard else distance
        return ValueComparison(target, golden, "error", found.hard + reasons + found.soft, distance)
    return ValueComparison(target, golden, "warning" if found.soft else "pass", found.soft, distance)


def _by_checksum(target: Leaf, golden: Leaf, found: Differences) -> ValueComparison:
    if target.md5 == golden.md5:
        return _verdict(target, golden, found, (), 0.0)
    reason = f"The checksum is {target.md5} in the target and {golden.md5} in the golden dump."
    return _verdict(target, golden, found, (reason,), float("inf"))


def _by_fingerprint(
    target: Leaf, golden: Leaf, found: Differences, statistics: tuple[tuple[str, ...], float], *, accepts_bits: bool
) -> ValueComparison:
    """Equal fingerprints are equal bits. For others the statistics say how far apart they are, if they can."""
    if target.fingerprint == golden.fingerprint:
        return _verdict(target, golden, found, (), 0.0)
    reasons, distance = statistics
    bits = f"The bits differ: fingerprint {target.fingerprint}, golden {golden.fingerprint}"
    bits += f", statistics {distance:.3g} apart." if distance else ", with equal statistics."
    if reasons or not accepts_bits:
        verdict = _verdict(target, golden, found, (*reasons, bits), distance)
    else:
        verdict = _verdict(target, golden, Differences(found.hard, (*found.soft, bits)), (), distance)
    # Equal statistics do not say that the distance is 0.
    return verdict if distance else replace(verdict, distance=None)


def _by_data(
    target: Leaf,
    golden: Leaf,
    folders: Folders,
    rule: tuple[float, DistanceLimits],
    found: Differences,
) -> ValueComparison:
    from pytest_msprobe.numerics import Judgement, explain, summarise, unforgivable_reasons
    from pytest_msprobe.suites.comparison.figures import measure_pair

    assert target.tensor is not None
    assert golden.tensor is not None
    try:
        left = folders[0].load(target.tensor, target.place)
        right = folders[1].load(golden.tensor, golden.place)
    except DumpError as error:
        return ValueComparison(target, golden, "unreadable", (str(error),))
    if left.shape != right.shape and left.squeeze().shape == right.squeeze().shape:
        left, right = left.squeeze(), right.squeeze()
    figures = measure_pair(left, right)
    metrics = figures.metrics
    table = RealFigures(metrics.cosine, figures.euclid, metrics.max_abs, metrics.max_rel, figures.shares)
    if metrics.structural:
        return ValueComparison(target, golden, "error", found.hard or (metrics.structural,), float("inf"), None)
    reasons = found.hard + unforgivable_reasons(metrics)
    is_measured = not (metrics.nonfinite_mismatches or found.hard)
    distance = figures.distance if is_measured else float("inf")
    limit, agreement = rule
    if not metrics.is_exact and is_measured and metrics.size:
        reasons += _too_far(distance, limit, metrics.max_abs or 0.0, agreement.element_limit(limit, figures.peak))
    if not reasons:
        status = "warning" if found.soft else "pass"
        return ValueComparison(target, golden, status, found.soft, distance, table)  # type: ignore[arg-type]
    judgement = Judgement("error", reasons)
    words = explain(metrics, judgement, label=printable(target.name), dtype=target.dtype, shape=target.shape)
    return ValueComparison(
        target, golden, "error", (summarise(metrics, judgement), *found.soft), distance, table, words
    )


def _too_far(distance: float, limit: float, max_abs: float, element_limit: float) -> tuple[str, ...]:
    reasons = []
    if distance > limit:
        reasons.append(f"Relative distance {distance:.3g} is above {limit:g}.")
    if max_abs > element_limit:
        reasons.append(f"An element is off by {max_abs:.3g}, allowed is {element_limit:.3g}.")
    return tuple(reasons)
