"""Whether a device computes the same bytes every time, and whether all devices compute the same."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import DeviceOptions, InputOptions, flag, option

_MOST_RUNS = 100_000


def _runs(text: str) -> int:
    if not text.strip().isdecimal() or not 2 <= int(text) <= _MOST_RUNS:
        raise ValueError(f"{text!r} is not a number of runs from 2 to {_MOST_RUNS}")
    return int(text)


@dataclass(frozen=True)
class RepeatSettings(InputOptions, DeviceOptions):
    """What runs how often, on which inputs and devices."""

    batch: bool = flag(
        "run each call with other batches as well: rows alone, halved, doubled, in other order", is_common=True
    )
    runs: int = option(
        "K",
        "run every API call K times on the same inputs",
        _runs,
        "10",
        name="repeat_runs",
        is_common=True,
    )


ENTRY = SuiteEntry(
    "repeat",
    "is each result the same every time",
    RepeatSettings.declared(),
    "pytest_msprobe.suites.repeat.suite:RepeatSuite",
)
