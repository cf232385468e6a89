"""MindSpore, as the framework-free part of the collector asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msprobe_collector.mindspore.mindspore_internals import communication_rank, is_graph_mode

if TYPE_CHECKING:
    import numpy.typing as npt

    from msprobe_collector.configuration import Configuration
    from msprobe_collector.framework import CallWatch, KernelDump, OptimizerAccess, Session
    from msprobe_collector.mindspore.tensor_values import MindSporeValues


class MindSpore:
    """See `msprobe_collector.framework.Framework`. MindSpore loads when something is first asked of it."""

    name = "mindspore"
    layer = "Cell"

    @property
    def values(self) -> MindSporeValues:
        """How tensors are read."""
        from msprobe_collector.mindspore.tensor_values import mindspore_values

        return mindspore_values()

    def rank(self) -> int | None:
        """See `communication_rank`."""
        return communication_rank()

    def is_helper(self) -> bool:
        """Whether this is msrun's scheduler."""
        return os.environ.get("MS_ROLE") == "MS_SCHED"

    def is_layer(self, value: Any) -> bool:
        """Whether `value` is a Cell."""
        from mindspore import nn

        return isinstance(value, nn.Cell)

    def refusal(self, level: str, *, has_token_range: bool) -> str:
        """What GRAPH_MODE cannot do."""
        if not is_graph_mode():
            return ""
        if level != "L0":
            return (
                f"GRAPH_MODE runs no API in Python, so there is no level {level}; take L0, which collects "
                "Cells, or L2, or train in PYNATIVE_MODE"
            )
        return "token_range counts calls in Python, of which GRAPH_MODE has none" if has_token_range else ""

    def tensor_like(self, tensor: Any, array: npt.NDArray[Any]) -> Any:
        """A tensor on the default device; dtypes that NumPy lacks are made from float32, which holds them exactly."""
        import mindspore

        is_plain = array.dtype.isbuiltin == 1
        return mindspore.Tensor(array) if is_plain else mindspore.Tensor(array.astype("float32")).astype(tensor.dtype)

    def change_parameters(self, layer: Any, change: Callable[[Any], Any]) -> None:
        """Set the data of each parameter."""
        for parameter in layer.get_parameters():
            parameter.set_data(change(parameter))

    def register_gradient_hook(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None] | None:
        """Hook a tensor that takes a gradient."""
        if not tensor._requires_grad:
            return None

        # A function of Python: MindSpore 2.7 takes no other callable.
        def passed_on(gradient: Any) -> Any:
            hook(gradient)
            return gradient

        remove: Callable[[], None] = tensor.register_hook(passed_on).remove
        return remove

    def seed_all(self, seed: int, *, is_deterministic: bool) -> None:
        """See `seeding.seed_all`."""
        from msprobe_collector.mindspore.seeding import seed_all

        seed_all(seed, mode=is_deterministic)

    def watch_calls(self, session: Session) -> CallWatch:
        """See calls by `hooking` and, in graphs, by `static_graph`."""
        from msprobe_collector.mindspore.call_watch import MindSporeCallWatch

        return MindSporeCallWatch(session)

    def kernel_dump(self, configuration: Configuration) -> KernelDump:
        """MindSpore's own dump; it must be set up before MindSpore's runtime begins."""
        from msprobe_collector.mindspore.kernel_dump import KernelDump

        return KernelDump(configuration)

    def optimizers(self) -> OptimizerAccess:
        """See `optimizer_watch`."""
        from msprobe_collector.mindspore.optimizer_watch import MindSporeOptimizers

        return MindSporeOptimizers()
