"""Keys of what tensors hold, and pairs that are measured once."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_msprobe.suites.comparison import figures
from pytest_msprobe.suites.comparison.figures import PairFigures, content_key

VALUES = np.random.default_rng(7).standard_normal((300, 211)).astype(np.float32)


def changed(*places: int, factor: float = -1.0) -> np.ndarray:
    copied = VALUES.copy()
    copied.reshape(-1)[list(places)] *= factor
    return copied


def test_a_key_is_of_the_bits_in_their_order_whatever_the_shape() -> None:
    assert content_key(VALUES) == content_key(VALUES.reshape(-1)) == content_key(np.asfortranarray(VALUES))
    others = [changed(1), changed(1, 3), changed(1, 32769), changed(0, factor=1.0001), VALUES.T, VALUES[:-1]]
    others += [
        np.roll(VALUES.reshape(-1), 2),
        VALUES.astype(np.float64),
        np.zeros(3, np.float32),
        np.zeros(4, np.float32),
    ]
    keys = [content_key(other) for other in (VALUES, *others)]
    assert len(set(keys)) == len(keys)
    assert content_key(np.zeros(4, np.float32)) != content_key(-np.zeros(4, np.float32))


def test_integers_are_known_by_their_numbers() -> None:
    assert content_key(np.array([1, -2], np.int32)) == content_key(np.array([1, -2], np.int64))
    assert content_key(np.array([], np.float32)) == content_key(np.empty((0, 3), np.float32))


def test_pairs_of_equal_contents_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = [], figures.measure_pair
    monkeypatch.setattr(figures, "measure_pair", lambda *pair: measured.append(pair) or measure(*pair))
    monkeypatch.setattr(figures, "_MOST_MEASURED", 2)
    pairs, other = PairFigures(), changed(5, factor=1.5)
    found, contents = pairs.of(other, VALUES)
    assert contents == (content_key(other), content_key(VALUES))
    assert found == measure(other, VALUES)
    assert pairs.of(other.copy(), VALUES.copy()) == (found, contents)
    assert len(measured) == 1
    # The place of the largest difference is that in the shape of the pair.
    worst = pairs.of(other.reshape(-1), VALUES.reshape(-1))[0].metrics.worst
    assert worst is not None
    assert worst.index == (5,)
    assert pairs.of(VALUES, VALUES)[0].distance == 0
    assert len(measured) == 3
    pairs.of(other, VALUES)  # forgotten by then
    assert len(measured) == 4
