"""Trainings with MindSpore that reach every entry of its collector; see injecting.py."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops

from msprobe_collector.mindspore import PrecisionDebugger, call_watch
from msprobe_collector.mindspore.callbacks import MsprobeInitStep, MsprobeStep

__all__ = ["SCENARIOS", "PrecisionDebugger"]

mindspore.runtime.launch_blocking()
mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


class Cached:
    """What looks for the APIs of MindSpore, once for all trainings but those in which it is to fail."""

    def __init__(self, name: str) -> None:
        self._look: Any = getattr(call_watch, name)
        self._found: Any = None
        setattr(call_watch, name, self)

    def __call__(self, what: Any) -> Any:
        points = builtins.__dict__["_point"].__self__
        if self._found is None or points.names[points.target].startswith("mindspore.discovery."):
            self._found = self._look(what)
        return self._found


for looks in ("find_apis", "unreachable_names"):
    Cached(looks)

KERNELS = SimpleNamespace(scaled=lambda x, by: x * by)


@mindspore.jit
def compiled(x):
    return ops.sin(x) + 1


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        return ops.relu(self.dense(x))


class Jitted(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    @mindspore.jit
    def construct(self, x):
        return self.block(x) + x


class Net(nn.Cell):
    """Calls of all kinds: APIs, Primitives, Cells, jit functions, in lists, through a registered function."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.add = Block(), ops.Add()
        self.parts = [ops.Exp()]

    def construct(self, x):
        y = self.add(self.block(x), x)
        y = mint.cat([y, self.parts[0](x)])
        low, high = mint.chunk(y, 2)
        return KERNELS.scaled(compiled(low), 2.0) + mint.sigmoid(high)


def bytes_of(*tensors: Any) -> bytes:
    return b"".join(tensor.asnumpy().tobytes() for tensor in tensors)


def made(cell: type = Net) -> tuple[Any, Any, Any]:
    mindspore.set_seed(0)
    mindspore.manual_seed(0)
    net = cell()
    return net, nn.SGD(net.trainable_params(), 0.1), Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))


def trained(debugger: Any, *, start: dict[str, Any] | None = None, cell: type = Net) -> bytes:
    net, optimizer, x = made(cell)
    step = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    if debugger:
        debugger.register_custom_api(KERNELS, "scaled", "kernels")
    raised = ""
    for _ in range(2):
        if debugger:
            debugger.start(net, **(start or {}))
        loss, gradients = step(x)
        try:
            mint.matmul(x, x)
        except (RuntimeError, ValueError) as error:
            raised = type(error).__name__
        if debugger:
            debugger.stop()
        optimizer(gradients)
        if debugger:
            debugger.step()
    if debugger:
        debugger.restore_custom_api(KERNELS, "scaled")
    return bytes_of(loss, *net.get_parameters(), *gradients) + raised.encode()


def trained_in_a_range(debugger: Any) -> bytes:
    return trained(debugger, start={"token_range": [0, 0], "rank_id": 0})


def trained_in_a_graph(debugger: Any) -> bytes:
    return trained(debugger, cell=Outer)


class Outer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Jitted()

    def construct(self, x):
        return self.inner(x)


def saved(debugger: Any) -> bytes:
    net, optimizer, x = made()

    def forward(x):
        y = net.block(x)
        if debugger:
            debugger.save({"y": y, "parts": [y, 1]}, "value")
        return y.sum()

    step = mindspore.value_and_grad(forward, None, optimizer.parameters)
    for _ in range(2):
        if debugger:
            debugger.start(net)
        _, gradients = step(x)
        optimizer(gradients)
        if debugger:
            debugger.stop()
            debugger.step()
    return bytes_of(*net.get_parameters())


def monitored(debugger: Any) -> bytes:
    net, optimizer, x = made()
    if debugger:
        debugger.monitor(optimizer)
    step = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    for _ in range(2):
        optimizer(step(x)[1])
    if debugger and debugger._gradients:
        debugger._gradients.stop()
    return bytes_of(*net.get_parameters())


def called_back(debugger: Any) -> bytes:
    """As `Model.train` calls the callbacks."""
    net, optimizer, x = made()
    training = SimpleNamespace(network=net, cur_step_num=3, cur_epoch_num=1, batch_num=1, net_outputs=0.5)
    context = SimpleNamespace(original_args=lambda: training)
    callbacks = [MsprobeInitStep(debugger), MsprobeStep(debugger)] if debugger else []
    step = mindspore.value_and_grad(lambda x: net.block(x).sum(), None, optimizer.parameters)
    for callback in callbacks:
        callback.on_train_epoch_begin(context)
    for callback in callbacks:
        callback.on_train_step_begin(context)
    optimizer(step(x)[1])
    for callback in callbacks:
        callback.on_train_step_end(context)
    for callback in callbacks:
        callback.__exit__(None, None, None)
    return bytes_of(*net.get_parameters())


def perturbed(debugger: Any) -> bytes:
    net, _, x = made()
    if debugger:
        debugger.perturb({"x": [x]}, roundings=1)
    return bytes_of(net(x))


def written(debugger: Any) -> bytes:
    """Tensors that are written to: recorded and left out."""
    net, _, x = made()
    if debugger:
        debugger.start(net)
    y = mint.square(x)
    row = y[1]
    y[:, 0] = 2.0
    mint.exp(row)
    y.add_(row)
    z = mint.exp(mint.chunk(y, 2, 1)[1])
    net.parts.append(ops.Assign()(net.block.dense.bias, z[0, 0] + mint.square(net.block.dense.bias)))
    mint.exp(net.block.dense.bias)
    if debugger:
        debugger.stop()
        debugger.step()
    return bytes_of(y, z, *net.get_parameters())


def with_level(level: str, task: str = "statistics", **more: Any) -> dict[str, Any]:
    section = {name: more.pop(name) for name in ("scope", "list", "summary_mode", "overflow_nums") if name in more}
    return {"task": task, "level": level, task: section, **more}


#: (config.json but for its dump_path, training) by name.
SCENARIOS: dict[str, tuple[dict[str, Any], Any]] = {
    "mix": (with_level("mix"), trained),
    "tensors in a thread": (with_level("mix", "tensor", async_dump=True), trained),
    "fingerprints in a range": (with_level("mix", summary_mode="fingerprint"), trained_in_a_range),
    "sketches": (with_level("L1", summary_mode="sketch"), trained),
    "overflow": (with_level("L1", "overflow_check", overflow_nums=1), trained),
    "graph": (with_level("L0"), trained_in_a_graph),
    "save": (with_level("debug", "tensor"), saved),
    "monitor": ({"task": "grad_probe", "grad_probe": {"grad_level": "L2", "bounds": [-1, 0, 1]}}, monitored),
    "callbacks": (with_level("L0"), called_back),
    "perturb": (with_level("L0"), perturbed),
    "writes": (with_level("L1", list=["square", "exp", "chunk", "__setitem__", "__getitem__", "Assign"]), written),
}
