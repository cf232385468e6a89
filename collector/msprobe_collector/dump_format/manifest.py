"""run.json beside a dump.json: what a run is made of, read. Nothing in it is trusted: it may have any form.

Sections that are missing, or are not what they should be, are empty; what is not known is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from msprobe_collector.dump_format.values import DumpError, printable, quote_nonfinite
from msprobe_collector.dump_format.yaml_files import read_plain

MANIFEST_FILE = "run.json"
#: In the root of dumps: of the last run, where it has collected nothing.
EMPTY_RUN_FILE = "nothing_collected.json"
#: A model of 10,000 layers with Adam has 10 MB.
_MOST_BYTES = 1 << 27
#: File, line and name of the function of a frame.
Place = tuple[str, int, str]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A parameter, a buffer, or a tensor of a batch; None and empty where that is not known.

    Attributes:
        name: in its model, or the place in a call: `input.0`, `kwargs.mask`.
        dtype: without the framework's name.
        shape: lengths of its dimensions.
        requires_grad: None of one that is no parameter.
        fingerprint: equal for equal bits; None where it could not be read.
        tied: name of the parameter that this one is the same as; "" for one of its own.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    requires_grad: bool | None = None
    fingerprint: str | None = None
    tied: str = ""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """A Module or Cell.

    Attributes:
        path: in its model.
        kind: its class.
        is_training: whether it is in training mode.
        settings: `p`, `eps`, `num_heads`.
        reads_mode: whether its code asks for that mode; None where that is not known.
    """

    path: str
    kind: str
    is_training: bool | None
    settings: Mapping[str, object]
    reads_mode: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model: class, parameters and buffers in their order, and its layers, the model first.

    `eval_at` is the line of the script that put it into eval mode, such as `train.py:8`; "" where that is not known.
    """

    kind: str
    parameters: tuple[TensorFacts, ...]
    buffers: tuple[TensorFacts, ...]
    layers: tuple[LayerFacts, ...]
    eval_at: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A parameter group: its hyper-parameters, and the names of its parameters."""

    settings: Mapping[str, object]
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """A scheduler: class and settings."""

    kind: str
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """An optimizer: class, groups, schedulers, and its state when the step began, by key."""

    kind: str
    groups: tuple[GroupFacts, ...]
    schedulers: tuple[SchedulerFacts, ...]
    state: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class StepError:
    """An exception that ended a step: its class, what it says, and the line of the script; 0 and "" where unknown."""

    kind: str
    message: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Name of the file and line, such as `train.py:14`; "" where it is not known."""
        return _place(self.file, self.line)

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.kind, self.place)))


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """A function or layer that ran as compiled code: calls inside it are not in the dump.

    Attributes:
        name: of the function, or of the class of the layer.
        path: of the layer in its model, "" of the model; None of a function, and of a layer that is in no model.
        file, line: where its code begins; "" and 0 of a function that is not written in Python.
        last_line: of a layer that is in no model; else 0.
    """

    name: str
    path: str | None
    file: str
    line: int
    last_line: int = 0

    def __str__(self) -> str:
        name = f"{self.path} ({self.name})" if self.path else self.name
        return ", ".join(filter(None, (name, _place(self.file, self.line))))

    def holds(self, api: str, frames: Collection[Place], layers: Collection[str]) -> bool:
        """Return whether a call of another run stands in it: scripts and lines may differ, names do not.

        Args:
            api: what is called.
            frames: file, line and function of each frame that led to the call.
            layers: paths of the layers that the call ran in.
        """
        functions = {function for _, _, function in frames}
        if self.last_line:
            name = os.path.basename(self.file)
            return any(os.path.basename(file) == name and self.line <= at <= self.last_line for file, at, _ in frames)
        if self.path is None:
            return self.name in functions if self.file else self.name == api
        if not self.path:
            return bool(layers) or "forward" in functions
        return any(f"{layer}.".startswith(f"{self.path}.") for layer in layers)


@dataclass(frozen=True, slots=True)
class EmptyRun:
    """A run that has collected nothing: when it began, its command line, and the exception that it ended in.

    Attributes:
        earlier: the first dump of an earlier run in the same folder; None without one.
    """

    time: str
    command: str
    ended_in: StepError | None
    earlier: Path | None

    def __str__(self) -> str:
        error, ended = self.ended_in, ""
        if error is not None:
            place = f" at {error.place}" if error.place else ""
            ended = f" ended{place} in {error.kind} and"
        return f"the last run{ended} collected nothing ({self.command}, {self.time})"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run is made of.

    Attributes:
        framework: as in dump.json.
        time: when the step began, as ISO 8601 writes it; "" where it is not known.
        versions: of the framework and packages, by name.
        device: what computes.
        environment: variables that change numbers and were set.
        switches: settings of the framework.
        script: `command` (list of str) and `git` (`revision`, `branch`).
        ranks: what dump.json says of the rank and its groups; empty in one process.
        models: the models that were given to `start`, or the first that ran.
        optimizers: those of the process.
        step: number, `forwards` of the model, `random`, `loss_scale`, `autocast`.
        batches: tensors of each forward of the model; None where no model was seen to run.
        compiled: what ran as compiled code in the step.
        ended_in: the exception that ended the step before its end; None where none is known.
    """

    framework: str = ""
    time: str = ""
    versions: Mapping[str, object] = field(default_factory=dict)
    device: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    switches: Mapping[str, object] = field(default_factory=dict)
    script: Mapping[str, object] = field(default_factory=dict)
    ranks: Mapping[str, object] = field(default_factory=dict)
    models: tuple[ModelFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    step: Mapping[str, object] = field(default_factory=dict)
    batches: tuple[tuple[TensorFacts, ...], ...] | None = None
    compiled: tuple[CompiledCode, ...] = ()
    ended_in: StepError | None = None

    @property
    def number(self) -> int | None:
        """Number of the step."""
        return _get(self.step, "number", int)

    @property
    def command(self) -> str:
        """The command line of the script; "" where it is not known."""
        return _command(self.script)

    @property
    def parameters(self) -> dict[str, TensorFacts]:
        """The parameters of all models by name."""
        return {parameter.name: parameter for model in self.models for parameter in model.parameters}


def manifest_beside(dump_path: Path) -> tuple[Manifest | None, str]:
    """Return the manifest beside a dump.json, and one line where it is there and cannot be used."""
    path = dump_path.parent / MANIFEST_FILE
    if not os.path.lexists(path):
        return None, ""
    try:
        return read_manifest(path), ""
    except DumpError as error:
        return None, str(error)


def gaps_beside(dump_path: Path) -> tuple[tuple[CompiledCode, ...], StepError | None]:
    """Return what is not in a dump.json: code that ran compiled, and what followed the exception that ended the step.

    A manifest that says of neither is not decoded: a run of 1,000 ranks has as many.
    """
    try:
        text = read_plain(dump_path.parent / MANIFEST_FILE, most_bytes=_MOST_BYTES)
    except OSError:
        return (), None
    if b'"ended_in"' not in text and b'"compiled"' not in text:
        return (), None
    manifest = manifest_beside(dump_path)[0] or Manifest()
    return manifest.compiled, manifest.ended_in


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in the file at `path`.

    Raises:
        DumpError: it cannot be read, is not JSON, or is no object.
    """
    try:
        decoded = msgspec.json.decode(quote_nonfinite(read_plain(path, most_bytes=_MOST_BYTES)))
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DumpError(f"is not valid JSON: {error}; collect the step again", file=str(path)) from None
    if not isinstance(decoded, dict):
        raise DumpError(f"expected an object, found {type(decoded).__name__}", file=str(path))
    step = _get(decoded, "step", dict) or {}
    names = ("versions", "device", "environment", "switches", "script", "ranks")
    return Manifest(
        framework=_text(decoded, "framework"),
        time=printable(_text(decoded, "time")),
        **{name: _get(decoded, name, dict) or {} for name in names},
        models=tuple(map(_model, _list(decoded, "models"))),
        optimizers=tuple(map(_optimizer, _list(decoded, "optimizers"))),
        step={key: value for key, value in step.items() if key != "batches"},
        batches=tuple(map(_tensors, _list(step, "batches"))) or None,
        compiled=tuple(map(_compiled, _list(decoded, "compiled"))),
        ended_in=_error(decoded.get("ended_in")),
    )


def empty_run_of(root: Path) -> EmptyRun | None:
    """Return the last run that was to collect in `root`, where it has collected nothing: all dumps there are older."""
    try:
        decoded = msgspec.json.decode(read_plain(root / EMPTY_RUN_FILE, most_bytes=_MOST_BYTES))
        time = _text(decoded, "time")
        began = datetime.fromisoformat(time).timestamp()
        dumps = sorted(root.glob("step*/*/dump.json"))
        is_empty = all(dump.stat().st_mtime < began for dump in dumps)
    except (OSError, msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return None
    if not is_empty:
        return None
    ended_in = _error(decoded.get("ended_in"))
    return EmptyRun(printable(time), _command(decoded.get("script")), ended_in, next(iter(dumps), None))


def _get(entry: object, key: str, kind: type[_T]) -> _T | None:
    """Return what an object of run.json has under `key`; None where that is no `kind`, or `entry` no object."""
    value: Any = entry.get(key) if isinstance(entry, dict) else None
    return value if type(value) is kind else None


def _text(entry: object, key: str) -> str:
    return _get(entry, key, str) or ""


def _list(entry: object, key: str) -> list[Any]:
    return _get(entry, key, list) or []


def _command(script: object) -> str:
    words = filter(lambda word: isinstance(word, str), _list(script, "command"))
    return printable(" ".join(words))


def _place(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}" if file else ""


def _compiled(entry: object) -> CompiledCode:
    name, file, path = printable(_text(entry, "name")), printable(_text(entry, "file")), _get(entry, "path", str)
    line, last_line = _get(entry, "line", int) or 0, _get(entry, "last_line", int) or 0
    return CompiledCode(name or "a function", path and printable(path), file, line, last_line)


def _error(entry: object) -> StepError | None:
    kind, message, file = (printable(_text(entry, key)) for key in ("type", "message", "file"))
    return StepError(kind, message, file, _get(entry, "line", int) or 0) if kind else None


def _tensors(entries: object) -> tuple[TensorFacts, ...]:
    """Return what the entries say that have a name."""
    tensors = []
    for entry in entries if isinstance(entries, list) else ():
        if (name := _get(entry, "name", str)) is not None:
            shape = tuple(size for size in _list(entry, "shape") if type(size) is int)
            requires_grad, fingerprint = _get(entry, "requires_grad", bool), _get(entry, "fingerprint", str)
            tied = _text(entry, "tied")
            tensors.append(TensorFacts(name, _text(entry, "dtype"), shape, requires_grad, fingerprint, tied))
    return tuple(tensors)


def _model(entry: object) -> ModelFacts:
    layers = tuple(map(_layer, _list(entry, "modules")))
    parameters, buffers = _tensors(_list(entry, "parameters")), _tensors(_list(entry, "buffers"))
    place = _get(entry, "eval_at", dict)
    eval_at = _place(printable(_text(place, "file")), _get(place, "line", int) or 0)
    return ModelFacts(_text(entry, "class"), parameters, buffers, layers, eval_at)


def _layer(entry: object) -> LayerFacts:
    settings, is_training = _get(entry, "settings", dict) or {}, _get(entry, "training", bool)
    return LayerFacts(
        _text(entry, "path"), _text(entry, "class"), is_training, settings, _get(entry, "reads_mode", bool)
    )


def _optimizer(entry: object) -> OptimizerFacts:
    groups = tuple(map(_group, _list(entry, "groups")))
    schedulers = tuple(map(_scheduler, _list(entry, "schedulers")))
    return OptimizerFacts(_text(entry, "class"), groups, schedulers, _get(entry, "state", dict) or {})


def _group(entry: object) -> GroupFacts:
    names = filter(lambda name: isinstance(name, str), _list(entry, "parameters"))
    return GroupFacts(_get(entry, "settings", dict) or {}, tuple(names))


def _scheduler(entry: object) -> SchedulerFacts:
    return SchedulerFacts(_text(entry, "class"), _get(entry, "settings", dict) or {})
