"""The standards by which CANN accepts operators, each with its thresholds by dtype.

Source: `docs/zh/ops_precision_standard` of CANN's repository `opbase` (https://gitcode.com/cann/opbase).
`experimental_standard.md` (commit 3e629665) defines MERE and MARE, `mixed_tolerance_standard.md` (commit a5e8e716 of 24
September 2026), which took its place, the mixed tolerance. A dtype without thresholds there cannot be judged, unless
bounds are given. HiFLOAT32 is float32 whose operands the device rounds to 11 bits before it multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pytest_msprobe.numerics.dtypes import float_format, part_dtype, spacings
from pytest_msprobe.numerics.judgement import (
    Judgement,
    OutputPair,
    limit_above,
    limit_below,
    number,
    plain_judgement,
    remedy_above,
    unforgivable_reasons,
)
from pytest_msprobe.numerics.pair import relative
from pytest_msprobe.numerics.standards.elementwise import Beyond, Bounds, ElementRule, below, rounded_chunks

_HF32 = "hifloat32"


@dataclass(frozen=True, slots=True)
class RelativeErrorBounds:
    """Bounds of `mere-mare`, both exclusive.

    Attributes:
        mere: of the mean relative error.
        mare: of the largest relative error.
    """

    mere: float
    mare: float


@dataclass(frozen=True, slots=True)
class MixedBounds:
    """Bounds of `mixed-tolerance`.

    Attributes:
        relative, absolute: an element matches where |t-b| <= absolute + relative |b|.
        share: at least this share of the elements must match.
        largest: the largest |t-b| may be this, or 32 spacings of the dtype at the b where it is, if that is more.
    """

    relative: float
    absolute: float
    share: float
    largest: float


#: `experimental_standard.md`: MERE < T, MARE < 10 T.
RELATIVE_ERROR: Mapping[str, RelativeErrorBounds] = {
    dtype: RelativeErrorBounds(threshold, 10 * threshold)
    for dtype, threshold in {
        "float16": 2.0**-10,
        "bfloat16": 2.0**-7,
        "float32": 2.0**-13,
        _HF32: 2.0**-11,
        "float8_e4m3fn": 2.0**-3,
        "float8_e5m2": 2.0**-2,
    }.items()
}

#: `mixed_tolerance_standard.md`, section 2.2.
MIXED: Mapping[str, MixedBounds] = {
    "float16": MixedBounds(2.0**-10, 2.0**-10, 0.99, 0.1),
    "bfloat16": MixedBounds(2.0**-7, 2.0**-7, 0.99, 0.1),
    "float32": MixedBounds(2.0**-13, 2.0**-13, 0.99, 0.01),
    _HF32: MixedBounds(2.0**-10, 2.0**-10, 0.99, 0.1),
    "float8_e4m3fn": MixedBounds(2.0**-3, 2.0**-3, 0.99, 1.0),
    "float8_e5m2": MixedBounds(2.0**-2, 2.0**-2, 0.99, 1.0),
}

#: Added to |b|, so that no relative error is divided by 0.
_EPSILON = 1e-7
#: `mixed_tolerance_standard.md`, section 2.1.2.
_MOST_SPACINGS = 32


class _AcceptanceRule(ElementRule[Bounds]):
    """A rule that has bounds of their own for products of operands that the device rounds."""

    __slots__ = ()

    def _dtype_of(self, pair: OutputPair) -> str:
        name = ElementRule._dtype_of(self, pair)
        return _HF32 if name == "float32" and pair.operand_roundoff is not None else name


@dataclass(frozen=True, slots=True)
class MereMare(_AcceptanceRule[RelativeErrorBounds]):
    """Passes when mean and largest relative error, |t-b| / (|b| + 1e-7), are both below their bounds.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: RelativeErrorBounds | None = None

    name: ClassVar[str] = "mere-mare"
    table: ClassVar[Mapping[str, Any]] = RELATIVE_ERROR

    def _weigh(self, pair: OutputPair, bounds: RelativeErrorBounds) -> Judgement:
        reasons = unforgivable_reasons(pair.metrics)
        if reasons:
            return plain_judgement(reasons)
        # The neighbour below: "not below" is above it.
        beyond, total = Beyond(float(np.nextafter(bounds.mare, 0))), 0.0
        for chunk in rounded_chunks(pair.tested, pair.reference):
            relative = chunk.error / (chunk.magnitude + _EPSILON)
            beyond.add(chunk.start, relative)
            total += float(relative.sum())
        mean = total / pair.tested.size
        ratio = max(below(mean, bounds.mere), below(beyond.worst, bounds.mare))
        if not mean < bounds.mere:
            remedy = remedy_above(math.nextafter(mean, math.inf))
            reasons += (f"Mean relative error {number(mean, bounds.mere)} is not below {number(bounds.mere)}{remedy}.",)
        if beyond.count:
            what = f"not below a relative error of {number(bounds.mare)}"
            reasons += (f"{beyond.elements(pair)} {what}, {beyond.worst_and_remedy(pair)}",)
        return Judgement.of(reasons, ratio)


@dataclass(frozen=True, slots=True)
class MixedTolerance(_AcceptanceRule[MixedBounds]):
    """Passes when enough elements are within an absolute plus a relative tolerance, and the largest error is bounded.

    Attributes:
        bounds: for every dtype; None for those of the table, by dtype.
    """

    bounds: MixedBounds | None = None

    name: ClassVar[str] = "mixed-tolerance"
    table: ClassVar[Mapping[str, Any]] = MIXED

    def _weigh(self, pair: OutputPair, bounds: MixedBounds) -> Judgement:
        reasons = unforgivable_reasons(pair.metrics)
        if reasons:
            return plain_judgement(reasons)
        over, largest, allowed = Beyond(1.0), Beyond(math.inf), bounds.largest
        for chunk in rounded_chunks(pair.tested, pair.reference):
            tolerance = bounds.absolute + bounds.relative * chunk.magnitude
            with np.errstate(divide="ignore", invalid="ignore"):
                over.add(chunk.start, np.where(chunk.error > 0, chunk.error / tolerance, 0.0))
            before = largest.worst
            largest.add(chunk.start, chunk.error)
            if largest.worst > before:
                allowed = _largest_allowed(pair, bounds, chunk.magnitude[largest.worst_at - chunk.start])
        matched = 1 - over.count / pair.tested.size
        missed = relative(1 - matched, 1 - bounds.share)
        if matched >= bounds.share:
            missed = min(missed, 1.0)
        ratio = max(missed, below(largest.worst, allowed))
        if matched < bounds.share:
            reasons += (
                f"{over.elements(pair)} off by more than {number(bounds.absolute)} + {number(bounds.relative)} |b|, "
                f"worst{over.place(pair)}: {number(over.worst)} times that; a share of {number(matched, bounds.share)} "
                f"is within it, which is not {number(bounds.share)} or more; {limit_below(matched)} would pass.",
            )
        if largest.worst > allowed:
            reasons += (
                f"Largest absolute error{largest.place(pair)} {number(largest.worst, allowed)} is above "
                f"{number(allowed)}; a limit of {limit_above(largest.worst)} would pass.",
            )
        return Judgement.of(reasons, ratio)


def _largest_allowed(pair: OutputPair, bounds: MixedBounds, magnitude: float) -> float:
    format_ = float_format(part_dtype(pair.tested.dtype))
    return max(bounds.largest, _MOST_SPACINGS * float(spacings(np.array([magnitude]), format_)[0]))
