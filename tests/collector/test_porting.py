"""What scripts for the existing tool do: each works as it stands, or is refused with the reason."""

from __future__ import annotations

import json
import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops

from msprobe_collector.configuration import ConfigurationError
from msprobe_collector.dump_format import Dump, FieldPath

X = Tensor(np.ones((2, 2), np.float32))


def names(found):
    return [name.removesuffix(".forward") for name in found if name.endswith(".forward")]


def test_a_custom_prefix_holds_for_an_api_that_is_hooked_already(make_debugger, records):
    debugger = make_debugger()
    original = mint.add
    debugger.register_custom_api(mint, "add", "Before")
    with debugger.collect():
        mint.add(X, X)
        debugger.register_custom_api(mint, "mul", "After")
        mint.mul(X, X)
        mint.sub(X, X)
        debugger.restore_custom_api(mint, "mul")
        debugger.restore_custom_api(mint, "add")
        mint.mul(X, X)
        mint.add(X, X)
    assert names(records()) == ["Before.add.0", "After.mul.0", "Mint.sub.0", "Mint.mul.0", "Mint.add.0"]
    assert mint.add is original


def test_the_source_line_of_a_method_is_the_users(make_debugger, step_folder):
    with make_debugger().collect():
        X.to(ms.float16)
        X.half()
    groups = json.loads((step_folder() / "stack.json").read_text()).values()
    lines = {name: frames[0] for record, frames in groups for name in record}
    assert lines["Tensor.to.0.forward"].endswith("X.to(ms.float16)")
    assert lines["Tensor.half.0.forward"].endswith("X.half()")
    assert all(__file__ in line for line in lines.values())


def test_a_list_of_statistics_is_accepted(make_debugger, records, caplog):
    with caplog.at_level(logging.WARNING, "msprobe_collector"), make_debugger(summary_mode=["max", "l2norm"]).collect():
        mint.add(X, X)
    assert "level L1 writes all statistics" in caplog.text
    assert records()["Mint.add.0.forward"]["output"][0]["Norm"] == 4.0


def test_a_name_that_is_longer_than_file_systems_take_is_shortened(make_debugger, records, step_folder):
    debugger = make_debugger(task="tensor")
    debugger.register_custom_api(mint, "add", "é" * 200)
    with debugger.collect():
        mint.add(X, X)
        mint.add(X, X * 2)
    (first, second) = [record for name, record in records().items() if name.startswith("é")]
    files = [value["data_name"] for record in (first, second) for value in (*record["input_args"], *record["output"])]
    assert len(set(files)) == 6
    assert all(len(name.encode()) <= 255 for name in files)
    dump = Dump(step_folder() / "dump.json")
    name = next(name for name in records() if name.startswith("é"))
    (output,) = dump.forward(name.removesuffix(".forward")).outputs
    np.testing.assert_array_equal(dump.tensors.load(output, FieldPath("dump.json", name, "output")), 2 * X.asnumpy())


def region(x):
    return mint.exp(x) + ops.tanh(x)


@pytest.mark.graph_compiler
def test_a_bytecode_region_is_one_record(make_debugger, records):
    expected = ms.jit(region, capture_mode="bytecode")(X).asnumpy()
    with make_debugger().collect():
        run = ms.jit(region, capture_mode="bytecode")
        found = [run(X), run(X), mint.exp(X)]
    assert names(records()) == ["Jit.region.0", "Jit.region.1", "Mint.exp.0"]
    np.testing.assert_array_equal(found[1].asnumpy(), expected)
    assert records()["Jit.region.0.forward"]["output"][0]["shape"] == [2, 2]


@pytest.mark.graph_compiler
def test_a_bytecode_region_from_before_start_is_left_out_with_the_reason(make_debugger, records, caplog):
    run = ms.jit(region, capture_mode="bytecode")
    with caplog.at_level(logging.WARNING, "msprobe_collector"), make_debugger().collect():
        found = [run(X), run(X)]
        mint.exp(X)
    assert caplog.text.count("region was made by jit(capture_mode='bytecode') before start()") == 1
    assert names(records()) == ["Mint.exp.0"]
    np.testing.assert_allclose(found[1].asnumpy(), np.exp(1) + np.tanh(1), rtol=1e-6)


def test_kernels_of_whole_graphs_are_refused(make_debugger, monkeypatch):
    monkeypatch.setattr(ms, "get_context", lambda key: "O2" if key == "jit_level" else 1)
    with pytest.raises(ConfigurationError, match=r"level: L2 needs kernels that run one by one; with jit_level O2"):
        make_debugger(level="L2")
