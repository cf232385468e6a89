"""Whether ranks that share a model compute what one run of the whole model does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_msprobe.suites.entry import SuiteEntry
from pytest_msprobe.suites.options import DATA_DIR, Options, choice, option, parse_optional_path


@dataclass(frozen=True)
class ShardedSettings(Options):
    """The logical run, and how strict the verdicts are."""

    logical: Path | None = option(
        "PATH",
        "judge the ranks of a sharded run by this dump.json or folder: the same step on one rank, or sharded otherwise",
        parse_optional_path,
        is_path=True,
        question="what",
        is_common=True,
    )
    data_dir: tuple[Path, ...] = DATA_DIR
    inherited: str = choice(
        ("pass", "fail"),
        "whether records pass (as xfailed) or fail whose values are wrong behind the first wrong place",
        name="sharded_inherited",
    )


ENTRY = SuiteEntry(
    "sharded",
    "do ranks compute what the whole model does",
    ShardedSettings.declared(),
    "pytest_msprobe.suites.sharded.suite:ShardedSuite",
)
