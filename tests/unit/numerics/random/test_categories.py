from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_msprobe.numerics.draws import (
    judge_categories,
    judge_gumbel_softmax,
    judge_permutation,
    judge_shuffled,
)

Array = np.ndarray[Any, Any]
WEIGHTS = np.random.default_rng(1).random((50, 12))
WEIGHTS[:, 3] = 0


def drawn(seed: int, count: int, *, weights: Array = WEIGHTS, replace: bool = True) -> Array:
    generator = np.random.default_rng(seed)
    rows = weights / weights.sum(axis=1, keepdims=True)
    return np.stack([generator.choice(rows.shape[1], count, replace=replace, p=row) for row in rows])


@pytest.mark.parametrize("with_replacement", [True, False])
def test_real_draws_never_alarm(with_replacement: bool) -> None:
    for seed in range(40):
        sample = drawn(seed, 9, replace=with_replacement)
        assert judge_categories(sample, WEIGHTS, with_replacement=with_replacement).reasons == ()
    one = judge_categories(drawn(1, 200)[0], WEIGHTS[0], with_replacement=True)
    assert (one.reasons, one.notes) == ((), ())


FAULTS = {
    "another row's weights": (drawn(0, 400, weights=np.roll(WEIGHTS, 1, axis=0)), True),
    "uniform": (np.random.default_rng(0).integers(4, 12, (50, 400)), True),
    "the same draws in every row": (np.tile(drawn(0, 40)[:1], (50, 1)), True),
    "a category of probability 0": (np.full((50, 1), 3), True),
    "out of range": (np.full((50, 1), 12), True),
    "negative": (np.full((50, 1), -1), True),
    "twice without replacement": (np.full((50, 2), 5), False),
    "always the likeliest": (WEIGHTS.argmax(axis=1)[:, np.newaxis], False),
}


def test_two_categories_whose_weights_are_swapped_are_seen() -> None:
    weights = np.full(1000, 1.0)
    weights[[400, 401]] = 2.0, 0.5
    sample = drawn(3, 100_000, weights=weights[np.newaxis])
    assert judge_categories(sample, weights, with_replacement=True).reasons == ()
    weights[[400, 401]] = 0.5, 2.0
    reasons = judge_categories(sample, weights, with_replacement=True).reasons
    assert any("indices are 40" in reason for reason in reasons)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    sample, with_replacement = FAULTS[fault]
    assert judge_categories(sample, WEIGHTS, with_replacement=with_replacement).reasons


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        judge_categories(np.zeros((1, 1), np.int64), np.zeros((1, 3)), with_replacement=True)


def test_few_draws_say_so() -> None:
    verdict = judge_categories(np.array([1, 2]), np.ones(4), with_replacement=True)
    assert verdict.reasons == ()
    assert "2 elements are too few" in verdict.notes[0]


def gumbel_softmax(seed: int, logits: Array, *, hard: bool = False) -> Array:
    noisy = logits + np.random.default_rng(seed).gumbel(size=logits.shape)
    if hard:
        return np.eye(logits.shape[-1])[noisy.argmax(axis=-1)]
    shares = np.exp(noisy - noisy.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


LOGITS = np.random.default_rng(2).standard_normal((500, 8))


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gumbel_softmax(hard: bool, dtype: type[Any]) -> None:
    for seed in range(20):
        sample = gumbel_softmax(seed, LOGITS, hard=hard).astype(dtype)
        assert judge_gumbel_softmax(sample, LOGITS, axis=-1, is_hard=hard).reasons == ()
        assert judge_gumbel_softmax(sample.T, LOGITS.T, axis=0, is_hard=hard).reasons == ()
    without_noise = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    wrong = np.eye(8)[LOGITS.argmax(axis=1)] if hard else without_noise
    assert judge_gumbel_softmax(wrong, LOGITS, axis=-1, is_hard=hard).reasons
    assert judge_gumbel_softmax(sample * dtype(0.9), LOGITS, axis=-1, is_hard=hard).reasons
    assert judge_gumbel_softmax(gumbel_softmax(0, -LOGITS, hard=hard), LOGITS, axis=-1, is_hard=hard).reasons


def test_permutations_never_alarm() -> None:
    for seed in range(200):
        for count in (0, 1, 2, 33, 1000):
            order = np.random.default_rng(seed).permutation(count)
            assert judge_permutation(order, count).reasons == ()


@pytest.mark.parametrize(
    "order",
    [
        np.arange(200),
        np.arange(200)[::-1],
        np.roll(np.arange(200), 50),
        np.zeros(200, np.int64),
        np.arange(1, 201),
        np.arange(199),
        np.concatenate([np.random.default_rng(0).permutation(100), 100 + np.random.default_rng(1).permutation(100)]),
    ],
)
def test_no_random_permutation(order: Array) -> None:
    assert judge_permutation(order, 200).reasons


def test_a_short_permutation_says_that_its_order_is_not_tested() -> None:
    assert "too few" in judge_permutation(np.arange(9), 9).notes[0]


def test_shuffled_rows() -> None:
    source = np.random.default_rng(3).standard_normal((300, 4)).astype(np.float32)
    order = np.random.default_rng(4).permutation(300)
    assert judge_shuffled(source[order], source) == judge_permutation(order, 300)
    assert judge_shuffled(source, source).reasons
    assert "same rows" in judge_shuffled(source[np.zeros(300, np.int64)], source).reasons[0]
    assert judge_shuffled(source[:4], source).reasons
    assert "equal" in judge_shuffled(np.ones((5, 2)), np.ones((5, 2))).notes[0]
