"""Several draws of random inputs for one API call: one finding, that of the worst draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from msprobe_collector.dump_format import Direction
from pytest_msprobe.verdicts import Verdict


def worst_of_draws(
    check: Callable[[int, Direction], Verdict], direction: Direction, *, first: int, count: int
) -> Verdict:
    """The finding of the worst of `count` draws, with seeds from `first` on; it says how many failed, and its seed.

    The worst is an error before a pass before a skip, and the largest error over its bound among equals.
    """
    found = [(seed, check(seed, direction)) for seed in range(first, first + count)]
    seed, worst = max(found, key=lambda one: _badness(one[1]))
    failed = sum(finding.status == "error" for _, finding in found)
    if not failed:
        return worst
    note = f"{failed} of {count} draws of random inputs fail, the worst with --msprobe-seed={seed}"
    message = "; ".join(filter(None, [worst.message, note]))
    return replace(worst, message=message, explanation="\n".join(filter(None, [worst.explanation, note])))


def _badness(finding: Verdict) -> tuple[int, float]:
    found = (row.figures.get("ratio") for row in finding.outputs)
    ratios = [ratio for ratio in found if ratio is not None and not math.isnan(ratio)]
    return {"skip": 0, "pass": 1, "error": 2}[finding.status], max(ratios, default=0.0)
