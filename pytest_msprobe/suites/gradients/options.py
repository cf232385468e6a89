"""What the gradients suite can be asked to do, and its defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

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
        "judge the gradients in this folder (task grad_probe), with --msprobe-golden against those of another run",
        parse_optional_path,
        name="gradients",
        is_path=True,
    )
    items: str = choice(
        ("parameter", "step"),
        "gradients: an item for each parameter at each step and rank, or only for each step and rank",
        name="gradient_items",
    )
    first: float = option(
        "X", "gradients: similarity of signs that a first step must reach", share, "0.97", name="gradient_first"
    )
    drop: float = option("X", "gradients: how far it may fall in one step", share, "0.03", name="gradient_drop")
    drift: float | None = option(
        "X", "gradients: how far it may fall below the best step", optional_share, name="gradient_drift"
    )
    md5: bool = flag(
        "gradients: fail where checksums of level L0 differ; else such gradients are skipped", name="gradient_md5"
    )
    zero: bool = flag("gradients of one run: fail gradients that are zero everywhere", name="gradient_zero")
    turbulence: float = option(
        "X",
        "gradients of one run: fail norms above 1 + X times the running mean",
        factor,
        "9",
        name="gradient_turbulence",
    )
    collapse: float | None = option(
        "X", "gradients of one run: fail norms below X times the running mean", optional_share, name="gradient_collapse"
    )
    warmup: int = option(
        "N", "gradients of one run: judge norms after N steps", parse_count, "3", name="gradient_warmup"
    )


OPTIONS = GradientSettings.declared()
