from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_msprobe.numerics.judgement import CosineMaxAbs, Standard, unforgivable_reasons
from pytest_msprobe.numerics.measurement import Metrics, measure

STANDARD = CosineMaxAbs()


def floats(cosine: float, max_abs: float) -> Metrics:
    return Metrics("float", 4, cosine=cosine, max_abs=max_abs)


def test_the_default_rule_is_the_documented_one() -> None:
    standard: Standard = STANDARD
    assert (standard.name, STANDARD.cosine, STANDARD.max_abs, standard.off_bound) == ("cosine-maxabs", 0.99, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("cosine", "max_abs", "status"),
    [
        (1.0, 0.0, "pass"),
        (math.nextafter(0.99, 1), math.nextafter(1e-4, 0), "pass"),
        (0.99, 0.0, "error"),
        (1.0, 1e-4, "error"),
        (0.5, 1.0, "error"),
        (1.0, math.inf, "error"),
        (-1.0, 0.0, "error"),
        (math.nan, 0.0, "error"),
    ],
)
def test_both_limits_are_strict(cosine: float, max_abs: float, status: str) -> None:
    judgement = STANDARD.judge(floats(cosine, max_abs))
    assert judgement.status == status
    assert judgement.is_pass == (status == "pass")
    assert bool(judgement.reasons) == (status == "error")


def test_reasons_name_measured_value_limit_and_the_limit_that_would_pass() -> None:
    assert STANDARD.judge(floats(0.971236, 0.00123456)).reasons == (
        "Cosine 0.971236 is not above 0.99; a limit of 0.9712 would pass.",
        "Max absolute error 0.00123456 is not below 0.0001; a limit of 0.00124 would pass.",
    )


def test_no_limit_is_offered_where_none_would_pass() -> None:
    judgement = STANDARD.judge(floats(-1.0, math.inf))
    assert judgement.reasons == (
        "Cosine -1 is not above 0.99.",
        "Max absolute error inf is not below 0.0001.",
    )


def test_a_measured_value_close_to_its_limit_is_written_out() -> None:
    reason = STANDARD.judge(floats(1.0, 1e-4 + 1e-12)).reasons[0]
    assert "0.000100000001" in reason
    assert STANDARD.judge(floats(0.99, 0.0)).reasons[0].startswith("Cosine 0.99 is not above 0.99;")


@given(cosine=st.floats(-0.999, 0.98), max_abs=st.floats(1e-3, 1e30))
def test_the_limits_written_in_the_reasons_would_have_passed(cosine: float, max_abs: float) -> None:
    reasons = STANDARD.judge(floats(cosine, max_abs)).reasons
    written = [float(reason.split("a limit of ")[1].split(" would")[0]) for reason in reasons]
    assert CosineMaxAbs(cosine=written[0], max_abs=written[1]).judge(floats(cosine, max_abs)).is_pass
    assert written[1] <= max_abs * 1.011


def test_structural_mismatch_is_the_only_reason() -> None:
    metrics = measure(np.zeros((2, 3)), np.zeros((3, 2)), off_bound=1e-4)
    judgement = STANDARD.judge(metrics)
    assert judgement.reasons == ("Shapes differ: tested (2, 3), benchmark (3, 2).",)
    assert judgement.status == "error"


def test_no_limit_forgives_an_unmatched_nan() -> None:
    lenient = CosineMaxAbs(cosine=-1, max_abs=math.inf)
    judgement = lenient.judge(measure(np.array([[1.0, math.nan]]), np.array([[1.0, 2.0]]), off_bound=1))
    assert judgement.status == "error"
    assert judgement.reasons == (
        "1 of 2 elements has a NaN or Inf that the other side lacks, first at [0, 1] (tested nan, benchmark 2.0).",
    )


def test_no_limit_forgives_an_unequal_integer() -> None:
    lenient = CosineMaxAbs(cosine=-1, max_abs=math.inf)
    tested, reference = np.array([2**53 + 1, 5, 7]), np.array([2**53, 5, 6])
    judgement = lenient.judge(measure(tested, reference, off_bound=1))
    assert judgement.reasons == (
        "2 of 3 elements differ, first at [0] (tested 9007199254740993, benchmark 9007199254740992).",
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_equal_and_empty_outputs_pass(dtype: type) -> None:
    for array in (np.zeros((2, 0), dtype), np.ones(3, dtype)):
        judgement = STANDARD.judge(measure(array, array, off_bound=1e-4))
        assert (judgement.status, judgement.reasons) == ("pass", ())


def test_empty_outputs_of_differing_shape_fail() -> None:
    assert not STANDARD.judge(measure(np.zeros((2, 0)), np.zeros((3, 0)), off_bound=1e-4)).is_pass


@pytest.mark.parametrize("tested", [-1e-7, 0.0])
def test_tiny_outputs_cannot_pass_by_being_tiny(tested: float) -> None:
    """W4: with 1e-8 in the formula of the cosine, opposite and lost tiny outputs score above 0.99."""
    metrics = measure(np.full(4, tested), np.full(4, 1e-7), off_bound=1e-4)
    assert STANDARD.judge(metrics).reasons[0].startswith("Cosine")


def test_a_zero_benchmark_does_not_score_one() -> None:
    assert not STANDARD.judge(measure(np.full(4, 1e-6), np.zeros(4), off_bound=1e-4)).is_pass


def test_equal_nan_and_inf_places_pass() -> None:
    """W5: the peer judges these an error."""
    values = np.array([math.nan, math.inf, 1.0])
    assert STANDARD.judge(measure(values.copy(), values, off_bound=1e-4)).is_pass


def test_unmet_notes_reach_the_reasons() -> None:
    metrics = Metrics("int", 4, unequal_count=1, unequal_note="because")
    assert unforgivable_reasons(metrics) == ("1 of 4 elements differs, first (because).",)


@pytest.mark.parametrize("limits", [{"cosine": 1.0}, {"cosine": -1.5}, {"cosine": math.nan}])
def test_cosine_limits_that_mean_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cosine limit of cosine-maxabs"):
        CosineMaxAbs(**limits)


@pytest.mark.parametrize("limits", [{"max_abs": 0.0}, {"max_abs": -1e-4}, {"max_abs": math.nan}])
def test_max_abs_limits_that_mean_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="max_abs limit of cosine-maxabs"):
        CosineMaxAbs(**limits)
