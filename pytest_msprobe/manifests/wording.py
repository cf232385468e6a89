"""Values, names and numbers of a manifest in words: short, printable, whatever stands in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msprobe_collector.dump_format.values import printable

_MOST_CHARACTERS, _MOST_ITEMS, _MOST_NAMES = 60, 8, 3


def shown(value: object) -> str:
    """A value in one line of at most about 60 characters; numbers as Python writes them."""
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        if abs(value) < 10**20:
            return str(value)
        return f"{value:.3g}" if abs(value) < 10**300 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        items = [shown(item) for item in value[:_MOST_ITEMS]]
        more = [f"... {len(value) - _MOST_ITEMS} more"] if len(value) > _MOST_ITEMS else []
        return cut(f"[{', '.join([*items, *more])}]", 120)
    if isinstance(value, dict):
        items = [f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:_MOST_ITEMS]]
        return cut(f"{{{', '.join(items)}}}", 120)
    return type(value).__name__


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text` with escapes for what is not printable, and cut where it is longer than `most` characters."""
    short = printable(text[: most + 1])
    return short if len(text) <= most else f"{short[: most - 3]}..."


def names(found: Iterable[str], most: int = _MOST_NAMES) -> str:
    """`a, b, c and 4 more`."""
    every = list(found)
    listed = ", ".join(cut(name) for name in every[:most])
    return f"{listed} and {len(every) - most} more" if len(every) > most else listed


def switched(value: object) -> str:
    """A switch: on, off, or its value."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else shown(value) or "not set"


def numbers(found: Iterable[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(set(found)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def last_name(kind: str) -> str:
    """`AdamW` of `torch.optim.adamw.AdamW`."""
    return cut(kind.rpartition(".")[2]) or "unknown"


def together(found: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
