"""measure on every special case, against exact fractions and Python integers."""

from __future__ import annotations

import math
import warnings
from decimal import Context, Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.extra import numpy as hnp

from pytest_msprobe.numerics import measurement
from pytest_msprobe.numerics.measurement import Element, Metrics, measure

INT64, UINT64 = np.iinfo(np.int64), np.iinfo(np.uint64)
DIGITS = Context(prec=80)


def metrics_of(tested: object, reference: object, dtype: object = np.float64, **options: object) -> Metrics:
    """Metrics of two lists: the tested one in `dtype`, the benchmark as NumPy reads it, without any warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return measure(np.array(tested).astype(dtype), np.array(reference), **{"off_bound": 1e-4, **options})


def exact_cosine(tested: list[float], reference: list[float]) -> float:
    def decimal(value: Fraction) -> Decimal:
        return DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))

    left, right = [Fraction(v) for v in tested], [Fraction(v) for v in reference]
    shared = sum(x * y for x, y in zip(left, right, strict=True))
    squares = sum(x * x for x in left) * sum(y * y for y in right)
    return float(DIGITS.divide(decimal(shared), DIGITS.sqrt(decimal(squares))))


# --- the figures -------------------------------------------------------------------------------------------------


def test_all_figures_of_one_small_output() -> None:
    metrics = metrics_of([[1.0, 2.5], [-3.0, 0.5]], [[1.0, 2.0], [-4.0, 0.5]])
    assert metrics == Metrics(
        kind="float",
        size=4,
        cosine=pytest.approx(exact_cosine([1, 2.5, -3, 0.5], [1, 2, -4, 0.5]), abs=1e-15),
        max_abs=1.0,
        max_rel=0.25,
        max_ulp=0.5 * 2**51,
        worst=Element((1, 0), -3.0, -4.0),
        worst_relative=Element((0, 1), 2.5, 2.0),
        off_count=2,
        off_bound=1e-4,
    )


def test_values_are_python_scalars() -> None:
    worst = metrics_of([2, 3], [2, 5], np.int32).worst
    assert worst is not None
    assert [type(v) for v in (worst.index[0], worst.tested, worst.reference)] == [int, int, int]
    worst = metrics_of([2.5], [3.5], ml_dtypes.bfloat16).worst
    assert worst is not None
    assert [type(v) for v in (worst.tested, worst.reference)] == [float, float]


@given(
    pair=hnp.array_shapes(max_dims=2, max_side=5).flatmap(
        lambda shape: st.tuples(*[hnp.arrays(np.float64, shape, elements=st.floats(-1e6, 1e6, width=32))] * 2)
    )
)
def test_errors_equal_those_of_exact_fractions(pair: tuple[np.ndarray, np.ndarray]) -> None:
    tested, reference = pair
    metrics = measure(tested, reference, off_bound=1e-4)
    left, right = [Fraction(v) for v in tested.flat], [Fraction(v) for v in reference.flat]
    errors = [abs(t - b) for t, b in zip(left, right, strict=True)]
    relative = [e / (abs(b) if b else Fraction(1e-8)) for e, b in zip(errors, right, strict=True)]
    assert metrics.max_abs == pytest.approx(float(max(errors)), rel=1e-15)
    assert metrics.max_rel == pytest.approx(float(max(relative)), rel=1e-14)
    if metrics.worst:
        assert (metrics.worst.tested, metrics.worst.reference) == (
            tested[metrics.worst.index],
            reference[metrics.worst.index],
        )
        assert abs(metrics.worst.tested - metrics.worst.reference) == metrics.max_abs
    else:
        assert max(errors) == 0


def test_relative_error_where_the_benchmark_is_zero() -> None:
    metrics = metrics_of([1e-3, 2.0], [0.0, 1.0])
    assert metrics.max_rel == 1e-3 / 1e-8
    assert metrics.worst_relative == Element((0,), 1e-3, 0.0)
    assert metrics.worst == Element((1,), 2.0, 1.0)


def test_an_element_is_off_from_the_bound_on() -> None:
    assert metrics_of([0.5, 0.25, 0.0], [0.0, 0.0, 0.0], off_bound=0.25).off_count == 2


@pytest.mark.parametrize("off_bound", [0.0, -1.0, math.nan])
def test_the_off_bound_must_be_positive(off_bound: float) -> None:
    with pytest.raises(ValueError, match="off_bound must be above 0"):
        metrics_of([1.0], [1.0], off_bound=off_bound)


def test_reference_is_rounded_once_to_the_tested_dtype() -> None:
    exact = 1 + 2**-8 + 2**-40
    perfect = metrics_of([1 + 2**-7], [exact], ml_dtypes.bfloat16)
    assert (perfect.max_abs, perfect.max_ulp, perfect.off_count) == (0.0, 0.0, 0)
    assert metrics_of([1.0], [exact], ml_dtypes.bfloat16).worst == Element((0,), 1.0, 1 + 2**-7)


@pytest.mark.parametrize("dtype", [">f4", np.float16, ml_dtypes.float8_e4m3fn])
def test_other_layouts_and_formats(dtype: object) -> None:
    metrics = metrics_of([1.0, 2.0], [1.0, 2.5], dtype)
    assert (metrics.kind, metrics.max_abs, metrics.worst) == ("float", 0.5, Element((1,), 2.0, 2.5))


def test_non_contiguous_arrays() -> None:
    tested = np.arange(12.0).reshape(3, 4).T[::2]
    reference = np.asfortranarray(tested + np.array([[0, 0, 0], [0, 0, 3]]))
    assert measure(tested, reference, off_bound=1e-4).worst == Element((1, 2), 10.0, 13.0)


# --- cosine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1e-154, 1.0, 1e154, 1e200, 1e307])
def test_cosine_needs_no_epsilon_at_any_scale(scale: float) -> None:
    tested, reference = [1 * scale, 2 * scale, 2 * scale], [2 * scale, 1 * scale, -2 * scale]
    assert metrics_of(tested, reference).cosine == pytest.approx(0.0, abs=1e-15)
    opposite = metrics_of([-v for v in reference], reference)
    assert opposite.cosine == pytest.approx(-1.0, abs=1e-15)


@pytest.mark.parametrize("scale", [1e-161, 1e-158, 1e-140, 1.0, 1e153, 1e154])
def test_cosine_does_not_suffer_from_squares_that_lose_digits(scale: float) -> None:
    assert metrics_of([3 * scale, 4 * scale], [4 * scale, 3 * scale]).cosine == pytest.approx(0.96, abs=1e-15)


def test_cosine_of_sides_of_very_different_scale() -> None:
    assert metrics_of([3e-300, 4e-300], [3e300, 4e300]).cosine == pytest.approx(1.0, abs=1e-15)


def test_cosine_of_equal_vectors_is_exactly_one() -> None:
    values = [0.1, 0.2, 0.3]
    assert metrics_of(values, values).cosine == 1.0


@pytest.mark.parametrize(
    ("tested", "reference", "cosine"),
    [
        ([0.0, 0.0], [0.0, 0.0], 1.0),
        ([0.0, -0.0], [0.0, 0.0], 1.0),
        ([0.0, 0.0], [1e-12, 0.0], 0.0),
        ([1e-12, 0.0], [0.0, 0.0], 0.0),
        ([-1e-12, 1e-300], [1e-12, 1e-300], -1.0),
        (3.0, 2.0, 1.0),
        (-3.0, 2.0, -1.0),
    ],
)
def test_cosine_of_special_vectors(tested: object, reference: object, cosine: float) -> None:
    assert metrics_of(tested, reference).cosine == pytest.approx(cosine, abs=1e-15)


vectors = st.integers(1, 8).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=n, max_size=n)] * 2)
)


@given(pair=vectors)
def test_cosine_is_that_of_exact_fractions_and_symmetric(pair: tuple[list[float], list[float]]) -> None:
    tested, reference = pair
    assume(any(tested) and any(reference))
    cosine = metrics_of(tested, reference).cosine
    assert cosine == pytest.approx(exact_cosine(tested, reference), abs=1e-14)
    assert metrics_of(reference, tested).cosine == cosine


@given(pair=vectors, exponent=st.integers(-30, 30))
def test_cosine_ignores_the_scale_of_one_side(pair: tuple[list[float], list[float]], exponent: int) -> None:
    tested, reference = pair
    assume(all(v == 0 or 1e-290 < abs(v) < 1e290 for v in tested))
    scaled = [v * 2.0**exponent for v in tested]
    assert metrics_of(scaled, reference).cosine == pytest.approx(metrics_of(tested, reference).cosine, abs=1e-14)


@given(pair=vectors, seed=st.integers(0, 100))
def test_no_figure_depends_on_the_order_of_elements(pair: tuple[list[float], list[float]], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(pair[0]))
    metrics = metrics_of(*pair)
    shuffled = metrics_of(*(np.array(side)[order] for side in pair))
    assert shuffled.cosine == pytest.approx(metrics.cosine, abs=1e-14)
    for figure in ("max_abs", "max_rel", "max_ulp", "off_count"):
        assert getattr(shuffled, figure) == getattr(metrics, figure)


def test_cosine_of_long_vectors_is_exact_too() -> None:
    tested, reference = np.ones(100_000), np.ones(100_000)
    tested[::2] = 3.0
    assert measure(tested, reference, off_bound=1e-4).cosine == pytest.approx(2 / math.sqrt(5), abs=1e-13)


# --- NaN and Inf -------------------------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_equal_nonfinite_places_are_left_out(dtype: object) -> None:
    reference = np.array([NAN, INF, -INF, 1.0, 2.0])
    reference = reference.astype(np.complex128) if dtype is np.complex64 else reference
    metrics = metrics_of([NAN, INF, -INF, 1.0, 3.0], reference, dtype)
    assert metrics.nonfinite_mismatches == 0
    assert metrics.first_nonfinite is None
    assert (metrics.max_abs, metrics.max_rel, metrics.off_count) == (1.0, 0.5, 1)
    assert metrics.cosine == pytest.approx(exact_cosine([1, 3], [1, 2]), abs=1e-15)


@pytest.mark.parametrize("values", [[NAN], [INF, -INF], [NAN, INF]])
def test_all_elements_equally_nonfinite(values: list[float]) -> None:
    metrics = metrics_of(values, values)
    assert (metrics.cosine, metrics.max_abs, metrics.max_rel, metrics.max_ulp) == (1.0, 0.0, 0.0, 0.0)
    assert metrics.worst is None


def test_nan_payloads_and_signs_do_not_matter() -> None:
    every_bit = np.array([2**64 - 1], dtype=np.uint64).view(np.float64)
    assert measure(every_bit, np.array([NAN]), off_bound=1e-4).max_abs == 0


@pytest.mark.parametrize(
    ("tested", "reference"), [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF), (NAN, INF), (-INF, NAN)]
)
def test_any_other_nonfinite_value_is_a_located_mismatch(tested: float, reference: float) -> None:
    metrics = metrics_of([[0.0, 5.0], [tested, tested]], [[0.0, 1.0], [reference, reference]])
    assert metrics.nonfinite_mismatches == 2
    found = metrics.first_nonfinite
    assert found is not None
    assert found.index == (1, 0)
    assert [repr(found.tested), repr(found.reference)] == [repr(tested), repr(reference)]
    assert metrics.worst == metrics.worst_relative == found or math.isnan(tested) or math.isnan(reference)
    assert metrics.worst is not None
    assert metrics.worst.index == (1, 0)
    assert (metrics.max_abs, metrics.max_rel, metrics.max_ulp) == (INF, INF, INF)
    assert metrics.cosine is not None
    assert math.isnan(metrics.cosine)
    assert metrics.off_count == 3


def test_a_finite_value_where_the_benchmark_overflows_the_tested_dtype() -> None:
    metrics = metrics_of([65504.0], [1e6], np.float16)
    assert metrics.first_nonfinite == Element((0,), 65504.0, INF)


def test_difference_beyond_float64_is_inf_but_no_nonfinite_mismatch() -> None:
    metrics = metrics_of([1e308, 1.0], [-1e308, 1.0])
    assert (metrics.max_abs, metrics.nonfinite_mismatches) == (INF, 0)
    assert metrics.worst == Element((0,), 1e308, -1e308)
    assert metrics.cosine == -1.0


# --- sizes and structure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.complex64])
def test_an_empty_output_has_no_figures(shape: tuple[int, ...], dtype: type) -> None:
    array = np.zeros(shape, dtype)
    metrics = measure(array, array, off_bound=1e-4)
    assert metrics.is_empty
    assert (metrics.size, metrics.cosine, metrics.max_abs, metrics.max_rel, metrics.worst) == (
        0,
        None,
        None,
        None,
        None,
    )


def test_0d_array_has_the_index_of_a_0d_array() -> None:
    assert metrics_of(-3.0, 2.0).worst == Element((), -3.0, 2.0)


def test_differing_shapes() -> None:
    metrics = metrics_of([[1.0, 2.0]], [1.0, 2.0])
    assert metrics.structural == "Shapes differ: tested (1, 2), benchmark (2,)."
    assert (metrics.cosine, metrics.max_abs) == (None, None)


def test_empty_outputs_of_differing_shape_are_not_empty() -> None:
    metrics = measure(np.zeros((0, 2)), np.zeros((0, 3)), off_bound=1e-4)
    assert metrics.structural is not None
    assert not metrics.is_empty


@pytest.mark.parametrize(
    ("tested", "reference"),
    [
        (np.float32, np.int64),
        (np.int32, np.float64),
        (np.bool_, np.int64),
        (np.int8, np.bool_),
        (np.float32, np.complex128),
        (np.complex64, np.float64),
        (ml_dtypes.bfloat16, np.int64),
        (ml_dtypes.int4, np.float64),
    ],
)
def test_differing_kinds(tested: type, reference: type) -> None:
    metrics = measure(np.zeros(2, tested), np.zeros(2, reference), off_bound=1e-4)
    assert metrics.structural is not None
    assert metrics.structural.startswith("Element kinds differ: tested ")
    assert str(np.dtype(tested)) in metrics.structural
    assert metrics.max_abs is None


def test_unmeasurable_elements_are_refused() -> None:
    array = np.array(["a"])
    assert measure(array, array, off_bound=1e-4).structural == "Elements of dtype <U1 cannot be measured."


# --- integers and bools ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tested", "reference", "tested_dtype", "reference_dtype"),
    [
        (2**53 + 1, 2**53, np.int64, np.int64),
        (INT64.max, INT64.max - 1, np.int64, np.int64),
        (INT64.min, INT64.max, np.int64, np.int64),
        (UINT64.max, 0, np.uint64, np.uint64),
        (0, UINT64.max, np.uint64, np.uint64),
        (UINT64.max, UINT64.max - 1, np.uint64, np.uint64),
        (-1, UINT64.max, np.int64, np.uint64),
        (2**63, INT64.min, np.uint64, np.int64),
        (255, UINT64.max, np.uint8, np.uint64),
        (-128, 127, np.int8, np.int8),
        (-128, 127, np.int8, np.int64),
        (0, 255, np.uint8, np.uint8),
        (-8, 7, ml_dtypes.int4, np.int64),
    ],
)
def test_integers_are_compared_exactly(tested: int, reference: int, tested_dtype: type, reference_dtype: type) -> None:
    left = np.array([3, 3, tested], dtype=tested_dtype)
    right = np.array([3, 3, reference], dtype=reference_dtype)
    metrics = measure(left, right, off_bound=1e-4)
    assert metrics.worst == metrics.first_unequal == Element((2,), tested, reference)
    assert metrics.max_abs == float(abs(tested - reference))
    assert (metrics.unequal_count, metrics.off_count, metrics.max_ulp) == (1, 1, None)
    assert metrics.max_rel == pytest.approx(abs(tested - reference) / (abs(reference) or 1e-8))


@given(
    pair=st.integers(1, 6).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(INT64.min, INT64.max), min_size=n, max_size=n)] * 2)
    )
)
def test_integer_errors_equal_those_of_python_integers(pair: tuple[list[int], list[int]]) -> None:
    tested, reference = pair
    metrics = measure(np.array(tested, np.int64), np.array(reference, np.int64), off_bound=1e-4)
    errors = [abs(t - b) for t, b in zip(tested, reference, strict=True)]
    assert metrics.max_abs == float(max(errors))
    assert metrics.unequal_count == sum(map(bool, errors))
    if metrics.worst and metrics.first_unequal:
        assert metrics.worst.index == (errors.index(max(errors)),)
        assert metrics.first_unequal.index == (next(i for i, error in enumerate(errors) if error),)
    assert (metrics.worst is None) == (max(errors) == 0)


def test_the_same_integers_in_two_widths_are_equal() -> None:
    metrics = metrics_of([1, 2], [1, 2], np.int32)
    assert (metrics.cosine, metrics.max_abs, metrics.unequal_count) == (1.0, 0.0, 0)


def test_bools() -> None:
    metrics = metrics_of([True, False, True], [True, True, False], np.bool_)
    assert (metrics.kind, metrics.is_exact, metrics.unequal_count, metrics.max_abs) == ("bool", True, 2, 1.0)
    assert metrics.first_unequal == Element((1,), False, True)
    assert metrics.cosine == pytest.approx(0.5)
    assert metrics_of([True, False], [True, False], np.bool_).unequal_count == 0


# --- complex -----------------------------------------------------------------------------------------------------


def test_complex_errors_are_moduli() -> None:
    metrics = metrics_of([3 + 4j, 1j], [0j, 1j], np.complex64)
    assert (metrics.kind, metrics.max_abs, metrics.max_rel, metrics.max_ulp) == ("complex", 5.0, 5e8, None)
    assert metrics.worst == Element((0,), 3 + 4j, 0j)


def test_complex_cosine_is_that_of_the_real_parts() -> None:
    tested, reference = [1 + 2j, -3j], [2 - 1j, 1 - 1j]
    expected = exact_cosine([1, 2, 0, -3], [2, -1, 1, -1])
    assert metrics_of(tested, reference, np.complex128).cosine == pytest.approx(expected, abs=1e-15)
    assert metrics_of([1j], [1 + 0j], np.complex128).cosine == 0.0
    assert metrics_of([1e-200j], [1e-200j + 1e-200], np.complex128).cosine == pytest.approx(math.sqrt(0.5), abs=1e-15)


def test_complex_with_an_unmatched_nan() -> None:
    metrics = metrics_of([1j, complex(NAN, 1)], [1j, 1j], np.complex64)
    assert metrics.nonfinite_mismatches == 1
    assert metrics.first_nonfinite is not None
    assert metrics.first_nonfinite.index == (1,)


# --- ULP ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "mantissa_bits", "smallest_normal_exponent"),
    [(np.float16, 10, -14), (ml_dtypes.bfloat16, 7, -126), (np.float32, 23, -126), (ml_dtypes.float8_e4m3fn, 3, -6)],
)
def test_ulp_error_counts_steps_of_the_tested_dtype(
    dtype: type, mantissa_bits: int, smallest_normal_exponent: int
) -> None:
    step = 2.0**-mantissa_bits
    subnormal = 2.0 ** (smallest_normal_exponent - mantissa_bits)
    assert metrics_of([1 + 3 * step], [1.0], dtype).max_ulp == 3
    assert metrics_of([-2 - 6 * step], [-2.0], dtype).max_ulp == 3
    assert metrics_of([1.0], [1 + step], dtype).max_ulp == 1
    assert metrics_of([3 * subnormal], [subnormal], dtype).max_ulp == 2
    assert metrics_of([0.0], [2 * subnormal], dtype).max_ulp == 2
    assert metrics_of([2.0**-3], [0.0], dtype).max_ulp == 2.0**-3 / subnormal


def test_an_invented_value_at_zero_is_a_huge_ulp_error() -> None:
    """W25: the peer takes exponent 0 where the benchmark is 0, and finds 8388 ULP."""
    invented = metrics_of([1e-3], [0.0], np.float32).max_ulp
    assert invented is not None
    assert invented > 1e40


# NumPy's spacing of the largest float32 overflows.
@given(reference=st.floats(-(2.0**127), 2.0**127, width=32), steps=st.integers(1, 5))
def test_ulp_error_agrees_with_numpy_spacing(reference: float, steps: int) -> None:
    spacing = float(np.spacing(np.float32(abs(reference))))
    tested = np.float32(abs(reference) + steps * spacing)
    assume(np.isfinite(tested))
    expected = Fraction(float(tested)) - Fraction(abs(reference))
    metrics = metrics_of([float(tested)], [abs(reference)], np.float32)
    assert metrics.max_ulp == float(expected / Fraction(spacing))


def test_float64_ulp() -> None:
    assert metrics_of([1 + 2**-51], [1.0]).max_ulp == 2
    assert metrics_of([1.5e-323], [5e-324]).max_ulp == 2
    assert metrics_of([1e300], [0.0]).max_ulp == INF


# --- chunks ------------------------------------------------------------------------------------------------------

CHUNKED_ELEMENTS = {
    np.dtype(np.float64): st.one_of(st.floats(), st.sampled_from([0.0, 1.0, INF, NAN])),
    np.dtype(np.int64): st.integers(INT64.min, INT64.max),
    np.dtype(np.complex128): st.complex_numbers(),
    np.dtype(np.bool_): st.booleans(),
}


@pytest.mark.parametrize("dtype", CHUNKED_ELEMENTS, ids=str)
@given(data=st.data())
def test_chunks_change_nothing(dtype: np.dtype, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    reference = data.draw(hnp.arrays(dtype, size, elements=CHUNKED_ELEMENTS[dtype]))
    tested = reference.copy()
    for i in data.draw(st.lists(st.integers(0, size - 1), max_size=3)):
        tested[i] = data.draw(CHUNKED_ELEMENTS[dtype])
    whole = measure(tested, reference, off_bound=1e-4)
    chunked = measure(tested, reference, off_bound=1e-4, chunk_elements=data.draw(st.integers(1, 5)))
    assert chunked.cosine == pytest.approx(whole.cosine, abs=1e-14, nan_ok=True)
    for name in Metrics.__dataclass_fields__:
        if name != "cosine":
            assert repr(getattr(chunked, name)) == repr(getattr(whole, name)), name


def test_cosine_counts_equal_chunks_too() -> None:
    tested, reference = [3.0, 4.0, 0.0, 1.0], [3.0, 4.0, 1.0, 0.0]
    assert metrics_of(tested, reference, chunk_elements=2).cosine == pytest.approx(25 / 26, abs=1e-15)


def test_nothing_is_summed_where_both_sides_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = np.random.default_rng(5).standard_normal(1000)
    monkeypatch.delattr(measurement, "inner")
    assert measure(reference.astype(np.float32), reference, off_bound=1e-4, chunk_elements=64).cosine == 1


def test_the_first_of_equal_errors_is_named_across_chunks() -> None:
    metrics = metrics_of([1.0, 2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 1.0], chunk_elements=1)
    assert metrics.worst is not None
    assert metrics.worst.index == (1,)


def test_a_rounded_reference_is_chunked_too() -> None:
    reference = np.linspace(-3, 3, 1001)
    tested = reference.astype(np.float16)
    tested[700] += np.float16(0.5)
    whole = measure(tested, reference, off_bound=1e-4)
    assert whole.off_count == 1
    chunked = measure(tested, reference, off_bound=1e-4, chunk_elements=64)
    assert (chunked.worst, chunked.off_count, chunked.max_ulp) == (whole.worst, 1, whole.max_ulp)


def test_inputs_are_left_alone() -> None:
    tested, reference = np.array([NAN, 1.0, 0.0]), np.array([2.0, 0.0, 0.0])
    before = tested.tobytes(), reference.tobytes()
    measure(tested, reference, off_bound=1e-4)
    assert (tested.tobytes(), reference.tobytes()) == before
    tested.setflags(write=False)
    reference.setflags(write=False)
    assert measure(tested, reference, off_bound=1e-4).nonfinite_mismatches == 1
