"""The models that a training calls, and the laws on them and on who updates their parameters."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import xxhash

from msprobe_laws.law import Checked, Step, Unchecked, Violation
from msprobe_laws.observation import Batch
from msprobe_laws.session import LawSession
from msprobe_laws.sources import source_of
from msprobe_laws.training import BUFFERS_KEPT, EACH_IN_ONE, IN_AN_OPTIMIZER, STAYS_TRAINABLE, TIES_KEPT, TRAINING_MODE

#: Paths of parameters that are the same one, in pairs.
Ties = list[tuple[str, str]]
#: Batches of one step whose fingerprints are taken.
_MOST_BATCHES = 64


class ModelFramework(Protocol):
    """What a framework says of its models; the module `models` of each is one. A part is a Module, or a Cell."""

    #: What may be missing where a model is trained in evaluation mode.
    MODE_HINT: str

    def parts(self, root: Any) -> Iterable[tuple[str, Any]]:
        """Return (path, part) of all parts of a model, each once; the model itself has the path ""."""

    def parameters(self, root: Any) -> Iterable[tuple[str, Any]]:
        """Return (path, parameter) of a model, each under all of its paths."""

    def own_parameters(self, part: Any) -> list[Any]:
        """Return the parameters of a part itself."""

    def parameter_at(self, root: Any, path: str) -> Any:
        """Return the parameter that a model has at a path; None without one."""

    def buffers(self, root: Any) -> Mapping[str, tuple[str, str]]:
        """Return (dtype, device) by path of what a model keeps beside its parameters."""

    def has_modes(self, root: Any) -> bool:
        """Return whether training mode makes a difference."""

    def declared_tie(self, root: Any) -> tuple[Any, Any] | None:
        """Return two parameters that are one, as the configuration of a model declares."""

    def ids_in_optimizers(self) -> set[int]:
        """Return the ids of the parameters of all optimizers that there are."""

    def some_bytes(self, parameter: Any) -> bytes:
        """Return some elements of a parameter."""


@dataclass(slots=True)
class Model:
    """A model that the script calls itself, with gradients.

    Attributes:
        root: itself.
        name: in findings.
        paths: names of its parts by id.
        parameters: their paths by id.
        ties: see `Ties`.
        batches: fingerprints of what it got since the last step on its parameters.
        is_poor: see `Batch`.
        modes: whether it was in training mode in its calls since then.
        trained: whether a step on it was taken in training mode.
        buffers: dtype and device of each.
    """

    root: weakref.ref[Any]
    name: str
    paths: dict[int, str] = field(default_factory=dict)
    parameters: dict[int, str] = field(default_factory=dict)
    ties: Ties = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    is_poor: bool = False
    modes: list[bool] = field(default_factory=list)
    trained: bool = False
    buffers: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def takes_batches(self) -> bool:
        """Whether a further batch is to be noted."""
        return len(self.batches) < _MOST_BATCHES


class _Thread(threading.local):
    """What runs in one thread."""

    def __init__(self) -> None:
        self.parts: list[Any] = []


class Running:
    """What runs now.

    Attributes:
        models: those that the script has called with gradients, by id.
        tokens: integer input of the model that was called last.
    """

    def __init__(self) -> None:
        self._thread = _Thread()
        self.models: dict[int, Model] = {}
        self.tokens: Any = None

    @property
    def parts(self) -> list[Any]:
        """The parts of models that run in this thread, outermost first."""
        return self._thread.parts

    def roots(self) -> Iterator[tuple[Model, Any]]:
        """Return (what is kept of a model, the model) of those that are there."""
        for model in self.models.values():
            root = model.root()
            if root is not None:
                yield model, root

    def path_of(self, part: Any) -> str:
        """Return its name in the model that has it."""
        for model in self.models.values():
            if id(part) in model.paths:
                return model.paths[id(part)]
        return type(part).__name__

    def place_of_dropout(self, part: Any, frame: FrameType) -> tuple[str, str]:
        """Return (where dropout is called, line of the script): in a part, or in the script where that is None."""
        if part is not None:
            return self.path_of(part), ""
        source = source_of(frame)
        return source.partition(":")[0] + ":dropout", source


def ties_of(framework: ModelFramework, root: Any) -> Ties:
    """Return the ties of a model as it is."""
    first: dict[int, str] = {}
    ties = []
    for path, item in framework.parameters(root):
        if first.setdefault(id(item), path) != path:
            ties.append((first[id(item)], path))
    return ties


class ModelLaws:
    """Laws on the models of a training."""

    def __init__(self, session: LawSession, framework: ModelFramework, running: Running) -> None:
        """Know no model yet."""
        self._session, self.framework, self.running = session, framework, running
        #: Ties that parts had until their parameters were replaced.
        self.lost_ties: Any = {}

    def called(self, root: Any, *, is_training: bool) -> Model:
        """Return what is kept of a model that is called now."""
        models = self.running.models
        model = models.get(id(root))
        if model is None or model.root() is not root:
            for key in [key for key, other in models.items() if other.root() is None]:
                del models[key]
            model = models[id(root)] = self._made(root)
        model.modes.append(is_training)
        return model

    def _made(self, root: Any) -> Model:
        kind = type(root).__name__
        count = sum(model.name.partition(".")[0] == kind for model in self.running.models.values())
        model = Model(weakref.ref(root), f"{kind}.{count}" if count else kind, ties=ties_of(self.framework, root))
        for path, part in self.framework.parts(root):
            model.paths[id(part)] = path or kind
            front = f"{path}." if path else ""
            lost = self.lost_ties.get(part, ()) if self.lost_ties else ()
            model.ties += [(front + name, front + other) for name, other in lost]
        self._look_again(model, root)
        return model

    def _look_again(self, model: Model, root: Any) -> None:
        """Note parameters that have come into the places of others."""
        model.parameters = {}
        for path, item in self.framework.parameters(root):
            model.parameters.setdefault(id(item), path)

    def step_begins(self, step: Step) -> None:
        """Check what a step finds of the models that it updates."""
        say = functools.partial(self._session.say, source=step.source, step=step.number)
        for model, root in self.running.roots():
            self._look_again(model, root)
            if not model.parameters.keys() & step.parameters.keys():
                continue
            if model.modes:
                say(TRAINING_MODE, model.name, self._training_mode(model, root))
            say(TIES_KEPT, model.name, self._ties_kept(model, root))
            if moved := self._moved_buffers(model, root):
                say(BUFFERS_KEPT, model.name, moved)
            if model.batches:
                fingerprint = xxhash.xxh64(" ".join(sorted(set(model.batches))).encode()).hexdigest()
                self._session.batch(Batch(model.name, fingerprint, is_poor=model.is_poor))

    def step_ended(self, step: Step) -> None:
        """Check what a step has left of the models that it has updated."""
        for model, root in self.running.roots():
            if model.parameters.keys() & step.parameters.keys():
                model.batches.clear()
                model.modes.clear()
                self._buffers_after(model, root, step)

    def _training_mode(self, model: Model, root: Any) -> list[Violation]:
        is_trained, was_trained = any(model.modes), model.trained
        model.trained |= is_trained
        if is_trained or not was_trained or not self.framework.has_modes(root):
            return []
        message = f"it is trained in eval mode, after steps in training mode ({self.framework.MODE_HINT})"
        return [Violation(TRAINING_MODE, model.name, message)]

    def _ties_kept(self, model: Model, root: Any) -> Checked:
        """Look whether parameters that were one, or are declared to be one, are."""
        findings = []
        for path, other_path in model.ties:
            item, other = (self.framework.parameter_at(root, name) for name in (path, other_path))
            if item is not None and other is not None and item is not other:
                findings.append(Violation(TIES_KEPT, other_path, f"it is no longer the same parameter as {path}"))
        declared = self.framework.declared_tie(root)
        if declared is not None and declared[0].data_ptr() != declared[1].data_ptr():
            message = "config.tie_word_embeddings is True, and it is another parameter than the input embedding"
            findings.append(Violation(TIES_KEPT, "output embedding", message))
        if not model.ties and declared is None:
            return Unchecked("the model has no tied parameters", is_moot=True)
        return findings

    def _moved_buffers(self, model: Model, root: Any) -> list[Violation]:
        before, model.buffers = model.buffers, self.framework.buffers(root)
        moved = [path for path, (dtype, _) in model.buffers.items() if before.get(path, (dtype, ""))[0] != dtype]
        if not moved or not model.trained:
            return []
        now, was = model.buffers[moved[0]][0], before[moved[0]][0]
        return [Violation.of(BUFFERS_KEPT, moved, f"the buffer is {now}, and the step before has left it as {was}")]

    def _buffers_after(self, model: Model, root: Any, step: Step) -> None:
        if not model.buffers:
            return
        findings = []
        for path, now in self.framework.buffers(root).items():
            before = model.buffers.get(path, now)
            if before != now:
                message = f"the buffer is {' on '.join(now)} after the step and was {' on '.join(before)} before it"
                findings.append(Violation(BUFFERS_KEPT, path, message))
        self._session.say(BUFFERS_KEPT, model.name, findings, step=step.number)


#: Steps after which what never required a gradient is not going to.
_LONG_ENOUGH = 5


class Owners:
    """Follows which parameters each optimizer updates."""

    def __init__(self, models: ModelLaws) -> None:
        """Know no optimizer yet."""
        self._framework = models.framework
        #: Parameters of each optimizer that has stepped, by id, and when its last step was, by its name.
        self.held: dict[str, dict[int, weakref.ref[Any]]] = {}
        self._last: dict[str, int] = {}
        self._ticks = 0
        #: Optimizers whose steps run, and pairs of which one steps inside of the other.
        self._stepping: list[str] = []
        self._nested: set[tuple[str, str]] = set()
        #: Elements of parameters with gradients that are in no optimizer, at the last step.
        self._suspects: dict[int, bytes] = {}

    def step_begins(self, step: Step) -> list[Violation]:
        """Return the parameters that the optimizer has twice, and those that another one updates in turn with it."""
        if self._stepping:
            outer = self._stepping[-1]
            self._nested.update(((outer, step.name), (step.name, outer)))
        self._stepping.append(step.name)
        self._ticks += 1
        counts = Counter(map(id, step.order))
        twice = [key for key, count in counts.items() if count > 1]
        message = f"it is in {step.name} twice, and updated twice"
        findings = [Violation(EACH_IN_ONE, step.names[key], message) for key in twice]
        last = self._last.get(step.name, self._ticks)
        for other, held in self.held.items():
            if other == step.name or self._last[other] < last or (other, step.name) in self._nested:
                continue
            shared = [key for key, item in step.parameters.items() if key in held and held[key]() is item]
            findings += step.findings(EACH_IN_ONE, shared, f"{step.name} and {other} both update it, in turn")
        self.held[step.name] = {key: weakref.ref(item) for key, item in step.parameters.items()}
        self._last[step.name] = self._ticks
        return findings

    def step_ended(self, name: str) -> None:
        """Note that the step of an optimizer is over, and with it those inside of it."""
        if name in self._stepping:
            del self._stepping[self._stepping.index(name) :]

    def in_no_optimizer(self, candidates: Iterable[tuple[str, Any]], *, at_once: bool) -> list[Violation]:
        """Return those of the parameters with gradients that no optimizer has.

        Args:
            candidates: (name, parameter) of parameters with gradients.
            at_once: whether they are named at once; otherwise when nothing has changed them until the next step.
        """
        owned = set().union(*self.held.values())
        missing: dict[int, tuple[str, Any]] = {}
        for name, item in candidates:
            if id(item) not in owned:
                missing.setdefault(id(item), (name, item))
        if missing:
            owned = self._framework.ids_in_optimizers()
        before, self._suspects = self._suspects, {}
        for key, (_, item) in missing.items():
            if key not in owned:
                self._suspects[key] = self._framework.some_bytes(item)
        # Something else updates them, such as the copies of an optimizer that holds float32: some may stay by rounding.
        is_updated = any(before.get(key, value) != value for key, value in self._suspects.items())
        names = [missing[key][0] for key in self._suspects if at_once or key in before]
        if not names or is_updated:
            return []
        return [Violation.of(IN_AN_OPTIMIZER, names, "it has a gradient and is in no optimizer: it is never updated")]


class Freezing:
    """Follows which parameters of optimizers require gradients."""

    def __init__(self, session: LawSession, models: ModelLaws) -> None:
        """Know no optimizer yet."""
        self._session, self._models = session, models
        #: Parameters that required gradients when an optimizer was made of them, until its first step, by id.
        self._made: dict[int, weakref.ref[Any]] = {}
        #: Ids of the parameters that each optimizer has trained, by its name, and optimizers of which some were frozen.
        self._trained: dict[str, set[int]] = {}
        self._frozen: set[str] = set()
        #: Number of steps, and the parameters that required no gradient in any, by optimizer.
        self._never: dict[str, tuple[int, dict[int, str]]] = {}
        #: Parameters that the script has frozen by a call.
        self.meant: Container[Any] = ()
        #: Whether the optimizer of this step trains nothing any more, which the law says of it.
        self.explains_no_update = False

    def made(self, parameters: Sequence[Any]) -> None:
        """Note that an optimizer is made: what it is to train is what can be trained now."""
        for item in parameters:
            if item.requires_grad:
                self._made[id(item)] = weakref.ref(item)

    def step_begins(self, step: Step) -> list[Violation]:
        """Return the parameters that were frozen since the optimizer was made, or since its last step."""
        trained = self._trained.setdefault(step.name, set())
        frozen = [key for key, item in step.parameters.items() if not item.requires_grad]
        count, never = self._never.get(step.name, (0, step.names))
        self._never[step.name] = count + 1, {key: never[key] for key in frozen if key in never}
        made = {key: self._made.pop(key, None) for key in step.parameters}
        at_first = [key for key in frozen if (reference := made[key]) and reference() is step.parameters[key]]
        stopped = [key for key in frozen if key in trained]
        trained.update(step.parameters)
        trained.difference_update(frozen)
        if stopped:
            self._frozen.add(step.name)
        is_all = len(frozen) == len(step.parameters)
        self.explains_no_update = bool(stopped) or (is_all and step.name in self._frozen)
        if stopped and not is_all:
            # A schedule freezes what it names, or whole parts of a model, and leaves something to train.
            partly = self._partly_frozen(step)
            stopped = [key for key in stopped if step.parameters[key] not in self.meant and key in partly]
        message = f"requires_grad is False, and it was True when {step.name} was made: it is not trained"
        findings = step.findings(STAYS_TRAINABLE, at_first, message)
        message = f"requires_grad is False since this step: {step.name} trains it no more"
        return findings + step.findings(STAYS_TRAINABLE, stopped, message)

    def _partly_frozen(self, step: Step) -> set[int]:
        """Return the ids of parameters in parts of models that are frozen in part, and of those that are in none."""
        partly = set(step.parameters)
        framework = self._models.framework
        for _, root in self._models.running.roots():
            for _, part in framework.parts(root):
                held = framework.own_parameters(part)
                if not any(item.requires_grad for item in held):
                    partly.difference_update(map(id, held))
        return partly

    def end(self, owners: Owners) -> None:
        """Say what an optimizer had and never trained, when the training is over."""
        models = self._models.running.models.values()
        for name, (count, frozen) in self._never.items():
            # Who hands all parameters of a model to an optimizer may have frozen some of them on purpose.
            is_whole = any(owners.held[name].keys() >= model.parameters.keys() for model in models)
            if count >= _LONG_ENOUGH and frozen and self._trained.get(name) and not is_whole:
                message = f"{name} has it, and it never required a gradient in {count} steps"
                self._session.say(
                    STAYS_TRAINABLE, name, [Violation.of(STAYS_TRAINABLE, list(frozen.values()), message)]
                )
