"""What a conftest.py may import: the types that the hooks of `pytest_msprobe.hookspecs` give and take.

Importing this module loads no framework and no NumPy; only the types of standards load NumPy, when they are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import ApiName, Direction
from pytest_msprobe.engines.reference import Reference
from pytest_msprobe.reports.row import OutputRow, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.numerics import CosineMaxAbs, Judgement, Metrics, Standard, unforgivable_reasons

__all__ = [
    "ApiName",
    "CosineMaxAbs",
    "Direction",
    "Judgement",
    "Metrics",
    "OutputRow",
    "Reference",
    "Standard",
    "VerdictRow",
    "unforgivable_reasons",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_msprobe import numerics

    return getattr(numerics, name)
