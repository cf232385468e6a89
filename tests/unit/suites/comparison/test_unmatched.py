"""Dumps with no operation in common: an error that names the likely reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.comparison import compare, compare_distributed
from pytest_msprobe.suites.comparison.options import ComparisonSettings

X = np.ones(3, np.float32)
CELL, MODULE = "Cell.net.fc.Dense.forward.0", "Module.net.fc.Linear.forward.0"


def dump(folder: Path, *names: str, framework: str = "mindspore") -> Path:
    builder = DumpBuilder(folder / "rank0", framework=framework)
    for name in names:
        builder.call(name, [X], [X])
        if not name.startswith(("Cell.", "Module.")):
            continue
        del builder.records[f"{name}.forward"]
        builder.records[name] = {"input_args": [], "input_kwargs": {}, "output": [builder.tensor(X, f"{name}.npy")]}
    builder.write()
    return builder.path


CASES = {
    "levels": (
        [CELL],
        ["Mint.op.0"],
        "mindspore",
        "the levels differ, the target holds Cells and the golden dump API calls; dump both at one level",
    ),
    "frameworks": (
        ["Mint.one.0"],
        ["Torch.other.0"],
        "pytorch",
        "mindspore and pytorch need another mapping .'Mint.one' in the target, 'Torch.other' in the golden dump",
    ),
    "models": (
        [f"Mint.{name}.0" for name in ("a", "b", "c", "d", "e")],
        ["Mint.x.0"],
        "mindspore",
        "different models or steps .'Mint.a', 'Mint.b', 'Mint.c' and 2 more in the target, 'Mint.x' in the golden dump",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_likely_reason_is_named_and_the_table_is_there(tmp_path: Path, case: str) -> None:
    target, golden, framework, words = CASES[case]
    paths = dump(tmp_path / "a", *target), dump(tmp_path / "b", *golden, framework=framework)
    with pytest.raises(DumpError, match=f"no operation matched: .*{words}"):
        compare({"npu_path": paths[0], "bench_path": paths[1]}, tmp_path / "out")
    assert list((tmp_path / "out").glob("compare_result_*.csv"))
    result = compare_distributed(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert "no operation matched" in result.problems[0]
    assert not result.agrees


def test_a_mapping_that_was_given_is_named(tmp_path: Path) -> None:
    paths = dump(tmp_path / "a", "Mint.one.0"), dump(tmp_path / "b", "Mint.other.0")
    settings = ComparisonSettings(cell_mapping=True)
    with pytest.raises(DumpError, match="no operation matched with the mapping that was given"):
        compare({"npu_path": paths[0], "bench_path": paths[1]}, tmp_path / "out", settings=settings)


def test_calls_whose_values_the_other_run_makes_under_other_names_are_compared(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((2, 64)).astype(np.float32)
    paths = {}
    for side, name in {"npu_path": "Mint.one.0", "bench_path": "Mint.other.0"}.items():
        builder = DumpBuilder(tmp_path / side)
        builder.call(name, [values[0]], [values[1]])
        builder.write()
        paths[side] = builder.path
    result = compare(paths, tmp_path / "out")
    assert result.agrees
    assert (result.divergence.operations["again"], result.divergence.answer().outcome) == (2, "right")
