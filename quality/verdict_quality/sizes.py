"""How large a fault is, in roundings: those of the result, and those of the inputs carried through the call."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.dtypes import unit_roundoff
from quality.verdict_quality.recordings import Recording, attempt, is_float
from quality.verdict_quality.target import Target

#: Two neighbours of one number are this many roundings apart at most.
_NEIGHBOUR = 2.0
#: How often inputs are moved: often for small calls, where it costs nothing.
_MOST_RUNS, _FEWEST_RUNS = 16, 4
_LARGE_ELEMENTS = 10_000
_FLOAT32 = 2.0**-24
#: Monte Carlo arithmetic moves results by up to sqrt(3) of what it is given: here by up to a rounding of float32.
_LARGEST_MOVE = _FLOAT32 / math.sqrt(3.0)


@dataclass(frozen=True, slots=True)
class Size:
    """Of a fault; infinite for a NaN, an Inf or a wrong integer.

    Attributes:
        roundings: largest error of an element in roundings of that element.
        conditioned: the same in roundings of the element and of all inputs together, each moved by one rounding.
        kept: the same with a rounding of what the forward keeps for its gradients as well.
        inside: the same with a rounding of every result of float32 arithmetic inside the operation as well.
    """

    roundings: float
    conditioned: float
    kept: float = math.inf
    inside: float = math.inf

    @property
    def is_observable(self) -> bool:
        """False when no element is further off than to its neighbour: rounding may have done that."""
        return self.roundings > _NEIGHBOUR

    @property
    def is_visible(self) -> bool:
        """False when rounding the inputs, which every device may do once, moves the result as far."""
        return self.conditioned > _NEIGHBOUR

    @property
    def is_kept(self) -> bool:
        """Whether only rounding of what the forward keeps moves the result as far: tanh's gradient is 1 - y * y."""
        return self.is_visible and self.kept <= _NEIGHBOUR

    @property
    def is_inside(self) -> bool:
        """Whether only float32 arithmetic inside moves the result as far, such as adding many terms one by one."""
        return self.is_visible and not self.is_kept and self.inside <= _NEIGHBOUR


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Per element how far the exact result moves.

    Attributes:
        inputs: when every float input moves by one rounding of its dtype.
        kept: when what the forward keeps for its gradients does as well.
        inside: when results of float32 arithmetic inside the operation do as well.
    """

    inputs: Array | float
    kept: Array | float
    inside: Array | float


NOTHING = Envelopes(0.0, 0.0, 0.0)


def size_of(faulty: Array, right: Array, moved: Envelopes) -> Size:
    """The size of a fault; `moved` from `envelopes`."""
    if faulty.dtype != right.dtype or not is_float(right):
        differs = faulty.shape != right.shape or not np.array_equal(faulty, right)
        return Size(math.inf, math.inf) if differs else Size(0.0, 0.0, 0.0, 0.0)
    with np.errstate(all="ignore"):
        wide, wrong = np.atleast_1d(right).astype(np.float64), np.atleast_1d(faulty).astype(np.float64)
        error = np.abs(wrong - wide)
        error[np.isnan(error)] = math.inf
        error[(wide == wrong) | (np.isnan(wide) & np.isnan(wrong))] = 0
        step = unit_roundoff(right.dtype) * np.abs(wide) + float(ml_dtypes.finfo(right.dtype).smallest_subnormal)
        ratios = (_largest_ratio(error, step + envelope) for envelope in (0.0, moved.inputs, moved.kept, moved.inside))
        return Size(*ratios)


def envelopes(target: Target, *, runs: int | None = None) -> Envelopes:
    """How far the float64 result moves with the inputs, with what the forward keeps, and with arithmetic inside.

    In as many `runs` each as are given, by default in 4 for large calls and 16 for small ones.
    """
    inputs = _envelope(target, _Moves(), runs=runs)
    if not is_float(target.right):
        return Envelopes(inputs, inputs, inputs)
    roundoff = unit_roundoff(target.right.dtype)
    saved = 0.0 if target.direction == "forward" else roundoff
    kept = np.fmax(inputs, _envelope(target, _Moves(kept=saved), runs=runs)) if saved else inputs
    if roundoff != _FLOAT32:
        return Envelopes(inputs, kept, kept)
    inside = _envelope(target, _Moves(kept=saved, arithmetic=_LARGEST_MOVE), runs=runs)
    return Envelopes(inputs, kept, np.fmax(kept, inside))


def kept_envelope(target: Target) -> Array | float:
    """How far the float64 result moves with what the forward keeps, for exact inputs."""
    moves = _Moves(inputs=0.0, kept=unit_roundoff(target.right.dtype))
    return _envelope(target, moves, runs=_MOST_RUNS)


@dataclass(frozen=True, slots=True)
class _Moves:
    """How far a run of the benchmark is moved: inputs in roundings of their dtypes, the others relatively."""

    inputs: float = 1.0
    kept: float = 0.0
    arithmetic: float = 0.0


def _envelope(target: Target, moves: _Moves, *, runs: int | None = None) -> Array | float:
    """Per element, how far the float64 result moves when everything is moved by a rounding.

    The largest of a few random moves, each up or down: a lower bound of the true one, whatever the standard.
    """
    if not is_float(target.right):
        return 0.0
    recording = target.recording
    elements = sum(value.size for value in recording.call.arguments if isinstance(value, np.ndarray))
    exact = attempt(lambda: target.wide(recording))
    envelope = np.zeros(target.right.shape)
    for _ in range(runs or (_MOST_RUNS if elements < _LARGE_ELEMENTS else _FEWEST_RUNS)):
        moved = attempt(lambda: target.wide(_moved(recording, target.rng, moves)))
        if moved is not None and exact is not None and moved.shape == exact.shape:
            with np.errstate(all="ignore"):
                envelope = np.fmax(envelope, np.abs(moved - exact))
    return envelope


def _moved(recording: Recording, rng: np.random.Generator, moves: _Moves) -> Recording:
    """Every float input, incoming gradients too, a rounding larger or smaller, and what else is moved."""

    def moved(value: Any) -> Any:
        if isinstance(value, np.ndarray) and is_float(value):
            signs = rng.integers(0, 2, value.shape) * 2 - 1
            with np.errstate(all="ignore"):
                return np.asarray(value.astype(np.float64) * (1 + moves.inputs * unit_roundoff(value.dtype) * signs))
        return tuple(map(moved, value)) if isinstance(value, tuple) else value

    call = recording.call
    return replace(
        recording,
        call=replace(
            call,
            arguments=tuple(map(moved, call.arguments)),
            keywords={key: moved(value) for key, value in call.keywords.items()},
            saved_roundoff=moves.kept,
            saved_seed=int(rng.integers(1 << 30)) if moves.kept or moves.arithmetic else 0,
            arithmetic_roundoff=moves.arithmetic,
        ),
        incoming=tuple(map(moved, recording.incoming)),
    )


def _largest_ratio(error: Array, unit: Array) -> float:
    """Infinite where a unit is: no rounding makes another value of an Inf or a NaN."""
    ratios = np.where(error == 0, 0, error / unit)
    return float(np.max(np.nan_to_num(ratios, nan=math.inf, posinf=math.inf))) if ratios.size else 0.0
