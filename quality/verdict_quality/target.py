"""One right result, which a fault is planted into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Direction
from pytest_msprobe.engines.protocol import Array, Call
from pytest_msprobe.numerics.dtypes import round_once
from quality.verdict_quality.recordings import BENCHMARK, Recording, attempt


@dataclass(frozen=True, slots=True)
class Target:
    """One right output, or gradient, and what is known of how it came about.

    Attributes:
        recording: the call.
        direction, place: which of its results, counted as `Results` has them.
        rng: for choices; the same in every run.
    """

    recording: Recording
    direction: Direction
    place: int
    rng: np.random.Generator

    @property
    def right(self) -> Array:
        """The ideal result."""
        ideal = self.recording.ideal
        found: Any = ideal.outputs[self.place].value if self.direction == "forward" else ideal.gradients[self.place]
        array: Array = found
        return array

    def exact(self) -> Array | None:
        """The float64 result in this place, not rounded."""
        wide = attempt(lambda: self.wide(self.recording))
        return wide if isinstance(wide, np.ndarray) and wide.shape == self.right.shape else None

    def recomputed(self, call: Call) -> Array | None:
        """What another call gives in this place, rounded once; None where it fails or has another shape."""
        wide = attempt(lambda: self.wide(replace(self.recording, call=call)))
        if wide is None or not isinstance(wide, np.ndarray) or wide.shape != self.right.shape:
            return None
        return round_once(wide, self.right.dtype)

    def wide(self, recording: Recording) -> Any:
        """The float64 result of another recording in this place."""
        if self.direction == "forward":
            return BENCHMARK.forward(recording.call, differentiate=()).outputs[self.place].value
        execution = BENCHMARK.forward(recording.call, differentiate=recording.wanted)
        return execution.gradients(recording.incoming)[self.place]


#: The faulty result, or None where the fault cannot happen to this target.
Fault = Callable[[Target], "Array | None"]
