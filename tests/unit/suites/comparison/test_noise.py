"""Tolerances from a noise run: how much it differs, the floor where it does not, the dtype where it says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.numerics.expected import DTYPES, Times
from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.values import ValueComparison

X = np.random.default_rng(0).normal(size=(40, 25)).astype(np.float32)
#: The noise run differs by this much in every element.
NOISE = np.float32(1e-5)
MODES = pytest.mark.parametrize("mode", ["real", "statistics", "fingerprints"])


def verdict(
    folder: Path, outputs: tuple[Any, Any, Any], *, mode: str = "statistics", inputs: tuple[Any, Any, Any] = (X, X, X)
) -> ValueComparison:
    """On the output of one call, of which `outputs` and `inputs` are those of target, golden and noise run."""
    for side, value, argument in zip(("target", "golden", "noise"), outputs, inputs):
        builder = DumpBuilder(folder / side, real=mode == "real", fingerprints=mode == "fingerprints")
        builder.call("Mint.op.0", [argument], [value]).write()
    (found,) = comparison(folder).verdicts()
    return found.values[-1]


def comparison(folder: Path, noise: str = "noise") -> DumpComparison:
    paths = [folder / side / "dump.json" for side in ("target", "golden")]
    return DumpComparison(*paths, ComparisonSettings(noise=folder / noise))


@MODES
@pytest.mark.parametrize(("error", "status"), [(3, "pass"), (50, "error")])
def test_a_value_may_differ_by_some_times_the_noise(tmp_path: Path, mode: str, error: float, status: str) -> None:
    value = verdict(tmp_path, (X * (1 + error * NOISE), X, X * (1 + NOISE)), mode=mode)
    assert value.status in (status, "warning" if status == "pass" else status)
    assert value.tolerance is not None
    assert value.tolerance.basis == "noise"
    assert value.tolerance.limit == pytest.approx(Times.NOISE * 1e-5, rel=0.05)
    assert ("10 times what the noise run differs by" in value.message) == (status == "error")


@MODES
def test_where_the_noise_run_is_equal_the_least_tolerance_of_the_dtype_holds(tmp_path: Path, mode: str) -> None:
    close, far = (verdict(tmp_path, (X * np.float32(1 + e), X, X), mode=mode) for e in (5e-7, 1e-5))
    assert close.status in ("pass", "warning")
    assert far.status == "error"
    assert far.tolerance is not None
    assert (far.tolerance.basis, far.tolerance.limit) == ("floor", DTYPES["Float32"].operation)
    assert "the noise run hardly differs" in far.message


def test_a_distance_of_the_user_is_the_least_tolerance(tmp_path: Path) -> None:
    verdict(tmp_path, (X * np.float32(1 + 1e-5), X, X))
    paths = [tmp_path / side / "dump.json" for side in ("target", "golden")]
    settings = ComparisonSettings(noise=tmp_path / "noise", distances=(("Float32", 1e-4),))
    (found,) = DumpComparison(*paths, settings).verdicts()
    assert found.values[-1].status == "pass"


def test_a_value_that_the_noise_run_lacks_has_the_limit_of_its_dtype(tmp_path: Path) -> None:
    for side, count in (("target", 2), ("golden", 2), ("noise", 1)):
        builder = DumpBuilder(tmp_path / side, real=False)
        for number in range(count):
            builder.call(f"Mint.op.{number}", [X], [X * np.float32(1 + 1e-3 * (side == "target"))])
        builder.write()
    *_, last = comparison(tmp_path).verdicts()
    tolerance = last.values[-1].tolerance
    assert tolerance is not None
    assert (tolerance.basis, tolerance.limit) == ("dtype", 1e-4)
    assert "the noise run has no such value" in last.values[-1].message


def test_a_number_that_hardly_moved_has_the_noise_of_its_record(tmp_path: Path) -> None:
    one = np.array(1.0, np.float32)
    moved = np.array(1 + 5e-5, np.float32)
    value = verdict(tmp_path, (moved, one, one), inputs=(X, X, X * (1 + NOISE)))
    assert value.status == "pass"
    assert verdict(tmp_path, (moved, one, one)).status == "error", "unless nothing reached the record"


def test_what_the_noise_does_not_reach_has_the_floor_when_it_goes_in(tmp_path: Path) -> None:
    verdict(tmp_path, (X, X, X * (1 + NOISE)), inputs=(X * np.float32(1 + 1e-5), X, X))
    (found,) = comparison(tmp_path).verdicts()
    assert [value.status for value in found.values] == ["error", "pass"]


@pytest.mark.parametrize(("error", "status"), [(0.5, "skip"), (100.0, "error")])
def test_a_value_that_rounding_decides_is_not_judged_unless_it_is_far_off(
    tmp_path: Path, error: float, status: str
) -> None:
    value = verdict(tmp_path, (X * np.float32(1 + error), X, -X * np.float32(0.5)))
    assert value.status == status
    assert ("Rounding alone changes this value" in value.message) == (status == "skip")


def test_indices_that_the_noise_changes_are_not_judged(tmp_path: Path) -> None:
    indices = np.arange(50)
    moved = indices.copy()
    moved[[3, 49]] = [49, 60]
    assert verdict(tmp_path, (moved, indices, moved + 1)).status == "skip"
    assert verdict(tmp_path, (moved, indices, indices)).status == "error"


def test_a_rounding_of_the_least_float16_numbers_is_no_error(tmp_path: Path) -> None:
    small = (X * np.float32(2e-6)).astype(np.float16)
    spaced = (small.view(np.uint16) + 1).view(np.float16)
    assert verdict(tmp_path, (spaced, small, small)).status == "pass"


def test_a_run_of_something_else_is_no_noise_run(tmp_path: Path) -> None:
    verdict(tmp_path, (X, X, X))
    DumpBuilder(tmp_path / "other", real=False).call("Mint.other.0", [X], [X]).write()
    with pytest.raises(DumpError, match="--msprobe-noise has no record of the golden dump"):
        comparison(tmp_path, "other")
    with pytest.raises(DumpError, match="has no dump that goes with it"):
        comparison(tmp_path, "nowhere")
