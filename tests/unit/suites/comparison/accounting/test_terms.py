"""The difference of an output and its parts."""

from __future__ import annotations

import math
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from pytest_msprobe.numerics.measurement import CHUNK_ELEMENTS
from pytest_msprobe.suites.comparison.accounting import terms as terms_module
from pytest_msprobe.suites.comparison.accounting.account import BORN_GOLDEN, BORN_TARGET, DEFINED, INHERITED, PARTS
from pytest_msprobe.suites.comparison.accounting.terms import split

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.complex64)


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_the_parts_add_up_to_the_whole(left: type, right: type) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 5, 7)
    target, golden = rng.standard_normal(shape).astype(left), rng.standard_normal(shape).astype(right)
    middle = [rng.standard_normal(shape) for _ in range(3)]
    terms = split(target, *middle, golden)
    chain = [np.asarray(array, np.complex128) for array in (target, *middle, golden)]
    parts = [before - after for before, after in pairwise(chain)]
    whole = chain[0] - chain[-1]
    assert np.allclose(sum(parts), whole, rtol=1e-12)
    assert sum(terms.parts[name].share for name in PARTS) == pytest.approx(1, abs=1e-12)
    norm = np.linalg.norm(chain[-1])
    assert terms.size == pytest.approx(np.linalg.norm(whole) / norm, rel=1e-12)
    for name, part in zip(PARTS, parts):
        assert terms.parts[name].size == pytest.approx(np.linalg.norm(part) / norm, rel=1e-12)
        worst = terms.worst(name)
        assert worst is not None
        assert abs(part[worst]) == pytest.approx(np.abs(part).max(), rel=1e-12)


def test_parts_of_an_output_larger_than_a_chunk() -> None:
    size = CHUNK_ELEMENTS + 3
    golden = np.ones(size, np.float32)
    target = golden.copy()
    target[-1] = 3
    terms = split(target, golden, golden, golden, golden)
    assert terms.parts[BORN_TARGET].share == 1
    assert terms.worst(BORN_TARGET) == (size - 1,)
    assert terms.size == pytest.approx(2 / math.sqrt(size))


def test_each_part_is_named_by_its_place_in_the_chain() -> None:
    one, two = np.ones(4), np.full(4, 2.0)
    chains = {
        BORN_TARGET: (two, one, one, one, one),
        INHERITED: (two, two, one, one, one),
        DEFINED: (two, two, two, one, one),
        BORN_GOLDEN: (two, two, two, two, one),
    }
    for name, chain in chains.items():
        terms = split(*chain)
        assert [part for part in PARTS if terms.parts[part].weight] == [name]
        assert terms.parts[name].weight == 1


def test_nan_and_infinity_are_all_of_the_difference_where_they_begin() -> None:
    exact = np.array([1.0, 2.0, 3.0])
    target = np.array([1.0, np.nan, 3.5])
    terms = split(target, exact, exact, exact, exact)
    assert terms.parts[BORN_TARGET].nonfinite == 1
    assert terms.parts[BORN_TARGET].weight == math.inf
    assert terms.parts[INHERITED].nonfinite == 0
    assert (terms.size, terms.parts[BORN_TARGET].size, terms.parts[BORN_TARGET].share) == (math.inf, math.inf, 1)
    assert terms.worst(BORN_TARGET) == (1,)


@pytest.mark.parametrize("masked", [-1e4, float(np.finfo(np.float32).min), 0.0])
def test_another_number_in_place_of_infinity_is_defined_otherwise(masked: float) -> None:
    golden = np.array([[0.0, -np.inf], [0.0, 0.0]], np.float32)
    target = np.where(np.isinf(golden), np.float32(masked), golden)
    terms = split(target, target, target, golden, golden)
    assert [terms.parts[name].share for name in PARTS] == [0, 0, 1, 0]
    assert terms.parts[DEFINED].size == math.inf
    assert terms.worst(DEFINED) == (0, 1)


def test_the_same_infinity_on_both_sides_is_no_difference() -> None:
    values = np.array([np.inf, -np.inf, np.nan, 1.0])
    terms = split(values, values, values, values, values)
    assert [terms.parts[name].weight for name in PARTS] == [0, 0, 0, 0]
    assert terms.size == 0


def test_integers_and_truth_values_count_as_numbers() -> None:
    target, golden = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert split(target, golden, golden, golden, golden).worst(BORN_TARGET) == (2,)
    flags = np.array([True, False])
    assert split(flags, ~flags, ~flags, ~flags, ~flags).parts[BORN_TARGET].share == 1


def test_an_empty_output_and_one_of_zeros() -> None:
    empty = np.zeros((0, 3))
    assert split(empty, empty, empty, empty, empty).size == 0
    zero = np.zeros(3)
    assert split(zero + 1, zero, zero, zero, zero).size == math.inf


def test_an_error_that_both_sides_make_alike_is_no_part_of_their_difference() -> None:
    exact, error = np.ones(50), np.zeros(50)
    error[3] = 1e-5
    target, golden = exact + error, exact + error + 1e-9
    alike = split(target, exact, exact, exact, golden)
    assert alike.parts[BORN_TARGET].weight > 1
    assert not alike.is_own(BORN_TARGET)
    assert not alike.is_own(BORN_GOLDEN)
    assert split(target, exact, exact, exact, exact).is_own(BORN_TARGET)
    spoilt = target.copy()
    spoilt[0] = math.inf
    assert split(spoilt, exact, exact, exact, golden).is_own(BORN_TARGET)


def test_what_masks_others_counts_for_nothing_in_the_norm() -> None:
    masked = np.array([np.finfo(np.float32).min, 3, 4], np.float32)
    target = masked + np.array([0, 0.5, 0], np.float32)
    assert split(target, masked, masked, masked, masked).size == pytest.approx(0.1)


def test_a_value_that_the_benchmark_does_not_compute_is_told_from_a_wrong_one() -> None:
    other, computed = np.full(4, 5.0), np.ones(4)
    assert split(other + 1e-3, computed, computed, computed, other).is_of_another_value
    assert not split(other, computed, computed, computed, computed).is_of_another_value
    assert split(other, computed, computed, computed, -other).is_of_another_value


def test_elements_are_looked_at_one_by_one_only_in_chunks_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, whole = [], terms_module._whole
    monkeypatch.setattr(terms_module, "_whole", lambda chain: looked_at.append(len(chain[0])) or whole(chain))
    golden = np.ones(3 * CHUNK_ELEMENTS, np.float32)
    target = golden + np.float32(0.5)
    assert split(target, golden, golden, golden, golden).size == 0.5
    assert looked_at == []
    target[CHUNK_ELEMENTS] = np.nan
    golden[-1] = np.finfo(np.float32).min
    found = split(target, golden, golden, golden, golden)
    assert found.parts[BORN_TARGET].nonfinite == 1
    assert looked_at == [CHUNK_ELEMENTS, CHUNK_ELEMENTS]
