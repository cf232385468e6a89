"""What laws see of a PyTorch training around its steps: backward passes, models, dropout, batches, scalers, clipping.

Functions and methods are replaced while laws are watched, and each replacement calls the original with what it was given.
Nothing here runs inside compiled code: the first use of torch.compile takes out what such code would call.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import autograd, nn
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.laws.law import Checked, Finding, Unchecked
from msprobe_collector.laws.observation import Batch, Clipping, DropoutMask, Labels
from msprobe_collector.laws.session import LawSession
from msprobe_collector.laws.training import (
    BUFFERS_KEPT,
    EACH_IN_ONE,
    EMA_DECAY,
    FRESH,
    GRADIENTS_ARRIVE,
    IN_AN_OPTIMIZER,
    SCALE_REMOVED,
    STAYS_TRAINABLE,
    TIES_KEPT,
    TRAINING_MODE,
)
from msprobe_collector.pytorch.checkpoints import RUN_BACKWARD
from msprobe_collector.pytorch.installation import is_searched
from msprobe_collector.pytorch.law_sources import source_of
from msprobe_collector.pytorch.optimizers import clipping_functions
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import ApiTarget, Installation, MethodSwaps

#: Elements of a mask, of a batch, and of a gradient of which it is asked whether it is zero.
_MASK, _BATCH, _ZEROS = 512, 1 << 16, 1024
_NAMED_TOKENS = ("input_ids", "tokens", "ids", "x")


class _Thread(threading.local):
    """What runs in one thread: Modules, outermost first."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []


@dataclass(slots=True)
class _Model:
    """A Module that the script calls itself, with gradients.

    Attributes:
        root: itself.
        name: in findings.
        paths: names of its Modules by id.
        parameters: ids of its parameters.
        ties: names of parameters that are one, in pairs.
        batches: fingerprints of what it got since the last step on its parameters.
        modes: whether it was in training mode in its calls since then.
        trained: whether a step on it was taken in training mode.
        buffers: dtype and device of each.
    """

    root: weakref.ref[nn.Module]
    name: str
    paths: dict[int, str] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    ties: list[tuple[str, str]] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    is_poor: bool = False
    modes: list[bool] = field(default_factory=list)
    trained: bool = False
    buffers: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Stale:
    """A gradient that a step has used.

    Attributes:
        parameter: whose it is.
        address: of its memory.
        has_begun: whether a backward pass has begun since, with the gradient as it was.
    """

    parameter: weakref.ref[Any]
    address: int
    has_begun: bool = False


class TrainingSignals:
    """Sees what happens around steps, and tells the session."""

    def __init__(self, session: LawSession, guard: Guard) -> None:
        """See nothing yet."""
        self._session, self._guard = session, guard
        self._swaps, self._calls = MethodSwaps(), MethodSwaps()
        self._clipping = Installation(self._seen_clipping, is_searched=is_searched)
        self._thread = _Thread()
        self._models: dict[int, _Model] = {}
        self._stale: dict[int, _Stale] = {}
        self._backward = 0
        self._is_scaled = False
        self._scaled: Any = WeakIdKeyDictionary()
        self._scaler: Any = None
        #: Ids of the parameters of each optimizer that has stepped, by its name, and the order of their last steps.
        self._owners: dict[str, set[int]] = {}
        self._order: dict[str, list[int]] = {}
        self._ticks = 0
        self._running: list[str] = []
        self._inner: set[tuple[str, str]] = set()
        self._trainable: dict[str, set[int]] = {}
        #: Modules that ran since the last step: by id, whether their outputs reached another Module without a graph.
        self._ran: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}
        self._outputs: dict[tuple[int, int], tuple[int, Any]] = {}
        self._tokens: torch.Tensor | None = None
        self._is_causal = False
        self._label_calls = 0
        self._iterations: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._iteration = 0
        self._loaders: dict[int, str] = {}
        self._clips = False
        self.on_load: Callable[[Any], None] = lambda optimizer: None

    # What is replaced

    def install(self) -> None:
        """See from now on."""
        put = self._swaps.put
        if hasattr(autograd, RUN_BACKWARD):
            put(autograd, RUN_BACKWARD, self._seen_backward)
        put(torch.optim.Optimizer, "load_state_dict", self._seen_loading)
        put(torch.amp.GradScaler, "scale", self._seen_scaling)
        put(torch.optim.swa_utils.AveragedModel, "update_parameters", self._seen_average)
        from torch.utils.data import dataloader

        put(dataloader._BaseDataLoaderIter, "__next__", self._seen_next)
        self._calls.put(torch, "compile", self._seen_compile)
        self._calls.put(nn.Module, "__call__", self._seen_module)
        self._calls.put(functional, "dropout", self._seen_dropout)
        self._calls.put(functional, "scaled_dot_product_attention", self._seen_attention)
        self._calls.put(functional, "cross_entropy", self._seen_cross_entropy)
        self._clipping.add([ApiTarget(owner, name, getattr(owner, name), name) for owner, name in clipping_functions()])
        self._clipping.install()

    def uninstall(self) -> None:
        """See no more."""
        self._clipping.uninstall()
        self._calls.uninstall()
        self._swaps.uninstall()

    def _is_away(self) -> bool:
        return self._guard.activity.is_inside or torch.compiler.is_compiling()

    def _seen_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._guard.enter("laws: torch.compile", self._leave_calls)
            return original(*args, **kwargs)

        return compile

    def _leave_calls(self) -> None:
        self._calls.uninstall()
        self._models.clear()
        self._ran.clear()
        for name in (IN_AN_OPTIMIZER, GRADIENTS_ARRIVE, TRAINING_MODE, TIES_KEPT, BUFFERS_KEPT):
            self._session.say(name, "model", Unchecked("the training uses torch.compile, inside which nothing is seen"))

    # Steps

    def step_begins(self, optimizer: Any, name: str, names: Mapping[int, str], number: int, source: str) -> None:
        """An optimizer's step begins; `names` are those of its parameters by id."""
        parameters = {id(item): item for group in optimizer.param_groups for item in group["params"]}
        say = functools.partial(self._session.say, source=source, step=number)
        if self._running:
            self._inner.update(((self._running[-1], name), (name, self._running[-1])))
        self._running.append(name)
        self._ticks += 1
        if (two := self._in_two(name, parameters, names)) is not None:
            say(EACH_IN_ONE, name, two)
        say(FRESH, name, self._fresh(parameters, names))
        say(SCALE_REMOVED, name, self._scale_at_step(optimizer, names))
        say(STAYS_TRAINABLE, name, self._stays_trainable(name, parameters, names))
        models = [model for model in self._models.values() if model.parameters.keys() & parameters.keys()]
        for model in models:
            self._of_model(model, say, number)
        if self._models:
            say(GRADIENTS_ARRIVE, name, self._gradients_arrive(parameters, names))
            if number:
                say(IN_AN_OPTIMIZER, "models", self._in_an_optimizer())

    def step_ended(self, optimizer: Any, name: str, number: int) -> None:
        """The step is over."""
        if name in self._running:
            del self._running[self._running.index(name) :]
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        for item in parameters:
            if item.grad is not None:
                self._stale[id(item)] = _Stale(weakref.ref(item), _address(item.grad))
            else:
                self._stale.pop(id(item), None)
        own = {id(item) for item in parameters}
        for model in self._models.values():
            if model.parameters.keys() & own:
                model.batches.clear()
                model.modes.clear()
                self._buffers_after(model, name, number)
        self._ran = {
            key: entry
            for key, entry in self._ran.items()
            if (module := entry[0]()) is not None and not any(id(item) in own for item in module._parameters.values())
        }
        self._outputs.clear()
        self._tokens = None

    def _in_two(self, name: str, parameters: Mapping[int, Any], names: Mapping[int, str]) -> list[Finding] | None:
        self._owners[name] = set(parameters)
        steps = self._order.setdefault(name, [])
        found = []
        for other, ids in self._owners.items():
            shared = ids & parameters.keys()
            is_between = steps and self._order.get(other) and self._order[other][-1] > steps[-1]
            if other != name and shared and is_between and (other, name) not in self._inner:
                both = [names[key] for key in parameters if key in shared]
                message = f"{name} and {other} both update it, in turn"
                found.append(Finding(EACH_IN_ONE, both[0], message, None, tuple(both[1:])))
        steps.append(self._ticks)
        del steps[:-2]
        return found

    def _fresh(self, parameters: Mapping[int, Any], names: Mapping[int, str]) -> Checked:
        stale = [
            key
            for key, item in parameters.items()
            if (old := self._stale.get(key)) is not None
            and old.has_begun
            and old.parameter() is item
            and item.grad is not None
            and _address(item.grad) == old.address
        ]
        if not stale:
            return []
        message = (
            "its gradient still holds that of the step before: it was not set to zero, and the backward added to it"
        )
        return [Finding(FRESH, names[stale[0]], message, None, tuple(names[key] for key in stale[1:]))]

    def _stays_trainable(self, name: str, parameters: Mapping[int, Any], names: Mapping[int, str]) -> list[Finding]:
        before = self._trainable.setdefault(name, set())
        frozen = [key for key, item in parameters.items() if key in before and not item.requires_grad]
        before.update(key for key, item in parameters.items() if item.requires_grad)
        before.difference_update(frozen)
        if not frozen:
            return []
        message = f"requires_grad is False since this step: {name} trains it no more"
        return [Finding(STAYS_TRAINABLE, names[frozen[0]], message, None, tuple(names[key] for key in frozen[1:]))]

    def _gradients_arrive(self, parameters: Mapping[int, Any], names: Mapping[int, str]) -> Checked:
        without: list[int] = []
        is_sure = False
        for reference, is_cut in self._ran.values():
            module = reference()
            for item in () if module is None else module._parameters.values():
                if item is not None and id(item) in parameters and item.requires_grad and item.grad is None:
                    without.append(id(item))
                    is_sure |= is_cut
        if not is_sure:
            return []
        message = (
            "it has no gradient although the forward used it: what its layer gave went on without a graph "
            "(detach, no_grad, .data or .item?)"
        )
        found = [names[key] for key in dict.fromkeys(without)]
        return [Finding(GRADIENTS_ARRIVE, found[0], message, None, tuple(found[1:]))]

    def _in_an_optimizer(self) -> Checked:
        known = set().union(*self._owners.values())
        missing: list[tuple[int, str]] = []
        for model in self._models.values():
            root = model.root()
            if root is None:
                continue
            for path, item in root.named_parameters():
                if item.requires_grad and item.grad is not None and id(item) not in known:
                    missing.append((id(item), path))
        if missing:
            known = _ids_in_optimizers()
        names = [path for key, path in missing if key not in known]
        if not names:
            return []
        message = "it has a gradient and is in no optimizer: it is never updated"
        return [Finding(IN_AN_OPTIMIZER, names[0], message, None, tuple(names[1:]))]

    # Models

    def _of_model(self, model: _Model, say: Callable[..., None], number: int) -> None:
        root = model.root()
        if root is None:
            return
        if model.modes:
            is_trained = any(model.modes)
            if model.trained and not is_trained and _has_modes(root):
                message = "it is trained in eval mode, after steps in training mode (train() is missing after eval()?)"
                say(TRAINING_MODE, model.name, [Finding(TRAINING_MODE, model.name, message)])
            else:
                say(TRAINING_MODE, model.name, [])
            model.trained |= is_trained
        say(TIES_KEPT, model.name, _ties_kept(root, model))
        model.buffers = {path: (str(item.dtype), str(item.device)) for path, item in root.named_buffers()}
        if model.batches:
            fingerprint = xxhash.xxh64(" ".join(sorted(set(model.batches))).encode()).hexdigest()
            self._session.batch(Batch(model.name, fingerprint, is_poor=model.is_poor))

    def _buffers_after(self, model: _Model, name: str, number: int) -> None:
        root = model.root()
        if root is None or not model.buffers:
            return
        found = []
        for path, item in root.named_buffers():
            before, now = model.buffers.get(path), (str(item.dtype), str(item.device))
            if before is not None and before != now:
                message = f"the buffer is {' on '.join(now)} after the step and was {' on '.join(before)} before it"
                found.append(Finding(BUFFERS_KEPT, path, message))
        self._session.say(BUFFERS_KEPT, model.name, found, step=number)

    def _seen_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._is_away():
                return original(module, *args, **kwargs)
            modules = self._thread.modules
            if not modules and torch.is_grad_enabled() and not self._backward:
                self._guard.enter("laws: a model is called", self._model_begins, module, args, kwargs)
            modules.append(module)
            try:
                result = original(module, *args, **kwargs)
            finally:
                modules.pop()
            if modules and not self._backward and module._parameters:
                self._guard.enter("laws: a Module is called", self._module_ended, module, args, result, modules[0])
            elif modules and not self._backward and self._outputs and args:
                self._guard.enter("laws: a Module is called", self._look_for_cut, args)
            return result

        return functools.update_wrapper(__call__, original)

    def _model_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = self._models.get(id(module))
        if model is None or model.root() is not module:
            self._models = {key: entry for key, entry in self._models.items() if entry.root() is not None}
            model = self._models[id(module)] = _model_of(module, self._models)
        model.modes.append(module.training)
        tensors = list(_tensors_in((args, kwargs)))
        self._tokens = _tokens_of(args, kwargs)
        self._is_causal = False
        if tensors and len(model.batches) < 64:
            fingerprint, is_poor = _fingerprint(tensors)
            model.batches.append(fingerprint)
            model.is_poor = is_poor

    def _module_ended(self, module: nn.Module, args: tuple[Any, ...], result: Any, root: nn.Module) -> None:
        self._look_for_cut(args)
        own = [item for item in module._parameters.values() if item is not None and item.requires_grad]
        if not own or not module.training:
            return
        model = self._models.get(id(root))
        is_cut = not torch.is_grad_enabled() and model is not None and bool(model.modes)
        if id(module) not in self._ran or is_cut:
            self._ran[id(module)] = weakref.ref(module), is_cut
        if isinstance(module, nn.RNNBase) and not module.bidirectional:
            self._is_causal = True
        first = result[0] if isinstance(result, tuple) and result else result
        if isinstance(first, torch.Tensor) and first.requires_grad and type(first) is torch.Tensor:
            self._outputs[first.data_ptr(), first.numel()] = id(module), _weak_storage(first)

    def _look_for_cut(self, args: tuple[Any, ...]) -> None:
        """Whether an input of a Module is the output of another one, without its graph."""
        if not torch.is_grad_enabled():
            return
        for item in args:
            if type(item) is torch.Tensor and not item.requires_grad and item.is_floating_point() and item.numel():
                maker, storage = self._outputs.get((item.data_ptr(), item.numel()), (0, None))
                if maker in self._ran and storage is not None and not _is_gone(storage):
                    self._ran[maker] = self._ran[maker][0], True

    def _path_of(self, module: nn.Module) -> str:
        for model in self._models.values():
            if id(module) in model.paths:
                return model.paths[id(module)]
        return type(module).__name__

    # Backward passes and scalers

    def _seen_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_away():
                return original(*args, **kwargs)
            self._guard.enter("laws: a backward pass begins", self._backward_begins, args, kwargs)
            self._backward += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._backward -= 1

        return run_backward

    def _backward_begins(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._backward or not kwargs.get("accumulate_grad", True):
            return
        roots = args[0] if args and isinstance(args[0], (tuple, list)) else ()
        self._is_scaled = any(isinstance(root, torch.Tensor) and root in self._scaled for root in roots)
        gone = []
        for key, old in self._stale.items():
            item = old.parameter()
            gradient = None if item is None else item.grad
            if gradient is None or _address(gradient) != old.address or _is_zero(gradient):
                gone.append(key)
            else:
                old.has_begun = True
        for key in gone:
            del self._stale[key]

    def _seen_scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if not self._is_away():
                self._guard.enter("laws: a loss is scaled", self._note_scaled, scaler, result)
            return result

        return scale

    def _note_scaled(self, scaler: Any, result: Any) -> None:
        self._scaler = scaler
        for item in _tensors_in(result):
            self._scaled[item] = True

    def _scale(self) -> float:
        """What the gradients of the last backward pass hold; 1.0 for nothing."""
        scaler = self._scaler
        if not self._is_scaled or scaler is None or not scaler.is_enabled() or scaler._scale is None:
            return 1.0
        return float(scaler._scale)

    def _scale_at_step(self, optimizer: Any, names: Mapping[int, str]) -> Checked:
        if self._scaler is None:
            return Unchecked("no loss scaler is used")
        scale = self._scale()
        state = self._scaler._per_optimizer_states.get(id(optimizer), {})
        stage = getattr(state.get("stage"), "name", "READY")
        if scale == 1 or stage != "READY" or getattr(optimizer, "grad_scale", None) is not None:
            return []
        message = f"the step gets gradients that still hold the scale {scale:g} of the loss scaler"
        found = list(names.values())
        return [Finding(SCALE_REMOVED, found[0], message, None, tuple(found[1:]))]

    def _seen_loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            if not self._is_away():
                self._guard.enter("laws: a state is loaded", self.on_load, optimizer)
            return result

        return load_state_dict

    # Clipping

    def _seen_clipping(self, original: Callable[..., Any], call: str) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            if self._is_away() or self._clips:
                return original(*args, **kwargs)
            given = args[0] if args else kwargs.get("parameters")
            if isinstance(given, Iterator):  # it can be looked through once
                given = list(given)
                args, kwargs = ((given, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": given})
            before = self._guard.enter("laws: clipping begins", self._norm_before, given)
            self._clips = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._clips = False
            if before is not None:
                frame = sys._getframe(1)
                self._guard.enter("laws: clipping ends", self._clipped, before, result, signature, args, kwargs, frame)
            return result

        return clip

    def _norm_before(self, given: Any) -> tuple[list[Any], float | None, str] | None:
        if isinstance(given, (torch.Tensor, nn.Module)):
            given = [given] if isinstance(given, torch.Tensor) else given.parameters()
        parameters = [item for item in given if isinstance(item, torch.Tensor) and item.grad is not None]
        if not parameters:
            return None
        norm, unknown = _norm_of([item.grad for item in parameters])
        return parameters, norm, unknown

    def _clipped(
        self,
        before: tuple[list[Any], float | None, str],
        result: Any,
        signature: inspect.Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
    ) -> None:
        parameters, norm, unknown = before
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        norm_type = float(bound.arguments.get("norm_type", 2.0))
        if norm_type != 2.0:
            unknown, norm = f"gradients are clipped by the norm {norm_type:g}", None
        given = bound.arguments.get("total_norm")
        reported = result if given is None else given
        if isinstance(reported, torch.Tensor):
            reported = getattr(reported, "_local_tensor", reported)
        after = None
        if norm is not None and norm > float(bound.arguments.get("max_norm", math.inf)):
            after = _norm_of([item.grad for item in parameters])[0]
        names = {key: path for model in self._models.values() for key, path in model.parameters.items()}
        is_unscaled = self._scaler is not None and any(
            getattr(state.get("stage"), "name", "") == "UNSCALED"
            for state in self._scaler._per_optimizer_states.values()
        )
        self._session.clipping(
            Clipping(
                [names.get(id(item), f"parameters.{at}") for at, item in enumerate(parameters)],
                norm,
                after,
                float(reported) if isinstance(reported, (torch.Tensor, float, int)) else None,
                float(bound.arguments.get("max_norm", math.inf)),
                norm_type,
                sum(item.numel() for item in parameters),
                max((str(item.grad.dtype).rpartition(".")[2] for item in parameters), key=_coarseness),
                1.0 if is_unscaled else self._scale(),
                source_of(frame),
                unknown,
            )
        )

    # Dropout and labels

    def _seen_dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
            if not training or not p or type(input) is not torch.Tensor or self._is_away():
                return original(input, p, training, inplace)
            before = self._guard.enter("laws: dropout", _first, input)
            result = original(input, p, training, inplace)
            if before is not None:
                self._guard.enter("laws: dropout", self._dropped, before, result, p)
            return result

        return dropout

    def _dropped(self, before: Any, result: torch.Tensor, rate: float) -> None:
        known = before != 0
        dropped = (_first(result) == 0) & known
        modules = self._thread.modules
        source = "" if modules else source_of(sys._getframe(3))
        place = self._path_of(modules[-1]) if modules else source.partition(":")[0] + ":dropout"
        is_training = modules[-1].training if modules else True
        self._session.mask(DropoutMask(place, dropped, known, rate, is_training, self._backward > 0, source))

    def _seen_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            if not self._is_away():
                self._guard.enter("laws: attention", self._attention, args, kwargs)
            return original(*args, **kwargs)

        return scaled_dot_product_attention

    def _attention(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        self._is_causal |= bool(kwargs.get("is_causal", args[5] if len(args) > 5 else False)) or _is_triangular(mask)
        modules = self._thread.modules
        if rate and modules:
            drops = np.array([not modules[-1].training])
            self._session.mask(DropoutMask(self._path_of(modules[-1]), drops, drops, rate, modules[-1].training))

    def _seen_cross_entropy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
            if self._tokens is not None and not self._is_away():
                self._label_calls += 1
                if self._label_calls <= 16 or self._label_calls % 64 == 0:
                    ignored = kwargs.get("ignore_index", args[2] if len(args) > 2 else -100)
                    self._guard.enter("laws: cross entropy", self._compare_labels, target, ignored)
            return original(input, target, *args, **kwargs)

        return cross_entropy

    def _compare_labels(self, target: Any, ignored: int) -> None:
        tokens = self._tokens
        if tokens is None or not isinstance(target, torch.Tensor) or target.is_floating_point() or tokens.dim() != 2:
            return
        rows, length = tokens.shape
        width = target.numel() // rows if rows and target.numel() % rows == 0 else 0
        if width not in (length, length - 1):
            return
        most = max(1, min(rows, (1 << 15) // max(length, 1)))
        some = target.reshape(-1)[: most * width].cpu().numpy()
        is_causal = self._is_causal or any(map(_looks_back, self._models.values()))
        self._session.labels(Labels(tokens[:most].cpu().numpy(), some, ignored, is_causal))

    # Data

    def _seen_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            try:
                batch = original(iterator)
            except StopIteration:
                self._iterations.pop(iterator, None)
                raise
            if not self._is_away():
                self._guard.enter("laws: a batch is loaded", self._loaded, iterator, batch)
            return batch

        return __next__

    def _loaded(self, iterator: Any, batch: Any) -> None:
        if iterator not in self._iterations:
            self._iteration += 1
            self._iterations[iterator] = self._iteration
        dataset = getattr(iterator, "_dataset", None)
        name = self._loaders.setdefault(id(dataset), f"DataLoader of {type(dataset).__name__}")
        tensors = list(_tensors_in(batch))
        if not tensors:
            return
        fingerprint, is_poor = _fingerprint(tensors)
        sampler = getattr(iterator, "_index_sampler", None)
        inner = getattr(sampler, "sampler", sampler)
        with_replacement = getattr(inner, "replacement", False) is True
        try:
            count = len(sampler) if sampler is not None else 0
        except TypeError:
            count = 0
        self._session.batch(
            Batch(name, fingerprint, True, count, self._iterations[iterator], is_poor or with_replacement)
        )

    def _seen_average(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update_parameters(averaged: Any, model: nn.Module) -> Any:
            if self._is_away():
                return original(averaged, model)
            before = self._guard.enter("laws: an average begins", _samples_of, averaged)
            result = original(averaged, model)
            if before is not None:
                self._guard.enter("laws: an average ends", self._averaged, averaged, model, before)
            return result

        return update_parameters

    def _averaged(self, averaged: Any, model: nn.Module, before: dict[str, Any]) -> None:
        share = _share_of(averaged)
        if share is None:
            self._session.say(
                EMA_DECAY, type(averaged).__name__, Unchecked("its averaging function does not say a decay")
            )
            return
        after, now = _samples_of(averaged), _samples_of(model)
        found = []
        for name, value in now.items():
            if name not in before or before[name].size != value.size or name not in after:
                continue
            right = before[name] + share * (value - before[name])
            tolerance = 8 * 2.0**-24 * (np.abs(before[name]) + np.abs(value)) + 1e-30
            if getattr(model.get_parameter(name), "dtype", None) in (torch.float16, torch.bfloat16):
                tolerance = tolerance * 2.0**16
            size = float(np.max(np.abs(after[name] - right) / tolerance, initial=0.0))
            if size > 1:
                message = f"the average is not {1 - share:g} of itself and {share:g} of the parameter"
                found.append(Finding(EMA_DECAY, name, message, size))
        self._session.say(EMA_DECAY, type(averaged).__name__, found)


def _address(tensor: Any) -> int:
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.data_ptr()) if local.layout is torch.strided else id(tensor)


def _is_zero(gradient: Any) -> bool:
    local = getattr(gradient, "_local_tensor", gradient)
    if local.layout is not torch.strided or not local.numel():
        return True
    return not bool(_some(local, _ZEROS).any())


def _some(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """At most so many elements, evenly spread; without a copy of the whole."""
    if tensor.numel() <= most:
        return tensor.detach().reshape(-1)
    if tensor.is_contiguous():
        return tensor.detach().view(-1)[:: math.ceil(tensor.numel() / most)]
    places = torch.arange(0, tensor.numel(), math.ceil(tensor.numel() / most), device=tensor.device)
    return torch.take(tensor.detach(), places)


def _first(tensor: torch.Tensor) -> Any:
    """The first elements, as NumPy has them."""
    count = min(tensor.numel(), _MASK)
    if tensor.is_contiguous():
        some = tensor.detach().view(-1)[:count]
    else:
        some = torch.take(tensor.detach(), torch.arange(count, device=tensor.device))
    return some.float().cpu().numpy().copy()


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)) and depth < 6:
        for item in value:
            yield from _tensors_in(item, depth + 1)
    elif isinstance(value, Mapping) and depth < 6:
        for item in value.values():
            yield from _tensors_in(item, depth + 1)


def _fingerprint(tensors: Iterable[torch.Tensor]) -> tuple[str, bool]:
    """(fingerprint of all elements, or of a part of many; whether they have too few values to tell batches apart)."""
    digest = xxhash.xxh64()
    distinct = count = 0
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout is not torch.strided or local.is_meta:
            continue
        array = _some(local, _BATCH).cpu()
        array = array.float() if array.dtype is torch.bfloat16 else array
        values = array.contiguous().numpy()
        digest.update(repr((tuple(local.shape), str(local.dtype))).encode())
        digest.update(values.tobytes())
        count += values.size
        distinct = max(distinct, np.unique(values[:512]).size)
    return digest.hexdigest(), distinct < 12 or count < 24


def _tokens_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    given = [kwargs.get(name) for name in _NAMED_TOKENS] + list(args) + list(kwargs.values())
    for item in given:
        is_tokens = isinstance(item, torch.Tensor) and item.dim() == 2 and item.dtype in (torch.int64, torch.int32)
        if is_tokens and item.numel():
            return item.detach()
    return None


def _is_triangular(mask: Any) -> bool:
    if not isinstance(mask, torch.Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    square = mask.detach().reshape(-1, *mask.shape[-2:])[0, :64, :64]
    allowed = square if square.dtype is torch.bool else square > -1e4
    size = allowed.shape[0]
    upper = torch.triu(torch.ones(size, size, dtype=torch.bool, device=allowed.device), 1)
    return bool(allowed.diagonal().all()) and not bool((allowed & upper).any())


def _looks_back(model: _Model) -> bool:
    """Whether a buffer of the model is the mask of causal attention."""
    root = model.root()
    if root is None:
        return False
    for item in root.buffers():
        if item.dim() >= 2 and item.shape[-1] == item.shape[-2] and item.shape[-1] > 3:
            square = item.detach().reshape(-1, *item.shape[-2:])[0, :64, :64]
            values = square.float()
            is_lower = bool((torch.triu(values, 1) == 0).all()) and bool((torch.tril(values) != 0).any())
            if (is_lower and bool((values.diagonal() != 0).all())) or _is_triangular(square):
                return True
            is_above = square.dtype is torch.bool and not bool(torch.tril(square).any())
            if is_above and bool(square[0, 1:].all()):
                return True
    return False


def _has_modes(root: nn.Module) -> bool:
    """Whether training mode makes a difference."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(module, kinds) and getattr(module, "p", 1) for module in root.modules())


def _model_of(module: nn.Module, known: Mapping[int, _Model]) -> _Model:
    kind = type(module).__name__
    count = sum(model.name.partition(".")[0] == kind for model in known.values())
    model = _Model(weakref.ref(module), f"{kind}.{count}" if count else kind)
    model.paths = {id(inner): path or kind for path, inner in module.named_modules()}
    first: dict[int, str] = {}
    for path, item in module.named_parameters(remove_duplicate=False):
        if id(item) in first:
            model.ties.append((first[id(item)], path))
        first.setdefault(id(item), path)
    model.parameters = first
    return model


def _ties_kept(root: nn.Module, model: _Model) -> Checked:
    found = []
    for one, other in model.ties:
        try:
            is_one = root.get_parameter(one) is root.get_parameter(other)
        except AttributeError:
            continue
        if not is_one:
            found.append(Finding(TIES_KEPT, other, f"it is no longer the same parameter as {one}"))
    declared = getattr(getattr(root, "config", None), "tie_word_embeddings", False) is True
    if declared and hasattr(root, "get_input_embeddings") and hasattr(root, "get_output_embeddings"):
        inner, outer = root.get_input_embeddings(), root.get_output_embeddings()
        if outer is not None and inner is not None and outer.weight.data_ptr() != inner.weight.data_ptr():
            message = "config.tie_word_embeddings is True, and it is another parameter than the input embedding"
            found.append(Finding(TIES_KEPT, "output embedding", message))
    if not found and not model.ties and not declared:
        return Unchecked("the model has no tied parameters")
    return found


def _ids_in_optimizers() -> set[int]:
    """Ids of the parameters of all optimizers that there are."""
    import gc

    found: set[int] = set()
    for item in gc.get_objects():
        if issubclass(type(item), torch.optim.Optimizer) and "param_groups" in vars(item):
            found.update(id(inner) for group in item.param_groups for inner in group["params"])
    return found


def _norm_of(gradients: Sequence[Any]) -> tuple[float | None, str]:
    """(2-norm in float64, or why there is none)."""
    if any(hasattr(item, "placements") for item in gradients):
        return None, "gradients are spread over ranks"
    if any(item.layout is not torch.strided or item.is_complex() for item in gradients):
        return None, "gradients are sparse or complex"
    total = 0.0
    for item in gradients:
        norm = torch.linalg.vector_norm(item.detach(), 2.0, dtype=torch.float64 if item.is_cpu else None)
        total += float(norm) ** 2
    return math.sqrt(total) if math.isfinite(total) else total, ""


def _coarseness(dtype: str) -> int:
    return {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3}.get(dtype, 1)


def _weak_storage(tensor: torch.Tensor) -> Any:
    return torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())


def _is_gone(storage: Any) -> bool:
    return bool(storage.expired())


def _samples_of(model: nn.Module) -> dict[str, Any]:
    inner = model.module if isinstance(model, torch.optim.swa_utils.AveragedModel) else model
    return {
        name: _some(item, 64).double().cpu().numpy().copy()
        for name, item in inner.named_parameters()
        if type(item.data) is torch.Tensor and item.is_floating_point()
    }


def _share_of(averaged: Any) -> float | None:
    """The share of the parameter in its new average; None where the averaging function does not tell it."""
    count = int(averaged.n_averaged) - 1
    if count <= 0:
        return 1.0
    chosen = averaged.multi_avg_fn or averaged.avg_fn
    if chosen is None:
        return 1.0 / (count + 1)
    chosen = getattr(chosen, "__wrapped__", chosen)
    names = getattr(getattr(chosen, "__code__", None), "co_freevars", ())
    cells = getattr(chosen, "__closure__", None) or ()
    decay = next((cell.cell_contents for name, cell in zip(names, cells) if name == "decay"), None)
    return 1 - float(decay) if isinstance(decay, (int, float)) else None
