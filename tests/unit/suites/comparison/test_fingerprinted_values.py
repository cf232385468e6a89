"""Two statistics dumps with fingerprints: equal bits, and what differs although its statistics do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings

B = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
SWAPPED = B[[1, 0, 2, 3]]


def compared(folder: Path, target: np.ndarray, golden: np.ndarray, *accept: str) -> OperationComparison:
    for side, output in (("target", target), ("golden", golden)):
        DumpBuilder(folder / side, real=False, fingerprints=True).call("Mint.op.0", [B], [output]).write()
    paths = [folder / side / "dump.json" for side in ("target", "golden")]
    (verdict,) = DumpComparison(*paths, ComparisonSettings(accept=frozenset(accept))).verdicts()
    return verdict


def test_equal_fingerprints_agree(tmp_path: Path) -> None:
    value = compared(tmp_path, B, B.copy()).values[-1]
    assert (value.status, value.distance, value.reasons) == ("pass", 0.0, ())


@pytest.mark.parametrize(
    ("target", "accepted", "words"),
    [
        (SWAPPED, "warning", ("The bits differ: fingerprint ",)),
        (B.T.copy(), "warning", ("The bits differ: fingerprint ",)),
        (B * np.float32(1 + 2**-22), "warning", ("The bits differ: fingerprint ", "apart.")),
        (B * np.float32(1.01), "error", ("Norm is ", "The bits differ: fingerprint ")),
        (-B, "error", ("Max is ", "The bits differ: fingerprint ")),
    ],
    ids=["swapped rows", "transposed", "one rounding", "1 % larger", "sign flip"],
)
def test_other_bits_differ_and_can_be_left_to_the_statistics(
    tmp_path: Path, target: np.ndarray, accepted: str, words: tuple[str, ...]
) -> None:
    verdict = compared(tmp_path, target, B)
    assert verdict.status == "error"
    assert verdict.is_origin
    value = compared(tmp_path, target, B, "bits").values[-1]
    assert value.status == accepted
    for found in (verdict.values[-1], value):
        assert all(word in found.message for word in words)


def test_equal_statistics_prove_no_distance(tmp_path: Path) -> None:
    ones, other = np.array([1.0, 2.0, 3.0], np.float32), np.array([3.0, 1.0, 2.0], np.float32)
    value = compared(tmp_path, ones, other).values[-1]
    assert value.distance is None
    assert "with equal statistics" in value.message


def test_an_accepted_dtype_is_judged_by_statistics(tmp_path: Path) -> None:
    half = B.astype(np.float16)
    value = compared(tmp_path, half, half.astype(np.float32), "dtype").values[-1]
    assert value.status == "warning"
    assert "bits differ" not in value.message


def test_one_side_without_fingerprints_leaves_the_statistics(tmp_path: Path) -> None:
    for side, is_marked in (("target", True), ("golden", False)):
        DumpBuilder(tmp_path / side, real=False, fingerprints=is_marked).call("Mint.op.0", [B], [SWAPPED]).write()
    paths = [tmp_path / side / "dump.json" for side in ("target", "golden")]
    (verdict,) = DumpComparison(*paths, ComparisonSettings()).verdicts()
    assert verdict.status == "pass"
