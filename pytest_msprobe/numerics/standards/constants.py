"""The constants of the standards that msProbe defines: one table, each entry with its source.

Sources: S is `standard_config.py` of msProbe 26.2.0 (pytorch/api_accuracy_checker/precision_standard), D its
documents, Y its `api_precision_standard.yaml`. Where S and D disagree, the entry says which was taken and why. A dtype
that has no entry cannot be judged by that standard, unless bounds are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AbsoluteBounds:
    """Bounds of `absolute-threshold`.

    Attributes:
        small_value: up to this |b| an element is judged by its absolute error, above by its relative error.
        relative: largest |t-b| / |b|.
        absolute: largest |t-b|.
    """

    small_value: float
    relative: float
    absolute: float


@dataclass(frozen=True, slots=True)
class UlpBounds:
    """Bounds of `ulp`.

    Attributes:
        ulps: an element that is further off than this counts.
        share: the share of such elements must be below this.
        mean: a mean error below this is enough whatever the share; 0 where it never is.
    """

    ulps: float
    share: float
    mean: float


@dataclass(frozen=True, slots=True)
class AccumulativeBounds:
    """Bounds of `accumulative-error`.

    Attributes:
        bound: largest |t-b| up to |b| = 1, largest |t-b| / |b| above.
        balance: largest |elements that are too large - elements that are too small| / elements.
    """

    bound: float
    balance: float


@dataclass(frozen=True, slots=True)
class Levels:
    """How many times the error of the second opinion the tested one may be.

    Attributes:
        small: of the share of small elements that are further off than `SecondOpinionConstants.absolute`.
        rmse, max_relative, mean_relative: of these figures over all other elements.
    """

    small: float
    rmse: float
    max_relative: float
    mean_relative: float


@dataclass(frozen=True, slots=True)
class SecondOpinionConstants:
    """What `benchmark` has for a dtype.

    Attributes:
        small_value: up to this |b| an element is small.
        absolute: a small element that is further off counts.
        least: an error of the second opinion below this counts as this, which bounds the ratio.
    """

    small_value: float
    absolute: float
    least: float


#: S. `absolute` of bfloat16 is D: S has 1e-16, below which nothing but equality lies: a slip for 2**-16.
ABSOLUTE: Mapping[str, AbsoluteBounds] = {
    "float16": AbsoluteBounds(2.0**-10, 2.0**-10, 2.0**-16),
    "bfloat16": AbsoluteBounds(2.0**-10, 2.0**-8, 2.0**-16),
    "float32": AbsoluteBounds(2.0**-20, 2.0**-20, 2.0**-30),
}

#: S. `absolute` of float16 and bfloat16 is D, for the same slip. D has other small values (2**-11, 2**-8, 2**-14).
SECOND_OPINION: Mapping[str, SecondOpinionConstants] = {
    "float16": SecondOpinionConstants(2.0**-10, 2.0**-16, 2.0**-11),
    "bfloat16": SecondOpinionConstants(2.0**-10, 2.0**-16, 2.0**-8),
    "float32": SecondOpinionConstants(2.0**-20, 2.0**-30, 2.0**-14),
}

#: S: levels 0, 1 and 2. Which API has which level: `apis/facts/benchmark_levels.txt`.
LEVELS = (Levels(2.0, 2.0, 10.0, 2.0), Levels(2.0, 1.5, 5.0, 1.5), Levels(2.0, 1.2, 2.0, 1.2))

_NARROW = UlpBounds(ulps=1.0, share=0.001, mean=0.0)
#: S. The narrow rule for float8 is S for the 8-bit float of Ascend, applied to the formats that dumps can hold.
ULP: Mapping[str, UlpBounds] = {
    "float16": _NARROW,
    "bfloat16": _NARROW,
    "float8_e4m3fn": _NARROW,
    "float8_e5m2": _NARROW,
    "float32": UlpBounds(ulps=32.0, share=0.05, mean=64.0),
}

#: S.
ACCUMULATIVE: Mapping[str, AccumulativeBounds] = {
    "float16": AccumulativeBounds(2.0**-8, 2.0**-20),
    "bfloat16": AccumulativeBounds(2.0**-7, 2.0**-7),
    "float32": AccumulativeBounds(2.0**-11, 2.0**-14),
}
ACCUMULATIVE_SMALL_VALUE = 1.0

#: S: at least this share of the elements ... (D: more than this share)
THOUSANDTH_SHARE = 0.999
#: ... has a relative error below this.
THOUSANDTH_RELATIVE = 0.001
