"""Recipes with MindSpore in PyNative mode; kernels are replaced before the collector hooks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, mint, nn, ops

from msprobe_collector import PrecisionDebugger, seed_all
from quality.evals.collecting import configuration


def replace(room: Any, name: str, calls: set[int], wrong_values: Callable[..., np.ndarray]) -> None:
    """Let calls of `room.name` with these numbers give `wrong_values(...)`, with the gradient of the right ones."""
    right = getattr(room, name)
    seen = iter(range(1_000_000))

    def wrong(*arguments: Any, **rest: Any) -> Tensor:
        result = right(*arguments, **rest)
        if next(seen) not in calls:
            return result
        right_values = result.asnumpy()
        wrong_ones = wrong_values(right_values, *(argument.asnumpy() for argument in arguments))
        return result + ops.stop_gradient(Tensor((wrong_ones - right_values).astype(right_values.dtype)))

    setattr(room, name, wrong)


def train(folder: Path, network: nn.Cell, loss_of: Callable[..., Tensor], batches: list[Any], **keys: Any) -> None:
    """Train a step per batch with Momentum and collect into `folder`."""
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
    debugger = PrecisionDebugger(configuration(folder, **keys))
    forward_backward = mindspore.value_and_grad(loss_of, None, optimizer.parameters)
    for batch in batches:
        debugger.start(network)
        _, gradients = forward_backward(*batch)
        debugger.stop()
        optimizer(gradients)
        debugger.step()


class MLP(nn.Cell):
    """Three layers with SiLU."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.layers = nn.SequentialCell(*(mint.nn.Linear(size, width) for size in (12, width, width)))
        self.head = mint.nn.Linear(width, 4)

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = mint.nn.functional.silu(layer(x))
        return self.head(x)


class CNN(nn.Cell):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 8, 3, stride=2, pad_mode="valid")
        self.classes = mint.nn.Linear(8 * 16, 4)

    def construct(self, images: Tensor) -> Tensor:
        x = mint.nn.functional.relu(self.first(images))
        x = mint.nn.functional.relu(self.second(x))
        return self.classes(mint.flatten(x, 1))


def vectors(seed: int, size: int = 16, dtype: Any = np.float32) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the MLP."""
    random = np.random.default_rng(seed)
    return Tensor(random.normal(size=(size, 12)).astype(dtype)), Tensor(random.normal(size=(size, 4)).astype(dtype))


def images(seed: int) -> tuple[Tensor, Tensor]:
    """Images and labels of the CNN."""
    random = np.random.default_rng(seed)
    return Tensor(random.normal(size=(5, 2, 9, 9)).astype(np.float32)), Tensor(
        random.integers(0, 4, 5).astype(np.int32)
    )


def squared_error(network: nn.Cell) -> Callable[..., Tensor]:
    return lambda x, y: mint.mean(mint.square(mint.sub(network(x), y)))


def cross_entropy(network: nn.Cell) -> Callable[..., Tensor]:
    return lambda x, y: nn.CrossEntropyLoss()(network(x), y)


def silu_in_float16(folder: Path, is_wrong: bool) -> None:
    """The second SiLU of a float16 network takes sigmoid(x) = 1 from x = 1 on: a table that is too short."""
    replace(mint.nn.functional, "silu", {1}, lambda y, x: np.where(x > 1, x, y))
    seed_all(21)
    network = MLP(96).to_float(mindspore.float16)
    for parameter in network.get_parameters():
        parameter.set_dtype(mindspore.float16)
    x, y = vectors(0, dtype=np.float16)
    train(folder, network, squared_error(network), [(x * 4, y)])


def parameter_differs(folder: Path, is_wrong: bool) -> None:
    """One weight of three was loaded from another checkpoint."""
    seed_all(22)
    network = MLP()
    if is_wrong:
        weight = network.layers[1].weight
        weight.set_data(Tensor(np.roll(weight.asnumpy(), 1, axis=0)))
    train(folder, network, squared_error(network), [vectors(1)])


def batch_differs(folder: Path, is_wrong: bool) -> None:
    """The data set was shuffled with another seed."""
    seed_all(23)
    network = CNN()
    train(folder, network, cross_entropy(network), [images(3 if is_wrong else 2)])


def relu_leaks_in_statistics(folder: Path, is_wrong: bool) -> None:
    """The second ReLU of a CNN lets a tenth of what is negative pass; statistics only."""
    if is_wrong:
        replace(mint.nn.functional, "relu", {1}, lambda y, x: np.where(x < 0, x / 10, y))
    seed_all(24)
    network = CNN()
    train(folder, network, cross_entropy(network), [images(4)], task="statistics")


class LogOfSoftmax(nn.Cell):
    """A classifier whose loss takes the logarithm of a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes = mint.nn.Linear(12, 32), mint.nn.Linear(32, 4)

    def construct(self, x: Tensor) -> Tensor:
        return self.classes(mint.nn.functional.relu(self.body(x)))


def logarithm_of_zero(folder: Path, is_wrong: bool) -> None:
    """The inputs are not normalised: a softmax has exact zeros, whose logarithm is -Inf, then 0 * -Inf."""
    seed_all(25)
    network = LogOfSoftmax()
    x, _ = vectors(5)
    wanted = Tensor(np.eye(4, dtype=np.float32)[np.arange(16) % 4])

    def loss_of(x: Tensor) -> Tensor:
        shares = mint.nn.functional.softmax(network(x), dim=-1)
        return mint.neg(mint.mean(mint.sum(mint.mul(wanted, mint.log(shares)), dim=-1)))

    train(folder, network, loss_of, [(x * 3000,)])


def equal_runs(folder: Path, is_wrong: bool) -> None:
    """Two runs of a script that computes the same each time."""
    seed_all(26)
    network = CNN()
    train(folder, network, cross_entropy(network), [images(6)])


# Written after the first answers to the others were known.


def gradients_become_nan(folder: Path, is_wrong: bool) -> None:
    """From step 3 on a target of the batch is NaN, and with it all gradients; one run, its gradients only."""
    seed_all(36)
    network = MLP()
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
    probe = {"grad_level": "L1"}
    PrecisionDebugger(configuration(folder, task="grad_probe", grad_probe=probe)).monitor(optimizer)
    forward_backward = mindspore.value_and_grad(squared_error(network), None, optimizer.parameters)
    for step in range(5):
        x, y = vectors(step)
        if step >= 3:
            values = y.asnumpy()
            values[0, 0] = np.nan
            y = Tensor(values)
        _, gradients = forward_backward(x, y)
        optimizer(gradients)
