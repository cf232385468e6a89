"""Where NaN and Inf first appear: each record of a dump classified, origins computed again, the first one named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import BenchOptions, InputOptions, existing_file, flag, one_of, option


def _fails(text: str) -> bool:
    return one_of("fail", "skip")(text) == "fail"


@dataclass(frozen=True)
class OverflowSettings(InputOptions, BenchOptions):
    """How origins are computed again, and how strict the verdicts are."""

    fails_reproduced: bool = flag(
        "fail operations that make NaN or Inf of finite inputs also where the CPU makes them too, which pass otherwise",
        name="overflow_fail_reproduced",
    )
    fails_undecided: bool = option(
        "fail|skip",
        "fail or skip operations that make NaN or Inf of finite inputs where the CPU cannot compute them again",
        _fails,
        "fail",
        name="overflow_undecided",
    )
    rules: Path | None = option(
        "FILE",
        "YAML file with further outputs that hold uninitialised memory, whose NaN and Inf do not count",
        existing_file("rules in YAML"),
        name="overflow_rules",
        is_path=True,
    )


ENTRY = SuiteEntry(
    "overflow",
    "where do NaN and Inf begin",
    OverflowSettings.declared(),
    "pytest_msprobe.suites.overflow.suite:OverflowSuite",
)
