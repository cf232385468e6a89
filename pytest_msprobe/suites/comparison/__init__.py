"""Dump against dump: matched, measured, judged, as items, tables and words.

`compare` and `compare_distributed` do it from a script, without pytest. They load when they are first asked for, since
every pytest run imports this package for its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.entry import SuiteEntry

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.scripts import compare, compare_distributed

__all__ = ["compare", "compare_distributed"]

ENTRY = SuiteEntry(
    "comparison",
    "where does it differ from another dump",
    ComparisonSettings.declared(),
    "pytest_msprobe.suites.comparison.suite:ComparisonSuite",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_msprobe.suites.comparison import scripts

    return getattr(scripts, name)
