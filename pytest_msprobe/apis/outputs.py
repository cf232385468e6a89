"""Outputs that are not judged element by element as they stand: indices, and values in an open order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.fact_table import Topic, facts
from pytest_msprobe.apis.signature import read_terms

#: Behind all arguments: for APIs whose axis no argument gives.
_NOWHERE = 99


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """An output that selects from the first argument.

    Attributes:
        position: which output holds the indices.
        axis_position: positional argument that gives the axis, counted with the tensor as 0.
        default_axis: axis when the call gives none; None means the flattened tensor.
        is_selection: True when one line of the indices may not name an element twice (topk, sort).
        values_position: which output holds the values that the indices must select; None without one.
        flattened_axes: trailing axes of source and indices that count as one, as in pooling; 0 for none.
        stable_position: positional argument `stable`; None for APIs that do not promise the order of equals.
    """

    position: int = 0
    axis_position: int = _NOWHERE
    default_axis: int | None = None
    is_selection: bool = False
    values_position: int | None = 0
    flattened_axes: int = 0
    stable_position: int | None = None


def index_output(api: ApiName) -> IndexOutput | None:
    """Which output of `api` is indices into its first argument, or None."""
    found = _keywords("index_outputs", api)
    return None if found is None else IndexOutput(**found)


def sorted_position(api: ApiName) -> int | None:
    """Positional argument `sorted` of an API that may leave the order of its outputs open, or None."""
    found = _keywords("open_order", api)
    return None if found is None else int(found["position"])


def _keywords(topic: Topic, api: ApiName) -> Mapping[str, Any] | None:
    fact = facts(topic).of(api)
    return None if fact is None or fact.reason else read_terms(fact.text)[0].keywords
