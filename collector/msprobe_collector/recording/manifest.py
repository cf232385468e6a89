"""run.json: what a run is made of, taken when a step begins, and completed when it has run.

- What a framework tells of a run (`RunFacts`), and the facts of the process around it.
- The file beside each dump.json: written when the step begins, once more when batch and optimizers are known.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import platform
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import msgspec
import xxhash

from msprobe_collector.dump_format.manifest import MANIFEST_FILE
from msprobe_collector.dump_format.writing.parts import OMITTED, ValueParts, WhatIsTold, as_json, plain, plain_fields
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.process import environment, error_facts, has_secret_name, script_facts, time_text

#: Packages whose version may matter, where they are imported.
_PACKAGES = (
    *("torch", "torch_npu", "mindspore", "numpy", "msadapter", "mindtorch", "torchvision", "torchaudio", "scipy"),
    *("transformers", "tokenizers", "datasets", "accelerate", "peft", "trl", "diffusers", "timm", "safetensors"),
    *("megatron", "megatron.core", "mindspeed", "mindspeed_llm", "mindspeed_mm", "mindformers", "mindnlp", "mindcv"),
    *("deepspeed", "colossalai", "lightning", "pytorch_lightning", "torchtitan", "torchtune", "fairscale", "composer"),
    *("flash_attn", "xformers", "apex", "transformer_engine", "triton", "bitsandbytes", "torchao", "liger_kernel"),
    *("vllm", "verl", "mmcv", "mmengine", "mmdet", "detectron2", "sentencepiece", "jax", "tensorflow", "cupy"),
)
#: Forwards of the model in one step of which the batch is noted.
_MOST_FORWARDS = 64
#: Tensors of one batch.
_MOST_TENSORS = 64
_SMALLEST = float.fromhex("0x1p-1074")


class RunFacts(Protocol):
    """What a framework tells of a run. Nothing of the training is kept alive between steps, and nothing is changed.

    Attributes:
        name: of the framework, as in dump.json.
        layer_class, forward: class of all layers, and its method that computes.
    """

    name: str
    layer_class: type
    forward: str
    number_of: Callable[[Any], Any]
    #: Settings and parameters of each group of an optimizer.
    group_settings: Callable[[Any], list[dict[str, object]]]
    group_parameters: Callable[[Any], list[list[Any]]]
    _parts: ValueParts
    _process: ProcessObjects
    _fingerprints: Fingerprints
    #: What the process holds in this step; empty until that is asked.
    _objects: dict[str, list[Any]]

    def __init__(self, parts: ValueParts, process: ProcessObjects, fingerprints: Fingerprints) -> None:
        """Look at nothing yet; `parts` takes arguments apart, `process` finds what the framework has made."""
        self._parts = parts
        self._process = process
        self._fingerprints = fingerprints
        self._objects = {}

    def versions(self) -> Mapping[str, object]:
        """Return the versions of the framework's libraries, besides those of packages."""
        return {}

    def device(self) -> Mapping[str, object]:
        """Return what computes."""

    def switches(self) -> Mapping[str, object]:
        """Return the settings of the framework that change numbers."""

    def models(self, layers: Sequence[Any]) -> list[Any]:
        """Return of each model class, parameters, buffers and layers.

        Of several models the names begin with the number of the model, as those of records do.
        """
        models = []
        for front, model in numbered(layers):
            modules = [self._layer(f"{front}{path}", layer) for path, layer in self.layers(model)]
            entry = {
                "class": class_of(model),
                "parameters": self._tensors(front, self.parameters(model)),
                "buffers": self._tensors(front, self.buffers(model)),
                "modules": modules,
            }
            models.append(entry)
        return self.settled(models)  # type: ignore[no-any-return]

    def optimizers(self, layers: Sequence[Any], *, with_state: bool = True) -> list[Any]:
        """Return of each optimizer of the process class, groups, schedulers and state; `layers` name its parameters.

        Those that have nothing of the models are left out where others have.
        """
        if not self._objects.get("optimizers"):
            self._objects = self._look()
        every, names = self._objects["optimizers"], self._names(layers)
        chosen = [item for item in every if not names.keys().isdisjoint(map(id, chain(*self.group_parameters(item))))]
        entries = []
        for optimizer in chosen or every:
            schedulers = [item for item in self._objects["schedulers"] if self.optimizer_of(item) is optimizer]
            entry: dict[str, object] = {
                "class": class_of(optimizer),
                "groups": self._groups(optimizer, names),
                "schedulers": [{"class": class_of(item), "settings": self._scheduled(item)} for item in schedulers],
            }
            if with_state:
                entry["state"] = self.state(optimizer)
            entries.append(entry)
        return self.settled(entries)  # type: ignore[no-any-return]

    def watch_optimizers(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when an optimizer that `optimizers` found is about to update; returns what ends that."""
        return lambda: None

    def randomness(self) -> Mapping[str, object]:
        """Return seeds, and digests of the states of generators: the framework's, Python's and NumPy's if loaded."""
        seeds, states = self.generators()
        states["python"] = python_state(random.getstate())
        if (numpy := sys.modules.get("numpy")) is not None:
            states["numpy"] = python_state(numpy.random.get_state())
        return {"seeds": seeds, "states": states}

    def loss_scale(self) -> object:
        """Return that of the scaler of the process; None without one."""
        self._objects = self._objects or self._look()
        scales = map(self.scale_of, self._objects["scalers"])
        return next((scale for scale in scales if scale is not None), None)

    def autocast(self) -> object:
        """Return what autocast does now: a dtype by device."""
        return {}

    def is_model(self, layer: Any) -> bool:
        """Return whether `layer`, the first that runs, is what is trained: it has parameters."""
        return next(iter(self.parameters(layer)), None) is not None

    def tensor(self, name: str, tensor: Any) -> dict[str, object]:
        """Return name, shape, dtype and fingerprint of a tensor; the fingerprint of a device may come later."""

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return what `tensor` does for each tensor of a call."""
        named = {f"input.{at}": value for at, value in enumerate(args)}
        named |= {f"kwargs.{name}": value for name, value in kwargs.items()}
        return [self.tensor(*held) for place, value in named.items() for held in self._parts.tensors(place, value)]

    def settled(self, values: Any) -> Any:
        """Return `values` with fingerprints that were still on their way."""
        return self._fingerprints.settled(values)

    def release(self) -> None:
        """Let go of what belongs to the training: the step is over."""
        self._objects = {}

    def parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return (name, parameter) of all parameters of a model; one that is tied stands under each of its names."""

    def buffers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return (name, tensor) of the buffers of a model."""

    def layers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Return (path, layer) of a model, whose path is "", and of all layers below it."""

    def settings(self, layer: Any) -> dict[str, object]:
        """Return what a layer was made with."""
        return layer_settings(layer, self.number_of)

    def state(self, optimizer: Any) -> dict[str, object]:
        """Return what an optimizer keeps from step to step."""

    def optimizer_of(self, scheduler: Any) -> Any:
        """Return the optimizer whose rate a scheduler sets."""
        return getattr(scheduler, "optimizer", None)

    def scale_of(self, scaler: Any) -> dict[str, object] | None:
        """Return the `scale` of a scaler, and its settings; None of one that does not scale."""

    def generators(self) -> tuple[dict[str, object], dict[str, object]]:
        """Return seeds and digests of the states of the framework's generators."""

    def _look(self) -> dict[str, list[Any]]:
        """Return what the process holds: `optimizers`, each in one form, `schedulers` and `scalers`."""

    def _tensors(self, front: str, named: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return what `tensor` does; one that stands under a second name is said to be tied to the first."""
        first: dict[int, str] = {}
        entries: list[dict[str, object]] = []
        for last, tensor in named:
            name = f"{front}{last}"
            if first.setdefault(id(tensor), name) == name:
                entries.append(self.tensor(name, tensor))
            else:
                entries.append({"name": name, "tied": first[id(tensor)]})
        return entries

    def _layer(self, path: str, layer: Any) -> dict[str, object]:
        return {
            "path": path,
            "class": type(layer).__name__,
            "training": bool(layer.training),
            "reads_mode": reads_mode(layer, self.layer_class, self.forward),
            "settings": self.settings(layer),
        }

    def _names(self, layers: Sequence[Any]) -> dict[int, str]:
        """Return a name of each parameter of the models by its id, and of its copy that Megatron updates."""
        names: dict[int, str] = {}
        for front, model in numbered(layers):
            for name, parameter in self.parameters(model):
                for item in (parameter, getattr(parameter, "main_param", parameter)):
                    names.setdefault(id(item), f"{front}{name}")
        return names

    def _groups(self, optimizer: Any, names: Mapping[int, str]) -> list[dict[str, object]]:
        """Return the groups; a parameter of no model has the name that it bears itself, or its place."""
        groups: list[dict[str, object]] = []
        settings_and_parameters = zip(self.group_settings(optimizer), self.group_parameters(optimizer))
        for number, (settings, parameters) in enumerate(settings_and_parameters):
            named = [
                names.get(id(parameter), parameter.name) or f"param_groups.{number}.params.{index}"
                for index, parameter in enumerate(parameters)
            ]
            groups.append({"settings": settings, "parameters": named})
        return groups

    def _scheduled(self, scheduler: Any) -> dict[str, object]:
        """Return the numbers, texts and lists that a scheduler keeps."""
        fields = [field for field in vars(scheduler).items() if field[0][:1] != "_" and field[0] not in _NO_RATES]
        return plain_fields(fields, self.number_of)


#: What a scheduler holds that says nothing of its rates.
_NO_RATES = ("optimizer", "verbose")


def numbered(models: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what the names of each of several models begin with, `0.`, and the model; "" for a single one."""
    for index, model in enumerate(models):
        yield f"{index}." if len(models) > 1 else "", model


def told(asks: Mapping[str, Callable[[], Any]], number_of: Callable[[Any], Any]) -> dict[str, object]:
    """Return the answers by name as plain values, without what a version does not have or refuses to tell."""
    answers = {}
    for name, ask in asks.items():
        with WhatIsTold():
            answers[name] = plain(ask(), number_of)
    return {name: answer for name, answer in answers.items() if answer is not OMITTED}


class ManifestRecorder:
    """Writes the manifest of each step that is collected.

    What fails is a fault of the collector, which `Guard` keeps away from the training, and costs its own section only.

    Attributes:
        is_open: a step has begun, and `called` is to be shown the calls of its models.
        roots: ids of the models; empty while none is known: then every layer is shown.
    """

    def __init__(
        self, guard: Guard, folder: Callable[[], Path | None], facts: Callable[[], RunFacts], dump_path: Path
    ) -> None:
        """Write nothing yet.

        Args:
            guard: keeps faults away from the training.
            folder: gives that of the dump; None while there is none.
            facts: makes what is asked of the steps, when the first one begins.
            dump_path: root of the dumps, which the command line is written without.
        """
        self._guard = guard
        self._folder = folder
        self._dump_path = dump_path
        self._make_facts = facts
        self._facts: RunFacts | None = None
        self._sections: dict[str, Any] = {}
        self._layers: list[Any] = []
        self._forwards: list[Any] = []
        self._count = 0
        self._end_watching: Callable[[], None] | None = None
        self._written = b""
        self._models: tuple[Any, bytes] = None, b"null"
        self.is_open = False
        self.roots: frozenset[int] = frozenset()

    def begin(self, step: int, layers: Sequence[Any], ranks: Mapping[str, object] | None) -> None:
        """The step begins: take what is known and write it. Once per step."""
        if self.is_open:
            return
        facts = self._facts = self._facts or self._make_facts()
        self.is_open = True
        self._layers, self._forwards, self._count, self._written = list(layers), [], 0, b""
        self.roots = frozenset(map(id, layers))
        self._sections = {
            "schema": 1,
            "framework": facts.name,
            "time": time_text(time.time()),
            "step": {"number": step},
        }
        take = self._take
        take("versions", lambda: {**_versions(), **facts.versions()})
        take("device", lambda: {"machine": platform.machine(), **facts.device()})
        take("environment", environment)
        flushes = {"subnormals flushed to zero": _SMALLEST * 1.0 == 0.0}  # by the thread that trains
        take("switches", lambda: {**facts.switches(), **flushes})
        take("script", lambda: script_facts(self._dump_path))
        self._sections["ranks"] = ranks
        take("models", lambda: facts.models(self._layers))
        self._take_optimizers()
        self._take_of_step("random", facts.randomness)
        self._take_of_step("loss_scale", facts.loss_scale)
        self._take_of_step("autocast", facts.autocast)
        self._write()

    def called(self, layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The model is called with these arguments: the batch."""
        facts = self._facts
        if facts is None or not self.is_open:
            return
        if not self._layers:
            if not facts.is_model(layer):
                return
            self._layers, self.roots = [layer], frozenset((id(layer),))
            self._take("models", lambda: facts.models(self._layers))
            self._take_optimizers()
        self._count += 1
        if not self._forwards:
            self._take_of_step("autocast", facts.autocast)
        if len(self._forwards) < _MOST_FORWARDS:
            self._forwards.append(facts.tensors(args, kwargs)[:_MOST_TENSORS])

    def complete(self, ranks: Mapping[str, object] | None = None) -> None:
        """Nothing more is collected of the step for now: write what was seen since it began."""
        facts = self._facts
        if facts is None or not self.is_open:
            return
        if ranks is not None:
            self._sections["ranks"] = ranks
        if not self._sections.get("optimizers"):
            self._take_optimizers()
        if self._sections["step"].get("loss_scale") is None:
            self._take_of_step("loss_scale", facts.loss_scale)
        self._forwards = self._guard.faults.guarded("the batch", facts.settled, self._forwards, otherwise=[])
        self._sections["step"].update(forwards=self._count, batches=self._forwards)
        self._write()

    def note_compiled(self, facts: dict[str, object]) -> None:
        """Note a function or layer that runs as compiled code, so that its calls leave no records."""
        if self.is_open:
            compiled = self._sections.setdefault("compiled", [])
            if facts not in compiled:
                compiled.append(facts)

    def note_error(self, error: BaseException) -> None:
        """Write, with the rest of the step, that `error` ends it; the first one counts."""
        if self.is_open and "ended_in" not in self._sections:
            self._take("ended_in", lambda: error_facts(error))

    def end(self) -> None:
        """The step is over."""
        try:
            self._stop_watching()
            self.complete()
        finally:
            self.is_open = False
            self._sections, self._layers, self._forwards, self._models = {}, [], [], (None, b"null")
            self.roots = frozenset()
            if self._facts is not None:
                self._facts.release()

    def _take(self, name: str, ask: Callable[[], Any]) -> None:
        section = self._guard.faults.guarded(f"run.json: {name}", ask)
        if section is not None:
            self._sections[name] = section

    def _take_of_step(self, name: str, ask: Callable[[], Any]) -> None:
        self._sections["step"][name] = self._guard.faults.guarded(f"run.json: {name}", ask)

    def _take_optimizers(self) -> None:
        facts = self._facts
        assert facts is not None
        self._take("optimizers", lambda: facts.optimizers(self._layers))
        self._stop_watching()
        update = partial(self._guard.enter, "run.json: optimizers", self._update_optimizers)
        guarded = self._guard.faults.guarded
        self._end_watching = guarded("run.json: optimizers", facts.watch_optimizers, update)

    def _stop_watching(self) -> None:
        end, self._end_watching = self._end_watching, None
        if end is not None:
            self._guard.faults.guarded("run.json: optimizers", end)

    def _update_optimizers(self) -> None:
        """An optimizer is about to update: what it does so with counts, whatever was set when the step began."""
        facts = self._facts
        if facts is not None and self.is_open:
            before = self._sections.get("optimizers", ())
            self._take("optimizers", lambda: facts.optimizers(self._layers, with_state=False))
            for optimizer, earlier in zip(self._sections.get("optimizers", ()), before):
                optimizer["state"] = earlier.get("state")  # that at the beginning, as that of the parameters

    def _write(self) -> None:
        folder = self._folder()
        if folder is None:
            return
        models = self._sections.get("models")
        if models is not self._models[0]:  # the same in all that is written in a step, and by far the longest
            self._models = models, _encoded(models)
        texts = [
            _encoded(name) + b":" + (self._models[1] if section is models else _encoded(section))
            for name, section in self._sections.items()
        ]
        content = b"{" + b",".join(texts) + b"}"
        if content == self._written:
            return
        partial = folder / f"{MANIFEST_FILE}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o640)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(partial, folder / MANIFEST_FILE)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise
        self._written = content


def _encoded(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError:  # an infinity, a NaN or a lone surrogate
        return msgspec.json.encode(as_json(value))


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages of the table that are imported."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):  # torch has a class of its own
            versions[name] = str(version)
    if cann := _cann():
        versions["cann"] = cann
    return versions


def _cann() -> str:
    """Version of the CANN toolkit, as its folder says; "" without one."""
    home = next((os.environ[name] for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH") if os.environ.get(name)), "")
    if not home:
        return ""
    for file in (Path(home) / "version.cfg", Path(home) / "version.info"):
        with suppress(OSError):
            with file.open(encoding="utf-8", errors="replace") as text:
                lines = text.read(4096).splitlines()
            return next(
                (line.partition("=")[2].strip("[] \t") for line in lines if "ersion" in line and "=" in line), ""
            )
    return ""


class Fingerprints:
    """Fingerprints of tensors; those on a device are fetched together."""

    def __init__(self, content_of: Callable[[Any], Any], fetched: Callable[[Sequence[Any]], list[str]]) -> None:
        """Take fingerprints.

        Args:
            content_of: gives the fingerprint of a tensor as text, None of one that cannot be read, or something that
                `fetched` makes a text of.
            fetched: gives the texts of several of those.
        """
        self._content_of = content_of
        self._fetched = fetched
        self._waiting: list[Any] = []
        self._are_texts = True

    def of(self, tensor: Any) -> Any:
        """The fingerprint, or what `settled` puts it in the place of."""
        content = self._content_of(tensor)
        if content is None or isinstance(content, str):
            return content
        self._are_texts = False
        self._waiting.append(_Waiting(content))
        return self._waiting[-1]

    def settled(self, values: Any) -> Any:
        """`values` with every fingerprint in its place; waits for a device only where one of these is missing."""
        if self._are_texts:
            return values
        if isinstance(values, _Waiting):
            if not values.text:
                waiting, self._waiting = self._waiting, []
                for held, text in zip(waiting, self._fetched([held.content for held in waiting]), strict=True):
                    held.text = text
            return values.text
        if isinstance(values, dict):
            return {key: self.settled(value) for key, value in values.items()}
        return [self.settled(value) for value in values] if isinstance(values, list) else values


class _Waiting:
    """Stands for a fingerprint that is fetched later."""

    __slots__ = ("content", "text")

    def __init__(self, content: Any) -> None:
        self.content = content
        self.text = ""


#: Whether each instance of a class counts as a reference to it: not without the GIL, where threads count apart.
_INSTANCES_COUNT = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


class ProcessObjects:
    """The objects of some kinds in this process, however a script has made them.

    Looking through all objects takes tens of milliseconds. It is done again only where there may be another one: each
    instance is a reference to its class, so that the references of the classes tell of every new one.
    """

    def __init__(self, kinds: Mapping[str, type]) -> None:
        """Of each kind by its name, subclasses included. Nothing is looked for yet."""
        self._kinds = kinds
        self._references: list[tuple[int, int]] = []
        self._known: dict[str, list[weakref.ref[Any]]] = {}

    def now(self) -> dict[str, list[Any]]:
        """Those that there are, by the names of the kinds."""
        if _INSTANCES_COUNT and self._known and self._references == self._counted():
            objects = {name: [refer() for refer in references] for name, references in self._known.items()}
            # Not by `in`, which compares by code of the objects.
            if all(value is not None for value in chain(*objects.values())):
                return objects
        counts = self._counted()  # before the look: what another thread makes meanwhile is looked for next time
        objects = self._looked_for()
        self._known = {}
        with suppress(TypeError):  # of a class without weak references: look for them each time
            self._known = {name: list(map(weakref.ref, values)) for name, values in objects.items()}
        self._references = counts
        return objects

    def _counted(self) -> list[tuple[int, int]]:
        """Each class by its id, and how many references there are to it."""
        return [
            (id(kind), sys.getrefcount(kind)) for base in self._kinds.values() for kind in (base, *_subclasses(base))
        ]

    def _looked_for(self) -> dict[str, list[Any]]:
        """Types of objects alone are asked, so that no code of theirs runs."""
        names: dict[type, str] = {}
        for name, base in self._kinds.items():
            names.update(dict.fromkeys((base, *_subclasses(base)), name))
        objects: dict[str, list[Any]] = {name: [] for name in self._kinds}
        for value in gc.get_objects():
            if type(value) in names:
                objects[names[type(value)]].append(value)
        return objects


def _subclasses(base: type) -> list[type]:
    subclasses: list[type] = []
    kinds: list[type] = type.__subclasses__(base)
    for kind in kinds:
        subclasses += [kind, *_subclasses(kind)]
    return subclasses


#: What every layer has, and what is none of its settings.
_NO_SETTINGS = frozenset(
    "training requires_grad is_top_cell arguments_key mixed_precision_type cell_type grad_ops_label has_bprop".split()
)
_MOST_IN_A_TUPLE = 8
_NUMBERS = (bool, int, float)


def layer_settings(layer: Any, number_of: Callable[[Any], Any]) -> dict[str, object]:
    """The numbers, truth values, words and short tuples of numbers that a layer keeps: `p`, `eps`, `num_heads`."""
    settings = {}
    for key, value in vars(layer).items():
        if key[:1] == "_" or key in _NO_SETTINGS or has_secret_name(key):
            continue
        if type(value) in _NUMBERS:
            settings[key] = value
            continue
        if isinstance(value, str):
            is_setting = value.isidentifier() and len(value) <= _MOST_LETTERS
        else:
            is_short = isinstance(value, (tuple, list)) and len(value) <= _MOST_IN_A_TUPLE
            is_setting = is_short and all(type(item) in _NUMBERS for item in value)
        if is_setting:
            settings[key] = plain(value, number_of)
    return settings


_MOST_LETTERS = 32
#: Attribute of a layer that says whether it trains; one with which it chooses only how it computes the same.
_MODE, _NOT_OF_VALUES = "training", "gradient_checkpointing"


def reads_mode(layer: Any, base: type, forward: str) -> bool:
    """Return whether the method `forward` of a layer, or one that it calls, asks whether it trains.

    Methods of `base`, the class of all layers, are not looked at.
    """
    kind: type = type(layer)
    return _reads_mode(kind, base, forward)


@lru_cache(1024)
def _reads_mode(kind: type, base: type, forward: str) -> bool:
    waiting, names = [forward], {forward}
    while waiting:
        function = inspect.unwrap(getattr(kind, waiting.pop(), None) or base)
        used = set(_names_in(getattr(function, "__code__", None)))
        if _MODE in used and _NOT_OF_VALUES not in used:
            return True
        methods = {name for name in used - names if callable(getattr(kind, name, None)) and name not in vars(base)}
        names |= methods
        waiting += sorted(methods)
    return False


def _names_in(code: CodeType | None) -> Iterator[str]:
    """Return the names of attributes and globals in a function and in those that it defines."""
    if code is not None:
        yield from code.co_names
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _names_in(constant)


def class_of(value: Any) -> str:
    """Return module and name of the class of an object."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def python_state(state: object) -> str:
    """A digest of what a generator of Python or NumPy gives as its state."""
    return xxhash.xxh3_64_hexdigest(repr(_written_out(state)).encode())


def _written_out(state: object) -> object:
    if isinstance(state, tuple):
        return [_written_out(item) for item in state]
    tolist = getattr(state, "tolist", None)
    return tolist() if callable(tolist) else state
