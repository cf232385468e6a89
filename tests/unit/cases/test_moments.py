"""Drawn tensors have the mean and the norm that were recorded, whatever law the recorded one had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import FieldPath, TensorValue, find_dtype
from pytest_msprobe.cases.random_data import generator_for, random_array

PLACE = FieldPath("dump.json", "Mint.add.0.forward", "input_args[0]")
Values = np.ndarray[Any, Any]


def one_hot(rng: np.random.Generator) -> Values:
    found = np.zeros((64, 500))
    found[np.arange(64), rng.integers(0, 500, 64)] = 1
    return found


def attention(rng: np.random.Generator) -> Values:
    scores = np.exp(3 * rng.standard_normal((64, 500)))
    return np.asarray(scores / scores.sum(-1, keepdims=True))


LAWS: dict[str, Callable[[np.random.Generator], Values]] = {
    "activations": lambda rng: rng.standard_normal((64, 500)),
    "weights of a norm": lambda rng: 1 + 0.01 * rng.standard_normal(5000),
    "small gradients": lambda rng: 1e-6 * rng.standard_normal((100, 100)) ** 3,
    "relu": lambda rng: np.maximum(rng.standard_normal((100, 100)), 0),
    "uniform": lambda rng: rng.uniform(-3, 5, 3000),
    "one-hot": one_hot,
    "attention": attention,
    "mask of -10000": lambda rng: np.where(rng.random((64, 64)) < 0.4, -10000.0, 0.0),
    "one outlier": lambda rng: np.append(rng.standard_normal(4999), 300.0),
    "few": lambda rng: rng.standard_normal(7),
}


def recorded(values: Values, dtype: str) -> TensorValue:
    wide = values.astype(np.float64)
    figures = (wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide))
    return TensorValue(find_dtype(dtype), values.shape, *map(float, figures), None)


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
@pytest.mark.parametrize("law", LAWS)
def test_mean_and_norm_resemble_the_recorded_ones(law: str, dtype: str) -> None:
    value = recorded(LAWS[law](np.random.default_rng(9)), dtype)
    for seed in range(5):
        drawn = random_array(value, generator_for(seed, PLACE), PLACE).astype(np.float64)
        norm, size = float(value.norm or 0), float(np.sqrt(value.size))
        assert 0.6 * norm < np.linalg.norm(drawn) < 1.6 * norm
        assert abs(drawn.mean() - float(value.mean or 0)) < 0.35 * norm / size
        # bfloat16 rounds the ends, and rows that sum to one are scaled.
        assert drawn.min() >= float(value.minimum or 0) - 0.005 * float(np.abs(drawn).max())


def test_rows_of_probabilities_sum_to_one() -> None:
    for law in ("one-hot", "attention"):
        value = recorded(LAWS[law](np.random.default_rng(9)), "Float32")
        drawn = random_array(value, generator_for(0, PLACE), PLACE)
        np.testing.assert_allclose(drawn.sum(-1), 1, rtol=1e-5)


def test_integers_have_the_recorded_mean() -> None:
    tokens = np.random.default_rng(3).geometric(0.01, 4000)
    drawn = random_array(recorded(tokens, "Int64"), generator_for(0, PLACE), PLACE)
    assert (drawn.min(), drawn.max()) == (tokens.min(), tokens.max())
    assert abs(drawn.mean() / tokens.mean() - 1) < 0.1


def test_large_tensors_hold_few_equal_values() -> None:
    value = recorded(np.random.default_rng(3).standard_normal(200_000), "Float32")
    drawn = random_array(value, generator_for(0, PLACE), PLACE)
    assert np.unique(drawn).size > 0.9 * drawn.size


class Counted:
    """A generator that counts the random bytes that it gives."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self.bit_generator = self
        self.drawn = 0

    def random_raw(self, size: int) -> Any:
        self.drawn += 8 * size
        return self._generator.bit_generator.random_raw(size)

    def __getattr__(self, name: str) -> Any:
        def draw(*arguments: Any, **keywords: Any) -> Any:
            found = getattr(self._generator, name)(*arguments, **keywords)
            self.drawn += np.asarray(found).nbytes
            return found

        return draw


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_an_element_of_a_large_tensor_takes_sixteen_random_bits(dtype: str) -> None:
    value = replace(recorded(np.random.default_rng(3).standard_normal(5000), dtype), shape=(1 << 12, 1 << 10))
    counted: Any = Counted(generator_for(0, PLACE))
    random_array(value, counted, PLACE)
    assert 2 * value.size <= counted.drawn <= 2.1 * value.size


def test_parts_of_a_large_tensor_are_not_correlated() -> None:
    value = replace(recorded(np.random.default_rng(3).standard_normal(5000), "Float32"), shape=(64, 1 << 15))
    drawn = random_array(value, generator_for(0, PLACE), PLACE)
    assert np.abs(np.corrcoef(drawn) - np.eye(64)).max() < 0.04  # seven standard deviations


@pytest.mark.parametrize("figures", [(1.0, -1.0, 5.0, 0.1), (1.0, -1.0, 0.0, 1e30), (1.0, 1.0, 1.0, 4.0), (0.0,) * 4])
def test_statistics_that_contradict_each_other_still_give_the_range(figures: tuple[float, ...]) -> None:
    value = TensorValue(find_dtype("Float32"), (16,), *figures, None)
    drawn = random_array(value, generator_for(0, PLACE), PLACE)
    assert (drawn.max(), drawn.min()) == figures[:2]
