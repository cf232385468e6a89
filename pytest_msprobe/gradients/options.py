"""What the gradients suite can be asked to do, and its defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_msprobe import option_values
from pytest_msprobe.option import Option

ITEMS = ("parameter", "step")


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """Which gradients are judged, and how.

    Attributes:
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
        """The settings in `values`, which hold a parsed value for every one of `GRADIENT_OPTIONS`."""
        own = {name: values[f"gradient_{name}"] for name in cls.__dataclass_fields__ if name != "run"}
        return cls(run=values["gradients"], **own)


def items(text: str) -> str:
    """What becomes an item."""
    if text not in ITEMS:
        raise ValueError(f"{text!r} is none of {', '.join(ITEMS)}")
    return text


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = option_values.number(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1")
    return value


def optional_share(text: str) -> float | None:
    """A number from 0 to 1, or None for none."""
    return share(text) if text else None


def factor(text: str) -> float:
    """A number from 0 on; inf for no limit."""
    value = option_values.number(text)
    if math.isnan(value) or value < 0:
        raise ValueError(f"{text!r} is below 0")
    return value


GRADIENT_OPTIONS = (
    Option(
        "gradients",
        "DIR",
        "judge the gradients in this folder (task grad_probe), with --msprobe-golden against those of another run",
        "",
        option_values.optional_path,
    ),
    Option(
        "gradient_items",
        "|".join(ITEMS),
        "gradients: an item for each parameter at each step and rank, or only for each step and rank",
        ITEMS[0],
        items,
    ),
    Option("gradient_first", "X", "gradients: lowest similarity of signs at the first step", "0.97", share),
    Option("gradient_drop", "X", "gradients: by how much it may be below the step before", "0.03", share),
    Option("gradient_drift", "X", "gradients: by how much it may be below the best step before", "", optional_share),
    Option(
        "gradient_md5",
        "true",
        "gradients: those of level L0 must be equal in every bit",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "gradient_zero",
        "true",
        "gradients of one run: zero throughout is an error",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option("gradient_turbulence", "X", "gradients of one run: a norm may be 1 + X times its running mean", "9", factor),
    Option(
        "gradient_collapse",
        "X",
        "gradients of one run: a norm must be X times its running mean or more",
        "",
        optional_share,
    ),
    Option("gradient_warmup", "N", "gradients of one run: judge norms after N steps", "3", option_values.count),
)
