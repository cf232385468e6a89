"""What a setting may be: each function gives the value that a text stands for, or a ValueError that says why not."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pytest_msprobe.devices import parse_devices

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DEFAULT_MEMORY_SHARE = 0.8


def size(text: str) -> int:
    """Bytes, from a number with a unit."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match["number"]) == 0:
        raise ValueError(f"{text!r} is no size; use a number with KB, MB, GB or TB, such as 16GB")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def memory(text: str) -> int:
    """Bytes; `auto` is a share of this machine's memory."""
    if text == "auto":
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _DEFAULT_MEMORY_SHARE)
    return size(text)


def timeout(text: str) -> float | None:
    """Seconds, 0 for no limit, None for `auto`."""
    if text == "auto":
        return None
    value = number(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is no number of seconds from 0 on, nor auto")
    return value


def shard(text: str) -> tuple[int, int] | None:
    """(number, count) of `2/8`; None for `all`."""
    if text == "all":
        return None
    first, _, last = text.partition("/")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 10_000):
        raise ValueError(f"{text!r} is no part; write 2/8 for the second of eight")
    return int(first), int(last)


def optional_path(text: str) -> Path | None:
    """An absolute path, or None for none."""
    return Path(os.path.abspath(text)) if text else None


def new_file(text: str) -> Path | None:
    """An absolute path that is no folder, or None for none."""
    path = optional_path(text)
    if path is not None and path.is_dir():
        raise ValueError(f"{text!r} is a folder; name a file that does not exist yet")
    return path


def switch(text: str) -> bool:
    """Whether something is on."""
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("", "false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def error_data_folder(text: str) -> Path | None:
    """A folder; None for the default one."""
    return None if text == "error_data in --msprobe-out" else optional_path(text)


def devices(text: str) -> tuple[str, ...]:
    """Ids of devices; empty for all that are visible."""
    return () if text == "all visible" else parse_devices(text)


def seed(text: str) -> int:
    """A whole number from 0 on."""
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is no whole number from 0 on")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number from 1 on")
    return int(text)


def cosine(text: str) -> float:
    """A bound from -1 up to, but not, 1."""
    value = number(text)
    if not -1 <= value < 1:
        raise ValueError(f"{text!r} is no cosine bound; use a number from -1 up to, but not, 1")
    return value


def positive(text: str) -> float:
    """A finite number above 0."""
    value = number(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not above 0")
    return value


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def html_passes(text: str) -> str:
    """What becomes of passes on the HTML page."""
    if text not in ("fold", "omit", "show"):
        raise ValueError(f"{text!r} is none of fold, omit, show")
    return text


def interpreter(text: str) -> str | None:
    """An executable file, or None for none."""
    if text and not os.access(text, os.X_OK):
        raise ValueError(f"{text!r} is no executable file; give the path of a Python interpreter")
    return text or None
