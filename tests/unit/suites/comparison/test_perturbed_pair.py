"""One weight times 1 + 0.02 N(0, 1): the true cause is named, whatever the dumps hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from comparison_dumps import TRUE_CAUSE, dump_below, make_fingerprints, make_md5, make_statistics, unpack_perturbed

from pytest_msprobe.suites.comparison import compare


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_perturbed(tmp_path_factory.mktemp("perturbed"))


def compared(folder: Path, out: Path, target: str = "target", golden: str = "golden"):
    paths = {"npu_path": dump_below(folder / target), "bench_path": dump_below(folder / golden)}
    return compare(paths, out)


@pytest.mark.parametrize(
    "change", [None, make_statistics, make_md5, make_fingerprints], ids=["real", "statistics", "md5", "fingerprint"]
)
def test_first_divergence_is_the_true_cause(pair: Path, tmp_path: Path, change) -> None:
    shutil.copytree(pair, tmp_path / "pair")
    if change is not None:
        for side in ("target", "golden"):
            change(dump_below(tmp_path / "pair" / side))
    result = compared(tmp_path / "pair", tmp_path / "out")
    first = result.divergence.first
    assert first is not None
    assert f"{first.record}.input.1" == TRUE_CAUSE
    assert first.is_input
    assert not result.agrees
    assert result.divergence.is_complete
    assert next(result.divergence.lines()) == "Wrong: differs first in an input of Primitive.dense.Dense.4"


def test_operations_before_the_cause_agree(pair: Path, tmp_path: Path) -> None:
    result = compared(pair, tmp_path)
    first = result.divergence.first
    assert first is not None
    assert first.order == 35
    assert result.divergence.values["pass"] > 150
    assert result.divergence.values["error"] > 300


def test_a_dump_agrees_with_itself(pair: Path, tmp_path: Path) -> None:
    result = compared(pair, tmp_path, "target", "target")
    assert result.agrees
    assert result.divergence.first is None
    assert next(iter(result.divergence.lines())) == "Right: all compared values of 176 operations are equal"


def test_real_data_against_statistics_compares_what_both_have(pair: Path, tmp_path: Path) -> None:
    shutil.copytree(pair, tmp_path / "pair")
    make_statistics(dump_below(tmp_path / "pair" / "golden"))
    result = compared(tmp_path / "pair", tmp_path / "out")
    first = result.divergence.first
    assert first is not None
    assert f"{first.record}.input.1" == TRUE_CAUSE
    assert "Norm is" in first.reason or "Max is" in first.reason


def test_advice_names_the_line_of_the_table(pair: Path, tmp_path: Path) -> None:
    result = compared(pair, tmp_path)
    table, advice = result.files
    line, suspect, _ = advice.read_text(encoding="utf-8").splitlines()
    assert suspect == f"Suspect Nodes: {TRUE_CAUSE}"
    number = int(line.removeprefix("Line: "))
    assert table.read_text(encoding="utf-8-sig").splitlines()[number - 1].startswith(TRUE_CAUSE)
