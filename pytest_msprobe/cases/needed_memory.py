"""What checking an API call may need in memory, from its records alone: nothing is allocated before it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isnan, prod

from msprobe_collector.dump_format import ApiName, PlainValue, TensorValue, Value, tensors_in
from pytest_msprobe.apis import facts

#: Per element: float64 on both sides, and a gradient.
_BYTES_BESIDE = 3 * 8
#: A tensor of no recorded dtype.
_BYTES = 8


def needed_bytes(values: Value) -> int:
    """Memory in bytes that checking tensors like `values` takes at most: a copy, float64 twice, and a gradient."""
    return sum(
        value.size * ((value.dtype.item_bytes if value.dtype else _BYTES) + _BYTES_BESIDE)
        for value in tensors_in(values)
    )


def bytes_of_outputs(api: ApiName, framework: str, arguments: Sequence[Value], keywords: dict[str, Value]) -> float:
    """Memory in bytes that the outputs of a call take at most where its arguments decide; 0 where its tensors do."""
    fact = facts("output_sizes").of(api, framework)
    if fact is None:
        return 0
    given = (*arguments, *keywords.values())
    return _elements(fact.text, given) * (_BYTES + _BYTES_BESIDE)


def _elements(rule: str, given: Sequence[Value]) -> float:
    numbers = [number for value in given for number in _numbers(value)]
    whole = [abs(number) for number in numbers if isinstance(number, int)]
    first = next(([*_numbers(value)] for value in given if isinstance(value, tuple)), None)
    largest = max((tensor for value in given for tensor in tensors_in(value)), key=lambda one: one.size, default=None)
    if rule == "shape":
        return prod(abs(number) for number in (first if first is not None else whole) if isinstance(number, int))
    if rule == "steps":
        return whole[-1] if whole else 0
    if rule == "square":
        return prod(whole[:2]) if len(whole) > 1 else prod(whole) ** 2
    if rule == "times":
        # A number may also be a dimension: 0 is not a factor.
        return (largest.size if largest is not None else 1) * prod(max(1, number) for number in whole)
    if rule == "padded":
        return _padded(largest, [abs(number) for number in first or ()])
    return _range(numbers)


def _padded(tensor: TensorValue | None, pads: Sequence[float]) -> float:
    if tensor is None:
        return 0
    sizes: list[float] = list(tensor.shape[::-1])
    for place, pad in enumerate(pads):
        if place // 2 < len(sizes):
            sizes[place // 2] += pad
    return prod(sizes)


def _range(numbers: Sequence[float]) -> float:
    start, end, step = (0, *numbers, 1) if len(numbers) == 1 else (*numbers, 1)[:3] if numbers else (0, 0, 1)
    return abs(end - start) / abs(step) if step else inf


def _numbers(value: Value) -> Iterator[float]:
    """The numbers in a value, NaN and bool left out."""
    if isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, PlainValue):
        number = value.value
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not isnan(number):
            yield number
