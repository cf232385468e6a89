"""What the suite `repeat` can be asked to do, and its defaults."""

from __future__ import annotations

from pytest_msprobe.suites.options import DATA_DIR, DEVICE_OPTIONS, MAX_MEMORY, SEED, Option

_MOST_RUNS = 100_000


def _runs(text: str) -> int:
    if not text.strip().isdecimal() or not 2 <= int(text) <= _MOST_RUNS:
        raise ValueError(f"{text!r} is not a number of runs from 2 to {_MOST_RUNS}")
    return int(text)


OPTIONS = (
    *DEVICE_OPTIONS,
    SEED,
    MAX_MEMORY,
    DATA_DIR,
    Option("repeat", "K", "repeat: run every API call K times on the same inputs", "10", _runs),
)
