"""Dropout: every element is dropped or scaled, as many as its probability says, and gradients go the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.random.chance import SampleResult
from pytest_msprobe.numerics.random.distribution import judge_bits, located
from pytest_msprobe.numerics.ulp import float_format, unit_roundoff

#: Rounding errors between an input and its scaled output: of the scale, of its use, and one to spare on each side.
_ROUNDINGS = 4
#: What alpha dropout sets dropped elements to before it scales and shifts (G. Klambauer et al., Self-normalizing neural
#: networks, NeurIPS 2017, section "New dropout technique"): -scale * alpha of SELU.
_ALPHA = -1.7580993408473766


@dataclass(frozen=True, slots=True)
class Dropout:
    """What one dropout does: `scale * x + shift` where it keeps, `dropped` where it does not.

    Attributes:
        keep: probability of keeping; a range where it is only known to the rounding of values.
        scale, shift, dropped: see above.
        unit_axes: how many trailing axes are kept or dropped as one: 2 for the channels of dropout2d, else 0.
    """

    keep: tuple[float, float]
    scale: float
    shift: float = 0.0
    dropped: float = 0.0
    unit_axes: int = 0

    @classmethod
    def of(cls, probability: float, *, unit_axes: int = 0) -> Dropout:
        """Plain dropout with `probability` of dropping. ValueError when that is not a probability."""
        _check(probability)
        keep = 1 - probability
        return cls((keep, keep), 1 / keep if keep else 0.0, unit_axes=unit_axes)

    @classmethod
    def alpha(cls, probability: float) -> Dropout:
        """Alpha dropout, which keeps mean and variance of a normal input."""
        _check(probability)
        keep = 1 - probability
        scale = (keep * (1 + probability * _ALPHA * _ALPHA)) ** -0.5 if keep else 0.0
        shift = -scale * probability * _ALPHA
        return cls((keep, keep), scale, shift, scale * _ALPHA + shift if keep else 0.0)

    @classmethod
    def seen_in(cls, tested: npt.NDArray[Any], source: npt.NDArray[Any], *, unit_axes: int = 0) -> Dropout | None:
        """The dropout whose scale the kept elements show, for calls that do not tell; None when none is kept."""
        smallest = 4 * float_format(tested.dtype).smallest_normal
        wide, wide_source = tested.astype(np.float64), source.astype(np.float64)
        is_telling = (np.abs(wide) > smallest) & (np.abs(wide_source) > smallest) & np.isfinite(wide + wide_source)
        if not is_telling.any():
            return None
        scale = float(np.median(wide[is_telling] / wide_source[is_telling]))
        slack = _ROUNDINGS * unit_roundoff(tested.dtype)
        keep = min(1 / scale, 1.0) if scale > 0 else 0.0
        return cls((keep * (1 - slack), min(keep * (1 + slack), 1.0)), scale, unit_axes=unit_axes)


@dataclass(frozen=True, slots=True)
class DropoutResult:
    """What a dropout's output shows.

    Attributes:
        verdict: on the output.
        is_kept: per element 1 where kept, 0 where dropped, -1 where its value does not tell.
        scale: of what was kept.
        is_identity: the output is the input, unscaled, although elements should have been dropped.
    """

    verdict: SampleResult
    is_kept: npt.NDArray[np.int8]
    scale: float
    is_identity: bool = False


def judge_dropout(tested: npt.NDArray[Any], source: npt.NDArray[Any], dropout: Dropout) -> DropoutResult:
    """What `tested`, the output for the input `source`, shows. Both must be floats; shapes that differ are an error.

    Kept elements must be right within four roundings of the tested dtype. Elements that are the same kept or dropped
    (zeros, mostly) and those of inputs that are NaN or infinite count for neither.
    """
    if tested.shape != source.shape:
        text = f"Shapes differ: tested {tested.shape}, input {source.shape}."
        return DropoutResult(SampleResult((text,)), np.full(tested.shape, -1, np.int8), dropout.scale)
    if dropout.scale and abs(dropout.scale - 1) > _ROUNDINGS * unit_roundoff(tested.dtype) and _is_same(tested, source):
        return DropoutResult(_not_dropped(source), np.ones(tested.shape, np.int8), 1.0, is_identity=True)
    with np.errstate(all="ignore"):
        expected = dropout.scale * source.astype(np.float64) + dropout.shift
    is_kept, is_wrong = _sorted_out(tested, expected, dropout)
    if dropout.keep[0] >= 1:
        is_wrong |= is_kept == 0
    if is_wrong.any():
        what = f"neither {dropout.dropped:g} nor {dropout.scale:.6g} times the input"
        what += f" plus {dropout.shift:.6g}" if dropout.shift else ""
        return DropoutResult(SampleResult((located(is_wrong.reshape(-1), tested, what),)), is_kept, dropout.scale)
    return DropoutResult(_shares(tested, is_kept, dropout), is_kept, dropout.scale)


def judge_dropout_gradient(tested: npt.NDArray[Any], incoming: npt.NDArray[Any], shown: DropoutResult) -> SampleResult:
    """Whether `tested` is the `incoming` gradient, scaled where the forward kept and 0 where it dropped."""
    if tested.shape != incoming.shape or tested.shape != shown.is_kept.shape:
        return SampleResult((f"Shapes differ: tested {tested.shape}, incoming {incoming.shape}.",))
    with np.errstate(all="ignore"):
        expected = shown.scale * incoming.astype(np.float64)
    passed_on, is_wrong = _sorted_out(tested, expected, Dropout((0.0, 1.0), shown.scale))
    is_wrong |= (passed_on >= 0) & (shown.is_kept >= 0) & (passed_on != shown.is_kept)
    if not is_wrong.any():
        return SampleResult()
    what = f"not {shown.scale:.6g} times the incoming gradient where the output was kept and 0 where it was dropped"
    return SampleResult((located(is_wrong.reshape(-1), tested, what),))


def judge_dropout_mask(mask: npt.NDArray[Any], shown: DropoutResult) -> SampleResult:
    """Whether a mask of one element per input element is 1 where the output was kept and 0 where it was dropped."""
    if mask.shape != shown.is_kept.shape:
        return SampleResult(notes=("the mask is packed into bits whose order is not documented: judged by its dtype",))
    bits = mask.astype(np.float64)
    is_wrong = ~((bits == 0) | (bits == 1)) | ((shown.is_kept >= 0) & (bits != shown.is_kept))
    if not is_wrong.any():
        return SampleResult()
    return SampleResult((located(is_wrong.reshape(-1), mask, "not what the output shows"),))


def _check(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability!r} is not a probability")


def _is_same(tested: npt.NDArray[Any], source: npt.NDArray[Any]) -> bool:
    wide, wide_source = tested.astype(np.float64), source.astype(np.float64)
    return bool(np.any(wide)) and np.array_equal(wide, wide_source, equal_nan=True)


def _not_dropped(source: npt.NDArray[Any]) -> SampleResult:
    return SampleResult((f"The output is the input: none of {source.size} elements was dropped or scaled.",))


def _sorted_out(
    tested: npt.NDArray[Any], expected: npt.NDArray[np.float64], dropout: Dropout
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """(1 kept, 0 dropped, -1 either; True where neither)."""
    slack = _ROUNDINGS * unit_roundoff(tested.dtype)
    format_ = float_format(tested.dtype)
    wide = tested.astype(np.float64)
    with np.errstate(all="ignore"):
        smallest = format_.smallest_normal * 2.0**-format_.mantissa_bits
        tolerance = slack * (np.abs(expected - dropout.shift) + abs(dropout.shift)) + smallest
        is_finite = np.isfinite(expected)
        # NaN and infinite inputs stay so, or become NaN when they are multiplied by a mask; large ones overflow.
        overflows = np.abs(expected) * (1 + slack) > format_.largest
        kept = (np.abs(wide - expected) <= tolerance) | (overflows & (wide == np.copysign(np.inf, expected)))
        kept |= ~is_finite & ((wide == expected) | np.isnan(wide))
        dropped = np.abs(wide - dropout.dropped) <= slack * abs(dropout.dropped) * 2
        dropped |= ~is_finite & np.isnan(wide)
    states = np.where(kept & (dropped | ~is_finite), -1, np.where(kept, 1, 0)).astype(np.int8)
    return states, ~(kept | dropped)


def _shares(tested: npt.NDArray[Any], is_kept: npt.NDArray[np.int8], dropout: Dropout) -> SampleResult:
    """Whether as many units were kept as should be, and not together with what they are independent of."""
    outer = tested.shape[: tested.ndim - dropout.unit_axes]
    units = is_kept.reshape(int(np.prod(outer)), -1)
    kept, dropped = (units == 1).any(axis=1), (units == 0).any(axis=1)
    if dropout.unit_axes and (kept & dropped).any():
        channel = int((kept & dropped).argmax())
        index = [int(place) for place in np.unravel_index(channel, outer)]
        return SampleResult((f"Channel {index} is dropped in part: channels are kept or dropped as a whole.",))
    is_telling = kept | dropped
    what = "channels were kept" if dropout.unit_axes else "were kept"
    return judge_bits(kept[is_telling], dropout.keep, outer if is_telling.all() else (), what=what)
