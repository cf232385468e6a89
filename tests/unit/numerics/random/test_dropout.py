from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.draws import Dropout, judge_dropout, judge_dropout_gradient, judge_dropout_mask
from pytest_msprobe.numerics.dtypes import round_once

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((100, 80)).astype(np.float32)
X[0, :5] = 0


def dropped(source: Array, probability: float, seed: int, *, unit_axes: int = 0) -> Array:
    outer = source.shape[: source.ndim - unit_axes]
    kept = np.random.default_rng(seed).random(outer) >= probability
    kept = kept.reshape(outer + (1,) * unit_axes)
    scale = np.asarray(1 / (1 - probability)).astype(source.dtype)
    return np.where(kept, source * scale, np.zeros_like(source))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_right_dropouts_never_alarm(dtype: type[Any], probability: float) -> None:
    source = X.astype(dtype)
    for seed in range(30):
        output = dropped(source, probability, seed)
        shown = judge_dropout(output, source, Dropout.of(probability))
        assert (shown.verdict.reasons, shown.verdict.notes) == ((), ())
        hidden = Dropout.seen_in(output, source)
        assert hidden is not None
        assert judge_dropout(output, source, hidden).verdict.reasons == ()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("probability", [0.01, 0.1, 0.3, 0.9, 0.99])
def test_each_way_to_round_the_scale_is_right(dtype: type[Any], probability: float) -> None:
    def stored(wide: Any) -> Array:
        return round_once(np.asarray(wide), np.dtype(dtype)).astype(np.float64)

    source, kept = stored(X), np.random.default_rng(5).random(X.shape) >= probability
    keep = 1 - probability
    scales = 1 / keep, stored(1 / keep), 1 / stored(keep), stored(1 / stored(keep)), 1 / (1 - stored(probability))
    for scale in scales:
        output = stored(source * kept * scale).astype(dtype)
        shown = judge_dropout(output, source.astype(dtype), Dropout.of(probability))
        assert shown.verdict.reasons == ()
        assert judge_dropout_gradient(output, source.astype(dtype), shown).reasons == ()


@pytest.mark.parametrize(("dtype", "off"), [(np.float32, 1e-6), (np.float16, 0.001), (ml_dtypes.bfloat16, 0.006)])
@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_scale_off_by_more_than_rounding_is_seen(dtype: type[Any], off: float, probability: float, sign: int) -> None:
    source = X.astype(dtype)
    kept = np.random.default_rng(5).random(X.shape) >= probability
    right = source.astype(np.float64) * kept / (1 - probability)
    wrong = (right * (1 + sign * off)).astype(dtype)
    assert judge_dropout(wrong, source, Dropout.of(probability)).verdict.reasons
    shown = judge_dropout(right.astype(dtype), source, Dropout.of(probability))
    assert shown.verdict.reasons == ()
    assert judge_dropout_gradient(wrong, source, shown).reasons


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_elements_that_a_device_flushes_to_zero_count_for_neither(dtype: type[Any]) -> None:
    source = np.where(np.arange(X.size).reshape(X.shape) % 2, X, X * 1e-39).astype(dtype)
    output = dropped(source, 0.5, 3)
    flushed = np.where(np.abs(output.astype(np.float64)) < 1e-37, np.zeros_like(output), output)
    for tested in (output, flushed):
        shown = judge_dropout(tested, source, Dropout.of(0.5))
        assert shown.verdict.reasons == ()
        assert np.all(shown.is_kept[np.abs(source.astype(np.float64)) < 1e-38] == -1)


def test_the_finding_tells_what_was_kept() -> None:
    source = np.array([1.0, -2.0, 0.0, np.inf, np.nan, 3.0])
    shown = judge_dropout(np.array([2.0, 0.0, 0.0, np.inf, np.nan, 0.0]), source, Dropout.of(0.5))
    assert shown.is_kept.tolist() == [1, 0, -1, -1, -1, 0]
    assert shown.verdict.reasons == ()
    assert "too few" in shown.verdict.notes[0]


OUTPUT = dropped(X, 0.3, 1)
FAULTS: dict[str, Array] = {
    "unscaled": np.where(OUTPUT != 0, X, 0),
    "nothing dropped": X / np.float32(0.7),
    "everything dropped": np.zeros_like(X),
    "another probability": dropped(X, 0.4, 1),
    "right scale, wrong share": np.where(np.random.default_rng(2).random(X.shape) < 0.6, X / np.float32(0.7), 0),
    "one element off": np.where(np.arange(X.size).reshape(X.shape) == 77, np.float32(9), OUTPUT),
    "one NaN": np.where(np.arange(X.size).reshape(X.shape) == 77, np.float32(np.nan), OUTPUT),
    "scaled 0.1 % too much": OUTPUT * np.float32(1.001),
    "one mask for all rows": np.where(OUTPUT[1:2] != 0, X / np.float32(0.7), 0),
    "a block not dropped": np.where(np.arange(X.size).reshape(X.shape) // 200 == 3, X / np.float32(0.7), OUTPUT),
    "identity": X,
    "another shape": OUTPUT[:50],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    assert judge_dropout(FAULTS[fault].astype(np.float32), X, Dropout.of(0.3)).verdict.reasons


def test_only_the_unscaled_input_is_an_identity() -> None:
    assert judge_dropout(X, X, Dropout.of(0.3)).is_identity
    assert not judge_dropout(X, X, Dropout.of(0.0)).is_identity
    assert judge_dropout(X, X, Dropout.of(0.0)).verdict.reasons == ()
    assert judge_dropout(OUTPUT, X, Dropout.of(0.0)).verdict.reasons
    assert judge_dropout(np.zeros_like(X), X, Dropout.of(1.0)).verdict.reasons == ()


def test_a_scale_that_rounds_to_one_is_no_identity() -> None:
    source = X.astype(ml_dtypes.bfloat16)
    output = dropped(source, 0.001, 3)
    assert not judge_dropout(output, source, Dropout.of(0.001)).is_identity


def test_a_hidden_probability_must_fit_the_share() -> None:
    wrong = FAULTS["right scale, wrong share"].astype(np.float32)
    seen = Dropout.seen_in(wrong, X)
    assert seen is not None
    assert seen.scale == pytest.approx(1 / 0.7)
    assert judge_dropout(wrong, X, seen).verdict.reasons
    assert Dropout.seen_in(np.zeros_like(X), X) is None


def test_channels_are_dropped_as_a_whole() -> None:
    source = np.random.default_rng(4).standard_normal((40, 30, 3, 2)).astype(np.float32)
    for seed in range(20):
        output = dropped(source, 0.3, seed, unit_axes=2)
        assert judge_dropout(output, source, Dropout.of(0.3, unit_axes=2)).verdict.reasons == ()
    (reason,) = judge_dropout(dropped(source, 0.3, 1), source, Dropout.of(0.3, unit_axes=2)).verdict.reasons
    assert "is dropped in part" in reason
    # Element by element the share is right, but the elements of a channel go together.
    assert judge_dropout(output, source, Dropout.of(0.3)).verdict.reasons


def test_alpha_dropout_against_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for seed, probability in itertools.product(range(10), (0.99, 0.9, 0.3)):
        torch.manual_seed(seed)
        output = torch.nn.functional.alpha_dropout(torch.from_numpy(X), probability, training=True).numpy()
        assert judge_dropout(output, X, Dropout.alpha(probability)).verdict.reasons == ()
    assert judge_dropout(output * np.float32(1.01), X, Dropout.alpha(0.3)).verdict.reasons
    assert judge_dropout(output, X, Dropout.alpha(0.4)).verdict.reasons


def test_gradients_follow_the_output() -> None:
    shown = judge_dropout(OUTPUT, X, Dropout.of(0.3))
    incoming = np.random.default_rng(6).standard_normal(X.shape).astype(np.float32)
    right = np.where(OUTPUT != 0, incoming / np.float32(0.7), 0).astype(np.float32)
    assert judge_dropout_gradient(right, incoming, shown).reasons == ()
    either = right.copy()
    either[0, :5] = incoming[0, :5] / np.float32(0.7)  # the input was 0 there: kept or dropped, nobody can tell
    assert judge_dropout_gradient(either, incoming, shown).reasons == ()
    for wrong in (
        incoming,
        np.where(OUTPUT != 0, incoming, 0),
        incoming / np.float32(0.7),
        np.zeros_like(right),
        np.where(dropped(X, 0.3, 9) != 0, incoming / np.float32(0.7), 0).astype(np.float32),
        right[:3],
    ):
        assert judge_dropout_gradient(wrong, incoming, shown).reasons


def test_masks_follow_the_output() -> None:
    shown = judge_dropout(OUTPUT, X, Dropout.of(0.3))
    mask = (OUTPUT != 0).astype(np.float32)
    assert judge_dropout_mask(mask, shown).reasons == ()
    assert judge_dropout_mask(1 - mask, shown).reasons
    assert judge_dropout_mask(mask * 2, shown).reasons
    assert "packed" in judge_dropout_mask(np.zeros(1008, np.uint8), shown).notes[0]


def test_no_probability() -> None:
    with pytest.raises(ValueError, match="not a probability"):
        Dropout.of(1.5)
