"""Which laws of training do not hold: from records of optimizers, and from what was checked while training ran."""

from __future__ import annotations

from msprobe_collector.dump_format import is_optimizer_record
from pytest_msprobe.suites.entry import SuiteEntry

#: What a training writes that checks its laws itself.
FILE = "laws.jsonl"

ENTRY = SuiteEntry(
    "laws",
    "does training obey the laws of every training",
    (),
    "msprobe_laws.suite.suite:LawsSuite",
    files=(FILE,),
    judges=is_optimizer_record,
)
