"""Level L0 inside graphs: the same records as in PyNative mode, and a training that does not notice."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model
from slow_parameters import slow

from msprobe_collector import MsprobeStep
from msprobe_collector.debugger import DebuggerError

pytestmark = pytest.mark.graph_compiler


@pytest.fixture(
    params=[
        "graph",
        "jit",
        *slow("jit function", "jit of the network"),
    ]
)
def way(request):
    """How the network gets into a graph."""
    return request.param


@pytest.fixture
def graph_mode(_synchronous):
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((4,))
        self.dense = nn.Dense(4, 4)
        self.drop = nn.Dropout(p=0.3)

    def construct(self, x, scale, flag=None, *, factor=1.0, extra=None):
        y = self.drop(self.dense(self.norm(x))) * scale * factor
        if extra is not None:
            y = y + extra
        return y, [x, (x * 2,)]


class Middle(nn.Cell):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.tail = nn.SequentialCell(nn.Dense(4, 4), nn.Tanh())

    def construct(self, x):
        y, _ = self.block(x, 2, factor=3.0)
        y, others = self.block(y, 2, True, extra=x)
        y = self.tail(y) + others[1][0]
        for _ in range(2):
            y = self.block(y, 1)[0]
        return y


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.middle = Middle()

    def construct(self, x):
        return self.middle(self.first(x)).sum()


def function_around(network):
    def forward(*args):
        return network(*args)

    return forward


def trained(debugger=None, *, way="graph", steps=3):
    """(loss, gradients) of each step as bytes."""
    ms.set_context(mode=ms.GRAPH_MODE if way == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(1)
    np.random.seed(1)
    network = Network()
    if way == "jit":
        network.middle.construct = ms.jit(network.middle.construct)
    forward = network
    if way == "jit function":
        forward = ms.jit(function_around(network))
    if way == "jit of the network":
        forward = ms.jit(network)
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    x = Tensor(np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32))
    seen = []
    try:
        for _ in range(steps):
            if debugger is not None:
                debugger.start(network)
            loss, gradients = gradients_of(x)
            if debugger is not None:
                debugger.stop()
            optimizer(gradients)
            if debugger is not None:
                debugger.step()
            seen.append([value.asnumpy().tobytes() for value in (loss, *gradients)])
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    return seen


def test_cells_that_run_in_both_ways_are_numbered_together(make_debugger, records, step_folder, caplog):
    network = Network()
    compiled = ms.jit(function_around(network.middle.block))
    unrelated = ms.jit(function_around(nn.ReLU()))
    x = Tensor(np.ones((2, 4), np.float32))
    debugger = make_debugger(level="L0")
    with caplog.at_level(logging.WARNING), debugger.collect(network):
        network.middle.block(x, 2)
        compiled(x, 2)
        network.middle.block.dense(x)
        unrelated(x)
    found = [name for name in records() if name.endswith(("block.Block.forward.1", "dense.Dense.forward.2"))]
    assert found == ["Cell.middle.block.Block.forward.1", "Cell.middle.block.dense.Dense.forward.2"]
    parents = json.loads((step_folder() / "construct.json").read_text())
    assert parents["Cell.middle.block.dense.Dense.forward.1"] == "Cell.middle.block.Block.forward.1"
    assert parents["Cell.middle.block.Block.forward.1"] is None
    assert "construct" not in vars(network.middle.block)
    with caplog.at_level(logging.WARNING), debugger.collect(network):
        unrelated(x)
    assert "no graph with taps ran" not in caplog.text


def test_training_is_bit_identical_dropout_included(make_debugger, way):
    bare = trained(way=way)
    assert trained(make_debugger(level="L0", task="tensor"), way=way) == bare


def test_records_are_those_of_pynative_mode_and_pair_up(make_debugger, records, way):
    trained(make_debugger(level="L0"), way=way)
    data = records(1)
    calls = [
        "middle.block.norm.LayerNorm",
        "middle.block.dense.Dense",
        "middle.block.drop.Dropout",
        "middle.block.Block",
    ]
    expected = [f"Cell.{call}" for call in calls]
    forwards = [name for name in data if ".forward." in name]
    assert forwards == [
        "Cell.first.Dense.forward.0",
        *(f"{call}.forward.{number}" for number in (0, 1) for call in expected),
        "Cell.middle.tail.0.Dense.forward.0",
        "Cell.middle.tail.1.Tanh.forward.0",
        "Cell.middle.tail.SequentialCell.forward.0",
        *(f"{call}.forward.{number}" for number in (2, 3) for call in expected),
        "Cell.middle.Middle.forward.0",
    ]
    assert {name.replace(".forward.", ".backward.") for name in forwards} == {n for n in data if ".backward." in n}
    # What leaves one call enters the next, and its gradients go the other way.
    for number in range(4):
        norm, dense = (data[f"Cell.middle.block.{cell}.forward.{number}"] for cell in ("norm.LayerNorm", "dense.Dense"))
        assert norm["output"] == dense["input_args"]
        norm, dense = (
            data[f"Cell.middle.block.{cell}.backward.{number}"] for cell in ("norm.LayerNorm", "dense.Dense")
        )
        assert dense["output"] == norm["input"]


def test_arguments_keep_their_places(make_debugger, records):
    trained(make_debugger(level="L0"))
    record = records(0)["Cell.middle.block.Block.forward.1"]
    tensor, *rest = record["input_args"]
    assert (tensor["dtype"], tensor["shape"]) == ("Float32", [2, 4])
    assert rest == [{"type": "int", "value": 2}, {"type": "bool", "value": True}]
    assert record["input_kwargs"]["extra"]["shape"] == [2, 4]
    assert [value["shape"] for value in (record["output"][0], record["output"][1][0], record["output"][1][1][0])] == [
        [2, 4]
    ] * 3
    assert records(0)["Cell.middle.block.Block.forward.0"]["input_kwargs"] == {
        "factor": {"type": "float", "value": 3.0}
    }
    assert records(0)["Cell.first.Dense.backward.0"]["output"] == [None]


def test_construct_tells_who_runs_inside_whom(make_debugger, step_folder, way):
    trained(make_debugger(level="L0"), way=way)
    construct = json.loads((step_folder(0) / "construct.json").read_text())
    assert construct["Cell.middle.block.dense.Dense.forward.2"] == "Cell.middle.block.Block.forward.2"
    assert construct["Cell.middle.block.Block.forward.2"] == "Cell.middle.Middle.forward.0"
    assert construct["Cell.middle.Middle.forward.0"] is None
    assert construct["Cell.middle.block.dense.Dense.backward.2"] == "Cell.middle.block.Block.backward.2"
    assert construct["Cell.middle.block.Block.backward.2"] == "Cell.middle.Middle.backward.0"


def test_saved_tensors_are_what_pynative_mode_saves(make_debugger, step_folder, tmp_path):
    trained(make_debugger(level="L0", task="tensor", common={"step": [1]}), steps=2)
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step1"]
    files = {path.name: np.load(path) for path in (step_folder(1) / "dump_tensor_data").iterdir()}
    x = files["Cell.middle.tail.1.Tanh.forward.0.input.0.npy"]
    np.testing.assert_allclose(files["Cell.middle.tail.1.Tanh.forward.0.output.0.npy"], np.tanh(x), rtol=1e-6)
    gradient = files["Cell.middle.tail.1.Tanh.backward.0.input.0.npy"] * (1 - np.tanh(x) ** 2)
    np.testing.assert_allclose(files["Cell.middle.tail.1.Tanh.backward.0.output.0.npy"], gradient, rtol=1e-4, atol=1e-6)


def test_originals_come_back(make_debugger):
    network = Network()
    debugger = make_debugger(level="L0")
    ms.set_context(mode=ms.GRAPH_MODE)
    debugger.start(network)
    assert "construct" in vars(network.first)
    debugger._at_exit()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert not any("construct" in vars(cell) for cell in network.cells())


class Strange(nn.Cell):
    """0-d, empty, bfloat16, bool, integer and no tensors at all."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.constant = Constant()

    def construct(self, x):
        total = x.sum()
        outputs = self.inner(total, x[:0], x.astype(ms.bfloat16), x > 0, x.astype(ms.int64), total.astype(ms.bfloat16))
        return outputs[0] + self.constant()


class Inner(nn.Cell):
    def construct(self, scalar, empty, half, mask, whole, half_scalar):
        return scalar * 2, half, mask, whole


class Constant(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor([1.5], ms.float32), name="constant_weight")

    def construct(self):
        return self.weight * 2


def test_values_of_every_kind(make_debugger, records, graph_mode):
    debugger = make_debugger(level="L0")
    network = Strange()
    debugger.start(network)
    result = network(Tensor(np.array([[1, -2], [3, 1]], np.float32)))
    debugger.stop()
    debugger.step()
    assert result.asnumpy() == [9.0]
    data = records(0)
    inputs = data["Cell.inner.Inner.forward.0"]["input_args"]
    assert [(value["dtype"], value["shape"], value["Max"]) for value in inputs] == [
        ("Float32", [], 3.0),
        ("Float32", [0, 2], None),
        ("BFloat16", [2, 2], 3.0),
        ("Bool", [2, 2], True),
        ("Int64", [2, 2], 3),
        ("BFloat16", [], 3.0),
    ]
    assert data["Cell.constant.Constant.forward.0"]["input_args"] == []
    assert data["Cell.constant.Constant.forward.0"]["output"][0]["Max"] == 3.0


def test_a_graph_that_is_refused_with_taps_is_compiled_without(make_debugger, graph_mode, monkeypatch, caplog):
    from msprobe_collector.mindspore.static_graph.graph_code import cpu

    def refused(cell, label, **_):
        def construct(self, *args):
            return self.there_is_no_such_attribute(args)

        return construct.__get__(cell)

    monkeypatch.setattr(cpu, "tapped_construct", refused)
    debugger = make_debugger(level="L0")
    network = nn.SequentialCell(nn.Dense(2, 2))
    x = Tensor(np.ones((1, 2), np.float32))
    with caplog.at_level(logging.WARNING):
        debugger.start(network)
        result = network(x)
        debugger.stop()
    assert result.shape == (1, 2)
    assert "the graph is compiled without taps" in caplog.text


def test_an_update_that_raises_is_said_in_its_record_and_costs_no_other(
    make_debugger, records, caplog, tmp_path, monkeypatch
):
    """The optimizer is compiled; what the compiler refuses without taps, too, is an error of the script."""
    monkeypatch.chdir(tmp_path)  # MindSpore writes down there what it refuses
    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))
    parameters = network.trainable_params()
    optimizer = nn.SGD(parameters, 0.1)
    gradients = tuple(Tensor(np.ones(item.shape), ms.float32) for item in parameters)
    x = Tensor(np.ones((1, 2)), ms.float32)

    @ms.jit
    def compiled(x):
        return network[1](x)

    with caplog.at_level(logging.WARNING), make_debugger(level="mix").collect(network):
        with pytest.raises(RuntimeError, match="same length"):
            optimizer(gradients[:1])
        optimizer(gradients)
        compiled(x)
    assert "taps" not in caplog.text
    torn, whole = (records()[f"Optimizer.SGD.{number}.forward"] for number in range(2))
    assert "did not end" in torn["fault"]
    assert "fault" not in whole
    assert "output" in whole
    assert "Cell.1.Dense.forward.0" in records()


def test_a_network_that_was_compiled_before_is_warned_about(make_debugger, graph_mode, caplog):
    network = nn.SequentialCell(nn.Dense(2, 2))
    x = Tensor(np.ones((1, 2), np.float32))
    network(x)
    debugger = make_debugger(level="L0")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            debugger.start(network)
            network(x)
            debugger.stop()
            debugger.step()
    assert caplog.text.count("no graph with taps ran in this step") == 1


def test_data_mode_forward_leaves_gradients_alone(make_debugger, records):
    trained(make_debugger(level="L0", data_mode=["forward"]), steps=1)
    assert all(".forward." in name for name in records(0))


def test_overflow_check_keeps_what_is_not_finite(make_debugger, records, graph_mode):
    debugger = make_debugger(level="L0", task="overflow_check", overflow_nums=-1)
    network = nn.SequentialCell(nn.ReLU(), Logarithm())
    debugger.start(network)
    network(Tensor(np.array([0.0, 1.0], np.float32)))
    debugger.stop()
    debugger.step()
    assert list(records(0)) == ["Cell.1.Logarithm.forward.0"]
    assert records(0)["Cell.1.Logarithm.forward.0"]["output"][0]["Inf_count"] == 1


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_callback_collects_a_graph_and_recomputed_cells_once(make_debugger, records, graph_mode, recomputes):
    network = nn.SequentialCell(nn.Dense(4, 4), nn.SequentialCell(nn.Dense(4, 4), nn.Dropout(p=0.2)), nn.Dense(4, 3))
    if recomputes:
        network[1].recompute()
    data = (np.ones((4, 4), np.float32), np.array([0, 1, 2, 0], np.int32))
    model = Model(network, nn.CrossEntropyLoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))
    step = MsprobeStep(make_debugger(level="L0", common={"step": [1]}))
    model.train(1, NumpySlicesDataset(data).batch(2), callbacks=[step], dataset_sink_mode=False)
    cells = ["0.Dense", "1.0.Dense", "1.1.Dropout", "1.SequentialCell", "2.Dense"]
    assert [name for name in records(1) if ".forward." in name] == [f"Cell.{cell}.forward.0" for cell in cells]
    assert {name for name in records(1) if ".backward." in name} == {f"Cell.{cell}.backward.0" for cell in cells}


class Logarithm(nn.Cell):
    def construct(self, x):
        return ops.log(x)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_levels_without_a_graph_form_say_so(make_debugger, graph_mode, level):
    with pytest.raises(DebuggerError, match=f"there is no level {level}; take L0"):
        make_debugger(level=level).start(nn.ReLU())


def test_token_range_is_refused(make_debugger, graph_mode):
    with pytest.raises(DebuggerError, match="token_range counts calls in Python"):
        make_debugger(level="L0").start(nn.ReLU(), token_range=[0, 1])


COLLECTOR = Path(__file__).resolve().parents[2] / "collector"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The folder in which the commands of docs/collecting.md ran, and what each printed."""
    folder = tmp_path_factory.mktemp("static_graph")
    for name in ("train.py", "config.json"):
        shutil.copy(COLLECTOR / "examples" / "static_graph" / name, folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    page = (COLLECTOR.parent / "docs" / "collecting.md").read_text(encoding="utf-8")
    block = page.partition("```\ncd collector/examples/static_graph\n")[2].partition("```")[0]
    programs = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]}
    printed = []
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] != "cd":
            done = subprocess.run(programs[words[0]] + words[1:], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
            printed.append(done.stdout)
    return folder, printed


@pytest.mark.slow
def test_the_example_trains_alike_in_both_modes_and_its_dumps_agree(example):
    folder, (graph, pynative, overflow, comparison) = example
    assert re.findall(r"step \d: loss [\d.]+", graph) == re.findall(r"step \d: loss [\d.]+", pynative)
    assert [path.name for path in (folder / "graph_dump").glob("step*")] == ["step0"]
    assert "24 clean" in overflow
    assert re.search(r"^Right: all compared values of \d+ operations are equal, bit by bit$", comparison, re.MULTILINE)
    assert "24 operations matched, 0 only in the target, 5 only in the golden dump" in comparison
