"""The standard `thousandth`: nearly all elements have a relative error below a thousandth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pytest_msprobe.numerics.judgement import Judgement, plain_judgement, unforgivable_reasons
from pytest_msprobe.numerics.metrics import Metrics
from pytest_msprobe.numerics.standards.constants import THOUSANDTH_RELATIVE, THOUSANDTH_SHARE
from pytest_msprobe.numerics.standards.elements import Beyond, judge_plain, place, rounded_chunks, settled
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.wording import limit_below, number, share


@dataclass(frozen=True, slots=True)
class Thousandth:
    """Passes when at least `share` of the elements have a relative error below `relative`, in any float dtype.

    Where the benchmark is 0 only 0 has such an error.
    """

    relative: float = THOUSANDTH_RELATIVE
    share: float = THOUSANDTH_SHARE

    name: ClassVar[str] = "thousandth"
    off_bound: ClassVar[float] = float("inf")

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return judge_plain(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output."""
        verdict = settled(pair.metrics)
        reasons = unforgivable_reasons(pair.metrics)
        if verdict is not None or reasons:
            return verdict or plain_judgement(reasons)
        # "Not below" is "above the neighbour below".
        beyond = Beyond(float(np.nextafter(self.relative, 0)))
        for chunk in rounded_chunks(pair.tested, pair.reference):
            beyond.add(chunk.start, chunk.relative)
        found = 1 - beyond.count / pair.tested.size
        ratio = (1 - found) / (1 - self.share) if self.share < 1 else math.inf
        if found >= self.share:
            return Judgement("pass", ratio=min(1.0, ratio) if found < 1 else 0.0)
        return Judgement("error", (self._failure(pair, beyond, found),), ratio=ratio)

    def _failure(self, pair: OutputPair, beyond: Beyond, found: float) -> str:
        return (
            f"{share(beyond.count, pair.tested.size)} not below a relative error of {number(self.relative)}, "
            f"worst{place(pair, beyond.worst_at)}: {number(beyond.worst)}; a share of {number(found, self.share)} is, "
            f"which is not {number(self.share)} or more; {limit_below(found)} would pass."
        )
