"""What laws see of a PyTorch training around its steps: backward passes, models, dropout, batches, scalers, clipping.

Functions and methods are replaced while laws are watched, and each replacement calls the original with what it got.
Nothing here runs inside compiled code: the first use of torch.compile takes out what such code would call.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash
from torch import autograd, nn
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.weak import WeakIdKeyDictionary

from msprobe_collector.pytorch.checkpoints import RUN_BACKWARD
from msprobe_collector.pytorch.installation import is_searched
from msprobe_collector.pytorch.optimizers import clipping_functions
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import ApiTarget, Installation, MethodSwaps
from msprobe_laws.law import Checked, Finding, Unchecked
from msprobe_laws.observation import Batch
from msprobe_laws.pytorch.averages import Averages
from msprobe_laws.pytorch.clipping import ClippingSignals, UsedGradient
from msprobe_laws.pytorch.dividing import Dividing
from msprobe_laws.pytorch.draws import Draws
from msprobe_laws.pytorch.loading import Loading
from msprobe_laws.pytorch.models import (
    Model,
    Running,
    Ties,
    has_modes,
    ids_in_optimizers,
    is_away,
    model_of,
    ties_kept,
    ties_of,
)
from msprobe_laws.pytorch.ranks import world_size
from msprobe_laws.pytorch.resume import ResumeLaw
from msprobe_laws.pytorch.scaling import LossScaling
from msprobe_laws.pytorch.schedules import Schedules
from msprobe_laws.pytorch.tensors import (
    address_of,
    fingerprint_of,
    first,
    is_zero,
    tensors_in,
    tokens_of,
    version_of,
)
from msprobe_laws.replacing import Replacing
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import (
    BUFFERS_KEPT,
    CLIP_NORM,
    EACH_IN_ONE,
    FRESH,
    GRADIENTS_ARRIVE,
    IN_AN_OPTIMIZER,
    SCALE_REMOVED,
    STAYS_TRAINABLE,
    TIES_KEPT,
    TRAINING_MODE,
)

#: Steps whose first dropout mask is compared between ranks.
_DRAWS = 4
#: Steps after which what never required a gradient is not going to.
_LONG_ENOUGH = 5


class TrainingSignals:
    """Sees what happens around steps, and tells the session."""

    def __init__(self, session: LawSession, guard: Guard, rank: Callable[[], int | None]) -> None:
        """See nothing yet."""
        self._session, self._guard = session, guard
        self._swaps, self._calls = MethodSwaps(), MethodSwaps()
        self.running = Running()
        self.draws = Draws(session, guard, self.running)
        self.loading = Loading(session, guard)
        self.resume = ResumeLaw(session, guard, rank)
        self._stale: dict[int, UsedGradient] = {}
        #: Number of backward passes: all of them, when gradients were set to zero last, and at the last step of an
        #: optimizer by its id.
        self._passes = self._zeroed = 0
        self._passes_before: dict[int, int] = {}
        #: The optimizer or Module whose gradients were set to zero last.
        self._zeroed_of: weakref.ref[Any] | None = None
        #: Losses of which a backward pass was taken since the last step.
        self._losses: Any = WeakIdKeyDictionary()
        #: Tensors on which the script has called requires_grad_(False).
        self._meant_frozen: Any = WeakIdKeyDictionary()
        #: Ids of the parameters of each optimizer that has stepped, by its name, and the order of their last steps.
        self._owners: dict[str, set[int]] = {}
        self._order: dict[str, list[int]] = {}
        self._ticks = 0
        self._stepping: list[str] = []
        self._inner: set[tuple[str, str]] = set()
        self._trainable: dict[str, set[int]] = {}
        #: Number of steps, and the parameters that required no gradient in any, by optimizer.
        self._never: dict[str, tuple[int, dict[int, str]]] = {}
        #: Modules that ran since the last step: by id, whether their outputs reached another Module without a graph.
        self._ran: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}
        self._outputs: dict[tuple[int, int], tuple[int, Any]] = {}
        #: Ties that Modules had until their parameters were replaced.
        self._lost_ties: Any = WeakIdKeyDictionary()
        #: Elements of parameters with gradients that are in no optimizer, at the last step.
        self._suspects: dict[int, bytes] = {}
        #: Optimizers whose parameters were frozen.
        self._frozen: set[str] = set()
        #: Laws whose findings of this step another law explains.
        self.explained: set[str] = set()
        self.averages = Averages(session)
        self.schedules = Schedules(session, Replacing(guard, self._is_away))
        self._dividing = Dividing()
        self._scaling = LossScaling(session, guard, self.schedules.tries, self._dividing)
        self.resume.scale = self._scaling.held_scale
        self._clipping = ClippingSignals(session, guard, self.running, self._scaling, self._stale)
        self._clips = Installation(self._clipping.seen, is_searched=is_searched)
        self.on_load: Callable[[Any], None] = lambda optimizer: None

    # What is replaced

    def install(self) -> None:
        """See from now on."""
        put = self._swaps.put
        if hasattr(autograd, RUN_BACKWARD):
            put(autograd, RUN_BACKWARD, self._seen_backward)
        replacing = Replacing(self._guard, self._is_away)
        loaded = replacing.after("a state is loaded", lambda result, args, kwargs: self.on_load(args[0]))
        put(torch.optim.Optimizer, "load_state_dict", loaded)
        for name in ("scale", "get_scale"):
            put(torch.amp.GradScaler, name, replacing.after("a loss is scaled", self._scaling.note_scaled))
        for name in ("unscale_", "step"):
            put(torch.amp.GradScaler, name, self._scaling.seen_unscaling)
        self._calls.put(torch.Tensor, "requires_grad_", replacing.before("requires_grad_", self._note_freezing))
        for owner in (torch.optim.Optimizer, nn.Module):
            self._calls.put(owner, "zero_grad", replacing.before("zero_grad", self._note_zeroing))
        for name in ("load_state_dict", "to_empty"):
            put(nn.Module, name, self._seen_replacing)
        self.draws.put(self._swaps)
        self.loading.put(self._swaps)
        self.schedules.put(self._swaps)
        self.resume.install()
        self._calls.put(torch, "compile", replacing.before("torch.compile", lambda args, kwargs: self._leave_calls()))
        self._calls.put(nn.Module, "__call__", self._seen_module)
        self._calls.put(CheckpointFunction, "apply", self._seen_checkpoint)
        self.draws.put_calls(self._calls)
        self._clips.add([ApiTarget(owner, name, getattr(owner, name), name) for owner, name in clipping_functions()])
        self._clips.install()

    def uninstall(self) -> None:
        """See no more."""
        self.resume.uninstall()
        self._clips.uninstall()
        self._calls.uninstall()
        self._swaps.uninstall()

    def _is_away(self) -> bool:
        return is_away(self._guard)

    def _leave_calls(self) -> None:
        self._calls.uninstall()
        self.running.models.clear()
        self._ran.clear()
        for name in (IN_AN_OPTIMIZER, GRADIENTS_ARRIVE, TRAINING_MODE, TIES_KEPT, BUFFERS_KEPT):
            self._session.say(name, "model", Unchecked("the training uses torch.compile, inside which nothing is seen"))

    # Steps

    def step_begins(self, optimizer: Any, name: str, names: Mapping[int, str], number: int, source: str) -> None:
        """An optimizer's step begins; `names` are those of its parameters by id."""
        parameters = {id(item): item for group in optimizer.param_groups for item in group["params"]}
        say = functools.partial(self._session.say, source=source, step=number)
        if self._stepping:
            self._inner.update(((self._stepping[-1], name), (name, self._stepping[-1])))
        self._stepping.append(name)
        self._ticks += 1
        self.explained.clear()
        if self.draws.first_mask is not None:
            self.resume.draws()
        self.resume.step_begins(optimizer, name, names)
        self.averages.step_begins(name, parameters, names, number, source)
        twice = [key for key, count in Counter(map(id, _parameters_of(optimizer))).items() if count > 1]
        two = [Finding(EACH_IN_ONE, names[key], f"it is in {name} twice, and updated twice") for key in twice]
        say(EACH_IN_ONE, name, two + self._in_two(name, parameters, names))
        passes, self._passes_before[id(optimizer)] = self._passes_before.get(id(optimizer), 0), self._passes
        fresh = self._fresh(parameters, names) or self._zeroed_late(passes, parameters, names)
        say(FRESH, name, fresh or self._in_parts(passes, parameters))
        self._losses.clear()
        self.schedules.step_begins(optimizer, name, source)
        if changed := self._clipping.step_begins(parameters, names):
            say(CLIP_NORM, "clipping", changed)
        say(SCALE_REMOVED, name, self._scaling.at_step(optimizer, names))
        say(STAYS_TRAINABLE, name, self._stays_trainable(name, parameters, names))
        for model in self.running.models.values():
            model.look_again()
        models = [model for model in self.running.models.values() if model.parameters.keys() & parameters.keys()]
        for model in models:
            self._of_model(model, say, number)
        if self.running.models:
            say(GRADIENTS_ARRIVE, name, self._gradients_arrive(parameters, names))
            has_gradient = any(item.grad is not None for item in parameters.values())
            if number or not has_gradient:
                missing = self._in_an_optimizer(at_once=not has_gradient)
                say(IN_AN_OPTIMIZER, "models", missing)
                if missing and not has_gradient:
                    self.explained.add("something-updated")

    def end(self) -> None:
        """The training is over: what an optimizer had and never trained is known now."""
        self.schedules.end(is_cut=self.loading.is_cut)
        for name, (count, frozen) in self._never.items():
            # Who hands all parameters of a model to an optimizer may have frozen some of them on purpose.
            is_whole = any(self._owners[name] >= model.parameters.keys() for model in self.running.models.values())
            if count >= _LONG_ENOUGH and frozen and self._trainable.get(name) and not is_whole:
                paths = list(frozen.values())
                message = f"{name} has it, and it never required a gradient in {count} steps"
                self._session.say(
                    STAYS_TRAINABLE, name, [Finding(STAYS_TRAINABLE, paths[0], message, None, tuple(paths[1:]))]
                )

    def step_ended(self, optimizer: Any, name: str, number: int) -> None:
        """The step is over."""
        if name in self._stepping:
            del self._stepping[self._stepping.index(name) :]
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        for item in parameters:
            if item.grad is not None:
                self._stale[id(item)] = UsedGradient(weakref.ref(item), address_of(item.grad), version_of(item.grad))
            else:
                self._stale.pop(id(item), None)
        own = {id(item) for item in parameters}
        if number < _DRAWS and self.draws.first_mask is not None and world_size() > 1:
            place, dropped, known = self.draws.first_mask
            batches = [model.batches[0] for model in self.running.models.values() if model.batches]
            batch = batches[0] if batches else ""
            self._session.journal.note(
                {
                    "kind": "draws",
                    "step": number,
                    "about": name,
                    "place": place,
                    "dropped": dropped,
                    "known": known,
                    "batch": batch,
                }
            )
        self.draws.first_mask = None
        self.averages.step_ended(name, parameters)
        for model in self.running.models.values():
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
        self.running.tokens = None

    def _in_two(self, name: str, parameters: Mapping[int, Any], names: Mapping[int, str]) -> list[Finding]:
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
            if (old := self._stale.get(key)) is not None and old.has_begun and old.is_of(item)
        ]
        if not stale:
            return []
        message = (
            "its gradient still holds that of the step before: it was not set to zero, and the backward added to it"
        )
        return [Finding(FRESH, names[stale[0]], message, None, tuple(names[key] for key in stale[1:]))]

    def _zeroed_late(self, before: int, parameters: Mapping[int, Any], names: Mapping[int, str]) -> list[Finding]:
        """Whether gradients were set to zero between the last of the backward passes after `before` and the step."""
        is_late = before < self._passes == self._zeroed
        if not is_late or any(item.grad is not None and not is_zero(item.grad) for item in parameters.values()):
            return []
        first, *others = names.values()
        message = "gradients are set to zero between the backward pass and the step, which gets none"
        self.explained.add("something-updated")
        return [Finding(FRESH, first, message, None, tuple(others))]

    def _in_parts(self, before: int, parameters: Mapping[int, Any]) -> list[Finding]:
        """Whether a batch in parts, those of the passes after `before`, is lost in part or divided twice."""
        owner = None if self._zeroed_of is None else self._zeroed_of()
        zeroed = owner.parameters() if isinstance(owner, nn.Module) else _parameters_of(owner) if owner else ()
        is_lost = before < self._zeroed < self._passes and any(id(item) in parameters for item in zeroed)
        return self._dividing.of_parts(self._passes - before, parameters, is_lost=is_lost)

    def _note_zeroing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._zeroed = self._passes
        self._zeroed_of = weakref.ref(args[0])
        self._clipping.clear()
        self._losses.clear()

    def _stays_trainable(self, name: str, parameters: Mapping[int, Any], names: Mapping[int, str]) -> list[Finding]:
        before = self._trainable.setdefault(name, set())
        count, never = self._never.get(name, (0, dict(names)))
        kept = {key: path for key, path in never.items() if key in parameters and not parameters[key].requires_grad}
        self._never[name] = count + 1, kept
        frozen = [key for key, item in parameters.items() if key in before and not item.requires_grad]
        before.update(key for key, item in parameters.items() if item.requires_grad)
        before.difference_update(frozen)
        if not frozen:
            if name in self._frozen and not any(item.requires_grad for item in parameters.values()):
                self.explained.add("something-updated")
            return []
        self._frozen.add(name)
        self.explained.add("something-updated")
        if any(item.requires_grad for item in parameters.values()):
            # A schedule freezes what it names, or whole Modules, and leaves something to train.
            partly = self._partly_frozen(parameters)
            frozen = [key for key in frozen if parameters[key] not in self._meant_frozen and key in partly]
            if not frozen:
                return []
        message = f"requires_grad is False since this step: {name} trains it no more"
        return [Finding(STAYS_TRAINABLE, names[frozen[0]], message, None, tuple(names[key] for key in frozen[1:]))]

    def _partly_frozen(self, parameters: Mapping[int, Any]) -> set[int]:
        """Ids of the parameters of Modules that are frozen in part, and of those that are in no Module."""
        partly = set(parameters)
        for model in self.running.models.values():
            root = model.root()
            for module in () if root is None else root.modules():
                own = [item for item in module._parameters.values() if item is not None]
                if own and not any(item.requires_grad for item in own):
                    partly.difference_update(map(id, own))
        return partly

    def _note_freezing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if type(args[0]) is nn.Parameter and not (args[1] if len(args) > 1 else kwargs.get("requires_grad", True)):
            self._meant_frozen[args[0]] = True

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
            "(detach, no_grad, .data, .item, or a reentrant checkpoint whose inputs need no gradient?)"
        )
        found = [names[key] for key in dict.fromkeys(without)]
        return [Finding(GRADIENTS_ARRIVE, found[0], message, None, tuple(found[1:]))]

    def _in_an_optimizer(self, *, at_once: bool) -> list[Finding]:
        """Parameters with gradients in no optimizer; unless `at_once`, those that nothing has changed meanwhile."""
        known = set().union(*self._owners.values())
        missing: list[tuple[int, str, Any]] = []
        roots = [("", root) for model in self.running.models.values() if (root := model.root()) is not None]
        # Modules that ran within a model and are not of it, such as those in a list of Python.
        ran = [(self.running.path_of(own), own) for entry in self._ran.values() if (own := entry[0]()) is not None]
        for front, root in roots + ran:
            for path, item in root.named_parameters(front, recurse=not front):
                if item.requires_grad and item.grad is not None and id(item) not in known:
                    known.add(id(item))
                    missing.append((id(item), path, item))
        if missing:
            known = ids_in_optimizers()
        before = self._suspects
        self._suspects = {key: first(item, 64).tobytes() for key, _, item in missing if key not in known}
        # Something else updates them, such as the copies of an optimizer that holds float32: some may stay by rounding.
        is_updated = any(before.get(key, value) != value for key, value in self._suspects.items())
        names = [path for key, path, _ in missing if key in self._suspects and (at_once or key in before)]
        if not names or is_updated:
            return []
        message = "it has a gradient and is in no optimizer: it is never updated"
        return [Finding(IN_AN_OPTIMIZER, names[0], message, None, tuple(names[1:]))]

    # Models

    def _of_model(self, model: Model, say: Callable[..., None], number: int) -> None:
        root = model.root()
        if root is None:
            return
        if model.modes:
            is_trained = any(model.modes)
            if model.trained and not is_trained and has_modes(root):
                message = "it is trained in eval mode, after steps in training mode (train() is missing after eval()?)"
                say(TRAINING_MODE, model.name, [Finding(TRAINING_MODE, model.name, message)])
            else:
                say(TRAINING_MODE, model.name, [])
            model.trained |= is_trained
        say(TIES_KEPT, model.name, ties_kept(root, model))
        now = {path: (str(item.dtype), str(item.device)) for path, item in root.named_buffers()}
        moved = [path for path, (dtype, _) in now.items() if model.buffers.get(path, (dtype, ""))[0] != dtype]
        if moved and model.trained:
            message = (
                f"the buffer is {now[moved[0]][0]}, and the step before has left it as {model.buffers[moved[0]][0]}"
            )
            say(BUFFERS_KEPT, model.name, [Finding(BUFFERS_KEPT, moved[0], message, None, tuple(moved[1:]))])
        model.buffers = now
        if model.batches:
            fingerprint = xxhash.xxh64(" ".join(sorted(set(model.batches))).encode()).hexdigest()
            self._session.batch(Batch(model.name, fingerprint, is_poor=model.is_poor))

    def _buffers_after(self, model: Model, name: str, number: int) -> None:
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
            modules = self.running.modules
            if not modules and torch.is_grad_enabled() and not self.running.backward:
                self._guard.enter("laws: a model is called", self._model_begins, module, args, kwargs)
            modules.append(module)
            try:
                result = original(module, *args, **kwargs)
            finally:
                modules.pop()
            if (modules or self.running.cut) and not self.running.backward and module._parameters:
                root = modules[0] if modules else module
                self._guard.enter("laws: a Module is called", self._module_ended, module, args, result, root)
            elif modules and not self.running.backward and self._outputs and args:
                self._guard.enter("laws: a Module is called", self._look_for_cut, args)
            return result

        return functools.update_wrapper(__call__, original)

    def _seen_checkpoint(self, original: Any) -> Any:
        original = original.__func__  # a class derived from it is a checkpoint too, of its own

        @functools.wraps(original)
        def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
            needs = (isinstance(item, torch.Tensor) and item.requires_grad for item in args)
            if not torch.is_grad_enabled() or self.running.backward or any(needs):
                return original(kind, *args, **kwargs)
            self.running.cut += 1
            try:
                return original(kind, *args, **kwargs)
            finally:
                self.running.cut -= 1

        return classmethod(apply)

    def _seen_replacing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replace(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_away():
                return original(module, *args, **kwargs)
            before = self._guard.enter("laws: parameters are replaced", ties_of, module)
            result = original(module, *args, **kwargs)
            if before:
                self._guard.enter("laws: parameters are replaced", self._note_lost_ties, module, before)
            return result

        return replace

    def _note_lost_ties(self, module: nn.Module, before: Ties) -> None:
        if lost := [pair for pair in before if module.get_parameter(pair[0]) is not module.get_parameter(pair[1])]:
            self._lost_ties[module] = lost

    def _model_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = self.running.models.get(id(module))
        if model is None or model.root() is not module:
            self.running.models = {key: entry for key, entry in self.running.models.items() if entry.root() is not None}
            model = self.running.models[id(module)] = model_of(module, self.running.models, self._lost_ties)
        model.modes.append(module.training)
        tensors = list(tensors_in((args, kwargs)))
        self.running.tokens = tokens_of(args, kwargs)
        self.running.is_causal = False
        if tensors and len(model.batches) < 64:
            fingerprint, is_poor = fingerprint_of(tensors)
            model.batches.append(fingerprint)
            model.is_poor = is_poor
            if len(model.batches) == 1:
                self.resume.model_begins(fingerprint)

    def _module_ended(self, module: nn.Module, args: tuple[Any, ...], result: Any, root: nn.Module) -> None:
        self._look_for_cut(args)
        own = [item for item in module._parameters.values() if item is not None and item.requires_grad]
        if not own or not module.training:
            return
        model = self.running.models.get(id(root))
        is_cut = not torch.is_grad_enabled() and ((model is not None and bool(model.modes)) or self.running.cut > 0)
        if id(module) not in self._ran or is_cut:
            self._ran[id(module)] = weakref.ref(module), is_cut
        if isinstance(module, nn.RNNBase) and not module.bidirectional:
            self.running.is_causal = True
        output = result[0] if isinstance(result, tuple) and result else result
        if type(output) is torch.Tensor and output.requires_grad:
            self._outputs[output.data_ptr(), output.numel()] = id(module), _weak_storage(output)

    def _look_for_cut(self, args: tuple[Any, ...]) -> None:
        """Whether an input of a Module is the output of another one, without its graph."""
        if not torch.is_grad_enabled():
            return
        for item in args:
            if type(item) is torch.Tensor and not item.requires_grad and item.is_floating_point() and item.numel():
                maker, storage = self._outputs.get((item.data_ptr(), item.numel()), (0, None))
                if maker in self._ran and storage is not None and not _is_gone(storage):
                    self._ran[maker] = self._ran[maker][0], True

    # Backward passes and scalers

    def _seen_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_away():
                return original(*args, **kwargs)
            self._guard.enter("laws: a backward pass begins", self._backward_begins, args, kwargs)
            self.running.backward += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.running.backward -= 1
            if not self.running.backward and kwargs.get("accumulate_grad", True):
                self._guard.enter("laws: a backward pass ends", self._backward_ended)
            return result

        return run_backward

    def _backward_ended(self) -> None:
        self._dividing.backward_ended(self.running.models.values(), is_scaled=self._scaling.scale() != 1)

    def _backward_begins(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.running.backward or not kwargs.get("accumulate_grad", True):
            return
        roots = args[0] if args and isinstance(args[0], (tuple, list)) else ()
        self._passes += 1
        self._scaling.backward_begins(roots)
        self._dividing.backward_begins(roots)
        self._loss_once(roots, args, kwargs)
        gone = []
        for key, old in self._stale.items():
            item = old.parameter()
            gradient = None if item is None else item.grad
            if gradient is None or address_of(gradient) != old.address or is_zero(gradient):
                gone.append(key)
            else:
                old.has_begun = True
        for key in gone:
            del self._stale[key]

    def _loss_once(self, roots: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Whether a backward pass of the same loss, for all parameters, was taken since the last step."""
        inputs = kwargs.get("inputs", args[4] if len(args) > 4 else ())
        for root in () if inputs else roots:
            if isinstance(root, torch.Tensor) and root.numel() == 1:
                if root in self._losses:
                    message = "a backward pass of one loss was taken twice before the step: its gradient counts twice"
                    self._session.say(
                        FRESH, "losses", [Finding(FRESH, "loss", message)], source=source_of(sys._getframe())
                    )
                self._losses[root] = True


def _parameters_of(optimizer: Any) -> list[Any]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _weak_storage(tensor: torch.Tensor) -> Any:
    reference: Any = torch.multiprocessing.reductions.StorageWeakRef
    return reference(tensor.untyped_storage())


def _is_gone(storage: Any) -> bool:
    return bool(storage.expired())
