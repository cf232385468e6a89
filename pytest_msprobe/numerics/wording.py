"""How numbers, places and values are written in messages."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

from pytest_msprobe.numerics.metrics import Element, Scalar

_DIGITS = 6
_ROUNDED_UP = Context(prec=3, rounding=ROUND_CEILING)
_LONGEST_VALUE = 60


def number(value: float, limit: float | None = None) -> str:
    """`value` in six digits, or in all of them where six would make it look equal to `limit`."""
    short = f"{value:.{_DIGITS}g}"
    is_blurred = limit is not None and value != limit and short == f"{limit:.{_DIGITS}g}"
    return repr(float(value)) if is_blurred else short


def limit_above(value: float) -> str:
    """The shortest limit that is not below `value`, in three digits: 0.00123456 gives 0.00124."""
    return f"{_ROUNDED_UP.create_decimal_from_float(value):g}"


def limit_below(value: float) -> str:
    """The shortest limit that is not above `value`; it keeps three digits of the distance from 1."""
    distance = _ROUNDED_UP.subtract(Decimal(1), Decimal(value))
    return f"{max(1 - distance, Decimal(-1)).normalize():f}"


def position(element: Element) -> str:
    """` at [1, 2]`; nothing for the only element of a 0-d array or a lone Python value."""
    return f" at {list(element.index)}" if element.index else ""


def values(element: Element) -> str:
    """Both values, so exact that they can be typed in again."""
    return f"tested {_value(element.tested)}, benchmark {_value(element.reference)}"


def share(count: int, size: int) -> str:
    """`3 of 8 elements (37.5 %)`."""
    return f"{count_of(count, size)} ({100 * count / size:.3g} %)"


def count_of(count: int, size: int) -> str:
    """`3 of 8 elements`."""
    return f"{count} of {size} element{'' if size == 1 else 's'}"


def _value(value: Scalar) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
