"""What a conftest.py may import: the types that the hooks of `pytest_msprobe.hookspecs` give and take.

Importing this module loads no framework and no NumPy; only the types of standards load NumPy, when they are imported.
"""

from __future__ import annotations

from collections import ChainMap
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import ApiName, Direction
from pytest_msprobe.engines.reference import Reference
from pytest_msprobe.verdicts import OutputRow, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.numerics.judgement import (
        CosineMaxAbs,
        Judgement,
        OutputPair,
        Sensitivity,
        Standard,
        unforgivable_reasons,
    )
    from pytest_msprobe.numerics.measurement import Metrics
    from pytest_msprobe.numerics.standards.backward_error import BackwardError
    from pytest_msprobe.numerics.standards.cann import MereMare, MixedBounds, MixedTolerance, RelativeErrorBounds
    from pytest_msprobe.numerics.standards.elementwise import (
        ERROR_MULTIPLES as LEVELS,
        AbsoluteBounds,
        AbsoluteThreshold,
        AccumulativeBounds,
        AccumulativeError,
        AgainstSecondOpinion,
        Binary,
        ErrorMultiples as Levels,
        Thousandth,
        Ulp,
        UlpBounds,
    )

__all__ = [
    "LEVELS",
    "AbsoluteBounds",
    "AbsoluteThreshold",
    "AccumulativeBounds",
    "AccumulativeError",
    "AgainstSecondOpinion",
    "ApiName",
    "BackwardError",
    "Binary",
    "CosineMaxAbs",
    "Direction",
    "Judgement",
    "Levels",
    "MereMare",
    "Metrics",
    "MixedBounds",
    "MixedTolerance",
    "OutputPair",
    "OutputRow",
    "Reference",
    "RelativeErrorBounds",
    "Sensitivity",
    "Standard",
    "Thousandth",
    "Ulp",
    "UlpBounds",
    "VerdictRow",
    "unforgivable_reasons",
]

#: What `pytest_msprobe.numerics` calls by another name; msProbe has levels.
_LEVELS = {"LEVELS": "ERROR_MULTIPLES", "Levels": "ErrorMultiples"}
_MODULES = ("judgement", "measurement", "standards.backward_error", "standards.cann", "standards.elementwise")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = [import_module(f"pytest_msprobe.numerics.{module}") for module in _MODULES]
    return ChainMap(*map(vars, modules))[_LEVELS.get(name, name)]
