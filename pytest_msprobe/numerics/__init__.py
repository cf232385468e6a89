"""Metrics and standards: pure functions on NumPy arrays; nothing of pytest, of a framework or of the other rooms.

`measure` says how far two outputs are apart, a `Standard` turns that into a `Judgement`, `explain` and `summarise` put
both into words. `compare_scalars` and `check_indices` are the measures for Python values and for indices under ties.
"""

from __future__ import annotations

from pytest_msprobe.numerics.diagnosis import NOTHING_MORE, RoundingDiagnosis, diagnose, explain, summarise
from pytest_msprobe.numerics.dtypes import Kind, kind_of, round_once, unit_roundoff
from pytest_msprobe.numerics.indices import check_indices, select
from pytest_msprobe.numerics.judgement import (
    CosineMaxAbs,
    Judgement,
    OutputPair,
    Perturbed,
    Standard,
    compare_scalars,
    judge_output,
    judge_pair,
    unforgivable_reasons,
)
from pytest_msprobe.numerics.measurement import Element, Metrics, measure
from pytest_msprobe.numerics.patterns import name_pattern
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused
from pytest_msprobe.numerics.standards.cann import MereMare, MixedBounds, MixedTolerance, RelativeErrorBounds
from pytest_msprobe.numerics.standards.elementwise import (
    ERROR_MULTIPLES,
    AbsoluteBounds,
    AbsoluteThreshold,
    AccumulativeBounds,
    AccumulativeError,
    AgainstSecondOpinion,
    Binary,
    ErrorMultiples,
    Thousandth,
    Ulp,
    UlpBounds,
)

__all__ = [
    "ERROR_MULTIPLES",
    "NOTHING_MORE",
    "AbsoluteBounds",
    "AbsoluteThreshold",
    "AccumulativeBounds",
    "AccumulativeError",
    "AgainstSecondOpinion",
    "BackwardError",
    "Binary",
    "CosineMaxAbs",
    "Element",
    "ErrorMultiples",
    "Fused",
    "Judgement",
    "Kind",
    "MereMare",
    "Metrics",
    "MixedBounds",
    "MixedTolerance",
    "OutputPair",
    "Perturbed",
    "RelativeErrorBounds",
    "RoundingDiagnosis",
    "Standard",
    "Thousandth",
    "Ulp",
    "UlpBounds",
    "check_indices",
    "compare_scalars",
    "diagnose",
    "explain",
    "judge_output",
    "judge_pair",
    "kind_of",
    "measure",
    "name_pattern",
    "round_once",
    "select",
    "summarise",
    "unforgivable_reasons",
    "unit_roundoff",
]
