"""The two frameworks, as far as tests of both collectors ask for them. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class Framework:
    """A framework.

    Attributes:
        name: of its package.
        training: module of the small GPT, with a class `Training`.
        suffix: of tensor files.
        call: name of the calls of `square` in records.
        layer: what names of layers begin with.
        records: of one step of the training, by level.
    """

    name: str
    training: str
    suffix: str
    call: str
    layer: str
    records: dict[str, int]
    #: Name of its dtype of truth values.
    boolean = "bool"

    @property
    def script(self) -> str:
        """First lines of a script that trains and collects."""
        return (
            f"from msprobe_collector.{self.collector} import PrecisionDebugger\n"
            f"from {self.training} import Training\n{self.first_lines}\n"
        )

    first_lines = ""

    @property
    def collector(self) -> str:
        """Sub-package of msprobe_collector."""
        return self.name

    @property
    def debugger_type(self) -> Any:
        return importlib.import_module(f"msprobe_collector.{self.collector}").PrecisionDebugger

    @property
    def monitor_type(self) -> Any:
        return importlib.import_module(f"msprobe_collector.{self.collector}").GradientMonitor

    def make_training(self) -> Any:
        """The small GPT with its batch."""
        return importlib.import_module(self.training).Training()

    def prepare(self) -> None:
        """Before a test that trains in this process."""

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        raise NotImplementedError

    def array(self, tensor: Any) -> np.ndarray:
        """A copy, in a dtype of NumPy or ml_dtypes."""
        raise NotImplementedError

    def parameters(self, layer: Any) -> list[Any]:
        raise NotImplementedError

    def square(self, tensor: Any) -> Any:
        raise NotImplementedError

    def gradient(self, function: Callable[[Any], Any], tensor: Any) -> Any:
        """Take the gradient of the number function(tensor)."""
        raise NotImplementedError

    def linear(self) -> Any:
        """A network of one layer, from two numbers to two."""
        raise NotImplementedError

    def gradients_of(self, net: Any, function: Callable[[Any], Any]) -> None:
        """Take the gradients of function(batch of one) for the parameters of `net`."""
        raise NotImplementedError

    def optimizer(self, values: Mapping[str, Any]) -> tuple[Any, Callable[[Mapping[str, Any]], list[np.ndarray]]]:
        """(gradient descent on parameters with these `values`, update(gradients) -> what the parameters are then)."""
        raise NotImplementedError


class MindSpore(Framework):
    name = "mindspore"
    training = "collector.small_gpt"
    suffix = ".npy"
    call = "Mint.square"
    layer = "Cell"
    records = {"L1": 180, "mix": 236}
    boolean = "bool_"
    first_lines = "import mindspore; mindspore.runtime.launch_blocking()"

    def prepare(self) -> None:
        import mindspore

        mindspore.runtime.launch_blocking()  # twenty times faster on few cores; the values are the same
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import mindspore

        return mindspore.Tensor(np.array(values), getattr(mindspore, dtype))

    def array(self, tensor: Any) -> np.ndarray:
        return tensor.asnumpy().copy()

    def parameters(self, layer: Any) -> list[Any]:
        return list(layer.get_parameters())

    def square(self, tensor: Any) -> Any:
        from mindspore import mint

        return mint.square(tensor)

    def gradient(self, function: Callable[[Any], Any], tensor: Any) -> Any:
        import mindspore

        return mindspore.grad(function)(tensor)

    def linear(self) -> Any:
        from mindspore import nn

        return nn.SequentialCell(nn.Dense(2, 2))

    def gradients_of(self, net: Any, function: Callable[[Any], Any]) -> None:
        import mindspore

        mindspore.grad(function, None, net.trainable_params())(self.tensor([[1.0, 1.0]]))

    def optimizer(self, values: Mapping[str, Any]) -> tuple[Any, Callable[[Mapping[str, Any]], list[np.ndarray]]]:
        from mindspore import Parameter, nn

        parameters = [Parameter(self.tensor(value), name) for name, value in values.items()]
        optimizer = nn.SGD(parameters, 0.1)

        def update(gradients: Mapping[str, Any]) -> list[np.ndarray]:
            optimizer(tuple(self.tensor(gradient) for gradient in gradients.values()))
            return [self.array(parameter) for parameter in parameters]

        return optimizer, update


class PyTorch(Framework):
    name = "torch"
    training = "pytorch_collector.small_gpt"
    suffix = ".pt"
    call = "Torch.square"
    layer = "Module"
    records = {"L1": 203, "mix": 262}

    @property
    def collector(self) -> str:
        return "pytorch"

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import torch

        return torch.tensor(np.array(values), dtype=getattr(torch, dtype))

    def array(self, tensor: Any) -> np.ndarray:
        import ml_dtypes
        import torch

        if tensor.dtype is torch.bfloat16:
            return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
        return tensor.detach().numpy().copy()

    def parameters(self, layer: Any) -> list[Any]:
        return list(layer.parameters())

    def square(self, tensor: Any) -> Any:
        import torch

        return torch.square(tensor)

    def gradient(self, function: Callable[[Any], Any], tensor: Any) -> Any:
        leaf = tensor.detach().requires_grad_()
        function(leaf).backward()
        return leaf.grad

    def linear(self) -> Any:
        import torch

        return torch.nn.Sequential(torch.nn.Linear(2, 2))

    def gradients_of(self, net: Any, function: Callable[[Any], Any]) -> None:
        function(self.tensor([[1.0, 1.0]])).backward()

    def optimizer(self, values: Mapping[str, Any]) -> tuple[Any, Callable[[Mapping[str, Any]], list[np.ndarray]]]:
        import torch

        parameters = {name: torch.nn.Parameter(self.tensor(value)) for name, value in values.items()}
        optimizer = torch.optim.SGD(parameters.items(), 0.1)

        def update(gradients: Mapping[str, Any]) -> list[np.ndarray]:
            for name, gradient in gradients.items():
                parameters[name].grad = self.tensor(gradient)
            optimizer.step()
            return [self.array(parameter) for parameter in parameters.values()]

        return optimizer, update


FRAMEWORKS: tuple[Framework, ...] = (MindSpore(), PyTorch())
