"""What the errors of records against an exact run amount to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_msprobe.suites.comparison.exact import Pair, RecordErrors, exact_of

SINGLE, HALF = 2.0**-24, 2.0**-8


def errors(order: int, target: float, golden: float, *, units: Pair = (SINGLE, SINGLE)) -> RecordErrors:
    names = {SINGLE: "float32", HALF: "bfloat16"}
    dtypes = names[units[0]], names[units[1]]
    record = f"Torch.exp.{order}.forward"
    return RecordErrors(record, order, dtypes, units, path="output.0", errors=(target, golden), values=1)


NEAR = [errors(0, 0.5, 0.6), errors(1, 2.0, 3.0), errors(2, 5.0, 4.0)]


def test_the_farthest_of_near_values_is_shown() -> None:
    exact = exact_of(NEAR)
    assert (exact.kind, exact.farther, exact.judged) == ("near", "", 3)
    assert (exact.record, exact.target, exact.golden) == ("Torch.exp.2.forward", 5.0, 4.0)


def test_the_first_record_at_which_a_run_leaves_counts_in_any_order_of_rows() -> None:
    first, later = (replace(errors(order, 1.0, 900.0), leaves="golden") for order in (3, 4))
    exact = exact_of([later, *NEAR, first])
    assert (exact.kind, exact.farther, exact.record) == ("left", "golden", "Torch.exp.3.forward")


@pytest.mark.parametrize(("target", "kind"), [(7.0, "near"), (90.0, "drifted")])
def test_a_run_that_is_many_times_farther_off_has_drifted(target: float, kind: str) -> None:
    exact = exact_of([*NEAR, errors(3, target, 4.0), errors(4, 2 * target, 4.0)])
    assert exact.kind == kind
    assert kind == "near" or (exact.farther, exact.record) == ("target", "Torch.exp.3.forward")


def test_a_finer_dtype_has_more_roundings_and_is_nearer() -> None:
    exact = exact_of([errors(0, 2.0, 1000.0, units=(HALF, SINGLE))])
    assert (exact.kind, exact.target_dtype, exact.golden_dtype) == ("alike", "bfloat16", "float32")


def test_values_that_lose_all_digits_show_nothing_of_the_other_run() -> None:
    assert exact_of([*NEAR, errors(3, 200.0, 1e6, units=(HALF, SINGLE))]).kind == "near"
    assert exact_of([errors(0, 1e8, 1e3)]).kind == "nothing"


def test_both_leave_it_where_what_follows_stays_far_off() -> None:
    leaving = replace(errors(3, 1e6, 1e6), leaves="both")
    far = [errors(order, 1e6, 1e6) for order in (4, 5, 6)]
    exact = exact_of([*NEAR, leaving, *far])
    assert (exact.kind, exact.farther, exact.judged) == ("together", "both", 3)
    back = [errors(order, 2.0, 3.0) for order in (4, 5, 6)]
    assert exact_of([*NEAR, leaving, *back]).kind == "alike"


def test_another_input_is_what_follows_from_it() -> None:
    of_both = replace(errors(0, float("inf"), float("inf")), values=0, other_input="both")
    exact = exact_of([of_both, *(replace(errors(order, 1e7, 1e7), leaves="both") for order in (1, 2))])
    assert (exact.kind, exact.farther, exact.judged, exact.target) == ("other input", "both", 0, None)
    of_one = replace(of_both, other_input="golden")
    assert exact_of([of_one, *(errors(order, 1.0, 1e6) for order in (1, 2, 3))]).farther == "golden"
    assert exact_of([of_one, *NEAR[1:]]).kind == "near", "it has no effect"


def test_what_an_optimizer_makes_is_left_out() -> None:
    update = replace(errors(3, 1e6, 1.0), leaves="target", is_update=True)
    assert exact_of([*NEAR, update]).kind == "near"
    assert exact_of([update]).kind == "nothing"
