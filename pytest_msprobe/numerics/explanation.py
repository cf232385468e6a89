"""Verdicts in words, for a pytest failure and for the Message column; they hold for any standard."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_msprobe.numerics.diagnosis import NOTHING_MORE, Diagnosis
from pytest_msprobe.numerics.judgement import Judgement
from pytest_msprobe.numerics.metrics import Element, Metrics
from pytest_msprobe.numerics.wording import number, position, share, values

#: Above so many units of the last place the largest ULP and relative errors stand at an element near 0, and mislead.
_MISLEADING_ULP = 2.0**20


def explain(
    metrics: Metrics,
    judgement: Judgement,
    *,
    label: str,
    dtype: str,
    shape: tuple[int, ...],
    diagnosis: Diagnosis = NOTHING_MORE,
) -> str:
    """The comparison of one output in several lines: what it is, what failed, how large each error is and where.

    `dtype` and `shape` are those of the tested output, as the caller wants them written.
    """
    first, *others = judgement.reasons or (judgement.status,)
    # pytest repeats the first line in its short summary, so it is the one that says what is wrong.
    lines = [f"{label} {dtype} {shape}: {first}", *others, *_diagnosed(diagnosis), *_figures(metrics, diagnosis)]
    return "\n  ".join(lines)


def summarise(metrics: Metrics, judgement: Judgement, diagnosis: Diagnosis = NOTHING_MORE) -> str:
    """What failed, where it is worst and how many elements are off, on one line; "" for a pass."""
    if judgement.is_pass:
        return ""
    sentences = list(judgement.reasons)
    if judgement.status == "skip":
        return " ".join(sentences)
    if not metrics.is_exact and metrics.worst and not metrics.nonfinite_mismatches:
        sentences.append(f"Worst{_place(metrics.worst)}.")
    if not metrics.is_exact and metrics.off_count:
        sentences.append(f"{_off(metrics)}.")
    if diagnosis.rounding:
        sentences.append(f"{diagnosis.rounding.capitalize()}.")
    if diagnosis.pattern:
        sentences.append(f"Pattern: {diagnosis.pattern}.")
    return " ".join(sentences)


def _diagnosed(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.pattern:
        yield f"pattern             {diagnosis.pattern}"
    if diagnosis.rounding:
        yield f"rounding            {diagnosis.rounding}"
    if diagnosis.median is not None:
        yield f"median error        {number(diagnosis.median)} of its tolerance"


def _figures(metrics: Metrics, diagnosis: Diagnosis) -> Iterator[str]:
    if metrics.is_empty:
        yield "no element to compare"
    if metrics.cosine is not None:
        yield f"cosine              {number(metrics.cosine)}"
    if metrics.max_abs is not None:
        yield f"max absolute error  {number(metrics.max_abs)}{_place(metrics.worst)}"
    is_near_zero = metrics.max_ulp is not None and metrics.max_ulp > _MISLEADING_ULP
    if metrics.max_rel is not None and not (is_near_zero and diagnosis.rounding):
        yield f"max relative error  {number(metrics.max_rel)}{_place(metrics.worst_relative)}"
    if metrics.max_ulp is not None and not (is_near_zero and diagnosis.rounding):
        yield f"max ULP error       {number(metrics.max_ulp)}"
    if metrics.off_count:
        yield f"off                 {_off(metrics)}"


def _off(metrics: Metrics) -> str:
    """Integers and the like have no bound: they are off when they differ at all."""
    bound = "" if metrics.is_exact or metrics.off_bound is None else f" by {number(metrics.off_bound)} or more"
    return f"{share(metrics.off_count, metrics.size)} off{bound}"


def _place(element: Element | None) -> str:
    return f"{position(element)} ({values(element)})" if element else ""
