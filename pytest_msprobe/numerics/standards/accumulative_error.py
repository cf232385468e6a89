"""The standard `accumulative-error`: wide bounds for long sums, and errors that do not all point one way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pytest_msprobe.numerics.judgement import Judgement, unforgivable_reasons
from pytest_msprobe.numerics.metrics import Metrics
from pytest_msprobe.numerics.standards.constants import ACCUMULATIVE, ACCUMULATIVE_SMALL_VALUE, AccumulativeBounds
from pytest_msprobe.numerics.standards.elements import (
    Beyond,
    dtype_name,
    judge_plain,
    place,
    rounded_chunks,
    weigh,
)
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.wording import limit_above, number, share

#: Heads minus tails of n tosses of a fair coin is within this many roots of n, but for one time in two million.
_CHANCE = 5.0


@dataclass(frozen=True, slots=True)
class AccumulativeError:
    """Passes when every element is within the bound and the errors balance.

    Unbalanced is |elements too large - elements too small| / elements above `balance`, unless that many come out of
    fair chance: signs that are random differ by about the root of their number, which no fixed share allows for.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: AccumulativeBounds | None = None

    name: ClassVar[str] = "accumulative-error"
    off_bound: ClassVar[float] = float("inf")

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output; complex numbers have no sign, so their balance is that of the real parts."""
        return weigh(self.name, pair, self.bounds or ACCUMULATIVE.get(dtype_name(pair)), _judge)


def _judge(pair: OutputPair, bounds: AccumulativeBounds) -> Judgement:
    reasons = unforgivable_reasons(pair.metrics)
    beyond = Beyond(bounds.bound)
    above = below = 0
    for chunk in rounded_chunks(pair.tested, pair.reference):
        beyond.add(
            chunk.start,
            np.where(chunk.magnitude <= ACCUMULATIVE_SMALL_VALUE, chunk.error, chunk.relative),
        )
        above += int(np.count_nonzero(chunk.tested.real > chunk.reference.real))
        below += int(np.count_nonzero(chunk.tested.real < chunk.reference.real))
    ratio = math.inf if reasons else max(beyond.ratio, _imbalance(pair, bounds, (above, below)))
    reasons += _failures(pair, bounds, beyond, (above, below))
    return Judgement("error" if reasons else "pass", reasons, ratio=ratio)


def _imbalance(pair: OutputPair, bounds: AccumulativeBounds, sides: tuple[int, int]) -> float:
    """The imbalance over what is allowed."""
    allowed = max(bounds.balance, _CHANCE * math.sqrt(sum(sides)) / pair.tested.size)
    return abs(sides[0] - sides[1]) / pair.tested.size / allowed if allowed else math.inf


def _failures(pair: OutputPair, bounds: AccumulativeBounds, beyond: Beyond, sides: tuple[int, int]) -> tuple[str, ...]:
    above, below = sides
    size = pair.tested.size
    balance = abs(above - below) / size
    found = []
    if beyond.count:
        remedy = f"; a limit of {limit_above(beyond.worst)} would pass" if beyond.worst < math.inf else ""
        found.append(
            f"{share(beyond.count, size)} above {number(bounds.bound)} (absolute error up to |b| = 1, else relative), "
            f"worst{place(pair, beyond.worst_at)}: {number(beyond.worst, bounds.bound)}{remedy}."
        )
    if _imbalance(pair, bounds, sides) > 1:
        found.append(
            f"{above} elements are too large and {below} too small, of {size}: the errors are unbalanced by "
            f"{number(balance)}, above {number(bounds.balance)} and beyond chance; {limit_above(balance)} would pass."
        )
    return tuple(found)
