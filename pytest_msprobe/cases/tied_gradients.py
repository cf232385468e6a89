"""Gradients that may stand in several places: of selections (max, topk, ...) under ties, and of equal shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_msprobe.apis.outputs import index_output
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.index_outputs import selection, tested_indices
from pytest_msprobe.engines.gradient_pairing import best_order
from pytest_msprobe.engines.protocol import Array, Output
from pytest_msprobe.numerics.indices import scatter_by_index

_SOURCE_PATHS = (("input", 0), ("kwargs", "input"))


def follow_tested_indices(
    case: Case,
    reference: tuple[Array | None, ...],
    incoming: Sequence[Array | None],
    outputs: Callable[[], Sequence[Output] | None],
) -> tuple[Array | None, ...]:
    """The benchmark's gradients, that of the source replaced by `incoming` scattered to the tested indices.

    The forward judges the indices; if they are right, so is this gradient, also where the benchmark chose another of
    equal values. As it is where the call selects nothing, or its tested `outputs`, which are only asked for here, are
    not known.
    """
    described = index_output(case.api)
    if described is None or described.values_position is None or not incoming or incoming[0] is None:
        return reference
    tested = outputs() or ()
    chosen, indices = selection(case.call, tested), tested_indices(tested, described)
    if chosen is None or indices is None:
        return reference
    scattered = scatter_by_index(chosen.flattened(incoming[0]), chosen.source, chosen.flattened(indices), chosen.axis)
    if scattered is None:
        return reference
    return tuple(
        scattered.reshape(gradient.shape)
        if gradient is not None and path in _SOURCE_PATHS and gradient.size == scattered.size
        else gradient
        for path, gradient in zip(case.wanted, reference)
    )


def in_best_order(
    case: Case, tested: tuple[Array | None, ...], reference: tuple[Array | None, ...]
) -> tuple[Array | None, ...]:
    """`tested` with the gradients that nothing but their values tells apart put where they fit best."""
    ordered = list(tested)
    for group in case.pairing.interchangeable:
        places = [index for index, path in enumerate(case.wanted) if path in group and tested[index] is not None]
        found = [array for index in places if (array := tested[index]) is not None]
        expected = [array for index in places if (array := reference[index]) is not None]
        if len(found) == len(expected):
            for place, chosen in zip(places, best_order(found, expected)):
                ordered[place] = found[chosen]
    return tuple(ordered)
