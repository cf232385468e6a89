"""Ways to run code, with and without the collector in one process: equal results, and nothing left afterwards."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import pickle
import threading
import weakref

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe_collector.mindspore.mindspore_internals import wait_for_graphs

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.norm = nn.LayerNorm((4,))
        self.scale = Parameter(Tensor(np.full(4, 2, np.float32)), name="scale")
        self.power = ops.Pow()

    def construct(self, x, *, shift=0.0):
        y = mint.nn.functional.relu(self.norm(self.dense(x)))
        return mint.mul(self.power(y, 2.0), self.scale.astype(ms.float32)) + shift


class Twice(nn.Cell):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def construct(self, x):
        return self.inner(self.inner(x))


class Squared(ops.PrimitiveWithInfer):
    """A Primitive of the user's, called in Python."""

    def __init__(self):
        super().__init__("Squared")

    def __call__(self, x):
        return mint.square(x)


def gradients(net, function):
    return ms.value_and_grad(function, None, list(net.trainable_params()))


def trained(net, x, *, steps=2, build=nn.SGD):
    optimizer = build(net.trainable_params(), 0.1)
    grad = gradients(net, lambda x: net(x).sum())
    losses = []
    for _ in range(steps):
        loss, found = grad(x)
        optimizer(found)
        losses += [loss, *found]
    return losses


def checkpoint(net, x):
    buffer = io.BytesIO(pickle.dumps({p.name: p.asnumpy() for p in net.get_parameters()}))
    other = Net()
    ms.load_param_into_net(other, {k: Parameter(Tensor(v), name=k) for k, v in pickle.loads(buffer.read()).items()})
    return [other(x)]


def hooked(net, x):
    seen = []
    handle = net.dense.register_forward_hook(lambda cell, inputs, output: seen.append(output) or None)
    back = net.norm.register_backward_hook(lambda cell, into, out: seen.append(out[0]) or None)
    results = trained(net, x, steps=1)
    handle.remove()
    back.remove()
    return results + seen


def tensor_hook(net, x):
    seen = []
    handle = net.scale.register_hook(lambda gradient: seen.append(gradient) or gradient)
    results = trained(net, x, steps=1)
    handle.remove()
    return results + seen


def in_thread(net, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(net(x).asnumpy()))
    thread.start()
    thread.join()
    return found


def raising(net, x):
    try:
        mint.matmul(x, x)
        wait_for_graphs()  # or MindSpore may raise in whatever is called next
    except (RuntimeError, ValueError) as error:
        return [net(x), np.array([type(error).__name__])]
    raise AssertionError("shapes fit")


def weak(net, x):
    reference = weakref.ref(Net())
    return [net(x), np.array([reference() is None])]


def in_place(net, x):
    y = x * 1
    y += 1
    y[0] = 3
    return [y, net(y)]


def recomputed(net, x):
    net.dense.recompute()
    return trained(net, x, steps=1)


@ms.jit
def doubled(x):
    return mint.exp(x) * 2


def jitted(net, x):
    return [doubled(x), doubled(net(x))]


def generator(net, x):
    def rows():
        for row in x:
            yield net(row.reshape(1, 4))

    return list(rows())


WAYS = {
    "forward": lambda net, x: [net(x)],
    "keyword": lambda net, x: [net(x, shift=1.0)],
    "construct called directly": lambda net, x: [net.construct(x)],
    "deepcopy of the net": lambda net, x: [copy.deepcopy(net)(x)],
    "deepcopy of a trained net": lambda net, x: [*trained(net, x), copy.deepcopy(net)(x)],
    "copy of a Cell": lambda net, x: [copy.copy(net.dense)(x)],
    "deepcopy of a Primitive": lambda net, x: [copy.deepcopy(net.power)(x, 2.0)],
    "pickle of functions": lambda net, x: [pickle.loads(pickle.dumps(mint.add))(x, x)],
    "pickle of a tensor": lambda net, x: [pickle.loads(pickle.dumps(net(x)))],
    "checkpoint": checkpoint,
    "parameters_dict": lambda net, x: [net.parameters_dict()[name] for name in sorted(net.parameters_dict())],
    "training": trained,
    "training with Adam": functools.partial(trained, build=lambda p, lr: nn.Adam(p, lr)),
    "training with Momentum": functools.partial(trained, build=lambda p, lr: nn.Momentum(p, lr, 0.9)),
    "grad of inputs": lambda net, x: [ms.grad(lambda x: net(x).sum())(x)],
    "grad twice": lambda net, x: [ms.grad(lambda x: mint.square(net(x)).sum())(x), ms.grad(lambda x: net(x).sum())(x)],
    "GradOperation": lambda net, x: list(ops.GradOperation(get_all=True, sens_param=True)(net)(x, net(x))),
    "stop_gradient": lambda net, x: [ms.grad(lambda x: (ops.stop_gradient(net(x)) * x).sum())(x)],
    "shared layer": lambda net, x: trained(Twice(net), x, steps=1),
    "SequentialCell": lambda net, x: [nn.SequentialCell(net, nn.ReLU())(x)],
    "CellList": lambda net, x: [cell(x) for cell in nn.CellList([net, net.dense])],
    "map": lambda net, x: list(map(net, [x, x * 2])),
    "accumulate": lambda net, x: list(itertools.accumulate([x, x, x], mint.add)),
    "functools.reduce": lambda net, x: [functools.reduce(mint.mul, [x, x, x])],
    "functools.partial": lambda net, x: [functools.partial(mint.add, other=x)(x), functools.partial(net, shift=2.0)(x)],
    "user's hooks on Cells": hooked,
    "user's hook on a Parameter": tensor_hook,
    "custom Primitive": lambda net, x: [Squared()(x), ms.grad(lambda x: Squared()(x).sum())(x)],
    "lists and keywords": lambda net, x: [
        mint.cat([x, net(x)], dim=0),
        mint.where(condition=x > 0, input=x, other=net(x)),
        ops.stack([x, net(x)]),
    ],
    "in place": in_place,
    "thread": in_thread,
    "exception in a call": raising,
    "weak references": weak,
    "recompute": recomputed,
    "jit": jitted,
    "generator": generator,
    "random with a seed": lambda net, x: [ms.set_seed(7), ops.dropout(x, 0.5), ops.dropout(net(x), 0.5)][1:],
    "train and eval": lambda net, x: [net.set_train(False)(x), net.set_train(True)(x)],
    "0 elements": lambda net, x: [mint.add(x[:0], 1), mint.cat([x[:0], x])],
    "bfloat16": lambda net, x: [mint.add(x.astype(ms.bfloat16), 1).float()],
}


def run(way):
    ms.set_seed(3)
    np.random.seed(3)
    net = Net()
    for parameter in net.get_parameters():
        parameter.set_data(Tensor(np.linspace(-0.5, 0.5, parameter.size, dtype=np.float32).reshape(parameter.shape)))
    found = WAYS[way](net, Tensor(X))
    return net, [item.asnumpy() if isinstance(item, Tensor) else item for item in found]


def looks(net):
    """What could be left on objects and classes."""
    functions = [mint.add, mint.mul, mint.square, ops.dropout, Tensor.__mul__, Tensor.to, nn.Cell.__call__]
    functions += [type(net.power).__call__, mint.nn.functional.relu, Tensor.__getitem__]
    on_cells = [
        (path, sorted(vars(cell)), len(cell._forward_hook), len(cell._forward_pre_hook))
        for path, cell in net.cells_and_names()
    ]
    return functions, on_cells, [len(parameter.hooks()) for parameter in net.get_parameters()], sorted(vars(net.power))


#: The ways that a run of folders takes.
USUAL = ("in place", "thread", "exception in a call", "recompute", "jit")


def _marks(way):
    return [*([pytest.mark.graph_compiler] if way == "jit" else []), *([] if way in USUAL else [pytest.mark.slow])]


@pytest.mark.parametrize("way", [pytest.param(way, marks=_marks(way)) for way in WAYS])
def test_results_are_equal_and_nothing_is_left(way, make_debugger, step_folder):
    plain_net, plain = run(way)
    before = looks(plain_net)
    debugger = make_debugger(level="mix")
    watched = Net()
    debugger.start(watched)
    net, collected = run(way)
    debugger.stop()
    debugger.step()
    assert len(collected) == len(plain)
    for one, other in zip(plain, collected):
        np.testing.assert_array_equal(one, other)
    assert looks(net) == before
    for cell in watched.cells_and_names():
        assert not cell[1]._forward_hook
    log = step_folder() / "dump_error_info.log"
    assert not log.exists(), log.read_text()
