"""Random choices among categories, and random orders: in range, possible, and as likely as their weights say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_msprobe.numerics.random.chance import Count, SampleResult, judge_counts, judge_runs, lag_counts
from pytest_msprobe.numerics.random.distribution import located
from pytest_msprobe.numerics.ulp import unit_roundoff

#: At how many places the distribution over categories is looked at, by index and by rank.
_MOST_PLACES = 32


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
        return SampleResult((located(is_outside.reshape(-1), sample, f"not in 0..{chances.shape[1] - 1}"),))
    is_impossible = np.take_along_axis(chances, drawn, axis=1) == 0
    if is_impossible.any():
        return SampleResult((located(is_impossible.reshape(-1), sample, "of a category with probability 0"),))
    if not with_replacement:
        ordered = np.sort(drawn, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            return SampleResult(("An index occurs twice in one row, which drawing without replacement excludes.",))
        drawn = drawn[:, :1]
    counts = [*_cumulative_counts(drawn, chances, "indices"), *_rank_counts(drawn, chances)]
    slack = possible_ties / drawn.size
    counts = [Count(count.what, count.hits, count.trials, count.low - slack, count.high + slack) for count in counts]
    return judge_counts(counts, "how often each category is drawn")


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
    lines = np.moveaxis(sample.astype(np.float64), axis, -1)
    scores = np.moveaxis(logits.astype(np.float64), axis, -1)
    is_wrong = ~((sample == 0) | (sample == 1)) if is_hard else ~((sample >= 0) & (sample <= 1))
    if is_wrong.any():
        return SampleResult((located(is_wrong.reshape(-1), sample, "no share of a distribution"),))
    slack = 0.0 if is_hard else 2 * unit_roundoff(sample.dtype) * (4 + lines.shape[-1] ** 0.5)
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
    rows, found = _row_numbers(source, shuffled)
    if not np.array_equal(np.sort(rows), np.sort(found)):
        return SampleResult(("It does not hold the same rows as its input.",))
    if len(set(rows.tolist())) < len(rows):
        return SampleResult(notes=("its input holds rows that are equal: judged by its rows, not by their order",))
    place = np.empty(len(rows), np.int64)
    place[rows] = np.arange(len(rows))
    return judge_permutation(place[found], len(rows))


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
    for place in np.unique(np.linspace(0, categories - 2, _MOST_PLACES).astype(np.int64)) if categories > 1 else ():
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
