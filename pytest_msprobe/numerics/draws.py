"""Random choices among categories, random orders, and dropout: possible, and as likely as their call says.

Of a dropout every element is dropped or scaled, as many as its probability says, and gradients go the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.chance import (
    MOST_VALUES,
    Count,
    SampleResult,
    judge_bits,
    judge_counts,
    judge_runs,
    lag_counts,
    value_counts,
    wrong_elements,
)
from pytest_msprobe.numerics.dtypes import float_format, round_once, spacings, unit_roundoff
from pytest_msprobe.numerics.expected import Roundoffs, Times
from pytest_msprobe.numerics.measurement import widened


def judge_categories(
    sample: npt.NDArray[Any], weights: npt.NDArray[Any], *, with_replacement: bool, possible_ties: int = 0
) -> SampleResult:
    """Whether `sample`, of shape (..., draws), holds indices drawn with the `weights` of shape (..., categories).

    Without replacement no index may occur twice in a row of draws, and only the first draw of each row, whose law does
    not depend on others, is counted. Up to `possible_ties` of the draws may have fallen to another category.

    Raises:
        ValueError: the shapes do not fit, or weights are negative, not finite or all zero.
    """
    chances = _normalised(weights)
    drawn = sample.reshape(len(chances), -1).astype(np.int64)
    if not drawn.size:
        return SampleResult()
    is_outside = (drawn < 0) | (drawn >= chances.shape[1])
    if is_outside.any():
        return wrong_elements(is_outside, sample, f"not in 0..{chances.shape[1] - 1}")
    is_impossible = np.take_along_axis(chances, drawn, axis=1) == 0
    if is_impossible.any():
        return wrong_elements(is_impossible, sample, "of a category with probability 0")
    if not with_replacement:
        ordered = np.sort(drawn, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            return SampleResult(("An index occurs twice in one row, which drawing without replacement excludes.",))
        drawn = drawn[:, :1]
    counts = [*_cumulative_counts(drawn, chances, "indices"), *_rank_counts(drawn, chances)]
    slack = possible_ties / drawn.size
    verdict = judge_counts([count.widened(slack) for count in counts], "how often each category is drawn")
    if chances.shape[1] <= MOST_VALUES:
        counts = value_counts(drawn, np.mean(chances, axis=0), "indices")
        verdict += judge_counts([count.widened(slack) for count in counts], "")
    return verdict


def judge_gumbel_softmax(
    sample: npt.NDArray[Any], logits: npt.NDArray[Any], *, axis: int, is_hard: bool
) -> SampleResult:
    """Whether `sample` can be gumbel_softmax of `logits` along `axis`.

    Each line must be a distribution, or one-hot with `is_hard`, and its largest element falls on a category with the
    softmax of the logits (E. Jang et al., Categorical reparameterization with Gumbel-softmax, ICLR 2017, section 2).

    Raises:
        ValueError: the shapes do not fit, or logits are not finite.
    """
    if not sample.size:
        return SampleResult()
    lines = np.moveaxis(widened(sample), axis, -1)
    scores = np.moveaxis(logits.astype(np.float64), axis, -1)
    is_wrong = ~((sample == 0) | (sample == 1)) if is_hard else ~((sample >= 0) & (sample <= 1))
    if is_wrong.any():
        return wrong_elements(is_wrong, sample, "no share of a distribution")
    slack = 0.0 if is_hard else 2 * unit_roundoff(sample.dtype) * (Roundoffs.ELEMENTARY + lines.shape[-1] ** 0.5)
    sums = lines.sum(axis=-1)
    if (np.abs(sums - 1) > slack).any():
        worst = float(sums.reshape(-1)[np.abs(sums - 1).argmax()])
        return SampleResult((f"A line of the output sums to {worst:.6g}, not to 1.",))
    chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
    largest = lines.max(axis=-1, keepdims=True)
    ties = int(np.count_nonzero((lines == largest).sum(axis=-1) > 1))
    return judge_categories(lines.argmax(axis=-1)[..., np.newaxis], chances, with_replacement=True, possible_ties=ties)


def judge_permutation(order: npt.NDArray[Any], count: int) -> SampleResult:
    """Whether `order` is a random order of 0..count-1, every order alike.

    Neighbours two by two ascend or descend alike and independently; of the first half of the places, half the values
    are small (for which the bounds hold too: Hoeffding 1963, section 6).
    """
    wide = order.reshape(-1).astype(np.int64)
    if wide.size != count or not np.array_equal(np.sort(wide), np.arange(count)):
        return SampleResult((f"It is not a permutation of 0..{count - 1}.",))
    pairs = wide[: count // 2 * 2].reshape(-1, 2)
    ascending = pairs[:, 0] < pairs[:, 1]
    first = wide[: count // 2]
    small = int(np.count_nonzero(first < count // 2))
    share = (count // 2) / count if count else 0.0
    counts = [
        Count("pairs of neighbours ascend", int(np.count_nonzero(ascending)), len(ascending), 0.5, 0.5),
        Count("places of the first half hold a small value", small, first.size, share, share),
        *lag_counts(ascending, (), (0.5, 0.5)),
    ]
    verdict = judge_counts(counts, "whether every order is alike")
    verdict += judge_runs(ascending, 0.5, "pairs of neighbours ascend")
    return verdict + judge_runs(~ascending, 0.5, "pairs of neighbours descend")


def judge_shuffled(shuffled: npt.NDArray[Any], source: npt.NDArray[Any]) -> SampleResult:
    """Whether `shuffled` holds the rows of `source` in random order; the order is tested where no row occurs twice."""
    if shuffled.shape != source.shape:
        return SampleResult((f"Shapes differ: tested {shuffled.shape}, source {source.shape}.",))
    if source.size == 0:
        return SampleResult()
    rows, numbers = _row_numbers(source, shuffled)
    if not np.array_equal(np.sort(rows), np.sort(numbers)):
        return SampleResult(("It does not hold the same rows as its input.",))
    if len(set(rows.tolist())) < len(rows):
        return SampleResult(notes=("its input holds rows that are equal: judged by its rows, not by their order",))
    place = np.empty(len(rows), np.int64)
    place[rows] = np.arange(len(rows))
    return judge_permutation(place[numbers], len(rows))


def _row_numbers(source: npt.NDArray[Any], shuffled: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A number for each row of both, the same for rows of the same bits."""
    width = source.dtype.itemsize * (source.size // len(source))
    bits = [np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.void(width).dtype) for rows in (source, shuffled)]
    _, numbers = np.unique(np.concatenate(bits).reshape(-1), return_inverse=True)
    return numbers[: len(source)], numbers[len(source) :]


def _normalised(weights: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities, one row per law."""
    wide = weights.astype(np.float64).reshape(-1, weights.shape[-1])
    totals = wide.sum(axis=1, keepdims=True)
    if not (np.all(np.isfinite(wide)) and np.all(wide >= 0) and np.all(totals > 0)):
        raise ValueError("its weights are negative, not finite or all zero")
    return np.asarray(wide / totals)


def _cumulative_counts(drawn: npt.NDArray[np.int64], chances: npt.NDArray[np.float64], what: str) -> Iterator[Count]:
    categories = chances.shape[1]
    below = np.bincount(drawn.reshape(-1), minlength=categories).cumsum()
    expected = np.minimum(np.mean(np.cumsum(chances, axis=1), axis=0), 1.0)
    # At how many places the distribution over categories is looked at, by index and by rank.
    for place in np.unique(np.linspace(0, categories - 2, 32).astype(np.int64)) if categories > 1 else ():
        share = float(expected[place])
        yield Count(f"{what} are at most {place}", int(below[place]), drawn.size, share, share)


def _rank_counts(drawn: npt.NDArray[np.int64], chances: npt.NDArray[np.float64]) -> Iterator[Count]:
    """The same with each row's categories in descending order of probability: rows may not be mixed up."""
    order = np.argsort(-chances, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1, kind="stable")
    ranked = np.take_along_axis(ranks, drawn, axis=1)
    ordered = np.take_along_axis(chances, order, axis=1)
    yield from _cumulative_counts(ranked, ordered, "ranks of categories, the likeliest being 0,")
    cumulative = np.cumsum(ordered, axis=1)
    split = np.abs(cumulative - 0.5).argmin(axis=1)[:, np.newaxis]
    likely = np.minimum(np.take_along_axis(cumulative, split, axis=1), 1.0)
    flags = (ranked <= split).reshape(-1)
    yield from lag_counts(flags, drawn.shape, np.broadcast_to(likely, drawn.shape).reshape(-1))


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

    def scales(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        """From the smallest to the largest scale that arithmetic in `dtype` may make of this one.

        Any of the probability, its complement and the quotient may be rounded to `dtype`. A scale that was measured, or
        that more arithmetic makes, is right within some roundings.
        """
        slack = unit_roundoff(dtype) * (Roundoffs.SCALED_AND_SHIFTED if self.shift else 1)
        if self.shift or self.keep[0] != self.keep[1] or not self.scale:
            return self.scale * (1 - slack), self.scale * (1 + slack)
        keep = self.keep[0]
        keeps = {keep, _rounded(keep, dtype), 1 - _rounded(1 - keep, dtype)}
        rounded = {_rounded(keep, dtype) for keep in keeps}
        scales = {1 / keep for keep in keeps | rounded if keep}
        scales |= {_rounded(scale, dtype) for scale in scales}
        return min(scales), max(scales)

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
        smallest = Times.SMALLEST_NORMAL * float_format(tested.dtype).smallest_normal
        wide, wide_source = widened(tested), widened(source)
        is_telling = (np.abs(wide) > smallest) & (np.abs(wide_source) > smallest) & np.isfinite(wide + wide_source)
        if not is_telling.any():
            return None
        scale = float(np.median(wide[is_telling] / wide_source[is_telling]))
        slack = Roundoffs.SCALED_AND_SHIFTED * unit_roundoff(tested.dtype)
        keep = min(1 / scale, 1.0) if scale > 0 else 0.0
        return cls((keep * (1 - slack), min(keep * (1 + slack), 1.0)), scale, unit_axes=unit_axes)


@dataclass(frozen=True, slots=True)
class DropoutResult:
    """What a dropout's output shows.

    Attributes:
        verdict: on the output.
        is_kept: per element 1 where kept, 0 where dropped, -1 where its value does not tell.
        scales: of what was kept, the smallest and the largest that it may be.
        is_identity: the output is the input, unscaled, although elements should have been dropped.
    """

    verdict: SampleResult
    is_kept: npt.NDArray[np.int8]
    scales: tuple[float, float]
    is_identity: bool = False


def judge_dropout(tested: npt.NDArray[Any], source: npt.NDArray[Any], dropout: Dropout) -> DropoutResult:
    """What `tested`, the output for the input `source`, shows. Both must be floats; shapes that differ are an error.

    Kept elements must be within one unit in the last place of the input times a scale that arithmetic in the tested
    dtype makes of 1 / (1 - p). Elements that are the same kept or dropped (zeros, mostly) and those of inputs that are
    NaN or infinite count for neither.
    """
    scales = dropout.scales(tested.dtype)
    if tested.shape != source.shape:
        text = f"Shapes differ: tested {tested.shape}, input {source.shape}."
        return DropoutResult(SampleResult((text,)), np.full(tested.shape, -1, np.int8), scales)
    is_kept, is_wrong = _sorted_out(tested, source, scales, dropout)
    if is_wrong.any() and dropout.scale and _is_same(tested, source):
        text = f"The output is the input: none of {source.size} elements was dropped or scaled."
        return DropoutResult(SampleResult((text,)), np.ones(tested.shape, np.int8), (1.0, 1.0), is_identity=True)
    if dropout.keep[0] >= 1:
        is_wrong |= is_kept == 0
    if is_wrong.any():
        what = f"neither {dropout.dropped:g} nor {dropout.scale:.6g} times the input"
        what += f" plus {dropout.shift:.6g}" if dropout.shift else ""
        return DropoutResult(wrong_elements(is_wrong, tested, what), is_kept, scales)
    return DropoutResult(_shares(tested, is_kept, dropout), is_kept, scales)


def judge_dropout_gradient(tested: npt.NDArray[Any], incoming: npt.NDArray[Any], shown: DropoutResult) -> SampleResult:
    """Whether `tested` is the `incoming` gradient, scaled where the forward kept and 0 where it dropped."""
    if tested.shape != incoming.shape or tested.shape != shown.is_kept.shape:
        return SampleResult((f"Shapes differ: tested {tested.shape}, incoming {incoming.shape}.",))
    passed_on, is_wrong = _sorted_out(tested, incoming, shown.scales, Dropout((0.0, 1.0), shown.scales[1]))
    is_wrong |= (passed_on >= 0) & (shown.is_kept >= 0) & (passed_on != shown.is_kept)
    scale = f"{shown.scales[1]:.6g} times the incoming gradient"
    what = f"not {scale} where the output was kept and 0 where it was dropped"
    return wrong_elements(is_wrong, tested, what)


def judge_dropout_mask(mask: npt.NDArray[Any], shown: DropoutResult) -> SampleResult:
    """Whether a mask of one element per input element is 1 where the output was kept and 0 where it was dropped."""
    if mask.shape != shown.is_kept.shape:
        return SampleResult(notes=("the mask is packed into bits whose order is not documented: judged by its dtype",))
    bits = mask.astype(np.float64)
    is_wrong = ~((bits == 0) | (bits == 1)) | ((shown.is_kept >= 0) & (bits != shown.is_kept))
    return wrong_elements(is_wrong, mask, "not what the output shows")


def _check(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability!r} is not a probability")


def _is_same(tested: npt.NDArray[Any], source: npt.NDArray[Any]) -> bool:
    wide, wide_source = widened(tested), widened(source)
    return bool(np.any(wide)) and np.array_equal(wide, wide_source, equal_nan=True)


def _rounded(value: float, dtype: np.dtype[Any]) -> float:
    return float(round_once(np.array(value), dtype))


def _sorted_out(
    tested: npt.NDArray[Any], source: npt.NDArray[Any], scales: tuple[float, float], dropout: Dropout
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """(1 kept, 0 dropped, -1 where the input does not let the two be told apart; True where neither)."""
    format_, u = float_format(tested.dtype), unit_roundoff(tested.dtype)
    wide, wide_source = widened(tested), widened(source)
    with np.errstate(all="ignore"):
        ends = [scale * wide_source + dropout.shift for scale in scales]
        is_finite = np.isfinite(wide_source)
        size = np.where(is_finite, np.maximum(*np.abs(ends)), 0.0)
        tolerance = spacings(size, format_) + Roundoffs.SCALED_AND_SHIFTED * u * abs(dropout.shift)
        if tested.dtype != np.float16:  # whose subnormals devices keep, as standards suppose too
            tolerance += np.where(size < format_.smallest_normal, size, 0.0)
        low, high = np.minimum(*ends) - tolerance, np.maximum(*ends) + tolerance
        # NaN and infinite inputs stay so, or become NaN when they are multiplied by a mask; large ones overflow.
        overflows = is_finite & (size + tolerance > format_.largest) & (wide == np.copysign(np.inf, ends[0]))
        kept = ((wide >= low) & (wide <= high)) | overflows
        kept |= ~is_finite & ((wide == ends[0]) | np.isnan(wide))
        # The difference of the two is rounded.
        slack = Roundoffs.SCALED_AND_SHIFTED * u * (abs(dropout.dropped) + abs(dropout.shift))
        dropped = (np.abs(wide - dropout.dropped) <= slack) | (~is_finite & np.isnan(wide))
        is_vague = ~is_finite | ((low <= dropout.dropped + slack) & (high >= dropout.dropped - slack))
    states = np.where(is_vague, -1, np.where(kept, 1, 0)).astype(np.int8)
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
