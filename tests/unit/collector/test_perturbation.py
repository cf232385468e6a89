"""Values moved by roundings: how far, which ones, and the same ones every time."""

from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from msprobe_collector.perturbation import Perturbation, moved_by_roundings

DTYPES = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn)
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
FLOATS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(BITS[np.dtype(dtype).itemsize], arrays.array_shapes(max_side=20)).map(
        lambda bits: bits.view(dtype)
    )
)


def rank(array: np.ndarray) -> np.ndarray:
    """Magnitudes as whole numbers, one ULP apart."""
    bits = array.view(BITS[array.dtype.itemsize])
    return (bits & (np.iinfo(bits.dtype).max >> 1)).astype(np.int64)


@given(FLOATS, st.integers(1, 5))
def test_every_number_moves_by_at_most_so_many_ulp_and_keeps_its_sign(array: np.ndarray, roundings: int) -> None:
    before = array.copy()
    with np.errstate(all="ignore"):
        moved = moved_by_roundings(array, roundings, np.random.default_rng(0))
        stays = ~np.isfinite(array) | (array == 0)
        assert array.tobytes() == before.tobytes()
        assert (moved.dtype, moved.shape) == (array.dtype, array.shape)
        assert moved[stays].tobytes() == array[stays].tobytes()
        steps = np.abs(rank(moved) - rank(array))[~stays]
        assert steps.max(initial=0) <= roundings
        assert np.isfinite(moved[~stays]).all()
        assert (moved[~stays] != 0).all()
        assert (np.signbit(moved) == np.signbit(array)).all()


def test_one_rounding_is_the_next_number_up_or_down() -> None:
    array = np.full(1000, 1.5, np.float32)
    moved = moved_by_roundings(array, 1, np.random.default_rng(0))
    next_ones = {np.nextafter(np.float32(1.5), np.float32(to)) for to in (0, 2)}
    assert set(moved.tolist()) == {float(number) for number in next_ones}
    assert abs(int((moved > array).sum()) - 500) < 100
    assert len(set(moved_by_roundings(array, 3, np.random.default_rng(0)).tolist())) == 6


FRAMEWORK = SimpleNamespace(values=SimpleNamespace(tensor_types=()), is_layer=lambda value: False)
Pair = namedtuple("Pair", "one other")


def perturbed(value: object, *, seed: int = 0, call: int = 1) -> object:
    return Perturbation(FRAMEWORK, roundings=1, seed=seed, call=call).of(value)


def test_structures_keep_their_form_and_what_is_no_float_stays() -> None:
    floats, numbers = np.ones(4, np.float32), np.arange(4)
    moved = perturbed({"a": [floats, (numbers, None)], "b": Pair(floats, "text")})
    assert list(moved) == ["a", "b"]
    assert moved["a"][1] == (numbers, None)
    assert moved["a"][1][0] is numbers
    assert type(moved["b"]) is Pair
    assert (moved["a"][0] != floats).all()
    assert (moved["a"][0] != moved["b"].one).any(), "every tensor moves by itself"


@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_complex_numbers_move_in_both_parts(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1 + 2j, np.complex64)
    moved = perturbed(array)
    assert moved.shape == shape
    assert (moved.real != 1).all()
    assert (moved.imag != 2).all()


def test_seed_and_call_decide_and_nothing_else() -> None:
    array = np.ones(64, np.float32)
    first = perturbed(array)
    assert (perturbed(array) == first).all()
    assert (perturbed(array, seed=1) != first).any()
    assert (perturbed(array, call=2) != first).any()
