"""A failing output judged a second time: does rounding explain it, and what have its wrong elements in common?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, Standard
from pytest_msprobe.numerics.patterns import name_pattern
from pytest_msprobe.numerics.standards.answers import widened
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.numerics.standards.output_pair import OutputPair
from pytest_msprobe.numerics.wording import number

_SECOND = BackwardError()
_EXPLAINED = "explained by rounding"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What more is known of a failing output.

    Attributes:
        rounding: ``explained by rounding`` or ``not explained by rounding (331 times its tolerance)``, as
            `backward-error` has it; "" for what must be equal, and where nothing could be measured.
        pattern: one short phrase, see `name_pattern`; "" without one, and for what rounding explains.
        median: median of error over tolerance, of floats that are not explained; None otherwise.
    """

    rounding: str = ""
    pattern: str = ""
    median: float | None = None

    @property
    def is_explained(self) -> bool:
        """Whether rounding explains the failure."""
        return self.rounding == _EXPLAINED


#: Of what passed, or has no elements to look at.
NOTHING_MORE = Diagnosis()


def diagnose(
    standard: Standard,
    judgement: Judgement,
    pair: Callable[[], OutputPair],
    others: Callable[[], Mapping[str, npt.NDArray[Any]]] = dict,
) -> Diagnosis:
    """The diagnosis of one output; nothing is made, computed or measured for one that is not an error.

    `standard` and `judgement` are the first verdict; `others` what the output may have been taken for.
    """
    if judgement.status != "error":
        return NOTHING_MORE
    output = pair()
    if output.metrics.structural is not None or output.metrics.is_empty:
        return NOTHING_MORE
    if output.metrics.is_exact:
        return Diagnosis(pattern=name_pattern(output.tested, output.reference, others=others()))
    second = judgement if standard == _SECOND else _SECOND.judge_pair(output)
    if second.is_pass:
        return Diagnosis(_EXPLAINED)
    tolerance = _SECOND.tolerances(output)
    pattern = name_pattern(output.tested, output.reference, tolerance, others=others())
    return Diagnosis(_not_explained(second.ratio), pattern, _median(output, tolerance))


def _not_explained(ratio: float | None) -> str:
    times = "" if ratio is None or not math.isfinite(ratio) else f" ({number(ratio)} times its tolerance)"
    return f"not explained by rounding{times}"


def _median(output: OutputPair, tolerance: npt.NDArray[np.float64]) -> float:
    """Median of error over tolerance; an element that is not finite on one side only counts as infinitely far off."""
    with np.errstate(all="ignore"):
        error = np.abs(widened(output.tested) - widened(output.reference))
        use = np.where(np.isnan(error), math.inf, error) / tolerance
    return float(np.median(use))
