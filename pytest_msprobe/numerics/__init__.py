"""Metrics and standards: pure functions on NumPy arrays; nothing of pytest, of a framework or of the other rooms.

`measure` says how far two outputs are apart, a `Standard` turns that into a `Judgement`, `explain` and `summarise` put
both into words. `compare_scalars` and `check_indices` are the measures for Python values and for indices under ties.
"""

from __future__ import annotations

from pytest_msprobe.numerics.diagnosis import (
    NOTHING_MORE as NOTHING_MORE,
    RoundingDiagnosis as RoundingDiagnosis,
    diagnose as diagnose,
    explain as explain,
    summarise as summarise,
    without_direction as without_direction,
)
from pytest_msprobe.numerics.dtypes import (
    Kind as Kind,
    kind_of as kind_of,
    round_once as round_once,
    unit_roundoff as unit_roundoff,
)
from pytest_msprobe.numerics.indices import SelectedValues as SelectedValues, check_indices as check_indices
from pytest_msprobe.numerics.judgement import (
    CosineMaxAbs as CosineMaxAbs,
    Judgement as Judgement,
    OutputPair as OutputPair,
    Perturbed as Perturbed,
    Sensitivity as Sensitivity,
    Standard as Standard,
    compare_scalars as compare_scalars,
    judge_output as judge_output,
    judge_pair as judge_pair,
    unforgivable_reasons as unforgivable_reasons,
)
from pytest_msprobe.numerics.measurement import Metrics as Metrics, measure as measure
from pytest_msprobe.numerics.patterns import Pattern as Pattern, find_pattern as find_pattern
from pytest_msprobe.numerics.standards.backward_error import BackwardError as BackwardError, Fused as Fused
from pytest_msprobe.numerics.standards.cann import (
    MereMare as MereMare,
    MixedBounds as MixedBounds,
    MixedTolerance as MixedTolerance,
    RelativeErrorBounds as RelativeErrorBounds,
)
from pytest_msprobe.numerics.standards.elementwise import (
    ERROR_MULTIPLES as ERROR_MULTIPLES,
    AbsoluteBounds as AbsoluteBounds,
    AbsoluteThreshold as AbsoluteThreshold,
    AccumulativeBounds as AccumulativeBounds,
    AccumulativeError as AccumulativeError,
    AgainstSecondOpinion as AgainstSecondOpinion,
    Binary as Binary,
    ErrorMultiples as ErrorMultiples,
    Thousandth as Thousandth,
    Ulp as Ulp,
    UlpBounds as UlpBounds,
)
