"""What the overflow suite can be asked to do, and its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_msprobe.suites.options import (
    BENCH,
    BENCH_PYTHON,
    DATA_DIR,
    MAX_MEMORY_BYTES,
    SEED,
    Options,
    existing_file,
    flag,
    one_of,
    option,
)


def _fails(text: str) -> bool:
    return one_of("fail", "skip")(text) == "fail"


@dataclass(frozen=True)
class OverflowSettings(Options):
    """How origins are computed again, and how strict the verdicts are."""

    bench: str = BENCH
    bench_python: str | None = BENCH_PYTHON
    seed: int = SEED
    max_memory_bytes: int = MAX_MEMORY_BYTES
    data_dir: tuple[Path, ...] = DATA_DIR
    strict: bool = flag("overflow: fail also where the CPU overflows like the device", name="overflow_strict")
    fails_undecided: bool = option(
        "fail|skip",
        "overflow: verdict on an origin of NaN or Inf that the CPU cannot recompute",
        _fails,
        "fail",
        name="overflow_undecided",
    )
    rules: Path | None = option(
        "FILE",
        "overflow: YAML file with additional uninitialised buffers",
        existing_file("rules in YAML"),
        name="overflow_rules",
        is_path=True,
    )


OPTIONS = OverflowSettings.declared()
