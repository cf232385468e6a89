"""What the script has set up (gradient mode, tracers, modes) does not reach the collector, and sees nothing of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_collector.recording.recorder import Recorder

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@contextmanager
def collected(debugger: Any, net: nn.Module) -> Iterator[None]:
    debugger.start(net)
    yield
    debugger.stop()
    debugger.step()


GRADIENT_MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: default_dtype(torch.float64),
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("mode", GRADIENT_MODES)
def test_the_first_start_may_be_in_any_mode(mode, make_debugger, records) -> None:
    net, debugger = made(), make_debugger(level="mix")
    with GRADIENT_MODES[mode](), collected(debugger, net):
        net(X)
    assert "Functional.linear.0.forward" in records(0)
    with collected(debugger, net), torch.autocast("cpu", torch.bfloat16):
        net(X).sum().backward()
    # Behind the cast of the weight, which is known by a node that the first start looked at.
    assert records(1)["Functional.linear.0.backward"]["output"][1]["dtype"] == "torch.bfloat16"
    assert "Module.0.Linear.parameters_grad.0" in records(1)


def symbolic(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.view(x.shape[0], -1)) + x.shape[0]


TRACERS: dict[str, Callable[[nn.Module], str]] = {
    "jit.trace": lambda net: torch.jit.trace(net, X).code,
    # Behind each "#" stands the line of Python that was traced last.
    "jit.trace of a function": lambda net: re.sub(" # .*", "", str(torch.jit.trace(symbolic, X).graph)),
    "make_fx": lambda net: make_fx(net)(X).code,
    "make_fx, symbolic": lambda net: make_fx(symbolic, tracing_mode="symbolic")(X).code,
    "symbolic_trace": lambda net: torch.fx.symbolic_trace(net).code,
    "export": lambda net: str(torch.export.export(net, (X,), strict=False).graph),
    "export, dynamic": lambda net: str(
        torch.export.export(net, (X,), dynamic_shapes=({0: torch.export.Dim("b")},), strict=False).graph
    ),
}


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_traced_graph_is_the_same_and_the_dump_is_whole(tracer, make_debugger, records) -> None:
    net = made()
    without = TRACERS[tracer](net)
    debugger = make_debugger(level="mix")
    with collected(debugger, net):
        traced = TRACERS[tracer](net)
        net(X)
    assert traced == without
    assert records(0)  # is JSON


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Logged(torch.Tensor):
    """A tensor of the script that sees all functions of tensors of its kind."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def step(net: nn.Module, x: torch.Tensor, optimizer: Any) -> None:
    y = net(x)
    y[:1].mul_(2)
    torch.cat([y, y]).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("mode", [Operators, Functions])
@pytest.mark.parametrize("options", [{"level": "mix"}, {"level": "L0", "task": "tensor"}], ids=str)
def test_a_mode_of_the_script_sees_the_script_alone(mode, options, make_debugger, records) -> None:
    seen = []
    for collects in (False, True):
        net = made()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        debugger = make_debugger(**options) if collects else None
        with mode() as active:
            for _ in range(2):
                if debugger:
                    debugger.start(net)
                step(net, torch.ones(3000, 4), optimizer)  # large enough for statistics that PyTorch computes
                if debugger:
                    debugger.stop()
                    debugger.step()
        seen.append(active.seen)
    assert seen[0] == seen[1]
    assert "Module.2.Linear.backward.0" in records(1)


def test_a_tensor_of_the_script_sees_the_script_alone(make_debugger, records) -> None:
    seen = []
    for collects in (False, True):
        Logged.seen.clear()
        net = made()
        debugger = make_debugger(level="mix") if collects else None
        x = X.clone().as_subclass(Logged)
        if debugger:
            debugger.start(net)
        net(x).sum().backward()
        if debugger:
            debugger.stop()
            debugger.step()
        seen.append(list(Logged.seen))
    assert seen[0] == seen[1]
    assert records(0)["Functional.linear.0.forward"]["input_args"][0]["Norm"] is not None


def test_gradients_are_not_copied_for_their_records(make_debugger) -> None:
    net, debugger = made(), make_debugger(level="L0")
    with Operators() as mode, collected(debugger, net):
        net(X).sum().backward()
    assert not [name for name in mode.seen if "copy_" in name or "clone" in name]


def test_a_layer_without_layers_inside_is_warned_about(make_debugger, caplog) -> None:
    net, debugger = made(), make_debugger(level="L0")
    with collected(debugger, net[0]):
        net(X)
    assert "no layers are inside the Linear that was given" in caplog.text


class Broken(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise MemoryError


def failing(*_: Any) -> None:
    raise ValueError


def test_an_error_in_the_handler_of_logging_does_not_end_the_training(make_debugger, caplog, monkeypatch) -> None:
    logger, broken = logging.getLogger("msprobe_collector"), Broken()
    net, debugger = made(), make_debugger(level="L1")
    debugger.start(net)
    logger.addFilter(broken)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "outputs", failing)
        assert net(X).shape == (3, 2)
    logger.removeFilter(broken)
    debugger.stop()
    debugger.step()
    debugger._at_exit()
    assert "could not be written" in caplog.text


def test_ctrl_c_ends_the_training(make_debugger, records, monkeypatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    net, debugger = made(), make_debugger(level="L1")
    debugger.start(net)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "outputs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net(X)
    net(X)
    debugger.stop()
    debugger.step()
    assert list(records(0)["Functional.linear.0.forward"]) == ["input_args", "input_kwargs"]
    assert "Functional.linear.1.forward" in records(0)
