"""Two dumps with sketches: distances with their uncertainty, and what is said where sketches cannot tell."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.accounting.observed import observed
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings
from pytest_msprobe.suites.comparison.table import columns, rows

X = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)
#: How each side is dumped.
SKETCH: dict[str, Any] = {"real": False, "sketches": True}


def comparison(
    folder: Path, target: np.ndarray, golden: np.ndarray, sides: tuple[dict[str, Any], ...] = (SKETCH, SKETCH)
) -> DumpComparison:
    for side, output, how in zip(("target", "golden"), (target, golden), sides):
        DumpBuilder(folder / side, **how).call("Mint.op.0", [X], [output]).write()
    return compared(folder)


def compared(folder: Path) -> DumpComparison:
    return DumpComparison(folder / "target" / "dump.json", folder / "golden" / "dump.json", ComparisonSettings())


def verdict(found: DumpComparison) -> OperationComparison:
    (operation,) = found.verdicts()
    return operation


def test_equal_values_have_equal_sketches(tmp_path: Path) -> None:
    found = comparison(tmp_path, X, X.copy())
    value = verdict(found).values[-1]
    assert (value.status, value.distance, value.reasons) == ("pass", 0.0, ())
    account = observed(verdict(found), found.limits)
    assert (account.kind, account.basis) == ("equal", "sketches")


@pytest.mark.parametrize(
    "target",
    [X[::-1].copy(), np.roll(X, 1, 1), X[:, ::-1].copy(), -X, X * np.float32(1.001), X + np.float32(3e-4) * NOISE],
    ids=["rows in reverse", "columns moved", "columns in reverse", "signs", "scaled", "noise"],
)
def test_the_distance_is_estimated(tmp_path: Path, target: np.ndarray) -> None:
    found = comparison(tmp_path, target, X)
    value = verdict(found).values[-1]
    assert value.status == "error"
    assert value.distance is not None
    assert 0.75 <= value.distance / (np.linalg.norm(target - X) / np.linalg.norm(X)) <= 1.33
    account = observed(verdict(found), found.limits)
    assert (account.kind, account.basis) == ("first", "sketches")
    assert "inputs have equal sketches, and output.0 differs: Relative distance by the sketches" in str(account)


def test_tables_have_the_distance_and_its_uncertainty(tmp_path: Path) -> None:
    found = comparison(tmp_path, X * np.float32(1.01), X)
    header, (_, row) = columns(found.mode, "result"), rows(verdict(found), found.mode, "result")
    cells = dict(zip(header, row, strict=True))
    assert cells["Distance"] == pytest.approx(0.01, rel=0.3)
    assert cells["Distance Uncertainty"] == pytest.approx(cells["Distance"] * 0.088, rel=0.01)
    assert cells["NormRelativeErr"].startswith(("0.99", "1.0"))


def test_what_may_be_at_the_limit_is_a_warning(tmp_path: Path) -> None:
    """Of many values exactly at the limit some are estimated above it, and none is an error."""
    statuses = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=X.shape)
        noise -= X * (noise * X).sum() / (X * X).sum()  # Norm does not show it
        moved = X + 0.99e-4 * noise * np.linalg.norm(X) / np.linalg.norm(noise)
        found = verdict(comparison(tmp_path / str(seed), moved.astype(np.float32), X))
        value = found.values[-1]
        statuses.append(value.status)
        assert value.status != "warning" or "at the limit 0.0001" in value.message
    assert set(statuses) == {"pass", "warning"}


def test_a_single_element_counts_by_max_and_min(tmp_path: Path) -> None:
    golden = np.random.default_rng(2).normal(size=(1000, 1000)).astype(np.float32)
    target = golden.copy()
    target.flat[golden.argmax()] *= np.float32(1.002)
    value = verdict(comparison(tmp_path, target, golden)).values[-1]
    assert value.status == "error"
    assert value.is_beyond
    assert value.distance is not None
    assert value.distance <= 1e-4
    assert value.message.startswith("Max is ")


def test_nan_is_counted_and_does_not_hide_the_rest(tmp_path: Path) -> None:
    golden = X.copy()
    golden[3, 4] = np.nan
    other = golden.copy()
    other[20:] *= np.float32(1.5)
    value = verdict(comparison(tmp_path / "a", other, golden)).values[-1]
    assert value.status == "error"
    assert "Relative distance" in value.message
    more = golden.copy()
    more[0, 0] = np.inf
    value = verdict(comparison(tmp_path / "b", more, golden)).values[-1]
    assert (value.status, value.distance) == ("error", math.inf)
    assert "NaN, +Inf and -Inf are 1, 1, 0 in the target and 1, 0, 0 in the golden dump." in value.message


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.bool_, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_permuted_values_of_any_dtype_differ(tmp_path: Path, dtype: Any) -> None:
    golden = (np.arange(60).reshape(6, 10) % 7 > 2 if dtype is np.bool_ else np.arange(60).reshape(6, 10)).astype(dtype)
    value = verdict(comparison(tmp_path / "a", golden[::-1].copy(), golden)).values[-1]
    assert value.status == "error"
    value = verdict(comparison(tmp_path / "b", golden.copy(), golden)).values[-1]
    assert value.status == "pass"


@pytest.mark.parametrize("swaps", [False, True])
def test_the_sketch_of_a_tensor_is_computed(tmp_path: Path, swaps: bool) -> None:
    sides = (SKETCH, {"real": True})
    value = verdict(comparison(tmp_path / "a", X[::-1].copy(), X, sides[::-1] if swaps else sides)).values[-1]
    assert value.status == "error"
    assert "by the sketches is 1." in value.message
    value = verdict(comparison(tmp_path / "b", X, X, sides[::-1] if swaps else sides)).values[-1]
    assert (value.status, value.distance) == ("pass", 0.0)


def test_without_a_sketch_on_one_side_statistics_are_compared(tmp_path: Path) -> None:
    found = comparison(tmp_path, X[::-1].copy(), X, (SKETCH, {"real": False}))
    value = verdict(found).values[-1]
    assert (value.status, value.reasons) == (
        "warning",
        ("Compared by statistics: the golden dump has no sketch of it.",),
    )
    assert observed(verdict(found), found.limits).basis == "statistics"


def _other_head(**changed: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        head = json.dumps({**json.loads(content[:256]), **changed}).ljust(255).encode() + b"\n"
        path.write_bytes(head + content[256:])

    return change


@pytest.mark.parametrize(
    "damage",
    [_other_head(sketches=2), _other_head(numbers=32), _other_head(seed=1), Path.unlink],
    ids=["version", "k", "seed", "no file"],
)
def test_sketches_that_cannot_be_used_leave_the_statistics(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    comparison(tmp_path, X * np.float32(1.01), X)
    damage(tmp_path / "golden" / "sketches.bin")
    found = compared(tmp_path)
    values = verdict(found).values
    words = "Compared by statistics: the sketches of the golden dump cannot be used."
    assert [(value.status, words in value.reasons) for value in values] == [("warning", True), ("error", True)]
    assert "Norm is " in values[-1].message
    assert len(found.golden.damage()) == 1


def test_rows_that_are_not_there_leave_the_statistics(tmp_path: Path) -> None:
    comparison(tmp_path, X[::-1].copy(), X)
    os.truncate(tmp_path / "target" / "sketches.bin", 2 * 256 + 100)
    found = compared(tmp_path)
    whole, missing = verdict(found).values
    assert (whole.status, whole.reasons) == ("pass", ())
    assert (missing.status, missing.message) == (
        "warning",
        "Compared by statistics: the target lacks row 1 of its sketches.",
    )
    assert "lacks the sketches of 1 of 2 values" in found.target.damage()[0]


def test_a_sketch_of_another_value_is_damage(tmp_path: Path) -> None:
    comparison(tmp_path, X * np.float32(100), X)
    content = (tmp_path / "golden" / "sketches.bin").read_bytes()
    (tmp_path / "target" / "sketches.bin").write_bytes(content)
    value = verdict(compared(tmp_path)).values[-1]
    assert value.status == "unreadable"
    assert "contradicts the statistics: its norm is about" in value.message


def test_statistics_that_prove_more_than_the_sketches_are_damage(tmp_path: Path) -> None:
    """Each side looks right for itself: only the pair shows it."""
    comparison(tmp_path, X * np.float32(1.5), X)
    content = (tmp_path / "golden" / "sketches.bin").read_bytes()
    (tmp_path / "target" / "sketches.bin").write_bytes(content)
    found = compared(tmp_path)
    value = verdict(found).values[-1]
    assert value.status == "unreadable"
    assert "the statistics of both sides are" in value.message
    assert "one of the two dumps is damaged" in value.message
    assert verdict(found).status == "error"


def test_a_noise_run_is_measured_by_its_sketches(tmp_path: Path) -> None:
    comparison(tmp_path, X, X)
    DumpBuilder(tmp_path / "noise", **SKETCH).call("Mint.op.0", [X], [X + np.float32(1e-6) * NOISE]).write()
    paths = (tmp_path / side / "dump.json" for side in ("target", "golden"))
    found = DumpComparison(*paths, ComparisonSettings(noise=tmp_path / "noise"))
    tolerance = verdict(found).values[-1].tolerance
    assert tolerance is not None
    assert tolerance.noise == pytest.approx(1e-6, rel=0.3)
    assert (tolerance.basis, tolerance.limit) == ("noise", 10 * tolerance.noise)


class _SameUpdate:
    """What two runs hold of each other, where the parameters show that both optimizers do the same."""

    def is_rounding(self, target: Any, golden: Any) -> bool:
        return False

    def is_update(self, operation: Any) -> bool:
        return True


@pytest.mark.parametrize(("given", "status"), [(X, "error"), (X + NOISE, "skip")])
def test_what_an_update_makes_of_equal_values_is_its_own(tmp_path: Path, given: np.ndarray, status: str) -> None:
    for side, source, output in (("target", given, X * np.float32(1.1)), ("golden", X, X)):
        DumpBuilder(tmp_path / side, **SKETCH).call("Mint.op.0", [source], [output]).write()
    found = compared(tmp_path)
    vars(found)["_held"] = _SameUpdate()
    assert verdict(found).values[-1].status == status
