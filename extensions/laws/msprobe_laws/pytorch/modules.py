"""Calls of Modules: the models that a training calls, and whether gradients can come back through their layers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.law import Step, Violation
from msprobe_laws.models import ModelLaws, Ties, ties_of
from msprobe_laws.pytorch import models
from msprobe_laws.pytorch.models import TorchRunning, is_away
from msprobe_laws.pytorch.tensors import fingerprint_of, tensors_in, tokens_of
from msprobe_laws.training import GRADIENTS_ARRIVE


class Modules:
    """Sees calls of Modules."""

    def __init__(
        self, laws: ModelLaws, guard: Guard, running: TorchRunning, first_batch: Callable[[str], None]
    ) -> None:
        """See nothing yet; `first_batch` gets the fingerprint of the first batch after a step."""
        self._laws, self._guard, self._running, self._first_batch = laws, guard, running, first_batch
        laws.lost_ties = WeakIdKeyDictionary()
        #: Modules that ran since the last step: by id, whether their outputs reached another Module without a graph.
        self._ran: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}
        #: Ids of the Modules that made outputs, with the storages of these, by address and number of elements.
        self._outputs: dict[tuple[int, int], tuple[int, Any]] = {}

    def put(self, swaps: MethodSwaps) -> None:
        """See how parameters are replaced."""
        for name in ("load_state_dict", "to_empty"):
            swaps.put(nn.Module, name, self._seen_replacing)

    def put_calls(self, swaps: MethodSwaps) -> None:
        """See calls."""
        swaps.put(nn.Module, "__call__", self._seen_module)
        swaps.put(CheckpointFunction, "apply", self._seen_checkpoint)

    def forget(self) -> None:
        """Forget all models, whose calls are no longer seen."""
        self._running.models.clear()
        self._ran.clear()

    # Steps

    def candidates(self) -> Iterator[tuple[str, Any]]:
        """Return (path, parameter) of the parameters that have gradients."""
        for _, root in self._running.roots():
            yield from _with_gradients(root.named_parameters())
        # Modules that ran within a model and are not of it, such as those in a list of Python.
        for reference, _ in self._ran.values():
            module = reference()
            if module is not None:
                path = self._running.path_of(module)
                yield from _with_gradients(module.named_parameters(path, recurse=not path))

    def gradients_arrive(self, step: Step) -> list[Violation]:
        """Return the parameters without gradients where outputs of their Modules went on without a graph."""
        without: dict[int, None] = {}
        is_sure = False
        for reference, is_cut in self._ran.values():
            module = reference()
            for item in () if module is None else models.own_parameters(module):
                if id(item) in step.parameters and item.requires_grad and item.grad is None:
                    without[id(item)] = None
                    is_sure |= is_cut
        message = (
            "it has no gradient although the forward used it: what its layer gave went on without a graph "
            "(detach, no_grad, .data, .item, or a reentrant checkpoint whose inputs need no gradient?)"
        )
        return step.findings(GRADIENTS_ARRIVE, without if is_sure else (), message)

    def step_ended(self, ids: set[int]) -> None:
        """Forget the Modules of the parameters with these ids, which an optimizer has updated."""
        for key, (reference, _) in list(self._ran.items()):
            module = reference()
            if module is None or any(id(item) in ids for item in module._parameters.values()):
                del self._ran[key]
        self._outputs.clear()
        self._running.tokens = None

    # What is replaced

    def _seen_module(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_away(self._guard):
                return original(module, *args, **kwargs)
            parts = self._running.parts
            if not parts and torch.is_grad_enabled() and not self._running.backward:
                self._guard.enter("laws: a model is called", self._model_begins, module, args, kwargs)
            parts.append(module)
            try:
                result = original(module, *args, **kwargs)
            finally:
                parts.pop()
            if (parts or self._running.cut) and not self._running.backward and module._parameters:
                root = parts[0] if parts else module
                self._guard.enter("laws: a Module is called", self._module_ended, module, args, result, root)
            elif parts and not self._running.backward and self._outputs and args:
                self._guard.enter("laws: a Module is called", self._look_for_cut, args)
            return result

        return functools.update_wrapper(__call__, original)

    def _seen_checkpoint(self, original: Any) -> Any:
        original = original.__func__  # a class derived from it is a checkpoint too, of its own

        @functools.wraps(original)
        def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
            needs = (isinstance(item, torch.Tensor) and item.requires_grad for item in args)
            if not torch.is_grad_enabled() or self._running.backward or any(needs):
                return original(kind, *args, **kwargs)
            self._running.cut += 1
            try:
                return original(kind, *args, **kwargs)
            finally:
                self._running.cut -= 1

        return classmethod(apply)

    def _seen_replacing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replace(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_away(self._guard):
                return original(module, *args, **kwargs)
            before = self._guard.enter("laws: parameters are replaced", ties_of, models, module)
            result = original(module, *args, **kwargs)
            if before:
                self._guard.enter("laws: parameters are replaced", self._note_lost_ties, module, before)
            return result

        return replace

    def _note_lost_ties(self, module: nn.Module, before: Ties) -> None:
        if lost := [pair for pair in before if module.get_parameter(pair[0]) is not module.get_parameter(pair[1])]:
            self._laws.lost_ties[module] = lost

    def _model_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = self._laws.called(module, is_training=module.training)
        self._running.tokens = tokens_of(args, kwargs)
        self._running.is_causal = False
        tensors = list(tensors_in((args, kwargs)))
        if tensors and model.takes_batches:
            fingerprint, model.is_poor = fingerprint_of(tensors)
            model.batches.append(fingerprint)
            if len(model.batches) == 1:
                self._first_batch(fingerprint)

    def _module_ended(self, module: nn.Module, args: tuple[Any, ...], result: Any, root: nn.Module) -> None:
        self._look_for_cut(args)
        if not module.training or not any(item.requires_grad for item in models.own_parameters(module)):
            return
        model = self._running.models.get(id(root))
        is_cut = not torch.is_grad_enabled() and ((model is not None and bool(model.modes)) or self._running.cut > 0)
        if id(module) not in self._ran or is_cut:
            self._ran[id(module)] = weakref.ref(module), is_cut
        if isinstance(module, nn.RNNBase) and not module.bidirectional:
            self._running.is_causal = True
        output = result[0] if isinstance(result, tuple) and result else result
        if type(output) is torch.Tensor and output.requires_grad:
            storage: Any = torch.multiprocessing.reductions.StorageWeakRef
            self._outputs[output.data_ptr(), output.numel()] = id(module), storage(output.untyped_storage())

    def _look_for_cut(self, args: tuple[Any, ...]) -> None:
        """Look whether an input of a Module is the output of another one, without its graph."""
        if not torch.is_grad_enabled():
            return
        for item in args:
            if type(item) is torch.Tensor and not item.requires_grad and item.is_floating_point() and item.numel():
                maker, storage = self._outputs.get((item.data_ptr(), item.numel()), (0, None))
                if maker in self._ran and storage is not None and not storage.expired():
                    self._ran[maker] = self._ran[maker][0], True


def _with_gradients(items: Iterator[tuple[str, nn.Parameter]]) -> Iterator[tuple[str, Any]]:
    return ((path, item) for path, item in items if item.requires_grad and item.grad is not None)
