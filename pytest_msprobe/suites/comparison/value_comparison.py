"""One value of the target against its partner: state, verdict, figures and reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.suites.comparison.agreement import DistanceLimits

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.noise import Tolerance

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
