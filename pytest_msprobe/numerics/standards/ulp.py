"""The standard `ulp`: how many elements are off by more than a few units of the last place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, plain_judgement, unforgivable_reasons
from pytest_msprobe.numerics.metrics import Metrics
from pytest_msprobe.numerics.standards.constants import ULP, UlpBounds
from pytest_msprobe.numerics.standards.elements import (
    Beyond,
    dtype_name,
    judge_plain,
    place,
    rounded_chunks,
    weigh,
)
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.ulp import float_format, in_spacings, part_dtype
from pytest_msprobe.numerics.wording import limit_above, number, share


@dataclass(frozen=True, slots=True)
class Ulp:
    """Passes when few elements are far off, or the mean error is small, or a second opinion has more that are far off.

    The spacing at b is 2**(floor(log2|b|) - mantissa bits) down to the smallest subnormal, which also counts at b = 0.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: UlpBounds | None = None

    name: ClassVar[str] = "ulp"
    off_bound: ClassVar[float] = float("inf")

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output; asks for a second opinion only where the others fail."""
        return weigh(self.name, pair, self.bounds or ULP.get(dtype_name(pair)), _judge)


def _judge(pair: OutputPair, bounds: UlpBounds) -> Judgement:
    reasons = unforgivable_reasons(pair.metrics)
    if reasons:
        return plain_judgement(reasons)
    beyond, mean = _spacings_off(pair.tested, pair.reference, bounds)
    ratio = min(_over(beyond.count / pair.tested.size, bounds.share), _over(mean, bounds.mean))
    if ratio < 1:
        return Judgement("pass", ratio=ratio)
    opinion = pair.second_opinion()
    second = None if opinion is None else _spacings_off(opinion, pair.reference, bounds)[0].count
    ratio = min(ratio, _over(beyond.count, second or 0))
    if ratio < 1:
        return Judgement("pass", ratio=ratio)
    return Judgement("error", (_failure(pair, bounds, beyond, (mean, second)),), ratio=ratio)


def _over(figure: float, bound: float) -> float:
    """Below 1 only for a figure below its bound."""
    return figure / bound if bound else math.inf


def _spacings_off(tested: npt.NDArray[Any], reference: npt.NDArray[Any], bounds: UlpBounds) -> tuple[Beyond, float]:
    """The elements beyond the bound, and the mean error in spacings."""
    format_ = float_format(part_dtype(tested.dtype))
    beyond, total = Beyond(bounds.ulps), 0.0
    for chunk in rounded_chunks(tested, reference):
        spacings = in_spacings(chunk.error, chunk.magnitude, format_)
        beyond.add(chunk.start, spacings)
        total += float(spacings.sum())
    return beyond, total / tested.size


def _failure(pair: OutputPair, bounds: UlpBounds, beyond: Beyond, others: tuple[float, int | None]) -> str:
    mean, second = others
    needed = limit_above(beyond.count / pair.tested.size * (1 + 1e-9))
    rules = [f"a share below {number(bounds.share)} would pass (here {needed} would)"]
    if bounds.mean:
        rules.append(f"a mean below {number(bounds.mean)} ULP (measured {number(mean, bounds.mean)})")
    if second is not None:
        rules.append(f"fewer than those of the second opinion ({second})")
    return (
        f"{share(beyond.count, pair.tested.size)} off by more than {number(bounds.ulps)} ULP, "
        f"worst{place(pair, beyond.worst_at)}: {number(beyond.worst)} ULP; {' or '.join(rules)}."
    )
