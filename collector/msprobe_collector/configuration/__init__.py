"""What a collection is asked to do: the values that a frozen `Configuration` holds, and what each of them may be.

- Which records are wanted, and which half of each: scope, list, tensor_list and data_mode.
- Lists of steps and ranks: `[0, "3", "5-8"]`.
- The user's YAML of APIs: which are hooked besides those found in MindSpore, and which are left
  alone.
- Tasks, levels, and which go together.
- dump_enable, which may be edited while training runs.
- The one way in which a configuration says that it cannot be used.

`reader` makes one of config.json. This module loads PyYAML when a configuration names an
`api_list`, and no framework.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msprobe_collector import logger
from msprobe_collector.dump_format import DIRECTIONS, Direction, is_cell_record, split_record_name
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml

_RANGE = re.compile(r"(\d{1,4300})(?:-(\d{1,4300}))?", re.ASCII)  # as many digits as int() takes
MAX_NUMBER = 1_000_000


@dataclass(frozen=True, slots=True)
class NumberRanges:
    """Which steps or ranks are wanted; all of them when no range is given.

    Attributes:
        ranges: (first, last) pairs, both included, ascending and without overlap.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def admits(self, number: int) -> bool:
        """Return whether `number` is wanted."""
        return not self.ranges or any(first <= number <= last for first, last in self.ranges)

    @property
    def last(self) -> int | None:
        """The greatest number wanted; None when all are."""
        return self.ranges[-1][1] if self.ranges else None

    def __str__(self) -> str:
        """`0, 5-8`, or `all`."""
        return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in self.ranges) or "all"


def parse_number_ranges(value: object) -> NumberRanges:
    """Return the ranges that a list of numbers, texts of numbers and texts of ranges means.

    Raises:
        ValueError: it is not a list, or one element is not a number, reversed, or above 1,000,000.
    """
    if not isinstance(value, list):
        raise ValueError(f'{value!r} is not a list of numbers and ranges, such as [0, "3-5"]')
    merged: list[tuple[int, int]] = []
    for first, last in sorted(map(_bounds, value)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return NumberRanges(tuple(merged))


def parse_steps(value: object) -> NumberRanges:
    """Ranges as of `parse_number_ranges`; older versions of the existing tool take one number alone.

    Raises:
        ValueError: it is neither a number nor such a list.
    """
    return parse_number_ranges([value] if type(value) is int else value)


def _bounds(item: object) -> tuple[int, int]:
    text = str(item) if isinstance(item, str) or type(item) is int else ""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{item!r} is neither a whole number from 0 on nor a range such as "3-5"')
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ValueError(f'{item!r} ends before it begins; write "{last}-{first}"')
    if last > MAX_NUMBER:
        raise ValueError(f"{item!r} is above {MAX_NUMBER}")
    return first, last


class ApiPlace(NamedTuple):
    """Where a callable stands: `mindspore.mint` and `add`, or `mindspore.Tensor` and `__add__`."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class ApiList:
    """APIs to hook besides those found by introspection, and those to leave alone.

    Attributes:
        add: in the order of the file.
        remove: wins over `add`.
    """

    add: tuple[ApiPlace, ...] = ()
    remove: tuple[ApiPlace, ...] = ()


def read_api_list(path: Path) -> ApiList:
    """The APIs named in the YAML file `path`: keys `add` and `remove`, under each modules with lists of names.

    Raises:
        ValueError: the file cannot be read or has another form; one line that names it.
    """
    try:
        content = read_yaml(path) or {}
    except YamlFileError as error:
        raise ValueError(f"{str(path)!r} {error}") from None
    if not isinstance(content, dict) or not content.keys() <= {"add", "remove"}:
        raise ValueError(f"{str(path)!r} has not the keys add and remove alone, each with modules and their API names")
    return ApiList(_places(content.get("add"), path), _places(content.get("remove"), path))


def _places(modules: Any, path: Path) -> tuple[ApiPlace, ...]:
    if modules is None:
        return ()
    if not isinstance(modules, dict):
        raise ValueError(f"{str(path)!r} has {modules!r} where modules with lists of API names belong")
    for module, names in modules.items():
        if not (isinstance(module, str) and isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError(f"{str(path)!r} has {names!r} under {module!r}; give a list of API names")
    return tuple(ApiPlace(module, name) for module, names in modules.items() for name in names)


Task = Literal["statistics", "tensor", "structure", "overflow_check", "exception_dump", "grad_probe"]
Level = Literal["L0", "L1", "mix", "debug", "L2"]

#: Levels that each task can work at; the first is what it takes when none is given. L2 writes configuration files for
#: the framework's own kernel dump. `grad_probe` watches an optimizer, whatever the level.
LEVELS: dict[Task, tuple[Level, ...]] = {
    "statistics": ("L1", "L0", "mix", "debug", "L2"),
    "tensor": ("L1", "L0", "mix", "debug", "L2"),
    "structure": ("mix", "L0"),
    "overflow_check": ("L1", "L0", "mix", "L2"),
    "exception_dump": ("L2",),
    "grad_probe": ("L1", "L0", "mix", "debug", "L2"),
}


Part = Literal["input", "output"]
PARTS: tuple[Part, ...] = ("input", "output")
_CELL_CALL = re.compile(r"(Cell|Module)\..+\.(forward|backward)\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Which records are collected. The parts of it combine by "and".

    Attributes:
        scope: full names of the first and the last record, both included; None for no bounds.
        names: substrings of record names, whatever their case, of which one must match (key `list`); empty for all.
        tensor_names: substrings of record names whose tensors are saved also in task `statistics`.
        directions: which of forward and backward.
        parts: which of inputs and outputs of a record.
    """

    scope: tuple[str, str] | None = None
    names: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()
    directions: frozenset[Direction] = frozenset(DIRECTIONS)
    parts: frozenset[Part] = frozenset(PARTS)

    def lists(self, record: str) -> bool:
        """Return whether the key `list` admits the record of this name."""
        return not self.names or bool(self.matches(record))

    def matches(self, record: str) -> list[str]:
        """Return the names of the key `list` that the record's name holds."""
        record = record.lower()
        return [name for name in self.names if name.lower() in record]

    def lists_tensors(self, record: str) -> bool:
        """Return whether the key `tensor_list` asks for the tensors of the record of this name."""
        return any(name in record for name in self.tensor_names)


def check_scope(scope: tuple[str, str], level: Level) -> None:
    """Refuse a scope whose names cannot occur at `level`.

    Raises:
        ValueError: a name is not that of a record, or of a kind that `level` does not write.
    """
    for name in scope:
        is_cell = _CELL_CALL.fullmatch(name) is not None
        is_api = not is_cell_record(name) and split_record_name(name) is not None
        if level == "L0" and not is_cell:
            raise ValueError(
                f"{name!r} is not a Cell record, as level L0 writes them; such is Cell.net.Dense.forward.0"
            )
        if level == "L1" and not is_api:
            raise ValueError(f"{name!r} is not an API record, as level L1 writes them; such is Mint.add.0.forward")
        if not (is_api or is_cell):
            raise ValueError(f"{name!r} is not a record name; such are Mint.add.0.forward and Cell.net.Dense.forward.0")


def parse_scope(value: object) -> tuple[str, str] | None:
    """First and last record name, which are the same where only one is given; None for an empty list.

    Raises:
        ValueError: it is neither an empty list nor a list of one or two names.
    """
    if value == []:
        return None
    if not (isinstance(value, list) and len(value) in (1, 2) and all(isinstance(name, str) and name for name in value)):
        raise ValueError(f"{value!r} is not two record names, the first and the last, nor an empty list")
    return value[0], value[-1]


def parse_data_mode(value: object) -> tuple[frozenset[Direction], frozenset[Part]]:
    """(directions, parts) that a list such as ["forward", "input"] keeps; an axis that it does not name is kept whole.

    Raises:
        ValueError: it is not a list, names something else, or names `all` beside others.
    """
    allowed = ("all", *DIRECTIONS, *PARTS)
    if not isinstance(value, list) or not all(map(allowed.__contains__, value)):
        raise ValueError(f"{value!r} is not a list of {', '.join(allowed)}")
    if "all" in value and len(value) > 1:
        raise ValueError(f"{value!r} has 'all' beside others; give either")
    directions, parts = frozenset(DIRECTIONS), frozenset(PARTS)
    return directions.intersection(value) or directions, parts.intersection(value) or parts


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Elements `begin` to `end` (not included) along dimension `dim` of the tensors that are `size` long there."""

    dim: int
    size: int
    begin: int
    end: int

    def part_of(self, tensor: Any) -> Any:
        """Return this part of a tensor of any framework, in the tensor's memory; None of one of another length."""
        shape = tensor.shape
        if len(shape) <= self.dim or shape[self.dim] != self.size:
            return None
        return tensor[(slice(None),) * self.dim + (slice(self.begin, self.end),)]

    def __str__(self) -> str:
        """As JSON."""
        return f'{{"dim": {self.dim}, "size": {self.size}, "begin": {self.begin}, "end": {self.end}}}'


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """What only the framework's own kernel dump (level L2, static graph) takes.

    Attributes:
        device: who computes the statistics.
        precision: float type in which the device computes them.
        categories: statistics to write, in the words of config.json (`max`, `nan count`, ...); empty for the default.
        check_mode: which overflow of Ascend is watched in task `overflow_check`.
    """

    device: Literal["host", "device"]
    precision: Literal["high", "low"]
    categories: tuple[str, ...]
    check_mode: Literal["aicore", "atomic", "all"]


@dataclass(frozen=True, slots=True)
class GradientMonitorSettings:
    """What is written of each parameter's gradient (task `grad_probe`).

    Attributes:
        level: L0 has an MD5 and statistics, L1 statistics and signs, L2 these and the distribution of values.
        parameters: exact names of the parameters to watch; empty for all.
        bounds: of the intervals of the distribution, strictly ascending.
    """

    level: Literal["L0", "L1", "L2"]
    parameters: tuple[str, ...]
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that config.json and the constructor ask for, checked.

    Attributes:
        file: config.json, absolute; the packaged one when none was given.
        task, level: what is collected; a pair of `LEVELS`.
        dump_path: root of the dump, absolute; not yet created.
        ranks, steps: which are collected.
        extra_info: whether stack.json and construct.json are written.
        async_dump: whether training may run on while values are written.
        optimizer: whether what optimizers get and leave becomes records (tasks statistics and tensor).
        precision: `low` allows 16-bit floats to be reduced in their own type; nothing has to make use of it.
        dump_enable: state of the switch in config.json that is watched while training runs; None when it has none.
        selection: which records.
        summary: `md5` adds a checksum to each tensor's statistics, `fingerprint` a hash of its content,
            `sketch` numbers that give distances.
        overflow_limit: records with NaN or Inf after which task `overflow_check` ends; None for no end.
        slices: parts of tensors that are collected in place of the whole.
        request_id: the request whose rows of a batch are collected, where `start` is told which these are.
        bench_path, most_differences: root of an earlier dump: of a value that is equal there no tensor is kept, and of
            none behind so many that differ; None for no end.
        api_list: APIs that the user's YAML adds to the hooked ones and takes away.
        seed, is_deterministic: for every generator of random numbers, and whether operators compute in a fixed order;
            None and False leave both to the script.
        kernel, gradients: settings of level L2 and of task `grad_probe`.
    """

    file: Path
    task: Task
    level: Level
    dump_path: Path
    ranks: NumberRanges
    steps: NumberRanges
    extra_info: bool
    async_dump: bool
    optimizer: bool
    precision: Literal["low", "high"]
    dump_enable: bool | None
    selection: RecordSelection
    summary: Literal["statistics", "md5", "fingerprint", "sketch"]
    overflow_limit: int | None
    slices: tuple[RowSlice, ...]
    request_id: str | None
    bench_path: Path | None
    most_differences: int | None
    api_list: ApiList
    seed: int | None
    is_deterministic: bool
    kernel: KernelSettings
    gradients: GradientMonitorSettings

    @property
    def collects_apis(self) -> bool:
        """Whether API calls become records."""
        return self.level in ("L1", "mix")

    @property
    def collects_optimizers(self) -> bool:
        """Whether updates of parameters become records."""
        return self.optimizer and self.task in ("statistics", "tensor") and self.level in ("L0", "L1", "mix")

    @property
    def collects_cells(self) -> bool:
        """Whether Cells, their parameters and parameter gradients become records."""
        return self.level in ("L0", "mix")


class DumpSwitch:
    """Whether collection is wanted now. Without `dump_enable` in config.json it is, always, and no file is watched.

    Ask it once per step: it costs one `stat`, and reads the file only when it has changed.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._file = configuration.file
        self._is_watched = configuration.dump_enable is not None
        self._is_on = configuration.dump_enable is not False
        self._stamp: tuple[int, ...] = ()

    def is_on(self) -> bool:
        """The switch as the file has it now; as it was before while the file is gone or half written."""
        if self._is_watched and (stamp := self._current_stamp()) != self._stamp:
            self._stamp = stamp
            self._read()
        return self._is_on

    def _current_stamp(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._file)
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> None:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            value = content["dump_enable"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: dump_enable cannot be read (%r); collection stays as it was", self._file, error)
            return
        if not isinstance(value, bool):
            logger.warning("%s: dump_enable: %r is neither true nor false; it stays as it was", self._file, value)
            return
        self._is_on = value


class Refusal(Exception):
    """The script asks for what cannot be done; one line, raised to the script. Nothing else of the collector is."""


class ConfigurationError(Refusal):
    """One line on a mistake in a configuration: where, the value found, and what is allowed.

    Attributes:
        place: the file, or `PrecisionDebugger` for a constructor argument.
        field: key inside it (`statistics.scope`) or the argument's name; "" when the whole file is meant.
    """

    def __init__(self, problem: str, *, place: str, field: str = "") -> None:
        self.place = place
        self.field = field
        super().__init__(": ".join(filter(None, (place, field, problem))))
