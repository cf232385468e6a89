"""One output of both sides with what a standard may ask for beyond the metrics; nothing is computed before it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from pytest_msprobe.numerics.judgement import Judgement, Standard
from pytest_msprobe.numerics.metrics import Metrics

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """A result of the benchmark for inputs that are off.

    Attributes:
        result: not rounded, in the shape of the output, float64 or complex128 for floats.
        size: how far the inputs were off, in rounding errors of their dtypes.
    """

    result: Array
    size: float


def _none() -> tuple[Perturbed, ...]:
    return ()


def _no_probes(count: int) -> tuple[Array, ...]:
    return ()


def _no_opinion() -> Array | None:
    return None


@dataclass(frozen=True, slots=True)
class OutputPair:
    """One output of both sides, and what a standard that looks at elements may ask for.

    Attributes:
        tested: output of the device, in its own shape and dtype.
        reference: raw result of the benchmark, not rounded: of the shape of `tested`, float64 or complex128 for floats.
        metrics: of the two.
        accumulated: how many terms one element may sum up.
        kernel_error: relative error that the functions which the API evaluates may have on a device, beside rounding.
        perturbed: two results for perturbed inputs, the second for much smaller perturbations; fewer, or none, where
            the benchmark could not be run on them.
        rounded_inside: the same for the inputs as they are and arithmetic inside the operation moved by the rounding of
            float32; none where the benchmark cannot do that.
        operand_roundoff: by how much float32 inputs were off in `perturbed`, where that is not their own rounding.
        probes: so many results for inputs that are each off by exactly one rounding error, up or down at random, each
            like `reference`; none where the benchmark could not be run on them, or is too large for so many runs.
        inside_probes: more results of the kind of `rounded_inside`, as arrays like `reference`.
        arithmetic_probes: the same with what the forward saves for its gradients as it is.
        second_opinion: the same output from an ordinary run in the tested dtype on another engine, of the shape of
            `tested`; None without one.
    """

    tested: Array
    reference: Array
    metrics: Metrics
    accumulated: int = 1
    kernel_error: float = 0.0
    perturbed: Callable[[], tuple[Perturbed, ...]] = _none
    rounded_inside: Callable[[], tuple[Perturbed, ...]] = _none
    second_opinion: Callable[[], Array | None] = _no_opinion
    operand_roundoff: float | None = None
    probes: Callable[[int], tuple[Array, ...]] = _no_probes
    arithmetic_probes: Callable[[int], tuple[Array, ...]] = _no_probes
    inside_probes: Callable[[int], tuple[Array, ...]] = _no_probes


class PairStandard(Standard, Protocol):
    """A standard that looks at the elements of both sides where there are any."""

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on an output that is an array; `judge` is left for values without elements to look at."""


def judge_output(standard: Standard, metrics: Metrics, pair: Callable[[], OutputPair]) -> Judgement:
    """The verdict of any standard; the `pair` is made only for one that looks at it."""
    judge = getattr(standard, "judge_pair", None)
    judgement: Judgement = judge(pair()) if judge is not None else standard.judge(metrics)
    return judgement


def judge_pair(standard: Standard, pair: OutputPair) -> Judgement:
    """The verdict of any standard on an output pair that is there already."""
    return judge_output(standard, pair.metrics, lambda: pair)
