"""An origin computed again on the CPU, in the dtype of the dump and in a higher one: whose fault is the overflow?

`same` is the CPU in the dump's own dtype, `high` in float64. Where `same` is finite, the device was wrong. Where it is
not, the device did what its dtype demands: with a `high` that Float32 holds the dtype was too small, else no dtype that
models are trained in would have helped (log(0), 1/0, inf - inf, exp(300)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import compress
from operator import or_
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format import Direction, DumpError, Value, dtype_of_array, parse_api_name, tensors_in
from pytest_msprobe.apis.fact_table import random_api
from pytest_msprobe.cases.call_run import CallRun, CapturedError, Incoming
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.inputs import gradient_field
from pytest_msprobe.engines.protocol import (
    Array,
    DeviceSpecification,
    Engine,
    Execution,
    NotJudged,
    Unsupported,
    output_label,
)
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.numerics.expected import Absolute
from pytest_msprobe.suites.overflow.values import ObservedValue, OverflowDump

Cause = Literal["abnormal", "normal-range", "normal-math", "undecided"]
_DIRECTIONS: dict[str, Direction] = {"forward": "forward", "backward": "backward"}
_DRAWN = (
    "the CPU stays finite on random inputs in the recorded range, which proves nothing; dump this step with task tensor"
)
_Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecomputedOrigin:
    """What computing an origin again showed.

    Attributes:
        cause: whose fault it is.
        same, high: what the CPU got where the device got NaN or Inf: `finite`, `NaN`, `Inf`, `beyond Float32`; ""
            when it could not compute.
        message: one line.
        bench: who computed it.
    """

    cause: Cause
    message: str
    same: str = ""
    high: str = ""
    bench: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What stands in an output of the CPU where the device is not finite."""

    has_nan: bool = False
    has_inf: bool = False
    is_beyond_float32: bool = False
    is_partly_finite: bool = False

    @classmethod
    def of(cls, values: Array, *, has_places: bool) -> _Kind:
        finite = np.isfinite(values)
        with np.errstate(all="ignore"):
            largest = float(np.abs(values[finite]).max()) if finite.any() else 0.0
        return cls(
            bool(np.isnan(values).any()),
            bool(np.isinf(values).any()),
            largest > Absolute.LARGEST_FLOAT32,
            has_places and bool(finite.any()) and not finite.all(),
        )

    def joined(self, other: _Kind) -> _Kind:
        return _Kind(*map(or_, astuple(self), astuple(other)))

    @property
    def is_bad(self) -> bool:
        return self.has_nan or self.has_inf

    def __str__(self) -> str:
        if self.is_bad:
            return " and ".join(compress(("NaN", "Inf"), (self.has_nan, self.has_inf)))
        return "beyond Float32" if self.is_beyond_float32 else "finite"


@dataclass(frozen=True, slots=True)
class Recomputer:
    """Computes origins of one dump again.

    Attributes:
        dump: the dump.
        engines: who executes.
        seed: of random inputs.
        max_memory_bytes: a call that may need more is not computed.
    """

    dump: OverflowDump
    engines: Engines
    seed: int
    max_memory_bytes: int

    def recompute(self, call: str, phase: str, bad: Sequence[ObservedValue]) -> RecomputedOrigin:
        """The direction `phase` of the API call named `call`, whose outputs `bad` are not finite."""
        if phase not in _DIRECTIONS:
            return RecomputedOrigin(
                "undecided", "its name is not that of an API call, which alone can be computed again"
            )
        try:
            return self._recompute(call, _DIRECTIONS[phase], bad)
        except NotJudged as stop:
            reason = stop.message
        except DumpError as error:
            reason = str(error)
        return RecomputedOrigin("undecided", f"it was not computed again: {reason}")

    def _recompute(self, call: str, direction: Direction, bad: Sequence[ObservedValue]) -> RecomputedOrigin:
        is_backward = direction == "backward"
        if random_api(parse_api_name(call), self.dump.framework) is not None:
            raise NotJudged("skip", "random by nature: it would draw other values")
        run = CallRun(
            self.dump, call, with_backward=is_backward, max_memory_bytes=self.max_memory_bytes, seed=self.seed
        )
        results = partial(_gradients, run.case, run.incoming(direction)) if is_backward else _outputs
        same, bench, refusals = _first(run.outcomes(self._same_engines(), results))
        if same is None:
            return RecomputedOrigin("undecided", f"no engine could compute it again: {'; '.join(refusals)}")
        high, high_bench, _ = _first(run.outcomes(self.engines.benchmarks, results))
        are_drawn = _are_drawn(run.case)
        places = self._places(bad, are_drawn=are_drawn)
        return _verdict(
            _kind_at(same, places),
            None if high is None else _kind_at(high, places),
            bench=" and ".join(filter(None, (bench, high_bench))),
            are_drawn=are_drawn,
        )

    def _same_engines(self) -> list[Engine]:
        second = self.engines.second_opinion
        device = self.engines.device(DeviceSpecification("mindspore", "cpu"))
        return [device] if second is None else [second, device]

    def _places(self, bad: Sequence[ObservedValue], *, are_drawn: bool) -> dict[str, Array | None]:
        """Mask by path of each bad output: where it is not finite; None where that is not known or says nothing."""
        outputs: dict[str, Array | None] = {}
        for value in bad:
            if value.is_input:
                continue
            outputs[value.path] = None
            if value.tensor is not None and not are_drawn:
                places = ~np.isfinite(self.dump.tensors.load(value.tensor, value.place))
                # A file that is finite where the statistics were not tells no places.
                outputs[value.path] = places if places.any() else None
        return outputs


def _are_drawn(case: Case) -> bool:
    """Whether inputs are random ones, not the values that the device got."""
    backward: tuple[Value, ...] = case.backward.incoming or () if case.backward is not None else ()
    inputs: tuple[Value, ...] = (*(case.forward.arguments or ()), *case.forward.keywords.values(), *backward)
    drawn = [tensor for value in inputs for tensor in tensors_in(value) if tensor.data_name is None and tensor.size]
    return any(
        tensor.maximum is None or not math.isfinite(tensor.maximum) or tensor.maximum != tensor.minimum
        for tensor in drawn
    )


def _outputs(execution: Execution) -> _Results:
    return {output_label(output.path): output.value for output in execution.outputs}


def _gradients(case: Case, incoming: Incoming, execution: Execution) -> _Results:
    gradients = execution.gradients(incoming)
    entries = [case.pairing.entries.get(path, place) for place, path in enumerate(case.wanted)]
    return {f"{gradient_field(entry)}.{entry}": value for entry, value in zip(entries, gradients)}


def _first(
    outcomes: Iterable[tuple[Engine, _Results | Unsupported | CapturedError]],
) -> tuple[_Results | None, str, list[str]]:
    """(result of the first engine that can, its label, why others cannot)."""
    refusals: list[str] = []
    for engine, outcome in outcomes:
        if not isinstance(outcome, (Unsupported, CapturedError)):
            return outcome, engine.label, refusals
        refusals.append(f"{engine.name}: {outcome}")
    return None, "", refusals


def _kind_at(results: _Results, places: Mapping[str, Array | None]) -> _Kind:
    """What `results` hold at `places`; in outputs whose places are not known, anywhere."""
    kind = _Kind()
    for path, mask in places.items():
        value: Any = results.get(path)
        if isinstance(value, float):
            value = np.asarray(value)
        if not hasattr(value, "dtype"):
            continue
        dtype = dtype_of_array(value.dtype)
        if dtype is None or dtype.kind in ("float", "complex"):
            visible = value if mask is None or mask.shape != value.shape else value[mask]
            kind = kind.joined(_Kind.of(visible, has_places=visible is not value))
    return kind


def _verdict(same: _Kind, high: _Kind | None, *, bench: str, are_drawn: bool) -> RecomputedOrigin:
    def found(cause: Cause, message: str) -> RecomputedOrigin:
        return RecomputedOrigin(cause, message, str(same), str(high or ""), bench)

    if not same.is_bad or same.is_partly_finite:
        if are_drawn:
            return found("undecided", _DRAWN)
        where = "at some of the places where the device is not" if same.is_bad else "here"
        return found("abnormal", f"the CPU in the same dtype is finite {where}: the device computed wrongly")
    if high is None:
        return found(
            "undecided", "the CPU overflows in the same dtype as well, and nothing could compute it in float64"
        )
    if high.is_bad or high.is_beyond_float32:
        return found(
            "normal-math", f"the CPU gets the same, and {high} in float64: the maths overflows, not the device"
        )
    return found("normal-range", "the CPU gets the same, but float64 does not: the range of the dtype is too small")
