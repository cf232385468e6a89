"""Which operation is which: one call more or less on a side, mapping files, frameworks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings

X = np.ones((2, 3), np.float32)
Y = np.ones((4,), np.float32)


def step(folder: Path, calls: list[str], *, framework: str = "mindspore", shapes: dict[str, np.ndarray] | None = None):
    """A statistics dump of forwards in order and backwards in reverse; `shapes` are tensors of single calls."""
    builder = DumpBuilder(folder, real=False, framework=framework)
    for call in calls:
        value = (shapes or {}).get(call, X)
        builder.call(call, [value], [value], incoming=[value], gradients=[value])
    forwards = {name: record for name, record in builder.records.items() if name.endswith("forward")}
    backwards = {name: record for name, record in reversed(builder.records.items()) if name.endswith("backward")}
    builder.records = {**forwards, **backwards}
    return builder.write()


def partners(target: Path, golden: Path, **settings) -> dict[str, str]:
    comparison = DumpComparison(target, golden, ComparisonSettings(**settings))
    return {record: operation.record for record, operation in comparison.matching.partners.items()}


def test_one_call_more_does_not_shift_the_rest_forward_or_backward(tmp_path: Path) -> None:
    golden = [f"Mint.{api}.{number}" for number in range(20) for api in ("mul", "add")]
    target = (
        golden[:10]
        + ["Mint.mul.5"]
        + [f"Mint.{api}.{n + (api == 'mul')}" for n in range(5, 20) for api in ("mul", "add")]
    )
    found = partners(step(tmp_path / "a", target), step(tmp_path / "b", golden))
    assert ("Mint.mul.5.forward" in found) != ("Mint.mul.6.forward" in found), (
        "one of two equal neighbours is the new one"
    )
    for number in range(7, 21):
        assert found[f"Mint.mul.{number}.forward"] == f"Mint.mul.{number - 1}.forward"
        assert found[f"Mint.mul.{number}.backward"] == f"Mint.mul.{number - 1}.backward"
    assert all(
        found[f"Mint.add.{n}.{way}"] == f"Mint.add.{n}.{way}" for n in range(20) for way in ("forward", "backward")
    )
    assert len(found) == 80


def test_the_call_of_another_shape_is_the_one_too_many(tmp_path: Path) -> None:
    target = ["Mint.mul.0", "Mint.mul.1", "Mint.mul.2"]
    found = partners(
        step(tmp_path / "a", target, shapes={"Mint.mul.1": Y}), step(tmp_path / "b", ["Mint.mul.0", "Mint.mul.1"])
    )
    assert found["Mint.mul.2.forward"] == "Mint.mul.1.forward"
    assert "Mint.mul.1.forward" not in found


def test_a_call_whose_shape_changed_is_still_the_same_call(tmp_path: Path) -> None:
    calls = ["Mint.mul.0", "Mint.add.0", "Mint.mul.1"]
    found = partners(step(tmp_path / "a", calls, shapes={"Mint.mul.1": Y}), step(tmp_path / "b", calls))
    assert found["Mint.mul.1.forward"] == "Mint.mul.1.forward"


def test_names_decide_where_only_the_order_differs(tmp_path: Path) -> None:
    found = partners(
        step(tmp_path / "a", ["Mint.mul.0", "Mint.add.0"]), step(tmp_path / "b", ["Mint.add.0", "Mint.mul.0"])
    )
    assert found["Mint.mul.0.forward"] == "Mint.mul.0.forward"
    assert found["Mint.add.0.backward"] == "Mint.add.0.backward"


def test_across_frameworks_operators_methods_and_functions_are_one_word(tmp_path: Path) -> None:
    target = ["Mint.add.0", "Primitive.fc.Dense.0", "Mint.square.0", "MintFunctional.relu.0", "MintFunctional.relu.1"]
    golden = ["Tensor.__add__.0", "Functional.linear.0", "Torch.pow.0", "Functional.relu.0", "Functional.relu.1"]
    found = partners(step(tmp_path / "a", target), step(tmp_path / "b", golden, framework="pytorch"))
    assert [found[f"{name}.forward"] for name in target] == [f"{name}.forward" for name in golden]
    assert found["MintFunctional.relu.1.backward"] == "Functional.relu.1.backward"


def test_fuzzy_matches_the_bare_name_and_says_so(tmp_path: Path) -> None:
    target, golden = step(tmp_path / "a", ["Mint.add.0"]), step(tmp_path / "b", ["Tensor.add.0"])
    assert partners(target, golden) == {}
    comparison = DumpComparison(target, golden, ComparisonSettings(fuzzy=True))
    verdict = next(comparison.verdicts())
    assert verdict.status == "pass"
    assert "Fuzzy matching data" in verdict.message


def cells(folder: Path, framework: str, records: dict[str, dict[str, object]], parents: dict[str, str | None]) -> Path:
    """A dump of Cells: `records` hold leaves by section, all of one value."""
    builder = DumpBuilder(folder, real=False, framework=framework)
    for name, parts in records.items():
        builder.records[name] = {part: builder.value(value, name) for part, value in parts.items()}
        for part, value in parts.items():
            if isinstance(value, dict) and "type" not in value:
                builder.records[name][part] = {key: builder.value(item, name) for key, item in value.items()}
    builder.header["level"] = "L0"
    path = builder.write()
    (folder / "construct.json").write_text(json.dumps(parents))
    return path


def norm(path: str, kind: str, class_name: str, names: tuple[str, str]) -> dict[str, dict[str, object]]:
    front = f"{kind}.{path}.{class_name}"
    return {
        f"{front}.forward.0": {
            "input_args": [X],
            "input_kwargs": {},
            "parameters": dict.fromkeys(names, X),
            "output": [X],
        },
        f"{front}.backward.0": {"input": [X], "output": [X]},
        f"{front}.parameters_grad.0": {name: [X] for name in names},
    }


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    """The same layer under other names in both frameworks."""
    target = norm("net.blocks.0.ln", "Cell", "LayerNorm", ("gamma", "beta"))
    golden = norm("model.layers.0.norm", "Module", "FusedNorm", ("weight", "bias"))
    block, top = "Cell.net.blocks.0.Block.forward.0", "Cell.net.Net.forward.0"
    target |= {name: {"input_args": [X], "output": [X]} for name in (block, top)}
    golden_block, golden_top = "Module.model.layers.0.TBlock.forward.0", "Module.model.Model.forward.0"
    golden |= {name: {"input_args": [X], "output": [X]} for name in (golden_block, golden_top)}
    parents = {name: block for name in target if ".ln." in name} | {block: top, top: None}
    golden_parents = {name: golden_block for name in golden if ".norm." in name} | {
        golden_block: golden_top,
        golden_top: None,
    }
    return (
        cells(tmp_path / "a", "mindspore", target, parents),
        cells(tmp_path / "b", "pytorch", golden, golden_parents),
    )


def test_layer_mapping_renames_children_by_class(models: tuple[Path, Path], tmp_path: Path) -> None:
    mapping = tmp_path / "layers.yaml"
    mapping.write_text("TopLayer:\n  net: model\nNet:\n  blocks: layers (a comment)\nBlock:\n  ln: norm\n")
    comparison = DumpComparison(*models, ComparisonSettings(layer_mapping=mapping))
    found = {record: operation.record for record, operation in comparison.matching.partners.items()}
    for ending in ("forward.0", "backward.0", "parameters_grad.0"):
        assert found[f"Cell.net.blocks.0.ln.LayerNorm.{ending}"] == f"Module.model.layers.0.norm.FusedNorm.{ending}"
    assert found["Cell.net.blocks.0.Block.forward.0"] == "Module.model.layers.0.TBlock.forward.0"
    verdicts = list(comparison.verdicts())
    assert {verdict.status for verdict in verdicts} == {"pass"}, "gamma is weight and beta is bias"


def test_layer_mapping_takes_several_levels_at_once(models: tuple[Path, Path], tmp_path: Path) -> None:
    mapping = tmp_path / "layers.yaml"
    mapping.write_text("Cell:\n  net.blocks: model.layers\n  net: model\nBlock:\n  ln: norm\n")
    found = partners(*models, layer_mapping=mapping)
    assert "Cell.net.blocks.0.ln.LayerNorm.forward.0" in found


def test_layer_mapping_counts_the_layers_of_a_pipeline_stage_from_zero(tmp_path: Path) -> None:
    paths = []
    for side, first in (("a", 0), ("b", 4)):
        records: dict[str, dict[str, object]] = {
            "Cell.t.ParallelTransformer.forward.0": {"input_args": [X], "output": [X]}
        }
        for number in (first, first + 1):
            records[f"Cell.t.layers.{number}.Layer.forward.0"] = {"input_args": [X], "output": [X]}
        paths.append(cells(tmp_path / side, "mindspore", records, dict.fromkeys(records)))
    mapping = tmp_path / "layers.yaml"
    mapping.write_text("{}\n")
    found = partners(*paths, layer_mapping=mapping)
    assert found["Cell.t.layers.0.Layer.forward.0"] == "Cell.t.layers.4.Layer.forward.0"
    assert found["Cell.t.layers.1.Layer.forward.0"] == "Cell.t.layers.5.Layer.forward.0"


def test_cell_mapping_prefers_the_exact_name(models: tuple[Path, Path], tmp_path: Path) -> None:
    mapping = tmp_path / "cells.yaml"
    mapping.write_text("net.blocks: wrong\nnet.blocks.0.ln.LayerNorm: model.layers.0.norm.FusedNorm\n")
    found = partners(*models, cell_mapping=mapping)
    assert found["Cell.net.blocks.0.ln.LayerNorm.backward.0"] == "Module.model.layers.0.norm.FusedNorm.backward.0"


def test_cell_mapping_replaces_parts_in_order(models: tuple[Path, Path], tmp_path: Path) -> None:
    mapping = tmp_path / "cells.yaml"
    mapping.write_text("net: model\nblocks: layers\nln.LayerNorm: norm.FusedNorm\n")
    found = partners(*models, cell_mapping=mapping)
    assert found["Cell.net.blocks.0.ln.LayerNorm.parameters_grad.0"].startswith("Module.model.layers.0.norm")


@pytest.mark.parametrize("outputs", ["ms_output: [0]\n  pt_output: [0]", "ms_outputs: [0]\n  pt_outputs: [0]"])
@pytest.mark.parametrize("form", ["- ", "first:\n  "])
def test_api_mapping_pairs_values_by_position(tmp_path: Path, form: str, outputs: str) -> None:
    target = DumpBuilder(tmp_path / "a", real=False).call("Functional.mine.0", [X, Y], [X]).write()
    golden = DumpBuilder(tmp_path / "b", real=False, framework="pytorch").call("Torch.theirs.0", [Y, X], [X]).write()
    mapping = tmp_path / "apis.yaml"
    mapping.write_text(
        f"{form}ms_api: Functional.mine\n  pt_api: Torch.theirs\n  ms_args: [0, 1]\n  pt_args: [1, 0]\n  {outputs}\n"
    )
    comparison = DumpComparison(target, golden, ComparisonSettings(api_mapping=mapping))
    (verdict,) = comparison.verdicts()
    assert verdict.status == "pass"
    assert [(value.target.path, value.golden.path) for value in verdict.values if value.target and value.golden] == [
        ("input.0", "input.1"),
        ("input.1", "input.0"),
        ("output.0", "output.0"),
    ]


def test_data_mapping_names_single_values(tmp_path: Path) -> None:
    target = DumpBuilder(tmp_path / "a", real=False).call("Mint.mine.0", [X], [X]).write()
    golden = DumpBuilder(tmp_path / "b", real=False).call("Mint.theirs.3", [Y, X], [X]).write()
    mapping = tmp_path / "data.yaml"
    mapping.write_text(
        "Mint.mine.0.forward.input.0: Mint.theirs.3.forward.input.1\n"
        "Mint.mine.0.forward.output.0: Mint.theirs.3.forward.output.0\n"
    )
    comparison = DumpComparison(target, golden, ComparisonSettings(data_mapping=mapping))
    (verdict,) = comparison.verdicts()
    assert [value.status for value in verdict.values] == ["pass", "pass", "unmatched"]


def test_values_saved_by_hand_are_compared(tmp_path: Path) -> None:
    for side, value in (("a", X), ("b", 2 * X)):
        builder = DumpBuilder(tmp_path / side, real=False)
        builder.records = {
            "loss.0.debug": builder.value(X, "loss"),
            "nest.0.debug": builder.value([value, {"k": 1}], "n"),
        }
        builder.records["nest.0.debug"][1] = {"k": {"type": "int", "value": 1}}
        (tmp_path / side / "debug.json").write_text(
            json.dumps({**builder.header, "level": "debug", "data": builder.records})
        )
    comparison = DumpComparison(tmp_path / "a" / "debug.json", tmp_path / "b" / "debug.json", ComparisonSettings())
    loss, nest = comparison.verdicts()
    assert loss.status == "pass"
    assert [(value.name, value.status) for value in nest.values] == [
        ("nest.0.debug.0", "error"),
        ("nest.0.debug.1.k", "pass"),
    ]
