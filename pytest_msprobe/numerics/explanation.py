"""Verdicts in words, for a pytest failure and for the Message column; they hold for any standard."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_msprobe.numerics.judgement import Judgement
from pytest_msprobe.numerics.metrics import Element, Metrics
from pytest_msprobe.numerics.wording import number, position, share, values


def explain(metrics: Metrics, judgement: Judgement, *, label: str, dtype: str, shape: tuple[int, ...]) -> str:
    """The comparison of one output in several lines: what it is, what failed, how large each error is and where.

    `dtype` and `shape` are those of the tested output, as the caller wants them written.
    """
    first, *others = judgement.reasons or (judgement.status,)
    # pytest repeats the first line in its short summary, so it is the one that says what is wrong.
    return "\n  ".join([f"{label} {dtype} {shape}: {first}", *others, *_figures(metrics)])


def summarise(metrics: Metrics, judgement: Judgement) -> str:
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
    return " ".join(sentences)


def _figures(metrics: Metrics) -> Iterator[str]:
    if metrics.is_empty:
        yield "no element to compare"
    if metrics.cosine is not None:
        yield f"cosine              {number(metrics.cosine)}"
    if metrics.max_abs is not None:
        yield f"max absolute error  {number(metrics.max_abs)}{_place(metrics.worst)}"
    if metrics.max_rel is not None:
        yield f"max relative error  {number(metrics.max_rel)}{_place(metrics.worst_relative)}"
    if metrics.max_ulp is not None:
        yield f"max ULP error       {number(metrics.max_ulp)}"
    if metrics.off_count:
        yield f"off                 {_off(metrics)}"


def _off(metrics: Metrics) -> str:
    """Integers and the like have no bound: they are off when they differ at all."""
    bound = "" if metrics.is_exact or metrics.off_bound is None else f" by {number(metrics.off_bound)} or more"
    return f"{share(metrics.off_count, metrics.size)} off{bound}"


def _place(element: Element | None) -> str:
    return f"{position(element)} ({values(element)})" if element else ""
