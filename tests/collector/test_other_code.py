"""What else scripts do with the objects of a collected training: equal results, and nothing left on them."""

from __future__ import annotations

import copy
import pickle

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe_collector.mindspore.discovery import constructor_attributes


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, pad_mode="pad", padding=1)
        self.dense = nn.Dense(8, 3)
        self.product = ops.MatMul(transpose_b=True)
        self.scale = Parameter(Tensor(np.ones(3, np.float32)), name="scale")

    def construct(self, x):
        y = self.dense(self.conv(x).reshape(x.shape[0], -1))
        y = self.product(y, mint.eye(3))
        return mint.mul(y, self.scale.astype(ms.float32)).sum()


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 1, 2, 2)


def trained(net, steps=1):
    """Loss and gradients of each step."""
    step = ms.value_and_grad(net, None, net.trainable_params())
    values = []
    for _ in range(steps):
        loss, gradients = step(Tensor(X))
        values += [loss.asnumpy(), *(gradient.asnumpy() for gradient in gradients)]
    return values


@pytest.fixture(params=["L0", "L1", "mix"])
def collecting(request, make_debugger):
    net = Net()
    debugger = make_debugger(level=request.param)
    debugger.start(net)
    return net, debugger


def test_a_copy_made_while_collecting_is_a_net_like_any_other(collecting, step_folder):
    net, debugger = collecting
    twin = copy.deepcopy(net)
    collected = trained(twin)
    debugger.stop()
    debugger.step()
    assert type(twin.conv.conv2d) is ops.Conv2D
    for one, other, third in zip(collected, trained(twin), trained(net)):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
    assert not (step_folder() / "dump_error_info.log").exists()


@pytest.mark.parametrize("name", ["mint.add", "ops.matmul", "mint.nn.functional.relu", "Tensor.add", "Tensor.__mul__"])
def test_a_function_can_be_pickled_while_it_is_recorded(make_debugger, name):
    def current():
        return eval(name, {"mint": mint, "ops": ops, "Tensor": Tensor})

    before = current()
    debugger = make_debugger()
    debugger.start()
    recorded, text = current(), pickle.dumps(current())
    assert recorded is not before
    assert pickle.loads(text) is recorded
    debugger.stop()
    assert current() is before
    assert pickle.loads(text) is before


def test_a_call_that_returns_a_parameter_leaves_no_hook_on_it(make_debugger, records, step_folder):
    net = Net()
    debugger = make_debugger(level="mix")
    plain = trained(net, 3)
    collected = []
    for _ in range(3):
        with debugger.collect(net):
            collected += trained(net)
    for one, other in zip(plain, collected):
        np.testing.assert_array_equal(one, other)
    assert records(0).keys() == records(1).keys() == records(2).keys()
    for step in range(3):
        assert not (step_folder(step) / "dump_error_info.log").exists()
        backward = records(step)["Mint.mul.0.backward"]
        assert [gradient["shape"] for gradient in backward["output"]] == [[2, 3], [3]]


def test_primitives_say_what_they_were_made_with(make_debugger, records):
    net = Net()
    debugger = make_debugger(level="L1")
    with debugger.collect(net):
        net(Tensor(X))
    found = records()
    attributes = found["Primitive.conv2d.Conv2D.0.forward"]["attributes"]
    assert attributes["pad"] == {"type": "int", "value": 1}
    assert attributes["stride"] == [{"type": "int", "value": 1}] * 2
    product = found["Primitive.product.MatMul.0.forward"]["attributes"]
    assert product["transpose_b"] == {"type": "bool", "value": True}
    assert "attributes" not in found["Mint.mul.0.forward"]
    # Its base class overwrites what MindSpore keeps of it.
    local = constructor_attributes(ops.LRN(depth_radius=2))
    assert (local["depth_radius"], local["norm_region"]) == (2, "ACROSS_CHANNELS")


def test_gradients_of_tensors_in_lists_and_keywords_are_recorded_by_path(make_debugger, records):
    def function(a, b):
        joined = mint.cat([a, mint.mul(b, b)], dim=0).sum()
        return joined + mint.where(condition=a > 0, input=mint.mul(a, a), other=b).sum()

    one = Tensor(np.ones((2, 3), np.float32))
    debugger = make_debugger(level="L1", task="tensor")
    with debugger.collect():
        ms.grad(function, (0, 1))(one, one)
    cat, where = (records()[f"Mint.{name}.0.backward"] for name in ("cat", "where"))
    assert cat["output"] == []
    assert list(cat["other_gradients"]) == ["input.0.0", "input.0.1"]
    assert [gradient["Mean"] for gradient in cat["other_gradients"].values()] == [1.0, 1.0]
    assert {path: gradient["Max"] for path, gradient in where["other_gradients"].items()} == {
        "kwargs.input": 1.0,
        "kwargs.other": 0.0,
    }
    assert cat["other_gradients"]["input.0.1"]["data_name"] == "Mint.cat.0.backward.other_gradients.input.0.1.npy"
