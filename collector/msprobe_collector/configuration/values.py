"""What a key's value may be: each function gives the meaning of a JSON value, or a ValueError that says why not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)

#: Statistics of the kernel dump, as config.json names them.
CATEGORIES = (
    "max",
    "min",
    "mean",
    "l2norm",
    "count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "negative zero count",
    "positive zero count",
    "hash",
    "md5",
)


def one_of(*allowed: str) -> Callable[[object], str]:
    """A function that gives one of the texts `allowed`."""

    def parse(value: object) -> str:
        """The text as it is.

        Raises:
            ValueError: it is not one of `allowed`.
        """
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
        return value

    return parse


def boolean(value: object) -> bool:
    """True or false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def path(value: object) -> str:
    """A path as text.

    Raises:
        ValueError: it is not text, is blank, or holds a NUL.
    """
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Texts of a list, none of them empty.

    Raises:
        ValueError: it is not such a list.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"{value!r} is not a list of names")
    return tuple(value)


def parameter_names(value: object) -> tuple[str, ...]:
    """Names of parameters.

    Raises:
        ValueError: it is not a list of names, or one holds other characters than letters, digits, `_` and `.`.
    """
    names = texts(value)
    for name in names:
        if _PARAMETER_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a parameter name: letters, digits, '_' and '.' are allowed")
    return names


def summary_mode(value: object) -> str | tuple[str, ...]:
    """`statistics`, `md5` or `fingerprint`, or, for level L2, a list of statistics.

    Raises:
        ValueError: it is none of them, an empty list, or a list with something else than a statistic.
    """
    if isinstance(value, list):
        wrong = [item for item in value if item not in CATEGORIES]
        if wrong or not value:
            raise ValueError(f"{(wrong or [value])[0]!r} is not a statistic; known are {', '.join(CATEGORIES)}")
        return tuple(value)
    if value not in ("statistics", "md5", "fingerprint"):
        raise ValueError(f"{value!r} is none of statistics, md5, fingerprint, nor, for level L2, a list of statistics")
    return str(value)


def seed(value: object) -> int:
    """A seed of 32 bits.

    Raises:
        ValueError: it is not a whole number from 0 to 2**32 - 1.
    """
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError(f"{value!r} is not a whole number from 0 to {2**32 - 1}")
    return value


def overflow_limit(value: object) -> int | None:
    """Most records to collect; None for -1 (no limit).

    Raises:
        ValueError: it is neither -1 nor a whole number from 1 on.
    """
    if type(value) is not int or (value < 1 and value != -1):
        raise ValueError(f"{value!r} is not a whole number from 1 on, nor -1 for no limit")
    return None if value == -1 else value


def bounds(value: object) -> tuple[float, ...]:
    """Strictly ascending finite numbers within int64.

    Raises:
        ValueError: it is not a list of numbers, one lies outside of int64 or is not finite, or they do not ascend.
    """
    if not isinstance(value, list) or not value or not all(type(item) in (int, float) for item in value):
        raise ValueError(f"{value!r} is not a list of numbers, such as [-1, 0, 1]")
    if not all(math.isfinite(item) and -(2**63) <= item < 2**63 for item in value):
        raise ValueError(f"{value!r} leaves the range of int64")
    if any(left >= right for left, right in pairwise(value)):
        raise ValueError(f"{value!r} does not ascend strictly")
    return tuple(value)
