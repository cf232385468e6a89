"""PyTorch, as the framework-free part of the collector sees it.

- PrecisionDebugger for training with PyTorch.
- The gradient monitor for optimizers of PyTorch.
- Seeing the gradients that an optimizer of PyTorch updates with.
- One call that makes a training run repeatable.
- Dropout without effect, and back.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any

from msprobe_collector import extensions, gradient_monitor
from msprobe_collector.configuration import Configuration, ConfigurationError
from msprobe_collector.debugger import Debugger, check_seed_arguments, warn_without_effect
from msprobe_collector.framework import Framework, NoOptimizer
from msprobe_collector.recording.swaps import MethodSwaps

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from msprobe_collector.framework import CallWatch, OptimizerAccess
    from msprobe_collector.pytorch.tensor_values import TorchValues
    from msprobe_collector.recording.manifest import RunFacts
    from msprobe_collector.recording.session import Session


class PyTorch:
    """See `msprobe_collector.framework.Framework`. PyTorch loads when something is first asked of it."""

    name = "pytorch"
    layer = "Module"

    @property
    def values(self) -> TorchValues:
        """How tensors are read."""
        from msprobe_collector.pytorch.tensor_values import torch_values

        return torch_values()

    @property
    def outside(self) -> Callable[[], AbstractContextManager[object]]:
        """Outside of modes and tracers."""
        from msprobe_collector.pytorch.threads_and_graphs import outside

        return outside

    def rank(self) -> int | None:
        """This process's rank in torch.distributed, or None before that is initialised."""
        from torch import distributed

        return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None

    def ranks(self) -> dict[str, object] | None:
        """See `Framework`."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        from msprobe_collector.pytorch.communication import ranks_of_this_process

        return ranks_of_this_process()

    def is_helper(self) -> bool:
        """Every process that runs the script trains."""
        return False

    def is_layer(self, value: Any) -> bool:
        """Whether `value` is a Module."""
        from torch import nn

        return isinstance(value, nn.Module)

    def instead_of(self, value: Any) -> str:
        """A Cell is MindSpore's."""
        if any(base.__module__.startswith("mindspore.") and base.__name__ == "Cell" for base in type(value).__mro__):
            return "for MindSpore import PrecisionDebugger from msprobe_collector.mindspore"
        return "give a Module, or a list of Modules"

    def refusal(self, level: str, *, has_token_range: bool) -> str:
        """Nothing is refused: what a compiled region computes inside is not seen, and the rest is."""
        return ""

    def register_gradient_hook(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None] | None:
        """Hook a tensor that takes a gradient."""
        if not tensor.requires_grad:
            return None
        remove: Callable[[], None] = tensor.register_hook(hook).remove
        return remove

    def tensor_like(self, tensor: Any, array: npt.NDArray[Any]) -> Any:
        """A leaf on the device of `tensor`; dtypes that NumPy lacks are made from float32, which holds them exactly."""
        import torch

        is_plain = array.dtype.isbuiltin == 1
        made = torch.from_numpy(array if is_plain else array.astype("float32")).to(tensor.device, tensor.dtype)
        return made.requires_grad_(tensor.requires_grad)

    def change_parameters(self, layer: Any, change: Callable[[Any], Any]) -> None:
        """Copy into the data of each parameter."""
        import torch

        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(change(parameter))

    def seed_all(self, seed: int, *, is_deterministic: bool) -> None:
        """See `seed_all`."""
        seed_all(seed, mode=is_deterministic)

    def watch_calls(self, session: Session) -> CallWatch:
        """See calls by `TorchCallWatch`: a function mode."""
        from msprobe_collector.pytorch.call_watch import TorchCallWatch

        return TorchCallWatch(session)

    def run_facts(self) -> RunFacts:
        """See `TorchFacts`."""
        from msprobe_collector.pytorch.manifest import TorchFacts

        return TorchFacts()

    def kernel_dump(self, configuration: Configuration) -> None:
        """Return None: PyTorch has no dump of its own.

        Raises:
            ConfigurationError: the task is of such a dump alone.
        """
        if configuration.task == "exception_dump":
            raise ConfigurationError(
                "exception_dump is of MindSpore's kernels; for PyTorch take overflow_check",
                place="PrecisionDebugger",
                field="task",
            )

    def optimizers(self) -> OptimizerAccess:
        """What this framework's optimizers are called with."""
        return TorchOptimizers()


class PrecisionDebugger(Debugger):
    """Collects what the APIs and Modules of a PyTorch training compute; see `Debugger`."""

    @staticmethod
    def _make_framework() -> Framework:
        return PyTorch()


class GradientMonitor(gradient_monitor.GradientMonitor):
    """See `msprobe_collector.gradient_monitor.GradientMonitor`."""

    def __init__(self, configuration: Configuration) -> None:
        """Watch as `configuration` says.

        Raises:
            ValueError: its task is not `grad_probe`.
        """
        super().__init__(configuration, PyTorch())


class TorchOptimizers:
    """See `msprobe_collector.framework.OptimizerAccess`."""

    def names(self, optimizer: Any) -> tuple[str, ...]:
        """Parameter names: those that the optimizer was made with (`named_parameters`), or those in the script's model.

        A parameter that stands in no Module, or whose name is also another one's, is `param_groups.0.params.3`. A
        Module stands for the optimizers of its parameters.

        Raises:
            NoOptimizer: it is neither a torch.optim.Optimizer nor a Module.
        """
        import torch

        if isinstance(optimizer, torch.nn.Module):
            return tuple(name for name, _ in _trained(optimizer))
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise NoOptimizer(f"monitor: {type(optimizer).__name__} is not a torch.optim.Optimizer")
        from msprobe_collector.pytorch.optimizers import grouped_parameters
        from msprobe_collector.pytorch.parameter_names import names_in_models

        by_id = names_in_models(set(map(id, chain(*grouped_parameters(optimizer)))))
        taken = Counter(by_id.values())
        names: list[str] = []
        for number, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                name = by_id.get(id(parameter), "")
                names.append(name if taken[name] == 1 else f"param_groups.{number}.params.{index}")
            if names_in_group := group.get("param_names"):
                names[-len(names_in_group) :] = names_in_group
        return tuple(names)

    def warning(self) -> str:
        """Nothing hides."""
        return ""

    def watch(self, optimizer: Any, show: Callable[[Callable[[], Any]], None]) -> Callable[[], None]:
        """Show the gradients before each `optimizer.step`; of a wrapper, before each step of what it holds.

        Those of a Module are shown before each step of an optimizer that has some of its parameters.
        """
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from msprobe_collector.pytorch.optimizers import grouped_parameters, held_by

        def before(*_: Any) -> None:
            show(lambda: [parameter.grad for parameter in chain(*grouped_parameters(optimizer))])

        def before_some(stepping: Any, *_: Any) -> None:
            if not trained.keys().isdisjoint(map(id, chain(*grouped_parameters(stepping)))):
                show(lambda: [parameter.grad for parameter in trained.values()])

        remove: Callable[[], None]
        if isinstance(optimizer, torch.nn.Module):
            trained = {id(parameter): parameter for _, parameter in _trained(optimizer)}
            remove = register_optimizer_step_pre_hook(before_some).remove
        else:
            remove = held_by(optimizer).register_step_pre_hook(before).remove
        return remove

    def values(self, gradient: Any) -> npt.NDArray[np.floating[Any]]:
        """The gradient as an array of a float dtype that NumPy has.

        Raises:
            TypeError: it is not a Tensor of real floats.
        """
        import torch

        if not isinstance(gradient, torch.Tensor):
            raise TypeError(f"it is a {type(gradient).__name__}, not a Tensor")
        if not gradient.is_floating_point():
            raise TypeError(f"its dtype is {gradient.dtype}, not a real float")
        dense = gradient.detach()
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        if dense.dtype not in (torch.float16, torch.float32, torch.float64):
            dense = dense.float()
        values: npt.NDArray[np.floating[Any]] = dense.cpu().numpy()
        return values


def _trained(model: Any) -> list[tuple[str, Any]]:
    """Names and parameters of a Module that get gradients."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


#: In while dropout is removed.
_swaps = MethodSwaps()
_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def remove_dropout() -> None:
    """Let dropout pass its input on until `restore_dropout`.

    Reached are the layers of `torch.nn` and `torch.nn.functional`, unless imported by name before. Dropout inside fused
    operators (scaled_dot_product_attention, LSTM layers) stays: set its probability to 0 in the script.
    """
    from torch.nn import functional

    if not _swaps.are_in:
        for name in _NAMES:
            _swaps.put(functional, name, _without_effect)


def restore_dropout() -> None:
    """Put dropout back."""
    _swaps.uninstall()


def _without_effect(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return input

    dropout.__name__ = original.__name__
    return dropout


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Seed every generator that a PyTorch script draws from: Python, NumPy if it is loaded, PyTorch on every device.

    Call it first, before the network is built. Equal seeds give equal weights and dropout masks; equal values besides
    need `mode`.

    Args:
        seed: 0 to 4294967295. PYTHONHASHSEED is set for child processes; this one keeps the hashes it started with.
        mode: have operators compute in a fixed order (`torch.use_deterministic_algorithms`, cuDNN and HCCL likewise);
            one that cannot raises RuntimeError where it is called.
        rm_dropout: let dropout layers and functions pass their input on. False gives them back; see `remove_dropout`.
        is_enhanced: without effect, with a warning: the existing tool has every random function begin from the same
            state at each call then.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
    """
    check_seed_arguments(seed, mode=mode, rm_dropout=rm_dropout, is_enhanced=is_enhanced)
    if is_enhanced:
        warn_without_effect("seed_all(): is_enhanced")
    import torch

    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.manual_seed(seed)  # also of CUDA, and of torch_npu, which registers its own
    torch.use_deterministic_algorithms(mode)
    torch.backends.cudnn.deterministic = mode
    if mode:
        torch.backends.cudnn.benchmark = False
        # Read when the libraries start: cuBLAS, and HCCL on Ascend.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ["HCCL_DETERMINISTIC"] = "true"
    if rm_dropout:
        remove_dropout()
    else:
        restore_dropout()


extensions.start("pytorch")
