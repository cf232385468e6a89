"""Single calls: odd arguments, gradients, what is not recorded, and faults that must not reach the training."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe_collector import PrecisionDebugger
from msprobe_collector.dump_format import Dump, TensorValue


@pytest.fixture
def collected(make_debugger, records, step_folder):
    """collected(function, **configuration) -> records of the calls that function makes."""

    def run(function, model=None, **configuration):
        with make_debugger(**configuration).collect(model, rank_id=0):
            function()
        Dump(step_folder() / "dump.json")  # our reader takes it
        return records()

    return run


def tensor(*values, dtype=ms.float32):
    return Tensor(np.array(values), dtype)


def test_only_the_outermost_call_is_recorded(collected):
    found = collected(lambda: ops.norm(tensor(3.0, 4.0)))
    assert list(found) == ["Functional.norm.0.forward"]


def test_python_values(collected):
    x = tensor([1.0, 2.0], [3.0, 4.0])
    found = collected(lambda: (x[..., 0:1], mint.sum(x, dim=-1, dtype=ms.float32), mint.cat([x, x]), x.to(ms.int32)))
    assert found["Tensor.__getitem__.0.forward"]["input_args"][1] == [
        {"type": "ellipsis", "value": "..."},
        {"type": "slice", "value": [0, 1, None]},
    ]
    assert found["Mint.sum.0.forward"]["input_kwargs"] == {
        "dim": {"type": "int", "value": -1},
        "dtype": {"type": "mindspore.dtype", "value": "Float32"},
    }
    assert [value["shape"] for value in found["Mint.cat.0.forward"]["input_args"][0]] == [[2, 2], [2, 2]]
    assert found["Tensor.to.0.forward"]["input_args"][1] == {"type": "mindspore.dtype", "value": "Int32"}


def test_strange_values_become_null_and_are_noted_once(collected, make_debugger, step_folder):
    module = types.SimpleNamespace(strange=lambda *args: None)
    debugger = make_debugger()
    debugger.register_custom_api(module, "strange", "Custom")
    with debugger.collect():
        module.strange(1 + 2j, {1, 2}, object(), np.complex64(1j), 10**5000, float("nan"), np.float32(1.5), {"k": b""})
        module.strange(object())
    values = json.loads((step_folder() / "dump.json").read_text())["data"]["Custom.strange.0.forward"]["input_args"]
    assert values[:5] == [None] * 5
    assert np.isnan(values[5]["value"])
    assert values[6:] == [{"type": "float32", "value": 1.5}, {"k": None}]
    log = (step_folder() / "dump_error_info.log").read_text()
    assert log.count("builtins.object") == 1
    debugger.restore_custom_api(module, "strange")


@pytest.mark.parametrize("values", [[1.0, np.nan, 2.0], [np.nan, 1.0], [1.0, np.nan]])
def test_nan_is_seen_wherever_it_stands(collected, values):
    (record,) = collected(lambda: mint.square(tensor(*values))).values()
    for value in (*record["input_args"], *record["output"]):
        assert np.isnan([value["Max"], value["Min"], value["Mean"], value["Norm"]]).all()
        assert value["NaN_count"] == 1


def test_bfloat16_has_statistics_on_the_cpu_and_is_stored_as_float32(collected, step_folder):
    found = collected(lambda: tensor(1.0, -2.0).to(ms.bfloat16), task="tensor")
    output = found["Tensor.to.0.forward"]["output"][0]
    assert (output["dtype"], output["Max"], output["Min"], output["Norm"]) == ("BFloat16", 1.0, -2.0, 5**0.5)
    stored = np.load(step_folder() / "dump_tensor_data" / output["data_name"])
    assert stored.dtype == np.float32


def test_gradients_follow_arguments_not_the_order_of_firing(collected):
    bias, x = Parameter(tensor(1.0, 2.0), name="b"), tensor([1.0, 2.0])

    def train():
        ms.grad(lambda x: ops.bias_add(x * 2.0, bias).sum(), 0, [bias])(x)

    record = collected(train)["Functional.bias_add.0.backward"]
    assert [value["shape"] for value in record["output"]] == [[1, 2], [2]]


def test_null_gradients_stand_in_their_places(collected):
    mask, x, y = Tensor([True, False]), tensor(1.0, 2.0), tensor(3.0, 4.0)

    def train():
        ms.grad(lambda x: mint.where(mask, x, y).sum())(x)

    output = collected(train)["Mint.where.0.backward"]["output"]
    assert output[0] is None
    assert output[1]["Max"] == 1.0
    assert len(output) == 3


def test_the_gradient_is_the_contribution_through_this_call(collected):
    def train():
        ms.grad(lambda x: (mint.mul(x, tensor(3.0)) + mint.mul(x, tensor(4.0)) + mint.mul(x, x)).sum())(tensor(5.0))

    found = collected(train)
    assert [found[f"Mint.mul.{n}.backward"]["output"][0]["Max"] for n in (0, 1)] == [3.0, 4.0]
    assert [value["Max"] for value in found["Mint.mul.2.backward"]["output"]] == [5.0, 5.0]


def test_parts_of_one_node_keep_their_gradients_apart(collected):
    def train():
        def loss(x):
            first, second, _ = mint.chunk(x, 3)
            return mint.sub(mint.mul(second, tensor(7.0)), first).sum()

        ms.grad(loss)(tensor(1.0, 2.0, 3.0))

    found = collected(train)
    assert [value and value["Max"] for value in found["Mint.chunk.0.backward"]["input"]] == [-1.0, 7.0, None]
    assert [value["Max"] for value in found["Mint.sub.0.backward"]["output"]] == [1.0, -1.0]


def test_parts_that_a_call_copies_first_keep_their_gradients_apart(collected):
    """MindSpore makes a node of its own for the copy of each part."""

    class Product(nn.Cell):
        def __init__(self):
            super().__init__()
            self.product = ops.BatchMatMul(transpose_b=True)

        def construct(self, x):
            return self.product(*mint.chunk(x, 2))

    network = Product()
    found = collected(lambda: ms.grad(lambda x: network(x).sum())(tensor([[1.0]], [[2.0]])), network)
    output = found["Primitive.product.BatchMatMul.0.backward"]["output"]
    assert [value["Max"] for value in output] == [2.0, 1.0]


def test_contributions_inside_a_composite_call_are_added_up(collected):
    module = types.SimpleNamespace(cube=lambda x: x * x * x)

    def train():
        ms.grad(lambda x: module.cube(x).sum())(tensor(2.0))

    collected(lambda: None)
    debugger = PrecisionDebugger()
    debugger.register_custom_api(module, "cube", "Custom")
    with debugger.collect(rank_id=0):
        train()
    path = debugger.configuration.dump_path / "step1" / "rank0" / "dump.json"
    assert json.loads(path.read_text())["data"]["Custom.cube.0.backward"]["output"][0]["Max"] == 12.0


def test_what_came_through_several_calls_that_return_their_argument_is_said_of_none(collected):
    weight, x = Parameter(tensor(1.0, 2.0), name="w"), tensor(1.0, 1.0)

    def once(x):
        return (weight.astype(weight.dtype) * x * 10.0).sum()

    def twice(x):
        return once(x) + (weight.astype(weight.dtype) * x).sum()

    def steps(function):
        return lambda: [ms.grad(function, None, [weight])(x) for _ in range(2)]

    found = collected(steps(once))
    assert [found[f"Tensor.to.{n}.backward"]["output"][0]["Max"] for n in (0, 1)] == [10.0, 10.0]
    found = collected(steps(twice))
    assert "Tensor.to.3.forward" in found
    assert not [name for name in found if name.startswith("Tensor.to.") and name.endswith(".backward")]


def test_outputs_of_one_node_in_another_order_have_their_own_gradients(make_debugger, records):
    module = types.SimpleNamespace(
        swap=lambda x: mint.chunk(x * 2.0, 2)[::-1], last=lambda x: mint.chunk(x * 2.0, 2)[1]
    )
    debugger = make_debugger()
    debugger.register_custom_api(module, "swap", "Custom")
    debugger.register_custom_api(module, "last", "Custom")

    def loss(x):
        first, second = module.swap(x)
        return first.sum() * 5.0 + second.sum() * 7.0 + module.last(x).sum() * 3.0

    with debugger.collect(rank_id=0):
        ms.grad(loss)(tensor(1.0, 1.0))
    found = records()
    assert [value["Max"] for value in found["Custom.swap.0.backward"]["input"]] == [5.0, 7.0]
    assert [value["Max"] for value in found["Custom.last.0.backward"]["input"]] == [3.0]


def test_parameters_whose_names_end_alike_keep_their_gradients(collected):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def construct(self, x):
            return self.inner(x)

    class Inner(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = Parameter(tensor(1.0), name="a.weight")
            self.second = Parameter(tensor(2.0), name="b.weight")
            self.third = Parameter(tensor(3.0), name="a.third")

        def construct(self, x):
            return (x * self.first * 2.0 + x * self.second * 3.0 + self.third).sum()

    net = Net()
    found = collected(lambda: ms.grad(net, None, net.trainable_params())(tensor(1.0)), net, level="L0")
    gradients = found["Cell.inner.Inner.parameters_grad.0"]
    assert {name: value[0]["Max"] for name, value in gradients.items()} == {"first": 2.0, "second": 3.0, "third": 1.0}


def test_a_call_that_returns_its_argument_passes_its_gradient_on(collected):
    def train():
        ms.grad(lambda x: (mint.mul(x, tensor(2.0)).to(ms.float32) * 3.0).sum())(tensor(1.0))

    record = collected(train)["Tensor.to.0.backward"]
    assert record["input"][0]["Max"] == record["output"][0]["Max"] == 3.0


def test_in_place_calls_keep_the_gradients_of_their_neighbours(collected):
    def train():
        def loss(x):
            y = mint.mul(x, tensor(2.0))
            y.add_(mint.mul(x, tensor(5.0)))
            return mint.mul(y, tensor(3.0)).sum()

        ms.grad(loss)(tensor(1.0))

    found = collected(train)
    assert found["Tensor.add_.0.forward"]["input_args"][0]["Max"] == 2.0  # before the call
    assert found["Mint.mul.2.backward"]["input"][0]["Max"] == 1.0
    assert found["Mint.mul.2.backward"]["output"][0]["Max"] == 3.0
    assert found["Mint.mul.0.backward"]["input"][0]["Max"] == 3.0


def test_names_bound_before_are_collected(collected, monkeypatch):
    module = types.ModuleType("a_users_module")
    module.own_add, module.own_square = mint.add, mint.square
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    originals = module.own_add, module.own_square
    found = collected(lambda: module.own_add(tensor(1.0), module.own_square(tensor(2.0))))
    assert list(found) == ["Mint.square.0.forward", "Mint.add.0.forward"]
    assert (module.own_add, module.own_square) == originals


def test_names_that_cannot_be_reached_are_named(collected, caplog):
    class Layer(nn.Cell):
        act = mint.tanh

    collected(lambda: None)
    assert "Mint.tanh" in caplog.text
    assert Layer


RAISING = """
import mindspore as ms
from mindspore import Tensor, mint
from msprobe_collector import PrecisionDebugger

ms.runtime.launch_blocking()
debugger = PrecisionDebugger("config.json")
debugger.start()
try:
    mint.matmul(Tensor([1.0, 2.0]), Tensor([1.0, 2.0, 3.0]))
except (ValueError, RuntimeError, TypeError):
    print("raised")
mint.square(Tensor(1.0))
debugger.stop()
"""


def test_a_call_that_raises_raises_the_same_and_leaves_its_arguments(tmp_path: Path) -> None:
    # In a process of its own: whether MindSpore raises at the call depends on what has run before.
    (tmp_path / "config.json").write_text('{"task": "statistics", "level": "L1", "dump_path": "dump"}')
    done = subprocess.run([sys.executable, "-c", RAISING], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "raised" in done.stdout
    (path,) = tmp_path.glob("dump/step0/*/dump.json")
    found = json.loads(path.read_text())["data"]
    assert "output" not in found["Mint.matmul.0.forward"]
    assert len(found["Mint.matmul.0.forward"]["input_args"]) == 2
    assert "output" in found["Mint.square.0.forward"]


def test_a_fault_of_the_collector_is_logged_once_and_marks_the_record(make_debugger, records, step_folder, monkeypatch):
    debugger = make_debugger()
    debugger.start()
    encoder = debugger._work.collection._recorder.encoder
    original = encoder._array

    def failing(tensor, *rest):
        if tensor.array.size == 3:
            raise RuntimeError("planted")
        return original(tensor, *rest)

    monkeypatch.setattr(encoder, "_array", failing)
    for _ in range(2):
        assert mint.square(tensor(1.0, 2.0, 3.0)).shape == (3,)
    mint.square(tensor(1.0))
    debugger.stop()
    found = records()
    assert found["Mint.square.0.forward"]["fault"] == "RuntimeError: planted"
    assert "fault" not in found["Mint.square.2.forward"]
    log = (step_folder() / "dump_error_info.log").read_text()
    assert log.count("Call stack (most recent call last):") == 1
    assert "planted" in log


@pytest.mark.graph_compiler
def test_jit_functions_are_recorded_from_outside_and_compile(collected):
    @ms.jit
    def double_plus_one(x):
        return mint.add(x * 2.0, 1.0)

    result = []

    def train():
        result.append(ms.value_and_grad(lambda x: mint.mul(double_plus_one(x), tensor(3.0)).sum())(tensor(1.0, 2.0)))

    found = collected(train)
    assert result[0][0].asnumpy() == 24.0
    assert result[0][1].asnumpy().tolist() == [6.0, 6.0]
    jits = {name: record for name, record in found.items() if name.startswith("Jit")}
    assert list(jits) == ["Jit.double_plus_one.0.forward", "Jit.double_plus_one.0.backward"]
    assert jits["Jit.double_plus_one.0.forward"]["output"][0]["Max"] == 5.0
    assert "Mint.mul.0.forward" in found


@pytest.mark.graph_compiler
def test_a_cell_with_a_jit_construct(collected):
    class Doubled(nn.Cell):
        @ms.jit
        def construct(self, x):
            return mint.add(x, x)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Doubled()

        def construct(self, x):
            return self.inner(x) * 3.0

    net = Net()
    found = collected(lambda: ms.grad(lambda x: net(x).sum())(tensor(1.0)), net, level="mix")
    assert found["Cell.inner.Doubled.forward.0"]["output"][0]["Max"] == 2.0
    assert found["Cell.inner.Doubled.backward.0"]["output"][0]["Max"] == 6.0
    assert "Jit.Doubled.0.forward" in found


class SineTimesExponential(nn.Cell):
    def construct(self, x, y):
        return mint.mul(mint.sin(x), mint.exp(y))


class OfOneTensorTwice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.inner = SineTimesExponential()

    def construct(self, x):
        return self.inner(x, x)


def test_gradients_of_a_tensor_that_is_two_arguments_are_not_exchanged(collected):
    """Nodes inside do not say to which of the two an edge leads: no gradient is better than that of the other one."""
    net = OfOneTensorTwice()
    found = collected(lambda: ms.grad(lambda x: net(x).sum())(tensor(1.0)), net, level="mix")
    assert found["Mint.sin.0.backward"]["output"][0]["Max"] == pytest.approx(1.4686939)
    assert found["Cell.inner.SineTimesExponential.backward.0"]["output"] == [None, None]


def test_gradients_of_a_view_that_is_both_operands_stand_in_their_order(collected):
    def loss(x):
        view, _ = mint.chunk(mint.square(x), 2, 1)
        return mint.sub(view, view).sum()

    found = collected(lambda: ms.grad(loss)(Tensor(np.ones((2, 2), "float32"))))
    assert [gradient["Max"] for gradient in found["Mint.sub.0.backward"]["output"]] == [1.0, -1.0]


def test_values_of_every_leaf_can_be_read_back(collected, step_folder):
    collected(lambda: ops.topk(tensor(3.0, 1.0, 2.0), 2), task="tensor")
    dump = Dump(step_folder() / "dump.json")
    values, indices = dump.forward("Functional.topk.0").outputs
    assert isinstance(values, TensorValue)
    assert (indices.dtype.name, indices.maximum, type(indices.maximum)) == ("Int32", 2, int)
