"""From metrics to a verdict: the standards, and what no standard may forgive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from pytest_msprobe.numerics.metrics import Element, Metrics
from pytest_msprobe.numerics.wording import count_of, limit_above, limit_below, number, position, values

Status = Literal["pass", "error", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """One metric held against its limit."""

    metric: Literal["cosine", "max_abs"]
    measured: float
    limit: float
    #: The tightest limit that would have passed; None when no limit would.
    needed: float | None
    is_met: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one output, a skip where it cannot be judged; `reasons` are whole sentences, empty for a pass."""

    status: Status
    reasons: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    #: How many times its bound the error is: at most 1 for a pass, inf for what no bound allows (NaN, shapes, unequal
    #: integers); None for a skip. Each standard says which figure of its own it is.
    ratio: float | None = field(default=None, compare=False)

    @property
    def is_pass(self) -> bool:
        """True for "pass"."""
        return self.status == "pass"


class Standard(Protocol):
    """The rule that turns metrics into a verdict."""

    @property
    def name(self) -> str:
        """The word by which users choose it."""

    @property
    def off_bound(self) -> float:
        """The error from which on `measure` should count an element as off, above 0."""

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict; it must be an error whenever `unforgivable_reasons` finds any."""


@dataclass(frozen=True, slots=True)
class CosineMaxAbs:
    """Passes when the cosine is above one limit and the max absolute error below the other, both strictly.

    Integers and bools must be equal, whatever the limits. An empty output on both sides passes.

    Its ratio is the larger one of max_abs / limit and (1 - cosine) / (1 - limit).
    """

    cosine: float = 0.99
    max_abs: float = 1e-4

    name: ClassVar[str] = "cosine-maxabs"

    def __post_init__(self) -> None:
        if not -1 <= self.cosine < 1:
            raise ValueError(f"The cosine limit of {self.name} must be at least -1 and below 1, not {self.cosine!r}.")
        if not self.max_abs > 0:
            raise ValueError(f"The max_abs limit of {self.name} must be above 0, not {self.max_abs!r}.")

    @property
    def off_bound(self) -> float:
        """The limit of the max absolute error."""
        return self.max_abs

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on one output."""
        reasons = unforgivable_reasons(metrics)
        if metrics.structural or metrics.nonfinite_mismatches or metrics.is_exact:
            return plain_judgement(reasons)
        checks = self._checks(metrics)
        reasons += tuple(_failure(check) for check in checks if not check.is_met)
        ratio = math.inf if metrics.nonfinite_mismatches else max(map(_ratio, checks), default=0.0)
        return Judgement("error" if reasons else "pass", reasons, checks, ratio)

    def _checks(self, metrics: Metrics) -> tuple[Check, ...]:
        cosine, max_abs = metrics.cosine, metrics.max_abs
        if cosine is None or max_abs is None:
            return ()
        looser_cosine = math.nextafter(cosine, -math.inf)
        looser_max_abs = math.nextafter(max_abs, math.inf)
        return (
            Check("cosine", cosine, self.cosine, looser_cosine if cosine > -1 else None, cosine > self.cosine),
            Check(
                "max_abs", max_abs, self.max_abs, looser_max_abs if max_abs < math.inf else None, max_abs < self.max_abs
            ),
        )


def unforgivable_reasons(metrics: Metrics) -> tuple[str, ...]:
    """What makes an output wrong under every standard: structure, unmatched NaN or Inf, unequal exact elements."""
    reasons = []
    if metrics.structural:
        reasons.append(metrics.structural)
    if metrics.nonfinite_mismatches:
        count = _count(metrics.nonfinite_mismatches, metrics.size, "has", "have")
        reasons.append(f"{count} a NaN or Inf that the other side lacks, first{_place(metrics.first_nonfinite)}.")
    if metrics.unequal_count:
        count = _count(metrics.unequal_count, metrics.size, "differs", "differ")
        note = f" ({metrics.unequal_note})" if metrics.unequal_note else ""
        reasons.append(f"{count}, first{_place(metrics.first_unequal)}{note}.")
    return tuple(reasons)


def plain_judgement(reasons: tuple[str, ...]) -> Judgement:
    """The verdict where nothing is weighed: any reason is an error beyond every bound."""
    return Judgement("error", reasons, ratio=math.inf) if reasons else Judgement("pass", ratio=0.0)


def _ratio(check: Check) -> float:
    found = (1 - check.measured) / (1 - check.limit) if check.metric == "cosine" else check.measured / check.limit
    return math.inf if math.isnan(found) else max(0.0, found)


def _failure(check: Check) -> str:
    measured, limit = number(check.measured, check.limit), number(check.limit)
    if check.metric == "cosine":
        remedy = f"; a limit of {limit_below(check.needed)} would pass" if check.needed is not None else ""
        return f"Cosine {measured} is not above {limit}{remedy}."
    remedy = f"; a limit of {limit_above(check.needed)} would pass" if check.needed is not None else ""
    return f"Max absolute error {measured} is not below {limit}{remedy}."


def _count(count: int, size: int, singular: str, plural: str) -> str:
    return f"{count_of(count, size)} {singular if count == 1 else plural}"


def _place(element: Element | None) -> str:
    return f"{position(element)} ({values(element)})" if element else ""
