"""What optimizers of PyTorch get and leave, seen by the hooks that `torch.optim` calls around every `step`.

Every optimizer that derives from `torch.optim.Optimizer` calls them, fused and foreach ones too, and those inside
wrappers and loss scalers. Hyper-parameters are read by parameter group. Norms are taken where
gradients are clipped by PyTorch, Megatron and DeepSpeed.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as hooks

from msprobe_collector.dump_format.writing.parts import OMITTED, plain_fields, shortest
from msprobe_collector.pytorch.calls import is_searched
from msprobe_collector.pytorch.parameter_names import parameter_names
from msprobe_collector.recording.other_records import Named, OptimizerRecords, named
from msprobe_collector.recording.session import Session
from msprobe_collector.recording.swaps import Installation


def held_by(optimizer: Any) -> Any:
    """Return the optimizer inside a wrapper, or the optimizer itself.

    A wrapper such as accelerate's shows the groups and the state of the one that it holds, as its `optimizer`. One that
    never ran `Optimizer.__init__`, and so has no hooks, may hold it under any name.
    """
    while True:
        held = [getattr(optimizer, "optimizer", None)]
        if isinstance(optimizer, torch.optim.Optimizer) and not has_hooks(optimizer):
            held += vars(optimizer).values()
        inner = [value for value in held if isinstance(value, torch.optim.Optimizer) and value is not optimizer]
        if not inner:
            return optimizer
        optimizer = inner[0]


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has run `Optimizer.__init__`: a wrapper may not have, and is none by itself."""
    return "_optimizer_step_pre_hooks" in vars(optimizer)


def grouped_parameters(optimizer: Any) -> list[list[Any]]:
    """Return the parameters of each group."""
    return [list(group["params"]) for group in optimizer.param_groups]


def group_settings(optimizer: Any) -> list[dict[str, object]]:
    """The hyper-parameters of each group of `optimizer.param_groups`, in its order.

    Args:
        optimizer: a torch.optim.Optimizer, or one that has `param_groups` as it has.

    Returns:
        One dict per group of all that the group holds besides its parameters, under the optimizer's names (`lr`,
        `betas`, `weight_decay`, `fused`, ...): None, bool, int, float, str, lists and dicts of these. A tensor with one
        element, such as the `lr` of a capturable optimizer, is given as its number; other tensors are left out. Where a
        scheduler has noted it, `initial_lr` is there too.
    """
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, (list, tuple)):
        return []
    return [_settings(group) for group in groups if isinstance(group, dict)]


def _settings(group: dict[Any, Any]) -> dict[str, object]:
    fields = (field for field in group.items() if field[0] not in ("params", "param_names"))
    return plain_fields(fields, number_of)


def number_of(value: Any) -> Any:
    """The number of a tensor with one element; OMITTED for other tensors, None for what is no tensor."""
    if isinstance(value, torch.dtype):
        return str(value)
    if not isinstance(value, torch.Tensor):
        return None
    if value.numel() != 1 or isinstance(value, torch.nn.Parameter) or value.is_meta or value.is_complex():
        return OMITTED
    return shortest(value.item(), str(value.dtype).removeprefix("torch."))


#: (module, class in it or "", functions) that clip gradients by their norm, looked for in modules that are imported.
_CLIPPING = (
    ("torch.nn.utils", "", ("clip_grad_norm_", "clip_grads_with_norm_")),
    ("torch.nn.utils.clip_grad", "", ("clip_grad_norm_", "clip_grads_with_norm_")),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", ("clip_grad_norm_",)),
    ("megatron.core.optimizer.clip_grads", "", ("clip_grad_norm_fp32", "clip_grad_by_total_norm_fp32")),
    ("deepspeed.runtime.utils", "", ("clip_grad_norm_", "clip_gradients")),
)


class OptimizerSteps(OptimizerRecords):
    """Records `step` of every optimizer, and the clipping of gradients by their norm."""

    framework = "pytorch"

    def __init__(self, session: Session) -> None:
        """See nothing yet."""
        super().__init__(session, parameter_names())
        self._clipping = Installation(self._seen_clipping, is_searched=is_searched)
        self._handles: list[Any] = []
        #: Frame of PyTorch that runs the step, by the optimizer's id.
        self._running: dict[int, FrameType] = {}
        #: Threads in which one of them runs: of those that it calls itself there are no records.
        self._clips: set[int] = set()

    @property
    def is_installed(self) -> bool:
        """Whether steps are seen."""
        return bool(self._handles)

    def install(self) -> None:
        """See steps from now on."""
        if not self._is_wanted or self._handles:
            return
        self._clipping.add_new((owner, name, name) for owner, name in clipping_functions())
        self._clipping.install()
        self._handles = [
            hooks.register_optimizer_step_pre_hook(self._begins),
            hooks.register_optimizer_step_post_hook(self._ended),
        ]

    def uninstall(self) -> None:
        """See no more steps."""
        self._clipping.uninstall()
        while self._handles:
            self._handles.pop().remove()

    def end_step(self) -> None:
        """End what has begun, and forget the names."""
        super().end_step()
        self._running.clear()

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._recorder.is_collecting and not self._activity.is_inside:
            return self._guard.enter("an optimizer's step", self._begin_step, optimizer, args, kwargs, sys._getframe(1))
        return None

    def _begin_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Take what the step gets; gives the arguments of a step whose closure computes the gradients."""
        if is_inside(self._running.get(id(optimizer)), frame):  # its class calls the step of its base class
            return None
        self._running[id(optimizer)] = frame
        closure = kwargs.get("closure", *args[1:2])
        if not callable(closure):
            self._begin(optimizer, functools.partial(_gradients_of, optimizer), frame)
            return None
        parameters = self._begin(optimizer, lambda _: (), frame)
        replaced = self._seen_closure(closure, optimizer, parameters)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": replaced}
        return (args[0], replaced, *args[2:]), kwargs

    def _seen_closure(
        self, closure: Callable[[], Any], optimizer: Any, parameters: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """`closure`, after whose first call the gradients are taken: the step uses those."""
        calls = iter((True,))

        @functools.wraps(closure)
        def computed() -> Any:
            result = closure()
            if next(calls, False):
                gradients = _gradients_of(optimizer, parameters)
                self._guard.enter("an optimizer's closure", self._records.gets, optimizer, gradients)
            return result

        return computed

    def _ended(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._running.get(id(optimizer)) is sys._getframe(1):
            del self._running[id(optimizer)]
            self._guard.enter("an optimizer's step", self._end, optimizer)

    def _groups(self, optimizer: Any) -> list[list[Any]]:
        return grouped_parameters(optimizer)

    def _settings(self, optimizer: Any) -> list[dict[str, Any]]:
        groups = zip(group_settings(optimizer), optimizer.param_groups)
        return [{**settings, "parameters": len(group["params"])} for settings, group in groups]

    def _state(self, optimizer: Any, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, parameter in parameters.items():
            yield from named(f"state.{name}", dict(optimizer.state.get(parameter, {})).items())

    def _seen_clipping(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            if not self._recorder.is_collecting or self._activity.is_inside or thread in self._clips:
                return original(*args, **kwargs)
            parameters = kwargs.get("parameters", *args[:1])
            if isinstance(parameters, Iterator):  # it can be looked through once
                parameters = list(parameters)
                again = (parameter for parameter in parameters)
                args, kwargs = ((again, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": again})
            owner = object()
            self._guard.enter(call, self._begin_clipping, owner, parameters, signature, args, kwargs)
            self._clips.add(thread)
            try:
                result = original(*args, **kwargs)
            finally:
                self._clips.discard(thread)
            self._guard.enter(call, self._end_clipping, owner, result, signature, args, kwargs)
            return result

        return clip

    def _begin_clipping(
        self, owner: Any, of: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if isinstance(of, (torch.Tensor, nn.Module)):  # FSDP1 clips by a method of the Module
            of = [of] if isinstance(of, torch.Tensor) else of.parameters()
        try:
            parameters = list(of)
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # the call will raise it, too
            return
        bound.apply_defaults()
        settings = [(name, bound.arguments[name]) for name in ("max_norm", "norm_type") if name in bound.arguments]
        named = dict(zip(self.names.of([parameters], ""), parameters))
        self._records.begin("clip_grad_norm", owner, settings)
        self._records.gets(owner, _gradients_in(named))

    def _end_clipping(
        self, owner: Any, result: Any, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """The norm is returned, or was given."""
        self._records.returns(owner, signature.bind(*args, **kwargs).arguments.get("total_norm", result))


def clipping_functions() -> Iterator[tuple[Any, str]]:
    """(owner, name) of the functions that clip, of modules that are imported."""
    for module, kind, names in _CLIPPING:
        owner: Any = sys.modules.get(module)
        owner = getattr(owner, kind, None) if kind else owner
        yield from ((owner, name) for name in names if callable(getattr(owner, name, None)))


def is_inside(outer: FrameType | None, inner: FrameType) -> bool:
    """Return whether `outer` is `inner` or has called it, and runs."""
    frame: FrameType | None = inner
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None


def gradient_of(parameter: Any) -> Any:
    """Return the gradient, or that which Megatron keeps beside it where the update has another precision."""
    return parameter.grad if parameter.grad is not None else getattr(parameter, "decoupled_grad", None)


def _gradients_in(parameters: Mapping[str, Any]) -> Named:
    return ((f"gradients.{name}", gradient_of(item)) for name, item in parameters.items() if item.requires_grad)


def _gradients_of(optimizer: Any, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The gradients, and the scale that a fused optimizer is to take out of them itself."""
    yield from _gradients_in(parameters)
    for name in ("grad_scale", "found_inf"):
        if isinstance(scale := getattr(optimizer, name, None), torch.Tensor):
            yield name, scale
