"""Tolerances from a noise run: the golden training again, its inputs or parameters moved by one rounding.

Moving an input by one rounding changes every later rounding, so that golden and noise run differ by what rounding alone
does at each place: a sample of the error that stochastic arithmetic measures (Vignes, "Discrete stochastic arithmetic
for validating results of numerical software", Numerical Algorithms 37, 2004; Parker, "Monte Carlo arithmetic", 1997).
Two right computations of one step differ by about as much. `Times.NOISE` covers that one sample may be small by chance,
and that another kernel may round more often: the difference has to be larger than so many times the noise to count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError, TensorValue, find_dtype
from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.expected import DTYPES, Relative, Times
from pytest_msprobe.suites.comparison.estimates import Sketches
from pytest_msprobe.suites.comparison.sides import ComparedDump, pair_dumps
from pytest_msprobe.suites.comparison.values import (
    Basis,
    DistanceLimits,
    Tolerance,
    ValueComparison,
    is_whole,
    statistics_of,
)

#: In words for the summary.
BASES: dict[Basis, str] = {
    "noise": f"from the noise run (x {Times.NOISE})",
    "floor": "at the least of the dtype, as the noise run hardly differs",
    "dtype": "by dtype, as the noise run lacks the value",
}


class NoiseRun:
    """The noise run of one golden dump."""

    def __init__(
        self, golden: ComparedDump, root: Path, limits: DistanceLimits, changes: Sequence[tuple[str, float]]
    ) -> None:
        """Find and read the noise run of `golden` at or below `root`; `changes` replace floors of `DTYPES`.

        Raises:
            DumpError: there is none, or it cannot be read, or has no record of the golden dump.
        """
        path = pair_dumps([golden.path], root).golden[golden.path]
        if path is None:
            raise DumpError(f"--msprobe-noise: {root} has no dump that goes with it", file=str(golden.path))
        self._golden = golden
        self._noise = ComparedDump(path)
        self._sketches = Sketches((self._noise, golden))
        self._limits = limits
        self._floors = {**{name: row.operation for name, row in DTYPES.items()}, **dict(changes)}
        if not any(operation.record in self._noise for operation in golden.operations):
            raise DumpError(
                f"--msprobe-noise has no record of the golden dump {golden.path}: it must be the same script, run with "
                "debugger.perturb on its inputs",
                file=str(path),
            )

    @property
    def dump(self) -> Dump:
        """The dump of the noise run."""
        return self._noise

    def of_record(self, record: str, golden: Sequence[Leaf]) -> RecordNoise:
        """Distances of the noise run from the golden run in each value of a golden record."""
        noise = {leaf.path: leaf for leaf in self._noise.readable_leaves(record)}
        levels, bounds = {}, set()
        for leaf in golden:
            other = noise.get(leaf.path)
            if leaf.tensor is not None and other is not None and other.tensor is not None:
                levels[leaf.path], is_bound = self._level(leaf, other)
                if is_bound:
                    bounds.add(leaf.path)
        return RecordNoise(levels, frozenset(bounds), self)

    def tolerance(self, dtypes: Sequence[str], noise: float | None, rms: float) -> Tolerance:
        """The tolerance of a value of `dtypes` with the root mean square `rms`; its noise is None where it has none."""
        if noise is None or not math.isfinite(noise):
            return Tolerance(self._limits.limit(*dtypes), "dtype")
        floor = 0.0
        for dtype in filter(None, map(find_dtype, dtypes)):
            floor = max(floor, self._floors.get(dtype.name, 0.0))
            if rms > 0 and dtype.name in DTYPES:  # below the normal range of float16 a rounding is larger
                floor = max(floor, DTYPES[dtype.name].least / rms)
        if Times.NOISE * noise <= floor:
            return Tolerance(floor, "floor", noise)
        return Tolerance(Times.NOISE * noise, "noise", noise)

    def _level(self, golden: Leaf, noise: Leaf) -> tuple[float | None, bool]:
        """(distance, whether it is a mere bound from statistics)."""
        assert golden.tensor is not None
        assert noise.tensor is not None
        if golden.shape != noise.shape:
            return None, False
        if golden.fingerprint and golden.fingerprint == noise.fingerprint:
            return 0.0, False
        try:
            if not (golden.data_name and noise.data_name):
                estimate = self._sketches.estimate(noise, golden, self._limits.limit(golden.dtype))
                if isinstance(estimate, str):
                    return max(_estimates(golden.tensor, noise.tensor), default=None), True
                return estimate.distance, False
            from pytest_msprobe.suites.comparison.figures import measure_pair

            figures = measure_pair(
                self._noise.tensors.load(noise.tensor, noise.place),
                self._golden.tensors.load(golden.tensor, golden.place),
            )
        except DumpError:
            return None, False
        return math.inf if figures.metrics.nonfinite_mismatches else figures.distance, False


@dataclass(frozen=True, slots=True)
class RecordNoise:
    """What the noise run says about one record.

    Attributes:
        by_path: distance from the golden run by place of the value; None where it cannot be told.
        bounds: places of values whose distance statistics prove at least.
    """

    by_path: dict[str, float | None]
    bounds: frozenset[str]
    _run: NoiseRun

    def tolerance(self, target: Leaf, golden: Leaf) -> Tolerance:
        """The tolerance of a pair.

        Numbers may hardly move by chance, so that the largest noise of the record counts as well: for a scalar that the
        noise reached, and for statistics up to `NOISE_BY_CHANCE` times their own. Where nothing moves it is silent.
        """
        distance = self.by_path.get(golden.path)
        if distance is not None and (distance or golden.is_output):
            most = max((level for level in self.by_path.values() if level is not None), default=0.0)
            if golden.tensor is not None and golden.tensor.size == 1:
                distance = max(distance, most)
            elif golden.path in self.bounds:
                distance = max(distance, min(most, Times.NOISE_BY_CHANCE * distance))
        rms = _rms(golden.tensor) if golden.tensor is not None else 0.0
        return self._run.tolerance((target.dtype, golden.dtype), distance, rms)


def apply_tolerance(verdict: ValueComparison, tolerance: Tolerance) -> ValueComparison:
    """The verdict with its tolerance; no verdict on a value that rounding alone can change entirely."""
    is_integer = is_whole(verdict.golden)
    says_nothing = tolerance.limit >= Relative.ANYTHING or (is_integer and tolerance.basis == "noise")
    is_open = verdict.status in ("pass", "warning") and verdict.distance != 0
    is_open |= is_integer and verdict.status == "error" and verdict.distance != math.inf
    if says_nothing and is_open:
        reason = f"Rounding alone changes this value: the noise run is {tolerance.noise:.3g} away."
        return replace(verdict, status="skip", reasons=(reason,), tolerance=tolerance)
    reasons = (*verdict.reasons, str(tolerance)) if verdict.status == "error" else verdict.reasons
    return replace(verdict, reasons=reasons, tolerance=tolerance)


def _estimates(golden: TensorValue, noise: TensorValue) -> Iterator[float]:
    """Estimates of |noise - golden| / |golden| (2-norms) from statistics.

    Max and Min are single elements, whose errors are taken relative to the largest magnitude, as errors of large
    elements are large; Norm and Mean bound the distance from below (see `values`).
    """
    rms = _rms(golden)
    peak = max(abs(_finite(golden.maximum)), abs(_finite(golden.minimum)), rms)
    scales = (peak, peak, rms, rms * math.sqrt(max(1, golden.size)))
    for mine, theirs, scale in zip(statistics_of(golden), statistics_of(noise), scales):
        if mine is None or theirs is None:
            continue
        if mine == theirs or (math.isnan(mine) and math.isnan(theirs)):
            yield 0.0
        elif not (math.isfinite(mine) and math.isfinite(theirs)):
            yield math.inf
        else:
            yield abs(mine - theirs) / scale if scale else math.inf


def _rms(tensor: TensorValue) -> float:
    """Root mean square; the largest magnitude where the dump has no norm."""
    norm = _finite(tensor.norm) / math.sqrt(max(1, tensor.size))
    return norm or max(abs(_finite(tensor.maximum)), abs(_finite(tensor.minimum)))


def _finite(value: float | None) -> float:
    return float(value) if value is not None and math.isfinite(value) else 0.0
