"""MindSpore against PyTorch: tensors at other places, tables, integers of other widths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import ApiName, find_dtype, parse_api_name
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.engines.protocol import Call
from pytest_msprobe.suites.comparison.accounting.account import OTHER_API
from pytest_msprobe.suites.comparison.accounting.accountant import argument_differences, placed
from pytest_msprobe.suites.comparison.matching import canonical_operation
from pytest_msprobe.suites.comparison.operations import DumpComparison, OperationComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
IDS = np.array([[0, 3], [1, 1]], np.int32)
ROWS = TABLE[IDS]


def compared(folder: Path, target: list[tuple], golden: list[tuple]) -> list[OperationComparison]:
    """Verdicts on the calls (name, arguments, outputs, incoming, gradients) of a MindSpore and a PyTorch dump."""
    paths = []
    for framework, calls in (("mindspore", target), ("pytorch", golden)):
        builder = DumpBuilder(folder / framework, framework=framework)
        for name, arguments, outputs, incoming, gradients in calls:
            builder.call(name, arguments, outputs, incoming=incoming, gradients=gradients)
        paths.append(builder.write())
    return list(DumpComparison(*paths, ComparisonSettings()).verdicts())


@pytest.mark.parametrize("name", ["Functional.gather.0", "Primitive.table.Gather.0"])
def test_a_gather_of_a_table_is_an_embedding(tmp_path: Path, name: str) -> None:
    forward, backward = compared(
        tmp_path,
        [(name, [TABLE, IDS, 0], [ROWS], [ROWS], [TABLE, None])],
        [("Functional.embedding.0", [IDS.astype(np.int64), TABLE], [ROWS], [ROWS], [None, TABLE])],
    )
    pairs = {value.path: value.golden.path for value in forward.values if value.golden and value.is_tensor}
    assert pairs == {"input.0": "input.1", "input.1": "input.0", "output.0": "output.0"}
    gradients = {value.path: value.golden.path for value in backward.values if value.golden and value.is_tensor}
    assert gradients == {"input.0": "input.0", "output.0": "output.1"}
    assert {value.status for value in forward.values if value.is_tensor} == {"pass", "warning"}
    (width,) = (value for value in forward.values if value.status == "warning")
    assert width.message == "Dtypes differ: target Int32, golden Int64."


def test_integers_of_other_values_differ_all_the_same(tmp_path: Path) -> None:
    (forward,) = compared(
        tmp_path,
        [("Mint.reshape.0", [IDS, [4]], [IDS.reshape(4)], None, None)],
        [("Torch.reshape.0", [IDS.astype(np.int64), [4]], [IDS.reshape(4).astype(np.int64) + 1], None, None)],
    )
    assert [value.status for value in forward.values if value.is_tensor] == ["warning", "error"]


def test_one_framework_does_not_mix_widths(tmp_path: Path) -> None:
    paths = []
    for side, ids in (("a", IDS), ("b", IDS.astype(np.int64))):
        paths.append(DumpBuilder(tmp_path / side).call("Mint.reshape.0", [ids], [ids]).write())
    (forward,) = DumpComparison(*paths, ComparisonSettings()).verdicts()
    assert {value.status for value in forward.values} == {"error"}


def test_weights_behind_an_argument_that_is_no_tensor(tmp_path: Path) -> None:
    x, gamma, beta = np.ones((2, 3), np.float32), np.full(3, 2, np.float32), np.full(3, 5, np.float32)
    (forward,) = compared(
        tmp_path,
        [("Primitive.norm.LayerNorm.0", [x, gamma, beta], [x], None, None)],
        [("Functional.layer_norm.0", [x, [3], gamma, beta, 1e-5], [x], None, None)],
    )
    pairs = {value.path: value.golden.path for value in forward.values if value.golden and value.is_tensor}
    assert pairs == {"input.0": "input.0", "input.1": "input.2", "input.2": "input.3", "output.0": "output.0"}
    assert {value.status for value in forward.values if value.is_tensor} == {"pass"}


def test_gather_of_mint_is_no_embedding() -> None:
    assert canonical_operation("gather", "Mint") == canonical_operation("gather", "Torch") == "gather"
    assert canonical_operation("gather", "Functional") == canonical_operation("Embedding") == "embedding"


def _call(name: str, framework: str, *arguments: object, **keywords: object) -> Call:
    api: ApiName = parse_api_name(name)
    return Call(api, framework, arguments, keywords)  # type: ignore[arg-type]


def test_golden_tensors_stand_where_the_target_has_them() -> None:
    target = _call("Functional.gather.0", "mindspore", TABLE, IDS, 0)
    golden = _call("Functional.embedding.0", "pytorch", IDS.astype(np.int64), TABLE + 1)
    found = placed(
        (target, golden),
        {("input", 0): TABLE, ("input", 1): IDS},
        {("input", 0): IDS.astype(np.int64), ("input", 1): TABLE + 1},
    )
    assert found is not None
    assert np.array_equal(found["input", 0], TABLE + 1)
    assert np.array_equal(found["input", 1], IDS)
    assert found["input", 1].dtype == np.int32


def _mask(dtype: str, lowest: float) -> Call:
    return _call("Torch.full.0", "pytorch", [3, 3], lowest, dtype=find_dtype(dtype))


def test_the_lowest_number_is_one_definition_in_two_dtypes() -> None:
    narrow, wide = _mask("BFloat16", -3.3895313892515355e38), _mask("Float32", -3.4028234663852886e38)
    assert argument_differences(narrow, wide) == (ArgumentDifference("kwargs.dtype", "'BFloat16'", "'Float32'"),)
    assert not argument_differences(narrow, wide, with_dtypes=False)
    filled = [
        _call("Tensor.masked_fill.0", "pytorch", array, array > 0, lowest)
        for array, lowest in ((TABLE, -3.4028234663852886e38), (TABLE.astype(np.float16), -65504.0))
    ]
    assert not argument_differences(*filled)


@pytest.mark.parametrize("value", [-1e9, -65504.0, 0.0])
def test_any_other_number_is_another_definition(value: float) -> None:
    differing = argument_differences(_mask("Float32", value), _mask("Float32", -3.4028234663852886e38))
    assert differing == (ArgumentDifference("input.1", str(value), "lowest of its dtype"),)


def test_a_cast_to_integers_is_another_definition_than_one_to_floats() -> None:
    casts = [_call("Tensor.to.0", "pytorch", TABLE, find_dtype(name)) for name in ("Int32", "Float32", "BFloat16")]
    assert argument_differences(casts[0], casts[1], with_dtypes=False)
    assert not argument_differences(casts[1], casts[2], with_dtypes=False)


def test_the_definition_says_what_the_other_framework_does_not_get() -> None:
    target = _call("Functional.gelu.0", "mindspore", TABLE, "tanh")
    golden = _call("Functional.gelu.0", "pytorch", TABLE, approximate="none")
    assert argument_differences(target, golden)[1] == ArgumentDifference("arguments", "'tanh'", "'none'")
    plain = argument_differences(_call("Mint.exp.0", "mindspore", TABLE), _call("Torch.exp.0", "pytorch", TABLE))
    assert plain == (ArgumentDifference(OTHER_API, "Mint.exp (mindspore)", "Torch.exp (pytorch)"),)


def test_a_tensor_of_one_call_alone_is_a_difference_and_none_is_no_argument() -> None:
    without = _call("Functional.layer_norm.0", "pytorch", TABLE, (4,), None)
    assert not argument_differences(without, _call("Functional.layer_norm.0", "pytorch", TABLE, (4,)))
    weighted = _call("Functional.layer_norm.0", "pytorch", TABLE, (4,), TABLE[0])
    assert argument_differences(without, weighted) == (ArgumentDifference("input.2", "", "tensor"),)


def test_a_tensor_that_only_the_target_gets_stays_where_golden_ones_are_placed() -> None:
    calls = tuple(_call("Functional.layer_norm.0", "pytorch", TABLE, (4,)) for _ in range(2))
    target = {("input", 0): TABLE, ("input", 2): TABLE[0]}
    found = placed(calls, target, {("input", 0): TABLE + 1})
    assert found is not None
    assert np.array_equal(found["input", 0], TABLE + 1)
    assert found["input", 2] is target["input", 2]


def test_where_a_call_runs_is_no_difference() -> None:
    calls = (
        _call("Tensor.to.0", "pytorch", TABLE, device, non_blocking=device != "cpu") for device in ("cuda:0", "cpu")
    )
    assert not argument_differences(*calls)
