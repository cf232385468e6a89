"""Real samplers never alarm; planted faults do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics import chance as laws
from pytest_msprobe.numerics.chance import judge_bernoulli, judge_sample

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

#: Law and its sampler in NumPy.
SAMPLERS: list[tuple[laws.ElementLaw, Callable[[Generator, int], Array]]] = [
    (laws.uniform(0, 1), lambda g, n: g.random(n)),
    (laws.uniform(-2, 5), lambda g, n: g.uniform(-2, 5, n)),
    (laws.normal(3, 0.5), lambda g, n: g.normal(3, 0.5, n)),
    (laws.log_normal(1, 0.5), lambda g, n: g.lognormal(1, 0.5, n)),
    (laws.exponential(0.5), lambda g, n: g.exponential(2, n)),
    (laws.laplace(1, 2), lambda g, n: g.laplace(1, 2, n)),
    (laws.cauchy(0, 0.01), lambda g, n: np.clip(g.standard_cauchy(n) * 0.01, -60000, 60000)),
    (laws.integers(-3, 50), lambda g, n: g.integers(-3, 50, n)),
    (laws.geometric(0.3), lambda g, n: g.geometric(0.3, n)),
    (laws.poisson(4), lambda g, n: g.poisson(4, n)),
]
IDS = [law.text for law, _ in SAMPLERS]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("law", "sampler"), SAMPLERS, ids=IDS)
def test_samples_of_the_law_never_alarm(
    law: laws.ElementLaw, sampler: Callable[[Generator, int], Array], dtype: type[Any]
) -> None:
    for seed in range(25):
        for size in (1, 40, 1000):
            sample = sampler(np.random.default_rng(seed), size).astype(dtype)
            assert judge_sample(sample, law).reasons == ()
    assert judge_sample(sampler(np.random.default_rng(99), 50000).astype(dtype), law) == judge_sample(
        np.zeros(0, dtype), law
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_pytorchs_samplers_never_alarm(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from pytest_msprobe.engines.torch_engine import to_array

    for seed in range(10):
        torch.manual_seed(seed)
        for law, draw in (
            (laws.uniform(0, 1), lambda tensor: tensor.uniform_()),
            (laws.uniform(-2, 5), lambda tensor: tensor.uniform_(-2, 5)),
            (laws.normal(3, 0.5), lambda tensor: tensor.normal_(3, 0.5)),
            (laws.exponential(0.5), lambda tensor: tensor.exponential_(0.5)),
            (laws.log_normal(1, 0.5), lambda tensor: tensor.log_normal_(1, 0.5)),
            (laws.integers(0, 50), lambda tensor: tensor.random_(0, 50)),
        ):
            sample = to_array(torch, draw(torch.empty(200, 100, dtype=getattr(torch, dtype))))
            assert judge_sample(sample, law).reasons == ()


def rounded(wide: Array, dtype: type[Any], direction: str) -> Array:
    """`wide` in a dtype narrower than float32, rounded as that is called."""
    nearest = wide.astype(dtype).astype(np.float64)
    if direction != "to nearest":
        limit = np.inf if direction == "up" else -np.inf if direction == "down" else 0.0
        is_wrong = np.abs(nearest) > np.abs(wide) if limit == 0 else (nearest > wide) == (limit < 0)
        step = np.ldexp(1.0, np.frexp(nearest)[1] - 1 - int(ml_dtypes.finfo(dtype).nmant))
        towards = -np.sign(nearest) if limit == 0 else np.sign(limit)
        nearest = np.where(is_wrong & (nearest != wide), nearest + towards * step, nearest)
    return nearest.astype(dtype)


@pytest.mark.parametrize("direction", ["to nearest", "towards zero", "down", "up"])
@pytest.mark.parametrize(
    "law", [laws.normal(0, 1), laws.uniform(-2, 5), laws.exponential(0.5)], ids=lambda law: law.text
)
def test_rounding_in_one_direction_is_no_fault_of_a_large_sample(law: laws.ElementLaw, direction: str) -> None:
    samplers = dict(zip(IDS, (sampler for _, sampler in SAMPLERS)))
    samplers["normal(0, 1)"] = Generator.standard_normal
    wide = samplers[law.text](np.random.default_rng(1), 3_000_000)
    sample = rounded(wide, ml_dtypes.bfloat16, direction)
    assert judge_sample(sample, law).reasons == ()


def test_uniform_numbers_on_the_grid_of_a_coarse_generator_are_no_fault() -> None:
    sample = RANDOM.integers(0, 256, 3_000_000) / 256  # as PyTorch draws bfloat16: below the law's mean by 2^-9
    assert judge_sample(sample.astype(ml_dtypes.bfloat16), UNIFORM).reasons == ()
    assert judge_sample(sample.astype(np.float32), UNIFORM).reasons


def test_integers_that_a_dtype_rounds_are_no_fault() -> None:
    sample = RANDOM.integers(0, 1000, 100_000)
    assert judge_sample(sample.astype(ml_dtypes.bfloat16), laws.integers(0, 1000)).reasons == ()


def test_moments_are_improbable_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    moments: list[laws.Moment] = []
    monkeypatch.setattr(laws, "judge_moments", lambda found: moments.extend(found) or laws.SampleResult())
    for seed in range(60):
        for law, sampler in SAMPLERS:
            judge_sample(sampler(np.random.default_rng(seed), 500), law)
    surprises = np.array([moment.surprise for moment in moments])
    assert len(surprises) == 1200
    for surprise in (1.0, 2.0, 4.0):
        assert np.mean(surprises > surprise) <= 2 * np.exp(-surprise)
    assert np.mean(surprises > 1.0) > 0.05  # and they say it when they are


NORMAL, UNIFORM = laws.normal(0, 1), laws.uniform(0, 1)
RANDOM = np.random.default_rng(5)
Z = RANDOM.standard_normal((100, 200)).astype(np.float32)
U = RANDOM.random((100, 200)).astype(np.float32)
MANY = RANDOM.standard_normal(1_000_000)
FAULTS: dict[str, tuple[Array, laws.ElementLaw]] = {
    "mean off by a hundredth": ((MANY + 0.01).astype(np.float32), NORMAL),
    "mean off by a hundredth, float16": ((MANY + 0.01).astype(np.float16), NORMAL),
    "variance 2 % too large": ((MANY * 1.02**0.5).astype(np.float32), NORMAL),
    "variance 2 % too large, bfloat16": ((MANY * 1.02**0.5).astype(ml_dtypes.bfloat16), NORMAL),
    "variance of small weights 2 % too small": ((MANY * 0.02 * 0.98**0.5).astype(np.float16), laws.normal(0, 0.02)),
    "range 1 % too narrow": (RANDOM.random(1_000_000) * 0.99 + 0.005, UNIFORM),
    "Poisson of a mean 1 % too large": (RANDOM.poisson(4.04, 1_000_000), laws.poisson(4)),
    "log-normal of another mean": (np.exp(MANY * 0.5 + 1.005), laws.log_normal(1, 0.5)),
    "one integer among others never drawn": (
        np.where((k := RANDOM.integers(0, 999, 100_000)) < 500, k, k + 1),
        laws.integers(0, 1000),
    ),
    "constant": (np.full_like(Z, 0.3), NORMAL),
    "all zero": (np.zeros_like(Z), NORMAL),
    "standard deviation 10 % too large": (Z * np.float32(1.1), NORMAL),
    "mean off by a tenth": (Z + np.float32(0.1), NORMAL),
    "absolute values": (np.abs(Z), NORMAL),
    "uniform instead of normal": ((U * 2 - 1) * np.float32(3**0.5), NORMAL),
    "tail not written": (np.where(np.arange(20000).reshape(Z.shape) < 18000, Z, np.float32(0)), NORMAL),
    "a run of one value": (np.where(np.arange(20000).reshape(Z.shape) // 8 == 5, np.float32(0.5), Z), NORMAL),
    "rows repeated": (np.tile(Z[:1], (100, 1)), NORMAL),
    "block of 256 repeated": (np.tile(Z.reshape(-1)[:256], 64), NORMAL),
    "sorted": (np.sort(Z.reshape(-1)), NORMAL),
    "one NaN": (np.where(np.arange(20000).reshape(Z.shape) == 7, np.float32(np.nan), Z), NORMAL),
    "range doubled": (U * 2, UNIFORM),
    "range halved": (U / 2, UNIFORM),
    "one value just below the range": (np.where(U.min() == U, np.float32(-1e-7), U), UNIFORM),
    "squared": (U * U, UNIFORM),
    "exponential of another rate": (RANDOM.exponential(1.2, 20000).astype(np.float32), laws.exponential(1)),
    "upper end of integers never drawn": (RANDOM.integers(0, 9, 20000), laws.integers(0, 10)),
    "upper end of integers drawn too": (RANDOM.integers(0, 11, 20000), laws.integers(0, 10)),
    "only even integers": (RANDOM.integers(0, 500, 20000) * 2, laws.integers(0, 1000)),
    "fractions among integers": (RANDOM.integers(0, 9, 100) + 0.5, laws.integers(0, 10)),
    "means ignored": (Z, laws.normal(np.linspace(-1, 1, 200), 1.0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    sample, law = FAULTS[fault]
    assert judge_sample(sample, law).reasons


def test_parameters_may_differ_by_element() -> None:
    mean, deviation = np.linspace(-100, 100, 200), np.linspace(0, 5, 200)
    sample = RANDOM.normal(mean, deviation, (300, 200))
    law = laws.normal(mean, deviation)
    assert judge_sample(sample, law).reasons == ()
    sample[5, 0] += 1  # deviation 0: no other value is possible
    assert "first at [5, 0]" in judge_sample(sample, law).reasons[0]


def test_a_few_elements_are_judged_by_range_and_say_so() -> None:
    verdict = judge_sample(np.array([0.5, 0.25, 0.75, 0.1, 0.9]), UNIFORM)
    assert verdict.reasons == ()
    assert "5 elements are too few to test uniform(0, 1)" in verdict.notes[0]
    assert judge_sample(np.full(5, 1.5), UNIFORM).reasons == (
        "5 of 5 elements are outside uniform(0, 1), first at [0] (tested 1.5).",
    )


def test_what_is_no_law_is_refused() -> None:
    with pytest.raises(ValueError, match="not all finite"):
        judge_sample(Z, laws.normal(0, -1))
    with pytest.raises(ValueError, match="broadcast"):
        judge_sample(Z, laws.normal(np.zeros(7), 1))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_bernoulli_samples_never_alarm(probability: float) -> None:
    for seed in range(100):
        for size in (1, 50, 3000):
            sample = (np.random.default_rng(seed).random(size) < probability).astype(np.float16)
            assert judge_bernoulli(sample, probability).reasons == ()


def test_bernoulli_with_a_probability_per_element() -> None:
    probability = RANDOM.random((100, 100))
    draws = RANDOM.random((100, 100))
    assert judge_bernoulli((draws < probability).astype(np.int64), probability).reasons == ()
    assert judge_bernoulli((draws < 0.5).astype(np.int64), probability).reasons
    assert judge_bernoulli((draws > probability).astype(np.int64), probability).reasons


@pytest.mark.parametrize(
    ("sample", "probability"),
    [
        (RANDOM.random(10000) < 0.4, 0.3),
        (np.full(10000, 1.0), 0.9),
        (np.tile(RANDOM.random(128) < 0.3, 100), 0.3),
        (np.where(np.arange(10000) // 100 == 3, 0, RANDOM.random(10000) < 0.7), 0.7),
        (np.array([0.0, 2.0]), 0.5),
        (np.array([0.0, 1.0]), np.array([0.0, 0.0])),
        (np.array([np.nan]), 0.5),
    ],
)
def test_wrong_bernoulli_samples_are_seen(sample: Array, probability: Any) -> None:
    assert judge_bernoulli(sample, probability).reasons


def test_impossible_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        judge_bernoulli(np.zeros(3), 1.5)
