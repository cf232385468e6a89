"""Metrics and standards: pure functions on NumPy arrays; nothing of pytest, of a framework or of the other rooms.

`measure` says how far two outputs are apart, a `Standard` turns that into a `Judgement`, `explain` and `summarise` put
both into words. `compare_scalars` and `check_indices` are the measures for Python values and for indices under ties.
"""

from __future__ import annotations

from pytest_msprobe.numerics.diagnosis import NOTHING_MORE, Diagnosis, diagnose
from pytest_msprobe.numerics.explanation import explain, summarise
from pytest_msprobe.numerics.indices import check_indices, select
from pytest_msprobe.numerics.judgement import Check, CosineMaxAbs, Judgement, Standard, Status, unforgivable_reasons
from pytest_msprobe.numerics.kinds import Kind, kind_of
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.metrics import Element, Metrics, Scalar
from pytest_msprobe.numerics.patterns import name_pattern
from pytest_msprobe.numerics.rounding import round_once
from pytest_msprobe.numerics.scalars import compare_scalars
from pytest_msprobe.numerics.standards.absolute_threshold import AbsoluteThreshold
from pytest_msprobe.numerics.standards.accumulative_error import AccumulativeError
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused
from pytest_msprobe.numerics.standards.binary import Binary
from pytest_msprobe.numerics.standards.constants import LEVELS, AbsoluteBounds, AccumulativeBounds, Levels, UlpBounds
from pytest_msprobe.numerics.standards.output_pair import OutputPair, PairStandard, Perturbed, judge_output, judge_pair
from pytest_msprobe.numerics.standards.second_opinion import AgainstSecondOpinion
from pytest_msprobe.numerics.standards.thousandth import Thousandth
from pytest_msprobe.numerics.standards.ulp import Ulp
from pytest_msprobe.numerics.ulp import unit_roundoff

__all__ = [
    "LEVELS",
    "NOTHING_MORE",
    "AbsoluteBounds",
    "AbsoluteThreshold",
    "AccumulativeBounds",
    "AccumulativeError",
    "AgainstSecondOpinion",
    "BackwardError",
    "Binary",
    "Check",
    "CosineMaxAbs",
    "Diagnosis",
    "Element",
    "Fused",
    "Judgement",
    "Kind",
    "Levels",
    "Metrics",
    "OutputPair",
    "PairStandard",
    "Perturbed",
    "Scalar",
    "Standard",
    "Status",
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
