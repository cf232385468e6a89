"""run.json beside a dump.json: what a run is made of, read. Nothing in it is trusted: it may have any form.

Sections that are missing, or are not what they should be, are empty; what is not known is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

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

    @classmethod
    def of(cls, encoded: object) -> TensorFacts | None:
        """Return what an entry of run.json says; None of one without a name."""
        entry = _mapping(encoded)
        name = entry.get("name")
        if not isinstance(name, str):
            return None
        fingerprint = entry.get("fingerprint")
        return cls(
            name,
            _text(entry.get("dtype")),
            tuple(size for size in _sequence(entry.get("shape")) if type(size) is int),
            _flag(entry.get("requires_grad")),
            fingerprint if isinstance(fingerprint, str) else None,
            _text(entry.get("tied")),
        )


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
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.kind}{', ' if self.file else ''}{self.place}"


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
        return f"{name}, {os.path.basename(self.file)}:{self.line}" if self.file else name

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
        error = self.ended_in
        place = f" at {error.place}" if error is not None and error.place else ""
        ended = f" ended{place} in {error.kind} and" if error is not None else ""
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
        number = self.step.get("number")
        return number if type(number) is int else None

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
    has_gaps = b'"ended_in"' in text or b'"compiled"' in text
    manifest = manifest_beside(dump_path)[0] if has_gaps else None
    return (manifest.compiled, manifest.ended_in) if manifest is not None else ((), None)


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
    step = _mapping(decoded.get("step"))
    batches = step.get("batches")
    sections = {
        name: _mapping(decoded.get(name))
        for name in ("versions", "device", "environment", "switches", "script", "ranks")
    }
    return Manifest(
        framework=_text(decoded.get("framework")),
        time=printable(_text(decoded.get("time"))),
        **sections,
        models=tuple(map(_model, _sequence(decoded.get("models")))),
        optimizers=tuple(map(_optimizer, _sequence(decoded.get("optimizers")))),
        step={key: value for key, value in step.items() if key != "batches"},
        batches=tuple(map(_tensors, batches)) if isinstance(batches, list) and batches else None,
        compiled=tuple(map(_compiled, map(_mapping, _sequence(decoded.get("compiled"))))),
        ended_in=_error(decoded.get("ended_in")),
    )


def _compiled(entry: Mapping[str, object]) -> CompiledCode:
    name, file = (printable(_text(entry.get(key))) for key in ("name", "file"))
    path = entry.get("path")
    return CompiledCode(
        name or "a function",
        printable(path) if isinstance(path, str) else None,
        file,
        _whole(entry.get("line")),
        _whole(entry.get("last_line")),
    )


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _error(encoded: object) -> StepError | None:
    entry = _mapping(encoded)
    kind = printable(_text(entry.get("type")))
    if not kind:
        return None
    message, file = printable(_text(entry.get("message"))), printable(_text(entry.get("file")))
    return StepError(kind, message, file, _whole(entry.get("line")))


def empty_run_of(root: Path) -> EmptyRun | None:
    """Return the last run that was to collect in `root`, where it has collected nothing: all dumps there are older."""
    try:
        decoded = _mapping(msgspec.json.decode(read_plain(root / EMPTY_RUN_FILE, most_bytes=_MOST_BYTES)))
        began = datetime.fromisoformat(_text(decoded.get("time"))).timestamp()
        dumps = sorted(root.glob("step*/*/dump.json"))
        is_empty = all(dump.stat().st_mtime < began for dump in dumps)
    except (OSError, msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return None
    if not is_empty:
        return None
    command = _command(_mapping(decoded.get("script")))
    time = printable(_text(decoded.get("time")))
    return EmptyRun(time, command, _error(decoded.get("ended_in")), next(iter(dumps), None))


def _command(script: Mapping[str, object]) -> str:
    words = (word for word in _sequence(script.get("command")) if isinstance(word, str))
    return printable(" ".join(words))


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _tensors(encoded: object) -> tuple[TensorFacts, ...]:
    facts = (TensorFacts.of(entry) for entry in _sequence(encoded))
    return tuple(entry for entry in facts if entry is not None)


def _model(encoded: object) -> ModelFacts:
    entry = _mapping(encoded)
    layers = [_layer(_mapping(module)) for module in _sequence(entry.get("modules"))]
    parameters, buffers = _tensors(entry.get("parameters")), _tensors(entry.get("buffers"))
    eval_at = _place(_mapping(entry.get("eval_at")))
    return ModelFacts(_text(entry.get("class")), parameters, buffers, tuple(layers), eval_at)


def _layer(entry: Mapping[str, object]) -> LayerFacts:
    path, name, settings = _text(entry.get("path")), _text(entry.get("class")), _mapping(entry.get("settings"))
    return LayerFacts(path, name, _flag(entry.get("training")), settings, _flag(entry.get("reads_mode")))


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _place(entry: Mapping[str, object]) -> str:
    file, line = printable(_text(entry.get("file"))), _whole(entry.get("line"))
    return f"{os.path.basename(file)}:{line}" if file else ""


def _optimizer(encoded: object) -> OptimizerFacts:
    entry = _mapping(encoded)
    groups = tuple(_group(_mapping(group)) for group in _sequence(entry.get("groups")))
    schedulers = tuple(_scheduler(_mapping(scheduler)) for scheduler in _sequence(entry.get("schedulers")))
    return OptimizerFacts(_text(entry.get("class")), groups, schedulers, _mapping(entry.get("state")))


def _group(entry: Mapping[str, object]) -> GroupFacts:
    return GroupFacts(_mapping(entry.get("settings")), tuple(_names(entry.get("parameters"))))


def _scheduler(entry: Mapping[str, object]) -> SchedulerFacts:
    return SchedulerFacts(_text(entry.get("class")), _mapping(entry.get("settings")))


def _names(encoded: object) -> Iterator[str]:
    return (name for name in _sequence(encoded) if isinstance(name, str))
