"""Whether gradients are fresh, from small arrays: what passes gave, and what the steps got."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from msprobe_laws.law import Unchecked
from msprobe_laws.observation import Array, Content, TensorPlace, Update, UpdatedParameter
from msprobe_laws.suite.freshness import Passes, fresh, mean_of

FIRST, SECOND, OLD = np.random.default_rng(7).normal(size=(3, 40)).astype(np.float32).astype(np.float64)


def step(**gradients: Array) -> Update:
    content = Content(np.empty(0), TensorPlace(0, "float32"))
    parameters = [
        UpdatedParameter(name, 0, content, content, gradient, "float32") for name, gradient in gradients.items()
    ]
    return Update("SGD", "SGD", ({},), parameters, 1)


def rounded(array: Array) -> Array:
    return np.float32(array).astype(np.float64)


def judged(gradient: Array, given: Sequence[Array | None], **rest: object) -> str:
    found = fresh(step(w=gradient), step(w=OLD), lambda name: [Passes(given, dtypes=("float32",), **rest)])  # type: ignore[arg-type]
    return "unchecked" if isinstance(found, Unchecked) else "stale" if found else "fresh"


@pytest.mark.parametrize(
    ("gradient", "given", "expected"),
    [
        (FIRST, [FIRST], "fresh"),
        (rounded(FIRST + SECOND), [FIRST, SECOND], "fresh"),  # accumulated
        (SECOND, [FIRST, SECOND], "fresh"),  # set to zero in between
        (rounded(0.37 * FIRST), [FIRST], "fresh"),  # clipped
        (FIRST / 1024, [FIRST], "fresh"),  # a scale was taken out
        (0 * FIRST, [FIRST], "fresh"),
        (rounded(FIRST + OLD), [FIRST], "stale"),
        (rounded(FIRST + SECOND + OLD), [FIRST, SECOND], "stale"),
        (rounded(0.37 * (FIRST + OLD)), [FIRST], "stale"),
        (OLD, [0 * OLD], "stale"),
        (rounded(FIRST + 0.5 * OLD), [FIRST], "unchecked"),  # an average that the script keeps
        (np.clip(FIRST, -0.1, 0.1), [FIRST], "unchecked"),
        (FIRST, [None], "unchecked"),
        (FIRST, [FIRST[:10]], "unchecked"),
        (FIRST, [FIRST * np.inf], "unchecked"),
        (FIRST, [], "unchecked"),
        (2 * OLD, [OLD], "stale"),  # gradients that are alike from step to step
    ],
)
def test_what_a_step_gets_is_a_sum_of_what_passes_gave(
    gradient: Array, given: Sequence[Array | None], expected: str
) -> None:
    assert judged(gradient, given) == expected


def test_records_behind_the_step_may_belong_to_it() -> None:
    assert judged(rounded(FIRST + SECOND), [FIRST], late=[SECOND, OLD]) == "fresh"
    assert judged(rounded(FIRST + SECOND + OLD), [FIRST], late=[SECOND]) == "stale"


def test_what_no_pass_reached_holds_the_gradient_of_the_step_before_only_where_passes_are_seen() -> None:
    assert judged(OLD, [], had_some=True) == "stale"
    assert judged(OLD, []) == "unchecked"


@pytest.mark.parametrize(("stale", "count"), [(0.0, 0), (1.0, 1)])
def test_data_parallelism_averages_what_the_passes_of_ranks_gave(stale: float, count: int) -> None:
    ranks = [Passes([FIRST], dtypes=("float32",)), Passes([SECOND], dtypes=("float32",))]
    mean = mean_of(ranks)
    assert mean is not None
    found = fresh(step(w=rounded((FIRST + SECOND) / 2 + stale * OLD)), step(w=OLD), lambda name: [ranks[0], mean])
    assert isinstance(found, list)
    assert len(found) == count
    assert mean_of([ranks[0], Passes([])]) is None


@pytest.mark.parametrize(("factor", "tells_alone"), [(1.0, True), (0.25, False)])
def test_a_parameter_of_one_element_is_what_the_others_are(factor: float, tells_alone: bool) -> None:
    """One element fits any factor."""
    old = {"w": OLD, "b": OLD[:1]}
    given = {"w": FIRST, "b": FIRST[:1]}
    clean = step(**{name: rounded(factor * given[name]) for name in given})
    wrong = step(**{name: rounded(factor * (given[name] + old[name])) for name in given})
    passes = {name: [Passes([array], dtypes=("float32",))] for name, array in given.items()}
    assert fresh(clean, step(**old), passes.__getitem__) == []
    found = fresh(wrong, step(**old), passes.__getitem__)
    assert isinstance(found, list)
    assert [finding.parameter for finding in found] == ["w", "b"]
    assert all(finding.size is not None and 1e3 < finding.size < 1e7 for finding in found)
    alone = fresh(step(b=clean.parameters[1].gradient), step(b=OLD[:1]), passes.__getitem__)  # type: ignore[arg-type]
    assert isinstance(alone, Unchecked) != tells_alone
