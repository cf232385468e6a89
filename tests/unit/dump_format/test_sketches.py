"""Sketches: what the numbers are, how near their distances come, and how they add up over shards."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import sketches
from msprobe_collector.dump_format.sketches import NUMBERS, Sketch, SketchRow, distance, merged, row_of

Array = np.ndarray[Any, Any]


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_definition(array: Array) -> Array:
    """The sums over all elements, dimension by dimension, in float64."""
    found = array.astype(np.complex128)[..., None] * np.ones(sketches.COUNTERS)
    for dimension in range(array.ndim - 1, -1, -1):
        (axis,) = sketches._axes(dimension, array.shape[dimension])
        found = np.einsum("...ij,ij->...j", found, axis.phases())
    return found


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (3,), (2, 2), (5000,), (1, 4096), (96, 528), (3, 5, 7, 9), (4, 8, 64, 64), (64, 3, 3, 3), (2, 3000, 40)],
)
def test_a_sketch_is_the_sum_of_its_definition(shape: tuple[int, ...]) -> None:
    array = noise(*shape)
    assert np.abs(Sketch.of(array).counters - by_definition(array)).max() <= 3e-6 * np.linalg.norm(array)


def test_the_phases_are_those_that_dumps_were_written_with() -> None:
    """Whoever changes them changes `VERSION`."""
    assert sketches.VERSION == 1
    numbers = row_of(np.arange(1, 13, dtype=np.float32).reshape(2, 6)).numbers
    assert numbers[[0, 1, 16, 17, 32, 33, 48, 49]].tolist() == pytest.approx(FROZEN, abs=1e-4)


FROZEN = [-13.5284, 36.4252, -24.2487, 24.2487, 20.5806, -5.0205, 18.5885, 12.5885]


def test_whole_counters_see_what_shard_counters_do_not() -> None:
    mask = np.eye(256, dtype=np.float32)
    sketch = Sketch.of(mask)
    assert 12 < sketch.norm < 21
    assert np.abs(sketch.counters[16:]).max() < 1


@pytest.mark.parametrize("length", [2, 3, 5, 16, 48, 64, 96, 192, 256, 512, 1000, 1024])
def test_no_regular_value_is_lost(length: int) -> None:
    """Combs, diagonals, bands, sines: what a sum of phases could cancel, or all of it add up."""
    index = np.arange(length)
    square = np.eye(length)
    values = [
        index,
        (-1.0) ** index,
        square,
        square[::-1],
        np.tri(length),
        np.eye(length, k=1) + square,
        square[index * 7 % length],
    ]
    values += [index % step == 0 for step in (2, 3, 4, 8, 16, 64, 100)]
    values += [np.sin(index * step + 1) for step in (0.1, 0.5, 1, 2, 3)]
    values += [
        np.kron(square[:128, :128], np.ones((4, 4))),
        np.broadcast_to(square[:64, :64], (2, 4, *square[:64, :64].shape)),
    ]
    for value in values:
        assert 0.5 < Sketch.of(value.astype(np.float32)).norm / np.linalg.norm(value.astype(np.float64)) < 2


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("shape", "dimension"), [((96, 528), 0), ((96, 528), 1), ((6, 16, 40), 1), ((8, 64, 16), 2)])
def test_shards_add_up_to_the_whole(shape: tuple[int, ...], dimension: int, count: int) -> None:
    array = noise(*shape)
    parts = [Sketch.of(part) for part in np.split(array, count, dimension)]
    found = distance(merged(parts, dimension), Sketch.of(array))
    assert found.value <= 1e-6 * np.linalg.norm(array)
    assert found.relative == 0.125
    wrong = distance(merged(parts[::-1], dimension), Sketch.of(array)).value
    assert wrong > 0.5 * np.linalg.norm(array)


def test_shards_of_two_dimensions_add_up() -> None:
    array = noise(8, 48, 64)
    rows = [merged([Sketch.of(part) for part in np.split(half, 4, 2)], 2) for half in np.split(array, 2, 1)]
    assert distance(merged(rows, 1), Sketch.of(array)).value <= 1e-6 * np.linalg.norm(array)


@pytest.mark.parametrize("length", [1 << 18, 35 << 12, 70001 * 2])
def test_very_long_dimensions(length: int) -> None:
    array = noise(length)
    whole = Sketch.of(array)
    assert whole.norm == pytest.approx(np.linalg.norm(array), rel=0.35)
    parts = [Sketch.of(part) for part in np.split(array, 2)]
    assert distance(merged(parts, 0), whole).value <= 2e-6 * np.linalg.norm(array)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8])
def test_partial_sums_add_up(count: int) -> None:
    parts = [noise(12, 20, seed=seed) for seed in range(count)]
    found = distance(merged([Sketch.of(part) for part in parts], None), Sketch.of(sum(parts, np.zeros((12, 20)))))
    assert found.value <= 1e-6 * np.linalg.norm(sum(parts))
    assert found.relative < 0.09


def test_a_mean_is_a_scaled_sum() -> None:
    parts = [noise(12, 20, seed=seed) for seed in range(4)]
    found = merged([Sketch.of(part) for part in parts], None).scaled(0.25)
    assert distance(found, mean := Sketch.of(np.mean(parts, axis=0))).value <= 1e-6 * mean.norm


def test_sums_of_many_rows_keep_their_digits() -> None:
    array = noise(50257, 8)
    found = distance(Sketch.of(array), Sketch.of(array.astype(np.float64)))
    assert found.value < 0.5 * found.resolution


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_other_numbers_of_shards_compare_with_their_own_kind(count: int) -> None:
    left, right = noise(4, 2 * count), noise(4, 2 * count, seed=1)
    parts = [merged([Sketch.of(part) for part in np.split(side, count, 1)], 1) for side in (left, right)]
    assert distance(*parts).value == pytest.approx(np.linalg.norm(left - right), rel=0.4)
    assert distance(parts[0], Sketch.of_split(left, 1, count)).value == 0.0
    with pytest.raises(ValueError, match="put together of other shards do not compare"):
        distance(parts[0], Sketch.of(left))


def test_what_does_not_add_up_or_compare_is_refused() -> None:
    left, right = Sketch.of(noise(4, 6)), Sketch.of(noise(4, 5))
    with pytest.raises(ValueError, match=r"do not add up: shapes \[\(4, 6\), \(4, 5\)\]"):
        merged([left, right], 1)
    with pytest.raises(ValueError, match=r"shapes \(4, 6\) and \(4, 5\) do not compare"):
        distance(left, right)
    with pytest.raises(ValueError, match=r"shape \(4, 6\) has no dimension 2"):
        merged([left, left], 2)
    with pytest.raises(ValueError, match="do not add up"):
        merged([], 0)
    with pytest.raises(ValueError, match="holds no numbers"):
        row_of(np.array(["a"]))


@pytest.mark.parametrize(
    "dtype",
    [
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float64",
        "int4",
        "int8",
        "uint8",
        "int32",
        "int64",
        "bool",
    ],
)
def test_every_dtype_has_the_sketch_of_its_values(dtype: str) -> None:
    array = (noise(24, 40) * 3).astype(getattr(ml_dtypes, dtype, dtype))
    values = array.astype(np.float64)
    assert distance(Sketch.of(array), Sketch.of(values)).value <= 1e-6 * np.linalg.norm(values)


def test_complex_numbers_are_pairs() -> None:
    array = noise(6, 10) + 1j * noise(6, 10, seed=1)
    assert Sketch.of(array).counters.tolist() == Sketch.of(np.stack([array.real, array.imag], -1)).counters.tolist()


def test_large_integers_are_not_rounded_before_they_are_subtracted() -> None:
    array = np.full((4, 4), (1 << 24) + 1, np.int32)
    assert Sketch.of(array).counters[16:] == pytest.approx(by_definition(array)[16:], rel=1e-7)


def test_views_and_empty_arrays() -> None:
    array = noise(20, 30)
    for view in (array.T, array.T[::2], array[::-1], np.broadcast_to(array[:, :1], (20, 30))):
        assert distance(Sketch.of(view), Sketch.of(np.ascontiguousarray(view))).value <= 1e-5
    assert row_of(np.zeros((0, 3), np.float32)).numbers.tolist() == [0.0] * NUMBERS
    assert Sketch.of(np.zeros((2, 3))).norm == 0.0
    empty = Sketch.of(np.zeros((0, 3)))
    assert merged([empty, empty], 0).norm == merged([empty, empty], 1).norm == 0.0


def test_elements_that_are_not_finite_are_counted_and_leave_the_rest() -> None:
    array = noise(30, 40)
    array[3, 4], array[5, 6:8], array[7] = np.inf, -np.inf, np.nan
    row = row_of(array)
    assert row.not_finite == (40, 1, 2)
    rest = np.where(np.isfinite(array), array, 0)
    assert distance(Sketch.of_row(row, array.shape), Sketch.of(rest)).value <= 1e-6 * np.linalg.norm(rest)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_magnitudes_beyond_float32(scale: float) -> None:
    array = noise(30, 40).astype(np.float64) * scale
    row = row_of(array)
    assert row.exponent != 0
    assert np.isfinite(row.numbers).all()
    assert Sketch.of_row(row, array.shape).norm == pytest.approx(scale * Sketch.of(noise(30, 40)).norm, rel=1e-5)


def test_tables_are_bounded() -> None:
    tables = sketches.Tables(lambda table: table, most_bytes=1 << 16)
    for length in range(2, 200):
        tables.of(sketches.plan_of((length,), None).groups[0], -1)
    assert tables._bytes == sum(size for _, size in tables._tables.values()) <= 1 << 16


def test_a_row_is_64_numbers() -> None:
    row = row_of(noise(3, 3))
    assert isinstance(row, SketchRow)
    assert (row.numbers.dtype, row.numbers.shape) == (np.float32, (NUMBERS,))
