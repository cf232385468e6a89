"""What scripts for the existing tool do: each works as it stands, or is refused with the reason."""

from __future__ import annotations

import json
import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops

from msprobe_collector.configuration import ApiList, ConfigurationError
from msprobe_collector.dump_format import Dump, FieldPath
from msprobe_collector.mindspore.discovery import find_apis, resolve
from pytest_msprobe.apis.operators import find_operator
from pytest_msprobe.engines.torch_bindings import NoCounterpart, lookup

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


class Region(ms.nn.Cell):
    @ms.jit(capture_mode="bytecode")
    def construct(self, x):
        return region(x)


@pytest.mark.graph_compiler
def test_a_bytecode_region_from_before_start_is_one_record_too(make_debugger, records):
    run, cell = ms.jit(region, capture_mode="bytecode"), Region()
    expected = [run(X).asnumpy(), cell(X).asnumpy()]
    with make_debugger().collect():
        found = [run(X), cell(X), run(x=X)]
        mint.exp(X)
    assert names(records()) == ["Jit.region.0", "Jit.Region.0", "Jit.region.1", "Mint.exp.0"]
    assert [value["shape"] for value in records()["Jit.Region.0.forward"]["input_args"]] == [[2, 2]]
    for value, other in zip(found, [*expected, expected[0]]):
        np.testing.assert_array_equal(value.asnumpy(), other)
    np.testing.assert_array_equal(run(X).asnumpy(), expected[0])


@pytest.mark.graph_compiler
def test_an_error_in_a_bytecode_region_leaves_it_as_it_was(make_debugger, records):
    @ms.jit(capture_mode="bytecode")
    def failing(x):
        if x is None:
            raise ValueError("no x")
        return mint.exp(x)

    with make_debugger().collect():
        with pytest.raises(ValueError, match="no x"):
            failing(None)
        failing(X)
        mint.exp(X)
    assert names(records()) == ["Jit.failing.0", "Jit.failing.1", "Mint.exp.0"]


def test_hooks_of_cells_leave_no_calls_of_primitives(make_debugger, records):
    class Net(ms.nn.Cell):
        def __init__(self):
            super().__init__()
            self.relu = ops.ReLU()

        def construct(self, x):
            return self.relu(x)

    net = Net()
    net.register_backward_hook(lambda cell, grad_input, grad_output: None)
    net.register_backward_pre_hook(lambda cell, grad_output: None)
    with make_debugger().collect(net):
        ms.value_and_grad(net)(X)
    assert names(records()) == ["Primitive.relu.ReLU.0"]


def test_every_public_function_is_recorded_under_a_name_that_leads_back_to_it():
    known = unknown = 0
    for target in find_apis(ApiList()):
        api_type, _, name = target.call.partition(".")
        if path := find_operator("mindspore", api_type, name):
            module, _, last = path.rpartition(".")
            assert getattr(resolve(module), last) == target.original, target.call
            known += 1
        else:
            assert isinstance(lookup(api_type, name), NoCounterpart), target.call
            unknown += 1
    assert known > 1200
    assert unknown < 300


def test_communication_is_that_in_mindspore_ops_too():
    calls = {target.name: target.call for target in find_apis(ApiList()) if target.owner is ops}
    assert calls["all_reduce"] == "Distributed.all_reduce"
    assert "get_rank" not in calls
    assert calls["relu"] == "Functional.relu"


def test_kernels_of_whole_graphs_are_refused(make_debugger, monkeypatch):
    monkeypatch.setattr(ms, "get_context", lambda key: "O2" if key == "jit_level" else 1)
    with pytest.raises(ConfigurationError, match=r"level: L2 needs kernels that run one by one; with jit_level O2"):
        make_debugger(level="L2")
