"""When two dumps agree: the largest differences that are rounding, by dtype.

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
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format import TensorValue, find_dtype
from msprobe_collector.dump_format.fields import STATISTICS

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
