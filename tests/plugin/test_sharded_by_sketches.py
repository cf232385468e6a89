"""Runs of several ranks that dumped sketches in place of tensors, through real pytest runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sharded import (
    ARGUMENTS,
    ITEMS,
    Arrays,
    _gradient_of_the_norm,
    _no_reduction,
    _other_parameters,
    _reduced_twice,
    _rows_in_another_order,
    logical,
    sharded,
    table,
    whole,
    write,
)

from msprobe_collector.dump_format.sketch_files import SketchRows
from msprobe_collector.dump_format.sketches import row_of
from tools.benchmarks import make_large_ranks


def sketch(folder: Path) -> None:
    """Put sketches in the place of the tensors of all dumps below `folder`."""
    for path in sorted(folder.rglob("dump.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        writer = SketchRows(path.parent / "sketches.bin")
        writer.create()
        _replace(content["data"], path.parent / "dump_tensor_data", writer)
        writer.close()
        path.write_text(json.dumps({**content, "task": "statistics"}), encoding="utf-8")
        shutil.rmtree(path.parent / "dump_tensor_data")


def _replace(encoded: Any, files: Path, writer: SketchRows) -> None:
    for item in encoded.values() if isinstance(encoded, dict) else encoded if isinstance(encoded, list) else ():
        _replace(item, files, writer)
    if isinstance(encoded, dict) and (name := encoded.pop("data_name", None)) is not None:
        array = np.load(files / name)
        encoded |= json.loads(f"{{{writer.add(row_of(array))[2:]}}}")
        if count := int(np.count_nonzero(np.isnan(array))):
            encoded["NaN_count"] = count


@pytest.mark.parametrize("sides", [("tp2", "single"), ("tp2",), ("single",)], ids="-".join)
def test_a_right_run(pytester: pytest.Pytester, sides: tuple[str, ...]) -> None:
    sharded(pytester.path)
    for side in sides:
        sketch(pytester.path / side)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS)
    found = table(pytester.path)
    assert {row["state"] for row in found.values()} == {"placed"}
    placements = {key: row["placement"] for key, row in found.items()}
    assert placements["Module.up.Up.forward.0", "output.0"] == "S(1) over tp"
    assert placements["Module.up.Up.backward.0", "output.0"] == "P(sum) over tp"
    assert placements["Optimizer.SGD.0.forward", "input.gradients.down.weight"] == "S(1) over tp"


@pytest.mark.parametrize(
    ("change", "record", "words"),
    [
        (_no_reduction, "forward: Module.down.Down.forward.0", "output.0 *nothing has added: P(sum) over tp*"),
        (_reduced_twice, "backward: Module.down.Down.backward.0", "output.0 *2 x what the logical run has: tp is 2"),
        (_gradient_of_the_norm, "optimizer: Optimizer.SGD.0.forward", "input.gradients.norm.weight *P(sum) over tp*"),
        (_other_parameters, "forward: Module.up.Up.forward.0", "parameters.weight *the nearest is S(0) over tp*"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_first_wrong_place_is_that_of_tensors(
    pytester: pytest.Pytester, change: Callable[[list[Arrays]], None], record: str, words: str
) -> None:
    sharded(pytester.path, change)
    for side in ("tp2", "single"):
        sketch(pytester.path / side)
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"At fault in the {record}", f"  {words}"])


@pytest.mark.parametrize("is_on_both_sides", [True, False])
def test_elements_that_are_not_finite_are_counted(pytester: pytest.Pytester, is_on_both_sides: bool) -> None:
    def changed(ranks: list[Arrays]) -> None:
        for values in ranks:
            values["y"] = values["y"].copy()
            values["y"][1, 2] = np.nan

    sharded(pytester.path, changed)
    if is_on_both_sides:
        values = whole()
        values["y"][1, 2] = np.nan
        write(pytester.path / "single" / "step0" / "rank0", values)
    for side in ("tp2", "single"):
        sketch(pytester.path / side)
    result = pytester.runpytest(*ARGUMENTS)
    row = table(pytester.path)["Module.norm.Norm.forward.0", "output.0"]
    if is_on_both_sides:
        result.assert_outcomes(passed=ITEMS)
        assert (row["state"], row["placement"]) == ("placed", "R over tp")
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            ["At fault in the forward: Module.norm.Norm.forward.0", "*no finite distance: other elements are NaN*"]
        )


def test_three_shards_are_told_by_the_tensors_of_the_logical_run(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    logical(pytester.path, "tp3")
    sketch(pytester.path / "tp3")
    result = pytester.runpytest("--msprobe-dump=tp3", "--msprobe-logical=single")
    result.assert_outcomes(passed=ITEMS)
    row = table(pytester.path)["Module.up.Up.forward.0", "output.0"]
    assert (row["state"], row["placement"]) == ("placed", "S(1) over tp")


def test_what_sketches_do_not_tell_is_judged_by_statistics_or_not_at_all(pytester: pytest.Pytester) -> None:
    def changed(ranks: list[Arrays]) -> None:
        _rows_in_another_order(ranks)
        for values, columns in zip(ranks, ([0, 1, 2, 5], [3, 4]), strict=True):  # of unequal length
            values["hidden"] = whole()["hidden"][:, columns]

    sharded(pytester.path, changed)
    for side in ("tp2", "single"):
        sketch(pytester.path / side)
    pytester.runpytest(*ARGUMENTS)
    found = table(pytester.path)
    uneven = found["Module.up.Up.forward.0", "output.0"]
    assert (uneven["state"], uneven["placement"]) == ("placed", "S(1) over tp, by statistics")
    reordered = found["Module.norm.Norm.backward.0", "input.0"]
    assert reordered["state"] == "unjudged"
    assert reordered["message"].startswith(
        "statistics allow R over tp, and sketches do not tell shards in another order"
    )


def test_rows_of_unequal_number_of_the_logical_run_are_judged_by_statistics(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    logical(pytester.path, "dp2")
    for side in ("tp2", "dp2"):
        sketch(pytester.path / side)
    result = pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=dp2")
    assert result.ret == pytest.ExitCode.OK
    row = table(pytester.path)["Module.up.Up.forward.0", "output.0"]
    assert (row["state"], row["placement"]) == ("placed", "S(1) over tp; logical run: S(0) over dp of 2, by statistics")


def test_a_sketch_that_cannot_be_read_is_an_error_of_its_record(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    for side in ("tp2", "single"):
        sketch(pytester.path / side)
    path = pytester.path / "tp2/step0/rank1/sketches.bin"
    path.write_bytes(path.read_bytes()[: 256 * 6])
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*is not in *sketches.bin, which holds 5 rows*"])


def test_the_load_of_the_benchmark_is_a_right_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["make_large_ranks", str(pytester.path / "load"), "--data", "2", "--layers", "4"])
    make_large_ranks.main()
    result = pytester.runpytest("--msprobe-dump=load/ranks", "--msprobe-logical=load/logical", "-k", "c01 or c02")
    result.assert_outcomes(passed=24, deselected=576)
    placements = {key: row["placement"] for key, row in table(pytester.path).items()}
    assert placements["Module.layers.3.c01.Column.forward.0", "output.0"] == "S(2) over tp, S(0) over dp"
    assert placements["Module.layers.3.c02.Row.parameters_grad.0", "weight"] == "S(1) over tp, P(sum) over dp"
