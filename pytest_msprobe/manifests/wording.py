"""Values, names and numbers of a manifest in words: short, printable, whatever stands in the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msprobe_collector.dump_format.values import first_of, printable
from pytest_msprobe.answers.words import listed_numbers

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
        items = list(map(shown, value[:_MOST_ITEMS]))
        if len(value) > _MOST_ITEMS:
            items.append(f"... {len(value) - _MOST_ITEMS} more")
        return cut(f"[{', '.join(items)}]", 120)
    if isinstance(value, dict):
        items = [f"{shown(key)}: {shown(item)}" for key, item in list(value.items())[:_MOST_ITEMS]]
        return cut(f"{{{', '.join(items)}}}", 120)
    return type(value).__name__


def shown_of(values: Mapping[str, object], key: str, otherwise: str) -> str:
    """The value of a key as `shown` has it, `otherwise` where there is none."""
    return shown(values[key]) if key in values else otherwise


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a value that should be a mapping; an empty one in place of anything else, as a file may hold."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items()}


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """`text` with escapes for what is not printable, and cut where it is longer than `most` characters."""
    short = printable(text[: most + 1])
    return short if len(text) <= most else f"{short[: most - 3]}..."


def names(listed: Iterable[str], most: int = _MOST_NAMES) -> str:
    """`a, b, c and 4 more`."""
    return first_of(list(map(cut, listed)), most)


def switched(value: object) -> str:
    """A switch: on, off, or its value."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return shown(value) or "not set"


def numbers(listed: Iterable[int]) -> str:
    """`0-3, 7`."""
    return listed_numbers(listed, "-")


def last_name(kind: str) -> str:
    """`AdamW` of `torch.optim.adamw.AdamW`."""
    return cut(kind.rpartition(".")[2]) or "unknown"


def together(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
