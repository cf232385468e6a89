"""One fault per case, each with its verdict on real data and on statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings

B = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)


def with_value(value: float, place: tuple[int, int] = (0, 1), base: np.ndarray = B) -> np.ndarray:
    changed = base.copy()
    changed[place] = value
    return changed


@dataclass(frozen=True)
class Case:
    """Target and golden output of one operation; the state of the pair on real data and on statistics."""

    name: str
    target: object
    golden: object
    real: str
    statistics: str
    reason: str = ""


BOOLS = np.array([True] * 9 + [False])
CASES = [
    Case("equal", B, B, "pass", "pass"),
    Case("int against float", np.arange(4, dtype=np.int32), np.arange(4, dtype=np.float32), "error", "error", "Dtypes"),
    Case("NaN only in golden", B, with_value(np.nan), "error", "error", ""),
    Case("NaN only in target", with_value(np.nan), B, "error", "error", ""),
    Case("inf only in target", with_value(np.inf), B, "error", "error", ""),
    Case("inf of other sign", with_value(-np.inf), with_value(np.inf), "error", "error", ""),
    Case("NaN at the same place", with_value(np.nan), with_value(np.nan), "pass", "pass"),
    Case("sign flip", -B, B, "error", "error", ""),
    Case("1 % larger", B * np.float32(1.01), B, "error", "error", "Norm|distance"),
    Case("0.1 % larger", B * np.float32(1.001), B, "error", "error", "Norm|distance"),
    Case("one rounding larger", B * np.float32(1 + 2**-22), B, "pass", "pass"),
    Case("one bool of ten", np.array([False, *BOOLS[1:]]), BOOLS, "error", "pass", ""),
    Case("all bools", np.zeros(4, bool), np.ones(4, bool), "error", "error", ""),
    Case("one element", np.array([2.0], np.float32), np.array([1.0], np.float32), "error", "error", ""),
    Case("0-d", np.array(2.0, np.float32), np.array(1.0, np.float32), "error", "error", ""),
    Case(
        "float16 against float32",
        B.astype(np.float16),
        B.astype(np.float16).astype(np.float32),
        "error",
        "warning",
        "Dtypes",
    ),
    Case("float64 against float32", B.astype(np.float64), B, "error", "warning", "Dtypes"),
    Case("other shape", B, B.reshape(5, 2), "error", "error", "Shapes"),
    Case("extra dimension", B[None], B, "error", "error", "Shapes"),
    Case("empty", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), "pass", "pass"),
    Case("both zero", np.zeros(3, np.float32), np.zeros(3, np.float32), "pass", "pass"),
    Case("lost", np.zeros(3, np.float32), np.ones(3, np.float32), "error", "error", ""),
    Case("invented", np.ones(3, np.float32), np.zeros(3, np.float32), "error", "error", ""),
    Case("integer off by one", np.array([5, 2**40 + 1]), np.array([5, 2**40]), "error", "error", ""),
    Case("subnormal noise", np.full(4, 1e-40, np.float32), np.full(4, 1e-40, np.float32), "pass", "pass"),
    Case("Python value", 3, 4, "error", "error", "value is"),
    Case("equal numbers", 1, 1.0, "pass", "pass"),
    Case("None", None, None, "pass", "pass"),
    Case("string that a spreadsheet would run", "-mean", "-mean", "pass", "pass"),
]


def verdict_on(
    folder: Path, case: Case, *, real: bool, settings: ComparisonSettings | None = None
) -> OperationComparison:
    for side, output in (("target", case.target), ("golden", case.golden)):
        DumpBuilder(folder / side, real=real).call("Mint.op.0", [B], [output]).write()
    comparison = DumpComparison(
        folder / "target" / "dump.json", folder / "golden" / "dump.json", settings or ComparisonSettings()
    )
    (verdict,) = comparison.verdicts()
    return verdict


@pytest.mark.parametrize("real", [True, False], ids=["real", "statistics"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_has_its_verdict(tmp_path: Path, case: Case, real: bool) -> None:
    verdict = verdict_on(tmp_path, case, real=real)
    value = verdict.values[-1]
    expected = case.real if real else case.statistics
    assert value.status == expected, value.message
    assert verdict.status == ("error" if expected == "error" else "pass")
    assert verdict.is_origin == (expected == "error"), "the inputs agree in every case"
    if expected == "error":
        assert value.message
        assert any(word in value.message for word in case.reason.split("|"))


def test_a_missing_golden_file_is_unreadable_and_an_error(tmp_path: Path) -> None:
    case = Case("", B, B, "", "")
    verdict_on(tmp_path, case, real=True)
    (tmp_path / "golden" / "dump_tensor_data" / "Mint.op.0.forward.output.0.npy").unlink()
    comparison = DumpComparison(
        tmp_path / "target" / "dump.json", tmp_path / "golden" / "dump.json", ComparisonSettings()
    )
    (verdict,) = comparison.verdicts()
    assert [value.status for value in verdict.values] == ["pass", "unreadable"]
    assert verdict.status == "error"
    assert "Mint.op.0.forward.output.0.npy" in verdict.message
    assert verdict.first_error is None, "what cannot be read is not a divergence"


def test_a_missing_operation_is_unmatched_on_either_side(tmp_path: Path) -> None:
    DumpBuilder(tmp_path / "a").call("Mint.op.0", [B], [B]).call("Mint.more.0", [B], [B * 3]).write()
    DumpBuilder(tmp_path / "b").call("Mint.less.0", [B], [B * 5]).call("Mint.op.0", [B], [B]).write()
    comparison = DumpComparison(tmp_path / "a" / "dump.json", tmp_path / "b" / "dump.json", ComparisonSettings())
    found = {verdict.operation.record: (verdict.status, verdict.held_by) for verdict in comparison.verdicts()}
    assert found == {
        "Mint.op.0.forward": ("pass", "both"),
        "Mint.more.0.forward": ("skip", "target"),
        "Mint.less.0.forward": ("skip", "golden"),
    }


@pytest.mark.parametrize(
    ("accept", "status"), [((), "error"), (("dtype",), "warning")], ids=["by default", "when accepted"]
)
def test_another_float_dtype_can_be_accepted(tmp_path: Path, accept: tuple[str, ...], status: str) -> None:
    case = Case("", B.astype(np.float16), B, "", "")
    verdict = verdict_on(tmp_path, case, real=True, settings=ComparisonSettings(accept=frozenset(accept)))
    assert verdict.values[-1].status == status
    assert "Dtypes differ" in verdict.values[-1].message


def test_an_accepted_dtype_is_judged_by_the_coarser_one(tmp_path: Path) -> None:
    case = Case("", (B * 1.05).astype(np.float16), B, "", "")
    verdict = verdict_on(tmp_path, case, real=True, settings=ComparisonSettings(accept=frozenset({"dtype"})))
    assert verdict.values[-1].status == "error"
    assert "above 0.008" in verdict.values[-1].message


def test_a_distance_can_be_set_by_dtype(tmp_path: Path) -> None:
    case = Case("", B * np.float32(1.001), B, "", "")
    settings = ComparisonSettings(distances=(("Float32", 0.01),))
    assert verdict_on(tmp_path, case, real=True, settings=settings).status == "pass"


def test_uninitialised_memory_is_not_judged(tmp_path: Path) -> None:
    for side, value in (("a", B), ("b", -B)):
        DumpBuilder(tmp_path / side).call("Mint.empty_like.0", [B], [value]).write()
    comparison = DumpComparison(tmp_path / "a" / "dump.json", tmp_path / "b" / "dump.json", ComparisonSettings())
    (verdict,) = comparison.verdicts()
    assert [value.status for value in verdict.values] == ["pass", "skip"]
    assert "uninitialised" in verdict.values[1].message


@pytest.mark.parametrize(("sides", "status"), [("ab", "skip"), ("a", "unmatched")])
def test_what_neither_dump_holds_is_not_judged(tmp_path: Path, sides: str, status: str) -> None:
    """Tensors inside of `vmap`, in which transformers makes its masks, have neither data nor statistics."""
    for side in "ab":
        builder = DumpBuilder(tmp_path / side).call("Mint.op.0", [B], [B])
        value = builder.records["Mint.op.0.forward"]["input_args"][0]
        if side in sides:
            value |= dict.fromkeys(("Max", "Min", "Mean", "Norm"))
        value.pop("data_name", None)
        builder.write()
    comparison = DumpComparison(tmp_path / "a" / "dump.json", tmp_path / "b" / "dump.json", ComparisonSettings())
    (verdict,) = comparison.verdicts()
    assert [value.status for value in verdict.values] == [status, "pass"]


def test_a_malformed_tensor_does_not_cost_the_others(tmp_path: Path) -> None:
    for side in ("a", "b"):
        builder = DumpBuilder(tmp_path / side)
        builder.call("Mint.op.0", [B], [B])
        if side == "b":
            builder.records["Mint.op.0.forward"]["input_args"][0]["shape"] = [-1]
        builder.write()
    comparison = DumpComparison(tmp_path / "a" / "dump.json", tmp_path / "b" / "dump.json", ComparisonSettings())
    (verdict,) = comparison.verdicts()
    assert [value.status for value in verdict.values] == ["unreadable", "pass"]
    assert "input_args[0].shape" in verdict.message
