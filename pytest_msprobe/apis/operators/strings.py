"""Which strings a record may pass to an operator: `strings.txt` and its reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msprobe_collector.dump_format import find_dtype

_HEAD = re.compile(r"\[[\w, ]+\] (?P<words>.+)")
_EQUATION = re.compile(r"[A-Za-z.,\-> ]{1,200}")
_DTYPE = re.compile(r"(?:torch\.|mindspore\.)?[A-Za-z0-9_]+")


def refused_argument(operator: str, value: str) -> str | None:
    """Why the string `value` may not be passed to `operator`, the short name of an API, or None when it may."""
    words = _words().get(operator, frozenset())
    if value in words or any(is_one(value) for word, is_one in _KINDS.items() if word in words):
        return None
    shown = ascii(value if len(value) <= 80 else f"{value[:77]}...")
    allowed = f", which takes {', '.join(sorted(words))}" if words else ", which takes no string"
    return f"the string {shown} is not passed to {operator}{allowed}"


def _is_equation(text: str) -> bool:
    return _EQUATION.fullmatch(text) is not None


def _is_dtype(text: str) -> bool:
    return _DTYPE.fullmatch(text) is not None and find_dtype(text) is not None


_KINDS = {"<equation>": _is_equation, "<dtype>": _is_dtype}


@cache
def _words() -> Mapping[str, frozenset[str]]:
    """Allowed words by operator, read when the first string is met."""
    found: dict[str, frozenset[str]] = {}
    words: frozenset[str] = frozenset()
    for line in Path(__file__).with_name("strings.txt").read_text(encoding="utf-8").splitlines():
        if match := _HEAD.fullmatch(line):
            words = frozenset(match["words"].split())
        elif not line.startswith("#"):
            found.update({name: found.get(name, frozenset()) | words for name in line.split()})
    return found
