"""The standard `binary`: every element equals what a perfect device returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pytest_msprobe.numerics.judgement import Judgement, plain_judgement, unforgivable_reasons
from pytest_msprobe.numerics.metrics import Metrics
from pytest_msprobe.numerics.wording import count_of


@dataclass(frozen=True, slots=True)
class Binary:
    """Passes when no element differs from the benchmark rounded once to the tested dtype.

    0 equals -0 and NaN equals NaN: it compares values, not bits.
    """

    name: ClassVar[str] = "binary"
    #: The smallest float64: every difference counts as off.
    off_bound: ClassVar[float] = 5e-324

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on one output or value."""
        reasons = unforgivable_reasons(metrics)
        if not metrics.is_exact and metrics.max_abs and not metrics.nonfinite_mismatches:
            verb = "differs" if metrics.off_count == 1 else "differ"
            rounded = "the benchmark, rounded once to the tested dtype"
            reasons += (f"{count_of(metrics.off_count, metrics.size)} {verb} from {rounded}; none may.",)
        return plain_judgement(reasons)
