"""MindSpore, as the framework-free part of the collector asks for it.

- PrecisionDebugger for training with MindSpore.
- The gradient monitor for optimizers of MindSpore.
- Seeing what an optimizer of MindSpore is called with.
- One call that makes a training run repeatable.
- Dropout without effect, and back.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from msprobe_collector import extensions, gradient_monitor
from msprobe_collector.configuration import Configuration
from msprobe_collector.debugger import Debugger, check_seed_arguments
from msprobe_collector.framework import Framework, NoOptimizer
from msprobe_collector.mindspore.mindspore_internals import communication_rank, communication_ranks, is_graph_mode
from msprobe_collector.recording.swaps import MethodSwaps

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from msprobe_collector.framework import CallWatch, KernelDump, OptimizerAccess
    from msprobe_collector.mindspore.tensor_values import MindSporeValues
    from msprobe_collector.recording.manifest import RunFacts
    from msprobe_collector.recording.session import Session


class MindSpore:
    """See `msprobe_collector.framework.Framework`. MindSpore loads when something is first asked of it."""

    name = "mindspore"
    layer = "Cell"

    @property
    def values(self) -> MindSporeValues:
        """How tensors are read."""
        from msprobe_collector.mindspore.tensor_values import mindspore_values

        return mindspore_values()

    @property
    def outside(self) -> Callable[[], AbstractContextManager[object]]:
        """Nothing has to be left: the collector reads values, and runs no operators."""
        return nullcontext

    def rank(self) -> int | None:
        """See `communication_rank`."""
        return communication_rank()

    def ranks(self) -> dict[str, object] | None:
        """See `communication_ranks`."""
        return communication_ranks()

    def is_helper(self) -> bool:
        """Return whether this is msrun's scheduler."""
        return os.environ.get("MS_ROLE") == "MS_SCHED"

    def is_layer(self, value: Any) -> bool:
        """Return whether `value` is a Cell."""
        from mindspore import nn

        return isinstance(value, nn.Cell)

    def instead_of(self, value: Any) -> str:
        """A Module is PyTorch's, or that of MindTorch (MSAdapter), whose `torch` computes with MindSpore's tensors."""
        import mindspore

        bases = {base.__module__.partition(".")[0] for base in type(value).__mro__ if base.__name__ == "Module"}
        if not bases & {"torch", "mindtorch", "msadapter"}:
            return "give a Cell, or a list of Cells"
        tensor = getattr(sys.modules.get("torch"), "Tensor", None)
        if bases == {"torch"} and not (isinstance(tensor, type) and issubclass(tensor, mindspore.Tensor)):
            return "for PyTorch import PrecisionDebugger from msprobe_collector.pytorch"
        return "MindTorch's Modules are not seen; its calls of MindSpore are at level L1: start() without a model"

    def refusal(self, level: str, *, has_token_range: bool) -> str:
        """Return what GRAPH_MODE cannot do."""
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
        """See `seed_all`."""
        seed_all(seed, mode=is_deterministic)

    def watch_calls(self, session: Session) -> CallWatch:
        """See calls by `MindSporeCallWatch`: hooks, and taps inside graphs."""
        from msprobe_collector.mindspore.call_watch import MindSporeCallWatch

        return MindSporeCallWatch(session)

    def run_facts(self) -> RunFacts:
        """See `MindSporeFacts`."""
        from msprobe_collector.mindspore.manifest import MindSporeFacts

        return MindSporeFacts()

    def kernel_dump(self, configuration: Configuration) -> KernelDump:
        """MindSpore's own dump; it must be set up before MindSpore's runtime begins."""
        from msprobe_collector.mindspore.kernel_dump import MindSporeKernelDump

        return MindSporeKernelDump(configuration)

    def optimizers(self) -> OptimizerAccess:
        """Return what this framework's optimizers are called with."""
        return MindSporeOptimizers()


class PrecisionDebugger(Debugger):
    """Collects what the APIs and Cells of a MindSpore training compute; see `Debugger`."""

    @staticmethod
    def _make_framework() -> Framework:
        return MindSpore()


class GradientMonitor(gradient_monitor.GradientMonitor):
    """See `msprobe_collector.gradient_monitor.GradientMonitor`."""

    def __init__(self, configuration: Configuration) -> None:
        """Watch as `configuration` says.

        Raises:
            ValueError: its task is not `grad_probe`.
        """
        super().__init__(configuration, MindSpore())


class MindSporeOptimizers:
    """See `msprobe_collector.framework.OptimizerAccess`."""

    def names(self, optimizer: Any) -> tuple[str, ...]:
        """Names of the parameters of an optimizer.

        Raises:
            NoOptimizer: it is not a Cell that has `parameters`.
        """
        import mindspore

        if not (isinstance(optimizer, mindspore.nn.Cell) and hasattr(optimizer, "parameters")):
            name = type(optimizer).__name__
            raise NoOptimizer(f"monitor: {name} is not a MindSpore optimizer: a Cell with parameters")
        return tuple(parameter.name for parameter in optimizer.parameters)

    def warning(self) -> str:
        """Warning in GRAPH_MODE, where graphs hide gradients; "" otherwise."""
        from msprobe_collector.mindspore.mindspore_internals import is_graph_mode

        if is_graph_mode():
            return "GRAPH_MODE: gradients are seen only where Python calls the optimizer, not inside a graph"
        return ""

    def watch(self, optimizer: Any, show: Callable[[Callable[[], Any]], None]) -> Callable[[], None]:
        """Show the gradients of each call of `optimizer` before the update.

        The optimizer's class is replaced by a subclass with a `__call__` of its own. A forward pre-hook, the obvious
        way, is compiled with the optimizer wherever a graph holds it, and fails there (seen on 2.10: `mindspore.jit` of
        a training step, GRAPH_MODE). A graph passes `__call__` over: it shows nothing, and trains.
        """
        original = type(optimizer)
        watched = _watched_class(original, show)
        optimizer.__class__ = watched

        def remove() -> None:
            if type(optimizer) is watched:
                optimizer.__class__ = original

        return remove

    def values(self, gradient: Any) -> npt.NDArray[np.floating[Any]]:
        """Return the gradient as an array of a float dtype that NumPy has.

        Raises:
            TypeError: it is not a dense Tensor of real floats.
            ComputationFailed: the script's own computation raised.
        """
        import mindspore

        from msprobe_collector.mindspore.mindspore_internals import errors_of_the_script

        if not isinstance(gradient, mindspore.Tensor):
            raise TypeError(f"it is a {type(gradient).__name__}, not a dense Tensor")
        if not gradient.is_floating_point():
            raise TypeError(f"its dtype is {gradient.dtype}, not a real float")
        with errors_of_the_script([gradient]):
            # NumPy has no bfloat16 or float8
            if gradient.dtype not in (mindspore.float16, mindspore.float32, mindspore.float64):
                gradient = gradient.astype(mindspore.float32)
            values: npt.NDArray[np.floating[Any]] = gradient.asnumpy()
        return values


def _watched_class(original: type, show: Callable[[Callable[[], Any]], None]) -> type:
    def call(self: Any, gradients: Any, *others: Any, **keywords: Any) -> Any:
        show(lambda: gradients)
        return original.__call__(self, gradients, *others, **keywords)

    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(original.__name__, (original,), {**names, "__call__": call})


#: In while dropout is removed.
_swaps = MethodSwaps()


def remove_dropout() -> None:
    """Let dropout pass its input on, in PyNative and graph mode, until `restore_dropout`.

    Reached are: the layers of `nn` and `mint.nn`, also those built before; `mint.nn.functional.dropout` and
    `dropout2d`, unless imported by name before; `ops.dropout` and its kin; `ops.Dropout`, `Dropout2D` and `Dropout3D`
    made from now on. Dropout inside fused operators, such as flash attention, stays: set its probability to 0 in the
    model.
    """
    if not _swaps.are_in:
        for owner, name, replace in _replacements():
            _swaps.put(owner, name, replace)


def restore_dropout() -> None:
    """Put dropout back. Primitives that were made while it was removed keep passing their input on."""
    _swaps.uninstall()


def _replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    from mindspore import mint, nn, ops

    for layer in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        yield layer, "construct", lambda _: _layer_of_x
    for layer in (mint.nn.Dropout, mint.nn.Dropout2d):
        yield layer, "construct", lambda _: _layer_of_input
    for name in ("dropout", "dropout2d"):
        yield mint.nn.functional, name, lambda _: _function_of_input
    for primitive in (ops.Dropout, ops.Dropout2D, ops.Dropout3D):
        yield primitive, "__init__", _keeping_all


# The parameters have the names of those that they replace: callers may pass them by name.
def _layer_of_x(self: Any, x: Any) -> Any:
    return x


def _layer_of_input(self: Any, input: Any) -> Any:
    return input


def _function_of_input(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input


def _keeping_all(initialise: Callable[..., None]) -> Callable[..., None]:
    """The initialiser of a dropout Primitive that keeps every element, whatever it is asked for."""

    @functools.wraps(initialise)
    def initialise_keeping_all(self: Any, keep_prob: float = 0.5, *arguments: Any, **keywords: Any) -> None:
        initialise(self, 1.0, *arguments, **keywords)

    return initialise_keeping_all


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Seed every generator that a MindSpore script draws from: Python, NumPy, operators, data sets and mint.

    Call it first, before the network is built. Equal seeds give equal weights, data order and dropout masks; equal
    values besides need `mode`.

    Args:
        seed: 0 to 4294967295. PYTHONHASHSEED is set for child processes; this one keeps the hashes it started with.
        mode: have operators and communication compute in a fixed order (`mindspore.set_deterministic`, slower). Switch
            it on once: MindSpore refuses to have it switched again.
        rm_dropout: let dropout layers and functions pass their input on. False gives them back; see `remove_dropout`.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
        RuntimeError: by MindSpore: deterministic computing was on and cannot be switched off.
    """
    check_seed_arguments(seed, mode=mode, rm_dropout=rm_dropout)
    import mindspore

    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    mindspore.set_seed(seed)
    # set_seed leaves out the generator of mint's random functions (seen on 2.10).
    mindspore.manual_seed(seed)
    if mode != (mindspore.get_context("deterministic") == "ON"):
        mindspore.set_deterministic(mode)
    if rm_dropout:
        remove_dropout()
    else:
        restore_dropout()


extensions.start("mindspore")
