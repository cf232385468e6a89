"""Collecting from a training script that does not know of the collector: where its steps begin and end.

A step begins with the first call of a Module that has parameters, while gradients are on and there is an optimizer, and
ends when every optimizer has stepped. Nothing is put in the place of what computes: a wrapper around
`Module.__call__` waits for the first call and is taken away then, and another one around each optimizer's own `step`
waits for its end. What runs between two steps (evaluation, checkpoints) is not collected.

As long as no optimizer is there, the script is one of inference: each forward of the outermost Module is a step. It
begins with the first call of a Module inside the outermost one, such as an encoder. Where a training begins later, its
steps take the place of those.

What a step will cost is estimated from the first layers of its forward; where it is asked for, a
step runs in float64.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from msprobe_collector import logger
from msprobe_collector.configuration import ConfigurationError
from msprobe_collector.dump_format.values import counted
from msprobe_collector.pytorch.framework import PrecisionDebugger
from msprobe_collector.pytorch.manifest import eval_lines
from msprobe_collector.pytorch.optimizers import grouped_parameters, held_by
from msprobe_collector.pytorch.parameter_names import outermost_modules
from msprobe_collector.pytorch.threads_and_graphs import outside
from msprobe_collector.recording import process
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.manifest import ProcessObjects
from msprobe_collector.recording.process import script_line
from msprobe_collector.recording.swaps import MethodSwaps

#: Layers without others inside that are looked at: at least so many, and one of so many.
_LEAST_LAYERS, _ONE_OF = 4, 10
#: A backward has the gradients of what goes in and comes out; an optimizer parameters, gradients and new parameters.
_WITH_BACKWARD, _OF_OPTIMIZER = 3, 3
#: Bytes of a step above which a terminal asks.
_MANY = 20 * 10**9


class StepCost:
    """Says what a step will cost, once, when the first layers have run."""

    def __init__(self, guard: Guard, saved: Callable[[], tuple[int, int]], *, is_agreed: bool) -> None:
        """Say nothing yet; `saved` gives number and bytes of the tensors that were saved so far."""
        self._guard, self._saved, self._is_agreed = guard, saved, is_agreed
        #: Ids of the layers without others inside; of none while nothing is waited for.
        self._layers: set[int] = set()
        self._seen = self._enough = 0
        self._say_it: Callable[[], None] = lambda: None

    def watch(self, models: Iterable[nn.Module], *, trains: bool) -> None:
        """Wait for the first layers of `models`."""
        layers = {id(layer) for model in models for layer in model.modules() if next(layer.children(), None) is None}
        parameters = {id(parameter): parameter for model in models for parameter in model.parameters()}
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())
        enough = max(_LEAST_LAYERS, len(layers) // _ONE_OF)
        if len(layers) < 2 * enough:  # it is over before anybody has read about it
            return
        began, before = time.monotonic(), self._saved()
        passes, updates = (_WITH_BACKWARD, _OF_OPTIMIZER) if trains else (1, 0)
        times = len(layers) / enough * passes

        def say() -> None:
            values, bytes_ = (now - then for now, then in zip(self._saved(), before))
            self._say(
                round(values * times) + updates * len(parameters),
                bytes_ * times + updates * size,
                (time.monotonic() - began) * times,
            )

        self._layers, self._enough, self._say_it = layers, enough, say

    def called(self, layer: nn.Module) -> None:
        """Count a call of a layer, and say the cost before the first one behind those that are enough."""
        if id(layer) not in self._layers:
            return
        if self._seen == self._enough:
            self._layers = set()
            self._guard.enter("the cost of a step", self._say_it)
        self._seen += 1

    def _say(self, values: int, size: float, seconds: float) -> None:
        text = f"about {counted(values, 'values')}, {size / 1e9:.2g} GB, {seconds:.0f} s"
        if size > _MANY and not self._is_agreed and sys.stdin is not None and sys.stdin.isatty():
            raise ConfigurationError(
                f"the step holds {text}; --yes collects it, --task=statistics or --task=statistics with "
                "summary_mode sketch takes a thousandth",
                place="collect",
            )
        logger.info("the step holds %s", text)


def uses_compiler() -> bool:
    """Return whether the script has something compiled, whose layers are not called one by one."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in backends.values())


#: What a dtype becomes.
_EXACT = {
    dtype: torch.complex128 if dtype.is_complex else torch.float64
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_complex or dtype.is_floating_point)
}
#: Operators that draw other numbers in another dtype.
_DRAWS = frozenset(
    f"aten::{name}" for name in "rand rand_like randn randn_like normal normal_ uniform_ log_normal_ bernoulli".split()
)
#: Tensors that are no more than their elements; buffers have a class since PyTorch 2.5.
_PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
#: Operators of loss scalers, whose scale is a float32, beside the gradients in a list.
_SCALES = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")


class ExactMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own __init_subclass__
    """Computes in float64 what a script computes: the exact run that two others are held to.

    The script stays as it is, and so does what it draws at random. From the first step that is
    collected on every tensor of a coarser float dtype becomes float64, and no operator makes one:
    casts and factories of such dtypes give float64. That is done below autograd, where the
    backward, recomputed forwards and what functions call are seen as well; autocast leaves float64
    as it is.
    """

    def __init__(self) -> None:
        """Compute as the script does until `begin`."""
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own
        self._drawn_dtype = torch.get_default_dtype()

    def begin(self) -> None:
        """Compute in float64 from here to the end of the process."""
        self._drawn_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        if hasattr(torch.compiler, "set_stance"):  # since PyTorch 2.6
            torch.compiler.set_stance("force_eager")
        for value in gc.get_objects():
            # Before autograd sees them; what is not tracked here is exact when it is first used.
            if type(value) in _PLAIN and value.is_leaf:
                _made_exact(value)
                if value.grad is not None:
                    _made_exact(value.grad)
        self.__enter__()  # type: ignore[no-untyped-call]  # PyTorch's own

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator in float64."""
        kwargs = kwargs or {}
        with outside():
            if func._schema.name in _DRAWS:
                return self._drawn(func, args, kwargs)
            args, kwargs = tree_map(_exact, args), tree_map(_exact, kwargs)
            if func._schema.name in _SCALES:
                return _scaled(func, args)
            return tree_map(_exact, func(*args, **kwargs))

    def _drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw in the dtype in which the script would."""
        if any(argument.name == "dtype" for argument in func._schema.arguments) and kwargs.get("dtype") is None:
            kwargs["dtype"] = self._drawn_dtype
        result = func(*tree_map(self._coarse, args), **tree_map(self._coarse, kwargs))
        if func._schema.name.endswith("_"):
            return _exact(args[0]).copy_(result)
        return _exact(result)

    def _coarse(self, value: Any) -> Any:
        return value.to(self._drawn_dtype) if isinstance(value, torch.Tensor) and value.dtype in _EXACT else value


def _scaled(func: Any, args: tuple[Any, ...]) -> Any:
    scales = [argument.float() if isinstance(argument, torch.Tensor) else argument for argument in args]
    func(*scales)
    for argument, scale in zip(args, scales):
        if isinstance(argument, torch.Tensor):
            argument.copy_(scale)
    return args[0] if isinstance(args[0], torch.Tensor) else None


def _exact(value: Any) -> Any:
    """A dtype or a tensor in float64; all else, integers too, as it is.

    A tensor is changed itself, so that what is written to it later is not lost, unless autograd knows its dtype.
    """
    if isinstance(value, torch.dtype):
        return _EXACT.get(value, value)
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(_EXACT[value.dtype]) if value.requires_grad and value.dtype in _EXACT else _made_exact(value)


def _made_exact(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _EXACT and tensor.dtype is not _EXACT[tensor.dtype]:
        tensor.data = tensor.data.to(_EXACT[tensor.dtype])
    return tensor


#: Steps of one optimizer while another has not stepped yet, as a generator's, before it is no longer waited for.
MOST_STEPS_OF_ONE = 16


def run_script(
    script: str,
    arguments: Sequence[str],
    *,
    is_module: bool,
    ends_after_steps: bool,
    is_exact: bool = False,
    is_agreed: bool = False,
    **settings: Any,
) -> int:
    """Run a script, or a module, as the main one of this process, and collect its steps.

    Args:
        script: Path of the script, or name of the module.
        arguments: What it gets as `sys.argv[1:]`.
        is_module: Whether `script` is a module, as behind `python -m`.
        ends_after_steps: Whether the script is ended (`SystemExit`) behind the last step that is collected.
        is_agreed: Whether a step may be large without a question.
        is_exact: Whether the script computes in float64 from the first of these steps on.
        **settings: Arguments of `PrecisionDebugger`.

    Returns:
        0, or 1 where no step was found.

    Raises:
        ConfigurationError: A setting is wrong.
    """
    if is_exact and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigurationError("the exact run is that of a script in one process", place="collect", field="--dtype")
    debugger = PrecisionDebugger(**settings)
    if is_exact and debugger.configuration.task == "grad_probe":
        raise ConfigurationError("task grad_probe has no exact run", place="collect", field="--dtype")
    steps = TorchStepFinder(debugger, ends_after_steps=ends_after_steps, is_exact=is_exact)
    if debugger.configuration.task == "tensor":
        steps.cost = StepCost(debugger._guard, lambda: debugger.written_tensors, is_agreed=is_agreed)
    process.run_watched(debugger, steps, script, arguments, is_module=is_module)
    if steps.has_begun:
        return 0
    if is_exact and "mindspore" in sys.modules:
        raise ConfigurationError("the exact run is that of a script of PyTorch", place="collect", field="--dtype")
    logger.warning(
        "nothing was collected: %s called no Module with parameters, or only while gradients were off and an optimizer "
        "of torch.optim was there; put the lines of the debugger into the script instead",
        script,
    )
    return 1


class TorchStepFinder:
    """Starts and ends the steps of a training that does not do so itself.

    Attributes:
        debugger: Which collects them.
        has_begun: Whether a step was found.
        cost: What says what the first step costs; None where nobody is to say it.
    """

    def __init__(self, debugger: PrecisionDebugger, *, ends_after_steps: bool = False, is_exact: bool = False) -> None:
        """Look for nothing yet."""
        #: What makes the step to come one in float64; None where that is not asked for, or done.
        self._exact = ExactMode() if is_exact else None
        self.cost: StepCost | None = None
        #: It again, from the first step that is collected on.
        self._watched_cost: StepCost | None = None
        self.debugger, self._ends_after_steps = debugger, ends_after_steps
        self._guard = debugger._guard
        self._calls, self._optimizer_steps, self._modes = MethodSwaps(), MethodSwaps(), MethodSwaps()
        #: The mode of a model is being set, and so that of its layers.
        self._sets_mode = False
        self._objects = ProcessObjects({"optimizers": torch.optim.Optimizer})
        self._number = 0
        #: A call that no other Module has made is running.
        self._is_inside = False
        #: The first Module that was called in the forward that is collected, and the outermost one, which ends it.
        self._forward: tuple[nn.Module, nn.Module] | None = None
        #: All optimizers, while a step runs.
        self._optimizers: list[torch.optim.Optimizer] = []
        #: Steps of each optimizer that is waited for in this training step, by its id.
        self._stepped: dict[int, int] = {}
        #: Optimizers that did not step in a whole training step, such as those that the script uses no more.
        self._idle: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trains = False
        self.has_begun = False

    def install(self) -> None:
        """Wait for a step to begin."""
        if not self._calls.are_in:
            self._calls.put(nn.Module, "__call__", self._awaiting)
        if not self._modes.are_in:
            self._modes.put(nn.Module, "train", self._noting_mode)

    def uninstall(self) -> None:
        """Wait no more. What a step has collected so far is kept."""
        self._end_forward()
        self._calls.uninstall()
        self._optimizer_steps.uninstall()
        self._modes.uninstall()

    def _noting_mode(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(module: nn.Module, mode: bool = True) -> Any:
            if self._sets_mode:
                return original(module, mode)
            self._guard.enter("the mode of a model", _note_mode, module, mode, sys._getframe(1))
            self._sets_mode = True
            try:
                return original(module, mode)
            finally:
                self._sets_mode = False

        return train

    def _awaiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            if self._watched_cost is not None:
                self._watched_cost.called(module)
            if self._is_inside or self._optimizer_steps.are_in:
                return original(module, *args, **kwargs)
            has_begun = self._guard.enter("looking for a step", self._look, module)
            # What sees the calls of the step is in place by now.
            call = nn.Module.__call__ if has_begun else original
            if has_begun and self._trains:
                return call(module, *args, **kwargs)
            self._is_inside = True
            try:
                return call(module, *args, **kwargs)
            finally:
                self._is_inside = False
                if self._forward is not None and module is self._forward[1]:
                    self._guard.enter("looking for the end of a step", self._end_forward)

        return called

    def _look(self, module: nn.Module) -> bool:
        """Begin a step if this is the call of a model that is being trained, or of one where nothing is trained."""
        if self._trains and not torch.is_grad_enabled():  # an evaluation
            return False
        if self._optimizer_steps.are_in or next(module.parameters(), None) is None:
            return False
        optimizers = self._objects.now()["optimizers"]
        if optimizers and torch.is_grad_enabled():
            self._begin_training(module, optimizers)
            return True
        return not optimizers and self._begin_forward(module)

    def _begin_forward(self, module: nn.Module) -> bool:
        """Begin a step of inference, unless one runs to which the call belongs; whether it has begun."""
        configuration = self.debugger.configuration
        if self._forward is not None and module is self._forward[0]:
            self._end_forward()
        last = configuration.steps.last
        is_over = last is not None and self._number > last
        if self._forward is not None or is_over or configuration.task == "grad_probe":
            return False
        outermost = _models(module, ())[0]
        if not self.has_begun:
            kind = type(outermost).__name__
            logger.info("no optimizer of torch.optim is there: forwards of %s are collected, no backward", kind)
        self.has_begun = True
        self._forward = (module, outermost)
        self._start([outermost])
        return True

    def _end_forward(self) -> None:
        """End the step of inference that runs."""
        if self._forward is not None:
            self._forward = None
            self._number += 1
            self.debugger.stop()
            self.debugger.step()

    def _begin_training(self, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
        if self.has_begun and not self._trains:
            self._end_forward()
            self._number = 0
            self.debugger.set_init_step(0)
        self._trains = True
        if uses_compiler():
            self.cost = None
        if self.cost is None:
            self._calls.uninstall()
        self.has_begun = True
        if self.debugger.configuration.task == "grad_probe":  # it counts the steps of an optimizer by itself
            trained = set(map(id, module.parameters()))
            self.debugger.monitor(max(optimizers, key=lambda optimizer: len(trained & _parameters_of(optimizer))))
            return
        self._optimizers = optimizers
        self._stepped = {id(optimizer): 0 for optimizer in optimizers if optimizer not in self._idle}
        for optimizer in optimizers:
            self._optimizer_steps.put(optimizer, "step", functools.partial(self._ending, optimizer))
        self._start(_models(module, optimizers))

    def _start(self, models: list[nn.Module]) -> None:
        if self._exact is not None and self.debugger.configuration.steps.admits(self._number):
            self._exact.begin()
            self._exact = None
        self.debugger.start(models[0] if len(models) == 1 else models)
        if self.cost is not None and self.debugger.configuration.steps.admits(self._number):
            self._watched_cost, self.cost = self.cost, None
            self._watched_cost.watch(models, trains=self._trains)

    def _ending(self, optimizer: torch.optim.Optimizer, original: Callable[..., Any]) -> Callable[..., Any]:
        # The script may have the step compiled: what is ours is not.
        enter = torch.compiler.disable(self._guard.enter)  # type: ignore[no-untyped-call]

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            is_over = enter("looking for the end of a step", self._look_for_end, optimizer)
            if is_over and self._ends_after_steps:
                sys.exit(0)
            return result

        return step

    def _look_for_end(self, optimizer: torch.optim.Optimizer) -> bool:
        """End the step if it is over; whether it was the last one to collect."""
        held = held_by(optimizer)
        if held is not optimizer and self._stepped.get(id(held)) == 0:  # a wrapper that accumulates gradients
            return False
        self._idle.discard(optimizer)
        self._stepped[id(optimizer)] = self._stepped.get(id(optimizer), 0) + 1
        if 0 in self._stepped.values() and self._stepped[id(optimizer)] < MOST_STEPS_OF_ONE:
            return False
        self._idle.update(optimizer for optimizer in self._optimizers if not self._stepped.get(id(optimizer)))
        self._optimizers.clear()
        self._optimizer_steps.uninstall()
        self.debugger.stop()
        self.debugger.step()
        self._calls.uninstall()  # which counted layers for the cost
        last = self.debugger.configuration.steps.last
        if last is not None and self._number >= last:
            logger.info("step %s is collected in %s", self._number, self.debugger.configuration.dump_path)
            return True
        self._number += 1
        self.install()
        return False


def _note_mode(module: nn.Module, mode: bool, caller: FrameType) -> None:
    eval_lines.pop(module, None)
    if not mode:
        eval_lines[module] = script_line(walk_stack(caller))


def _models(called: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[nn.Module]:
    """Modules that stand in no other one: that of `called` first, then those with parameters of the optimizers."""
    trained = set().union(*map(_parameters_of, optimizers))
    models = [model for model in outermost_modules() if _has(model, called, trained)]
    models.sort(key=lambda model: id(called) not in map(id, model.modules()))
    return models or [called]


def _has(model: nn.Module, called: nn.Module, trained: set[int]) -> bool:
    return id(called) in map(id, model.modules()) or not trained.isdisjoint(map(id, model.parameters()))


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return set(map(id, chain(*grouped_parameters(optimizer))))
