"""The standard `absolute-threshold`: a relative bound for every element, an absolute one for the small."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, unforgivable_reasons
from pytest_msprobe.numerics.metrics import Metrics
from pytest_msprobe.numerics.standards.constants import ABSOLUTE, AbsoluteBounds
from pytest_msprobe.numerics.standards.elements import (
    Beyond,
    dtype_name,
    judge_plain,
    place,
    rounded_chunks,
    weigh,
    wide_chunks,
)
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.ulp import float_format, part_dtype
from pytest_msprobe.numerics.wording import limit_above, number, share


@dataclass(frozen=True, slots=True)
class AbsoluteThreshold:
    """Passes when every element is within its bound: absolute up to `small_value`, relative above.

    NaN must meet NaN. Inf counts as the largest value of the dtype, so that it may meet a value close to that one.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: AbsoluteBounds | None = None

    name: ClassVar[str] = "absolute-threshold"
    off_bound: ClassVar[float] = float("inf")

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output."""
        return weigh(self.name, pair, self.bounds or ABSOLUTE.get(dtype_name(pair)), _judge)


def _judge(pair: OutputPair, bounds: AbsoluteBounds) -> Judgement:
    relative, absolute = Beyond(bounds.relative), Beyond(bounds.absolute)
    for chunk in rounded_chunks(pair.tested, pair.reference):
        is_small = chunk.magnitude <= bounds.small_value
        absolute.add(chunk.start, np.where(is_small, chunk.error, 0))
        relative.add(chunk.start, np.where(is_small, 0, chunk.relative))
    reasons = _nonfinite_reasons(pair, bounds)
    if relative.count:
        reasons += (_failure(pair, relative, f"relative error, for |b| > {number(bounds.small_value)}"),)
    if absolute.count:
        reasons += (_failure(pair, absolute, f"absolute error, for |b| <= {number(bounds.small_value)}"),)
    ratio = (
        max(relative.ratio, absolute.ratio) if len(reasons) == bool(relative.count) + bool(absolute.count) else math.inf
    )
    return Judgement("error" if reasons else "pass", reasons, ratio=ratio)


def _failure(pair: OutputPair, beyond: Beyond, figure: str) -> str:
    verb = "is" if beyond.count == 1 else "are"
    limit = f"; a limit of {limit_above(beyond.worst)} would pass" if beyond.worst < float("inf") else ""
    return (
        f"{share(beyond.count, pair.tested.size)} {verb} above {number(beyond.limit)} ({figure}), "
        f"worst{place(pair, beyond.worst_at)}: {number(beyond.worst, beyond.limit)}{limit}."
    )


def _nonfinite_reasons(pair: OutputPair, bounds: AbsoluteBounds) -> tuple[str, ...]:
    if not pair.metrics.nonfinite_mismatches or pair.tested.dtype.kind == "c":
        return unforgivable_reasons(pair.metrics)
    largest = float_format(part_dtype(pair.tested.dtype)).largest
    for _, tested, reference in wide_chunks(pair.tested, pair.reference):
        if _is_far(tested, reference, largest, bounds.relative):
            return unforgivable_reasons(pair.metrics)
    return ()


def _is_far(tested: npt.NDArray[Any], reference: npt.NDArray[Any], largest: float, relative: float) -> bool:
    """Whether a NaN or Inf on one side is not explained by the end of the range."""
    apart = ~(np.isfinite(tested) & np.isfinite(reference)) & ~(np.isnan(tested) & np.isnan(reference))
    tested, reference = (np.clip(side[apart], -largest, largest) for side in (tested, reference))
    # Not "any above": every comparison with NaN is false.
    return not bool(np.all(np.abs(tested - reference) <= relative * np.abs(reference)))
