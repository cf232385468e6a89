"""Standards by the names that users know them by, and which of them judges what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName, dtype_of_array
from pytest_msprobe.apis import facts
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Judgement, OutputPair, Standard, judge_pair
from pytest_msprobe.numerics.measurement import Metrics
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
from pytest_msprobe.suites.precheck.options import BY_API, NamedStandard, StandardChoice


def _with_bounds(standard: Callable[[Any], Standard], form: Callable[..., Any], **bounds: float) -> Standard:
    """A standard with all of its bounds, or with none."""
    return standard(form(**bounds) if bounds else None)


#: By name, each from all of its bounds or from none.
MAKERS: Mapping[str, Callable[..., Standard]] = {
    CosineMaxAbs.name: CosineMaxAbs,
    BackwardError.name: BackwardError,
    Fused.name: Fused,
    AbsoluteThreshold.name: partial(_with_bounds, AbsoluteThreshold, AbsoluteBounds),
    AgainstSecondOpinion.name: lambda **bounds: AgainstSecondOpinion(
        ErrorMultiples(**bounds) if bounds else ERROR_MULTIPLES[0]
    ),
    Ulp.name: partial(_with_bounds, Ulp, UlpBounds),
    Binary.name: Binary,
    Thousandth.name: Thousandth,
    AccumulativeError.name: partial(_with_bounds, AccumulativeError, AccumulativeBounds),
    MereMare.name: partial(_with_bounds, MereMare, RelativeErrorBounds),
    MixedTolerance.name: partial(_with_bounds, MixedTolerance, MixedBounds),
}


@dataclass(frozen=True, slots=True)
class ByDtype:
    """A standard that asks others, by the dtype of the tested output.

    Attributes:
        default: for dtypes without one of their own, and for what is not an array.
        dtypes: by the names of dumps.
    """

    default: Standard
    dtypes: Mapping[str, Standard]

    @property
    def name(self) -> str:
        """Name of the default standard."""
        return self.default.name

    @property
    def off_bound(self) -> float:
        """Bound of the default standard."""
        return self.default.off_bound

    def of(self, dtype: np.dtype[Any]) -> Standard:
        """The standard for outputs of `dtype`."""
        known_dtype = dtype_of_array(dtype)
        return self.default if known_dtype is None else self.dtypes.get(known_dtype.name, self.default)

    def of_all(self, dtypes: Sequence[np.dtype[Any]]) -> Standard:
        """The one standard for outputs of all `dtypes`; this one where they have different ones, or there is none."""
        standards = [self.of(dtype) for dtype in dtypes] or [self]
        is_one = all(standard == standards[0] for standard in standards)
        return standards[0] if is_one else self

    def judge(self, metrics: Metrics) -> Judgement:
        """The verdict on a value without elements."""
        return self.default.judge(metrics)

    def judge_pair(self, pair: OutputPair) -> Judgement:
        """The verdict on one output."""
        return judge_pair(self.of(pair.tested.dtype), pair)


class Standards:
    """Which standard judges an API call."""

    def __init__(
        self,
        default: NamedStandard,
        choice: StandardChoice,
        *,
        cosine: float,
        max_abs: float,
        strict: frozenset[str] = frozenset(),
    ) -> None:
        """`default` where `choice` says nothing; `cosine` and `max_abs` are the bounds of cosine-maxabs.

        `strict` is what `backward-error` and `fused` do not tolerate.
        """
        self._strict = strict
        self._default = default
        self._choice = choice
        self._bounds = {**choice.bounds, CosineMaxAbs.name: (("cosine", cosine), ("max_abs", max_abs))}

    def of_call(self, api: ApiName) -> Standard:
        """The standard for one API call; a `ByDtype` where it hangs on the dtype of each output."""
        if (chosen := self._choice.of_api(api)) is not None:
            return self._made(chosen, api)
        default = self._made(self._default, api)
        if not self._choice.dtypes:
            return default
        return ByDtype(default, {dtype: self._made(named, api) for dtype, named in self._choice.dtypes.items()})

    def _made(self, named: NamedStandard, api: ApiName) -> Standard:
        if named.name == BY_API:
            fact = facts("msprobe_standards").of(api)
            named = NamedStandard(fact.text if fact else AgainstSecondOpinion.name)
        bounds = named.bounds or self._bounds.get(named.name, ())
        made = MAKERS[named.name](**dict(bounds))
        if isinstance(made, AgainstSecondOpinion) and not bounds:
            fact = facts("benchmark_levels").of(api)
            level = int(fact.text.removeprefix("level ")) if fact else 0
            return replace(made, levels=ERROR_MULTIPLES[level])
        return replace(made, strict=self._strict) if isinstance(made, BackwardError) else made
