"""How two calls of one operation differ in their arguments."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.suites.comparison.operations import OperationComparison
from pytest_msprobe.suites.comparison.values import ValueComparison

Differences: TypeAlias = tuple[ArgumentDifference, ...]
Number: TypeAlias = int | float | None
#: Of the target and of the golden run.
Numbers: TypeAlias = tuple[Number, Number]

#: Name of the difference where the two sides call different APIs.
OTHER_API = "api"
#: Of two calls of dropout that are alike and drop other elements.
OTHER_ELEMENTS = (ArgumentDifference("other elements are dropped (compare seeds)"),)


def other_arguments(compared: OperationComparison) -> Differences:
    """Arguments that one side has otherwise or alone, of which no values of tensors are compared."""
    values = filter(_is_other, compared.values)
    return tuple(ArgumentDifference(value.path, _text(value.target), _text(value.golden)) for value in values)


def _is_other(value: ValueComparison) -> bool:
    target, golden = value.target, value.golden
    if value.is_output or value.path.startswith("parameters."):
        return False
    if target is None or golden is None:
        leaf = target or golden
        return value.status == "unmatched" and leaf is not None and not leaf.is_none
    return value.status == "error" and (target.tensor is None or golden.tensor is None)


def _text(leaf: Leaf | None) -> str:
    if leaf is None or leaf.is_none:
        return ""
    return "tensor" if leaf.is_tensor else str(leaf.statistics[0])


def numbers_given(compared: OperationComparison) -> tuple[Numbers, ...]:
    """The numbers that an operation gives differently, as a count and `item` do."""
    pairs = ((_given(value.target), _given(value.golden)) for value in compared.values if value.is_output)
    return tuple(pair for pair in pairs if None not in pair and pair[0] != pair[1])


def numbers_taken(compared: OperationComparison) -> tuple[Numbers, ...]:
    """The numbers that an operation gets otherwise; () where it gets something else otherwise."""
    taken: list[Numbers] = []
    for value in filter(_is_other, compared.values):
        target, golden = _parts(value.target), _parts(value.golden)
        if not target or len(target) != len(golden):
            return ()
        taken += [pair for pair in zip(target, golden) if pair[0] != pair[1]]
    return tuple(taken)


def _given(leaf: Leaf | None) -> Number:
    """The number in a tensor of one element, or the number that a call returns; None of all else."""
    if leaf is None:
        return None
    number = leaf.statistics[0] if leaf.tensor is None or math.prod(leaf.shape) == 1 else None
    return number if type(number) in (int, float) else None


def _parts(leaf: Leaf | None) -> tuple[Number, ...]:
    """A number, or those of a slice; () of any other value."""
    if leaf is None:
        return ()
    value: Any = leaf.value
    parts = (value.start, value.stop, value.step) if isinstance(value, slice) else (value,)
    return parts if {type(part) for part in parts} <= {int, float, type(None)} else ()


def listed_differences(differences: Differences) -> str:
    """The differences in words: `kwargs.is_causal True against none`."""
    return ", ".join(map(_in_words, differences))


def _in_words(difference: ArgumentDifference) -> str:
    if not (difference.target or difference.golden):
        return difference.name
    sides = f"{difference.target or 'none'} against {difference.golden or 'none'}"
    return sides if difference.name == OTHER_API else f"{difference.name} {sides}"


def numbers_of(difference: ArgumentDifference) -> tuple[float, float] | None:
    """Both sides as numbers; None where one is none."""
    try:
        return float(difference.target), float(difference.golden)
    except ValueError:
        return None


def is_of_sizes(difference: ArgumentDifference) -> bool:
    """Whether both sides are numbers without a sign, as sizes are."""
    return difference.target.isdecimal() and difference.golden.isdecimal()
