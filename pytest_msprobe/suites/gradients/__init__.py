"""Gradients of training runs: which step is the first that differs from another run, or is broken by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import (
    GOLDEN,
    Options,
    choice,
    flag,
    option,
    parse_count,
    parse_number,
    parse_optional_path,
)


def share(text: str) -> float:
    """A number from 0 to 1.

    Raises:
        ValueError: it is not such a number.
    """
    value = parse_number(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1")
    return value


def optional_share(text: str) -> float | None:
    """A number from 0 to 1, or None for none."""
    return share(text) if text else None


def factor(text: str) -> float:
    """A number from 0 on; inf for no limit.

    Raises:
        ValueError: it is not such a number.
    """
    value = parse_number(text)
    if math.isnan(value):
        raise ValueError(f"{text!r} is not a number")
    if value < 0:
        raise ValueError(f"{text!r} is below 0")
    return value


@dataclass(frozen=True)
class GradientSettings(Options):
    """Which gradients are judged, and how; `drift` and `collapse` are None where they are not judged."""

    golden: Path | None = GOLDEN
    run: Path | None = option(
        "DIR",
        "judge the gradients in this folder, the dump_path of a task grad_probe; alone, or with --msprobe-golden",
        parse_optional_path,
        name="gradients",
        is_path=True,
        question="what",
        is_common=True,
    )
    items: str = choice(
        ("parameter", "step"),
        "make an item of each parameter at each step and rank, or of each step and rank",
        name="gradient_items",
        question="what",
    )
    first: float = option(
        "X",
        "with --msprobe-golden, fail a first step in which less than the share X of the signs agrees",
        share,
        "0.97",
        name="gradient_first",
    )
    drop: float = option(
        "X",
        "with --msprobe-golden, fail where the share of signs that agree falls by more than X in one step",
        share,
        "0.03",
        name="gradient_drop",
    )
    drift: float | None = option(
        "X",
        "with --msprobe-golden, fail where the share of signs that agree is more than X below its best before",
        optional_share,
        name="gradient_drift",
    )
    fails_md5: bool = flag(
        "with --msprobe-golden, fail gradients whose MD5 checksums of level L0 differ, which are skipped otherwise",
        name="gradient_fail_md5",
    )
    fails_zero: bool = flag(
        "without --msprobe-golden, fail gradients that are zero everywhere, which pass otherwise",
        name="gradient_fail_zero",
    )
    turbulence: float = option(
        "X",
        "without --msprobe-golden, fail norms above 1 + X times the mean of the steps before",
        factor,
        "9",
        name="gradient_turbulence",
    )
    collapse: float | None = option(
        "X",
        "without --msprobe-golden, fail norms below X times the mean of the steps before",
        optional_share,
        name="gradient_collapse",
    )
    warmup: int = option(
        "N",
        "without --msprobe-golden, judge norms from the step on that has N before it",
        parse_count,
        "3",
        name="gradient_warmup",
    )


#: What judges a run against another one, and what judges one alone.
AGAINST_GOLDEN = ("gradient_first", "gradient_drop", "gradient_drift", "gradient_fail_md5")
ALONE = ("gradient_fail_zero", "gradient_turbulence", "gradient_collapse", "gradient_warmup")


ENTRY = SuiteEntry(
    "gradients",
    "at which step do gradients go wrong",
    GradientSettings.declared(),
    "pytest_msprobe.suites.gradients.suite:GradientSuite",
)
