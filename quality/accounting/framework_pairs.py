"""The GPT of collector/examples in MindSpore (target) and in PyTorch (golden), from equal weights, as collected."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from debugger_fixtures import collected

Keys = Mapping[str, Any]
_PLAIN: Keys = {}
EXAMPLES = Path(__file__).parents[2] / "collector" / "examples"


def _nothing(net: Any) -> None:
    """The network stays as it is."""


@dataclass(frozen=True)
class FrameworkPair:
    """One step on both sides.

    Attributes:
        name: of the row.
        mindspore, pytorch: what is done to each network, which has the common weights already.
        faulty: the function whose second call is 2 % off, by its full name.
        kind, expected, network: as of a `Cause`.
    """

    name: str
    mindspore: Callable[[Any], None] = _nothing
    pytorch: Callable[[Any], None] = _nothing
    faulty: str = ""
    kind: str = ""
    expected: tuple[str, ...] = ()
    network: str = "gpt"

    def write(self, folder: Path, target: Keys = _PLAIN, golden: Keys = _PLAIN) -> tuple[Path, Path]:
        """(target, golden) dumps, collected with these keys of config.json besides."""
        weights = folder / "weights.npz"
        folder.mkdir(parents=True, exist_ok=True)
        with _faulty_kernel(self.faulty):
            return (
                _mindspore_step(self, weights, folder / "target", target),
                _pytorch_step(self, weights, folder / "golden", golden),
            )


def _mindspore_step(pair: FrameworkPair, weights: Path, folder: Path, keys: Keys) -> Path:
    import mindspore as ms

    from msprobe_collector.mindspore import PrecisionDebugger

    ms.runtime.launch_blocking()
    ms.set_seed(0)
    example = _example("gpt")
    net = example.GPT()
    example.use_weights(weights, net)
    pair.mindspore(net)
    letters, targets = next(example.batches(1))
    forward_backward = ms.value_and_grad(lambda *batch: example.loss_of(net, *batch), None, net.trainable_params())
    with collected(PrecisionDebugger, folder, **keys) as debugger:
        debugger.start(net)
        forward_backward(letters, targets)
        debugger.stop()
        debugger.step()
    return _dump(folder)


def _pytorch_step(pair: FrameworkPair, weights: Path, folder: Path, keys: Keys) -> Path:
    from msprobe_collector.pytorch import PrecisionDebugger

    example = _example("gpt_torch")
    net = example.GPT()
    example.use_weights(weights, net)
    pair.pytorch(net)
    letters, targets = next(example.batches(1))
    with collected(PrecisionDebugger, folder, **keys) as debugger:
        debugger.start(net)
        example.loss_of(net, letters, targets).backward()
        debugger.stop()
        debugger.step()
    return _dump(folder)


@functools.cache
def _example(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / name / "train.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _dump(folder: Path) -> Path:
    (path,) = folder.glob("step0/*/dump.json")
    return path


@contextmanager
def _faulty_kernel(name: str) -> Iterator[None]:
    """The second result of the function `name` is 2 % too large; "" for none."""
    if not name:
        yield
        return
    original = resolve_name(name)
    calls = itertools.count(1)

    def run(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return result * 1.02 if next(calls) == 2 else result

    with mock.patch(name, run):
        yield


def _mindspore_gelu(net: Any) -> None:
    from mindspore import nn

    for block in net.blocks:
        block.mlp[1] = nn.GELU()  # by tanh, which is the default there


def _torch_gelu(approximate: str) -> Callable[[Any], None]:
    def edit(net: Any) -> None:
        for block in net.blocks:
            block.mlp[1] = torch.nn.GELU(approximate)

    return edit


def _one_gelu_by_erf(net: Any) -> None:
    _torch_gelu("tanh")(net)
    net.blocks[1].mlp[1] = torch.nn.GELU()


def _one_weight(net: Any) -> None:
    parameter = net.blocks[1].mlp[0].weight
    value = parameter.asnumpy().copy()
    value[3, 5] += 0.5
    parameter.set_data(type(parameter)(np.ascontiguousarray(value)))


CLEAN = (
    FrameworkPair("MindSpore against PyTorch, gpt"),
    FrameworkPair("MindSpore against PyTorch, gpt with gelu by tanh", _mindspore_gelu, _torch_gelu("tanh")),
)
CAUSES = (
    FrameworkPair(
        "MindSpore's nn.GELU() against PyTorch's: tanh, erf",
        _mindspore_gelu,
        _one_gelu_by_erf,
        kind="formula",
        expected=("Functional.gelu.1",),
    ),
    FrameworkPair(
        "one weight, MindSpore against PyTorch", _one_weight, kind="data", expected=("parameter blocks.1.mlp.0.weight",)
    ),
    FrameworkPair(
        "2 % in a softmax of MindSpore",
        faulty="mindspore.mint.nn.functional.softmax",
        kind="kernel",
        expected=("MintFunctional.softmax.1",),
    ),
    FrameworkPair(
        "2 % in a silu of PyTorch",
        faulty="torch._C._nn.silu",
        kind="kernel",
        expected=("MintFunctional.silu.1",),
    ),
)
