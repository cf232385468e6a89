"""Whether gradients arrive, from which of them are 0 in every element, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from msprobe_laws.law import Unchecked
from msprobe_laws.suite.freshness import arrive

ZERO, OTHER = {"gate": True, "head": False}, {"gate": False, "head": False}


@pytest.mark.parametrize(
    ("steps", "names", "when"),
    [
        ([ZERO], ("gate",), "in the only step"),
        ([ZERO, ZERO, ZERO], ("gate",), "in each of 3 steps"),
        ([ZERO, {"head": False}], ("gate",), "in each of 2 steps"),
        ([{"head": False}, ZERO, ZERO], ("gate",), "in each of 3 steps"),
        ([{"gate": True, "head": True}, ZERO], ("gate",), "in the only step"),
        ([ZERO, OTHER], (), ""),  # a weight behind it was 0 in the first step
        ([OTHER, ZERO, OTHER], (), ""),  # a schedule masked it
        ([OTHER], (), ""),
    ],
)
def test_a_gradient_of_zeros_in_each_step_is_named(
    steps: Sequence[Mapping[str, bool]], names: tuple[str, ...], when: str
) -> None:
    result = arrive(steps, lambda name: None)
    assert isinstance(result, Unchecked) == bool(names)
    if isinstance(result, Unchecked):
        assert (result.parameters, result.is_moot) == (names, False)
        assert when in result.reason


@pytest.mark.parametrize("steps", [[], [{}], [{"gate": True, "head": True}] * 2])
def test_where_no_gradient_is_known_but_zeros_nothing_is_open(steps: Sequence[Mapping[str, bool]]) -> None:
    result = arrive(steps, lambda name: None)
    assert isinstance(result, Unchecked)
    assert result.is_moot


@pytest.mark.parametrize(("ends", "names"), [((), ()), (("Tensor.softmax.0",), ("gate",))])
def test_a_zero_that_explains_the_gradient_leaves_nothing_open(ends: Sequence[str], names: tuple[str, ...]) -> None:
    result = arrive([ZERO], lambda name: ends)
    assert isinstance(result, Unchecked) == bool(names)
    if isinstance(result, Unchecked):
        assert result.parameters == names
        assert "; Tensor.softmax.0 gets another one" in result.reason
