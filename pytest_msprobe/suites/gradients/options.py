"""What the gradients suite can be asked to do, and its defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_msprobe.suites import options as option_values
from pytest_msprobe.suites.options import GOLDEN, Option

ITEMS = ("parameter", "step")


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """Which gradients are judged, and how.

    Attributes:
        golden: folder of the run to compare with, or None.
        run: folder of a run's gradients, or None.
        items: `parameter` for one item per rank, step and parameter, `step` for one per rank and step.
        first: lowest similarity of a parameter's first step.
        drop: by how much a similarity may be below that of the step before.
        drift: by how much it may be below the best of all steps before; None: not judged.
        md5: whether gradients of level L0 must be equal in every bit.
        zero: whether a gradient that is zero throughout is an error.
        turbulence: a norm may be 1 + this many times its running mean.
        collapse: a norm must be at least this many times its running mean; None: not judged.
        warmup: how many norms the mean must be made of before it judges.
    """

    run: Path | None = None
    golden: Path | None = None
    items: str = ITEMS[0]
    first: float = 0.97
    drop: float = 0.03
    drift: float | None = None
    md5: bool = False
    zero: bool = False
    turbulence: float = 9.0
    collapse: float | None = None
    warmup: int = 3

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GradientSettings:
        """The settings in `values`, which hold a parsed value for every one of `OPTIONS`."""
        own = {name: values[f"gradient_{name}"] for name in cls.__dataclass_fields__ if name not in ("run", "golden")}
        return cls(run=values["gradients"], golden=values["golden"], **own)


def share(text: str) -> float:
    """A number from 0 to 1.

    Raises:
        ValueError: it is not such a number.
    """
    value = option_values.number(text)
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
    value = option_values.number(text)
    if math.isnan(value) or value < 0:
        raise ValueError(f"{text!r} is below 0")
    return value


OPTIONS = (
    GOLDEN,
    Option(
        "gradients",
        "DIR",
        "judge the gradients in this folder (task grad_probe), with --msprobe-golden against those of another run",
        "",
        option_values.optional_path,
        is_path=True,
    ),
    Option(
        "gradient_items",
        "|".join(ITEMS),
        "gradients: an item for each parameter at each step and rank, or only for each step and rank",
        ITEMS[0],
        option_values.one_of(*ITEMS),
    ),
    Option("gradient_first", "X", "gradients: similarity of signs that a first step must reach", "0.97", share),
    Option("gradient_drop", "X", "gradients: how far it may fall in one step", "0.03", share),
    Option("gradient_drift", "X", "gradients: how far it may fall below the best step", "", optional_share),
    Option(
        "gradient_md5",
        "true",
        "gradients: fail where checksums of level L0 differ; else such gradients are skipped",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "gradient_zero",
        "true",
        "gradients of one run: fail gradients that are zero everywhere",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "gradient_turbulence", "X", "gradients of one run: fail norms above 1 + X times the running mean", "9", factor
    ),
    Option(
        "gradient_collapse",
        "X",
        "gradients of one run: fail norms below X times the running mean",
        "",
        optional_share,
    ),
    Option("gradient_warmup", "N", "gradients of one run: judge norms after N steps", "3", option_values.count),
)
