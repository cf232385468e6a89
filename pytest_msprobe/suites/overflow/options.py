"""What the overflow suite can be asked to do, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_msprobe.suites import options as option_values
from pytest_msprobe.suites.options import BENCHMARK_OPTIONS, DATA_DIR, Option

UNDECIDED = ("fail", "skip")


@dataclass(frozen=True, slots=True)
class OverflowSettings:
    """How strict the verdicts are.

    Attributes:
        strict: whether an origin fails also where the CPU overflows as the device did.
        fails_undecided: whether an origin fails that could not be computed again; else it is skipped.
        rules: YAML file of further uninitialised buffers, or None.
        bench, bench_python, seed, max_memory_bytes: how origins are computed again.
    """

    strict: bool = False
    fails_undecided: bool = True
    rules: Path | None = None
    bench: str = "auto"
    bench_python: str | None = None
    seed: int = 0
    max_memory_bytes: int = 1 << 40

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> OverflowSettings:
        """The settings in `values`, which hold a parsed value for every one of `OPTIONS`."""
        return cls(
            strict=values["overflow_strict"],
            fails_undecided=values["overflow_undecided"] == "fail",
            rules=values["overflow_rules"],
            bench=values["bench"],
            bench_python=values["bench_python"],
            seed=values["seed"],
            max_memory_bytes=values["max_memory"],
        )


OPTIONS = (
    *BENCHMARK_OPTIONS,
    DATA_DIR,
    Option(
        "overflow_strict",
        "true",
        "overflow: fail also where the CPU overflows like the device",
        "false",
        option_values.switch,
        bare="true",
    ),
    Option(
        "overflow_undecided",
        "|".join(UNDECIDED),
        "overflow: verdict on an origin of NaN or Inf that the CPU cannot recompute",
        "fail",
        option_values.one_of(*UNDECIDED),
    ),
    Option(
        "overflow_rules",
        "FILE",
        "overflow: YAML file with additional uninitialised buffers",
        "",
        option_values.existing_file("rules in YAML"),
        is_path=True,
    ),
)
