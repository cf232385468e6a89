"""PyTorch, as the framework-free part of the collector sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msprobe_collector.configuration import ConfigurationError

if TYPE_CHECKING:
    import numpy.typing as npt

    from msprobe_collector.configuration import Configuration
    from msprobe_collector.framework import CallWatch, KernelDump, OptimizerAccess, Session
    from msprobe_collector.pytorch.tensor_values import TorchValues


class PyTorch:
    """See `msprobe_collector.framework.Framework`. PyTorch loads when something is first asked of it."""

    name = "pytorch"
    layer = "Module"

    @property
    def values(self) -> TorchValues:
        """How tensors are read."""
        from msprobe_collector.pytorch.tensor_values import torch_values

        return torch_values()

    def rank(self) -> int | None:
        """This process's rank in torch.distributed, or None before that is initialised."""
        from torch import distributed

        return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None

    def is_helper(self) -> bool:
        """Every process that runs the script trains."""
        return False

    def is_layer(self, value: Any) -> bool:
        """Whether `value` is a Module."""
        from torch import nn

        return isinstance(value, nn.Module)

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
        """See `seeding.seed_all`."""
        from msprobe_collector.pytorch.seeding import seed_all

        seed_all(seed, mode=is_deterministic)

    def watch_calls(self, session: Session) -> CallWatch:
        """See calls by `watching`."""
        from msprobe_collector.pytorch.call_watch import TorchCallWatch

        return TorchCallWatch(session)

    def kernel_dump(self, configuration: Configuration) -> KernelDump:
        """Refuse level L2, which PyTorch does not have.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "L2 is a dump of MindSpore's kernels; for PyTorch take L0, L1 or mix",
            place="PrecisionDebugger",
            field="level",
        )

    def optimizers(self) -> OptimizerAccess:
        """See `optimizer_watch`."""
        from msprobe_collector.pytorch.optimizer_watch import TorchOptimizers

        return TorchOptimizers()
