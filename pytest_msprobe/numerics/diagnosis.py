"""Verdicts in words, for a pytest failure and for the Message column; they hold for any standard.

A failing output is judged a second time: does rounding explain it, and what have its wrong elements in common?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.expected import Times
from pytest_msprobe.numerics.judgement import (
    CosineMaxAbs,
    Judgement,
    OutputPair,
    Standard,
    number,
    place_and_values,
    share,
)
from pytest_msprobe.numerics.measurement import Metrics, widened
from pytest_msprobe.numerics.patterns import Pattern, find_pattern
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.verdicts import EXPLAINED

_SECOND = BackwardError()


_NO_PATTERN = Pattern()
_NO_DIRECTION = f"about as large as its own rounding, which no cosine judges; --msprobe-standard={_SECOND.name} does"


@dataclass(frozen=True, slots=True)
class RoundingDiagnosis:
    """What more is known of a failing output.

    Attributes:
        rounding: ``explained by rounding`` or ``not explained by rounding (331 times its tolerance)``, as
            `backward-error` has it; "" for what must be equal, and where it cannot tell.
        excess: how many times its tolerance the error is where rounding does not explain it; None where not known.
        undecided: why `backward-error` cannot tell whether rounding explains the error; empty where it can.
        pattern: what the wrong elements have in common; an empty one for what rounding explains.
        median: median of error over tolerance, of floats that are not explained; None otherwise.
    """

    rounding: str = ""
    pattern: Pattern = _NO_PATTERN
    median: float | None = None
    excess: float | None = None
    undecided: tuple[str, ...] = ()


#: Of what passed, or has no elements to look at.
NOTHING_MORE = RoundingDiagnosis()


def diagnose(
    standard: Standard,
    judgement: Judgement,
    pair: Callable[[], OutputPair],
    others: Callable[[], Mapping[str, npt.NDArray[Any]]] = dict,
) -> RoundingDiagnosis:
    """The diagnosis of one output; nothing is made, computed or measured for one that is not an error.

    `standard` and `judgement` are the first verdict; `others` what the output may have been taken for.
    """
    if judgement.status != "error":
        return NOTHING_MORE
    output = pair()
    if output.metrics.structural is not None or output.metrics.is_empty:
        return NOTHING_MORE
    if output.metrics.is_exact:
        return RoundingDiagnosis(pattern=find_pattern(output.tested, output.reference, others=others()))
    second = judgement if standard == _SECOND else _SECOND.judge_pair(output)
    if second.is_pass:
        return RoundingDiagnosis(EXPLAINED)
    if second.status == "skip":
        return RoundingDiagnosis(
            pattern=find_pattern(output.tested, output.reference, others=others()), undecided=second.reasons
        )
    tolerance = _SECOND.tolerances(output)
    pattern = find_pattern(output.tested, output.reference, tolerance, others=others())
    ratio = second.ratio
    times = f" ({number(ratio)} times its tolerance)" if ratio is not None and ratio < Times.COUNTABLE else ""
    return RoundingDiagnosis(f"not explained by rounding{times}", pattern, _median(output, tolerance), ratio)


def without_direction(standard: Standard, metrics: Metrics, diagnosis: RoundingDiagnosis) -> Judgement | None:
    """The verdict on an error of the cosine alone that may all be rounding; None where it is another error.

    Values that are hardly more than their rounding, such as the gradient of a bias in front of a norm, have no
    direction that two orders of adding share: a cosine does not judge them, and the other limit holds.
    """
    may_be_rounding = diagnosis.rounding == EXPLAINED or diagnosis.undecided
    if not (isinstance(standard, CosineMaxAbs) and may_be_rounding):
        return None
    if metrics.cosine is None or metrics.max_abs is None or not metrics.max_abs < standard.max_abs:
        return None
    return Judgement("skip", diagnosis.undecided or (_NO_DIRECTION,))


def _median(output: OutputPair, tolerance: npt.NDArray[np.float64]) -> float:
    """Median of error over tolerance; an element that is not finite on one side only counts as infinitely far off."""
    with np.errstate(all="ignore"):
        error = np.abs(widened(output.tested) - widened(output.reference))
        use = np.where(np.isnan(error), math.inf, error) / tolerance
    return float(np.median(use))


def explain(
    metrics: Metrics,
    judgement: Judgement,
    *,
    label: str,
    dtype: str,
    shape: tuple[int, ...],
    diagnosis: RoundingDiagnosis = NOTHING_MORE,
) -> str:
    """The comparison of one output in several lines: what it is, what failed, how large each error is and where.

    `dtype` and `shape` are those of the tested output, as the caller wants them written.
    """
    first, *others = judgement.reasons or (judgement.status,)
    # pytest repeats the first line in its short summary, so it is the one that says what is wrong.
    lines = [f"{label} {dtype} {shape}: {first}", *others, *_diagnosed(diagnosis), *_figures(metrics, diagnosis)]
    return "\n  ".join(lines)


def summarise(metrics: Metrics, judgement: Judgement, diagnosis: RoundingDiagnosis = NOTHING_MORE) -> str:
    """What failed, where it is worst and how many elements are off, on one line; "" for a pass."""
    if judgement.is_pass:
        return ""
    sentences = list(judgement.reasons)
    if judgement.status == "skip":
        return " ".join(sentences)
    if not metrics.is_exact and metrics.worst and not metrics.nonfinite_mismatches:
        sentences.append(f"Worst{place_and_values(metrics.worst)}.")
    if not metrics.is_exact and metrics.off_count:
        sentences.append(f"{_off(metrics)}.")
    if diagnosis.rounding:
        sentences.append(f"{diagnosis.rounding.capitalize()}.")
    if str(diagnosis.pattern):
        sentences.append(f"Pattern: {diagnosis.pattern}.")
    return " ".join(sentences)


def _diagnosed(diagnosis: RoundingDiagnosis) -> Iterator[str]:
    if str(diagnosis.pattern):
        yield f"pattern             {diagnosis.pattern}"
    if diagnosis.rounding:
        yield f"rounding            {diagnosis.rounding}"
    if diagnosis.median is not None:
        yield f"median error        {number(diagnosis.median)} of its tolerance"


def _figures(metrics: Metrics, diagnosis: RoundingDiagnosis) -> Iterator[str]:
    if metrics.is_empty:
        yield "no element to compare"
    if metrics.cosine is not None:
        yield f"cosine              {number(metrics.cosine)}"
    if metrics.max_abs is not None:
        yield f"max absolute error  {number(metrics.max_abs)}{place_and_values(metrics.worst)}"
    is_near_zero = metrics.max_ulp is not None and metrics.max_ulp > Times.MISLEADING_ULP
    if metrics.max_rel is not None and not (is_near_zero and diagnosis.rounding):
        yield f"max relative error  {number(metrics.max_rel)}{place_and_values(metrics.worst_relative)}"
    if metrics.max_ulp is not None and not (is_near_zero and diagnosis.rounding):
        yield f"max ULP error       {number(metrics.max_ulp)}"
    if metrics.off_count:
        yield f"off                 {_off(metrics)}"


def _off(metrics: Metrics) -> str:
    """Integers and the like have no bound: they are off when they differ at all."""
    bound = "" if metrics.is_exact or metrics.off_bound is None else f" by {number(metrics.off_bound)} or more"
    return f"{share(metrics.off_count, metrics.size)} off{bound}"
