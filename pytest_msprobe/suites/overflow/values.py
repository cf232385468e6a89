"""Which recorded values hold NaN or Inf, and which of them are memory that was not written yet.

A value is judged from its data where there is some, else from its statistics. Max and Min alone prove nothing:
reductions of MindSpore on CPU see a NaN only at element 0 (mindspore#391, #392).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, product
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import Dump, DumpError, FieldPath, Frame, PlainValue, TensorValue, Value
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import abbreviated
from msprobe_collector.dump_format.yaml_files import YamlFileError, read_yaml
from pytest_msprobe.apis.fact_table import UnwrittenMemory, unwritten_memory

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import Array

_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Finiteness:
    """What is known of one value.

    Attributes:
        has_nan, has_inf: whether such elements were seen.
        nan_count, inf_count: how many; None where only statistics are known.
        first_index: place of the first such element, in C order; None where only statistics are known.
        is_known: False when the dump holds neither data nor statistics of it.
    """

    has_nan: bool = False
    has_inf: bool = False
    nan_count: int | None = 0
    inf_count: int | None = 0
    first_index: tuple[int, ...] | None = None
    is_known: bool = True

    @property
    def is_bad(self) -> bool:
        """Whether anything is not finite."""
        return self.has_nan or self.has_inf

    @property
    def counts(self) -> tuple[int | None, int | None]:
        """Numbers of NaN and of Inf; None where there are some, and only statistics are known."""
        return _count(self.nan_count, self.has_nan), _count(self.inf_count, self.has_inf)

    @property
    def kinds(self) -> str:
        """What is not finite, without counts: NaN, Inf or both."""
        return " and ".join(compress(("NaN", "Inf"), (self.has_nan, self.has_inf)))

    def __str__(self) -> str:
        words = (f"{self.nan_count or ''} NaN", f"{self.inf_count or ''} Inf")
        return ", ".join(map(str.strip, compress(words, (self.has_nan, self.has_inf))))


def _count(count: int | None, has_any: bool) -> int | None:
    """The count; 0 where none was seen."""
    return count if has_any else count or 0


FINITE = Finiteness()
UNKNOWN = Finiteness(nan_count=None, inf_count=None, is_known=False)


def can_overflow(tensor: TensorValue) -> bool:
    """Whether a tensor of this dtype and shape can hold NaN or Inf at all."""
    return tensor.dtype is not None and tensor.dtype.kind in ("float", "complex") and tensor.size > 0


def of_array(array: Array) -> Finiteness:
    """What counting in `array` finds, a chunk at a time."""
    import numpy as np

    from pytest_msprobe.numerics.measurement import chunks

    nan = bad = 0
    first: int | None = None
    for start, (chunk,) in chunks(array, elements=_CHUNK_ELEMENTS):
        finite = np.isfinite(chunk)
        if finite.all():
            continue
        if first is None:
            first = start + int(np.argmin(finite))
        bad += int(chunk.size - np.count_nonzero(finite))
        nan += int(np.count_nonzero(np.isnan(chunk)))
    if first is None:
        return FINITE
    index = tuple(map(int, np.unravel_index(first, array.shape)))
    return Finiteness(nan > 0, bad > nan, nan, bad - nan, index)


def of_statistics(tensor: TensorValue) -> Finiteness:
    """What the recorded statistics of a tensor tell.

    A NaN in Max, Min or Norm is one in the data; so is one in Mean, unless Inf of both signs made it. An infinite Mean
    or Norm is none beside finite Max and Min: sums and squares of finite numbers overflow in a small dtype.
    """
    ends = [float(end) for end in (tensor.maximum, tensor.minimum) if end is not None]
    numbers = {"mean": tensor.mean, "norm": tensor.norm}
    sums = {name: float(number) for name, number in numbers.items() if number is not None}
    if not ends and not sums and tensor.nan_count is None and tensor.inf_count is None:
        return UNKNOWN
    cancels = math.inf in ends and -math.inf in ends
    has_nan = bool(tensor.nan_count) or any(map(math.isnan, ends))
    has_nan |= math.isnan(sums.get("norm", 0.0)) or (math.isnan(sums.get("mean", 0.0)) and not cancels)
    has_inf = bool(tensor.inf_count) or any(map(math.isinf, ends or sums.values()))
    if not (has_nan or has_inf):
        return FINITE
    return Finiteness(has_nan, has_inf, _count(tensor.nan_count, has_nan), _count(tensor.inf_count, has_inf))


def of_plain(value: Value) -> Finiteness:
    """What a value that is not a tensor is; only Python and NumPy floats are not always finite."""
    number = value.value if isinstance(value, PlainValue) else None
    if not isinstance(number, float) or math.isfinite(number):
        return FINITE
    is_nan = math.isnan(number)
    return Finiteness(is_nan, not is_nan, int(is_nan), int(not is_nan), ())


def combined(parts: Sequence[Finiteness]) -> Finiteness:
    """Several values as one; a count is None when one of them is."""
    if not parts:
        return FINITE
    fields = attrgetter("has_nan", "has_inf", "nan_count", "inf_count", "is_known")
    has_nan, has_inf, nans, infs, is_known = zip(*map(fields, parts))
    return Finiteness(any(has_nan), any(has_inf), _total(nans), _total(infs), is_known=all(is_known))


def _total(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(filter(None, counts))


@dataclass(frozen=True, slots=True)
class ObservedValue:
    """One value of a record.

    Attributes:
        path: place in the record, `input.0`.
        place: the same in dump.json.
        dtype: as the dump writes it.
        shape: of a tensor; () for plain values.
        is_input, is_plain: whether it went in; whether it is a Python number.
        finiteness: what it holds.
        tensor: of a value that is not finite, for loading its data; None where the dump has none.
        fault: why it cannot be read, "" when it can.
        made_by: which value of a record it is; "" where the dump does not say.
        statistics: as recorded, as text.
    """

    path: str
    place: FieldPath
    dtype: str
    shape: tuple[int, ...]
    is_input: bool
    is_plain: bool
    finiteness: Finiteness
    tensor: TensorValue | None = None
    fault: str = ""
    made_by: str = ""
    statistics: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it holds NaN or Inf."""
        return self.finiteness.is_bad

    def __str__(self) -> str:
        where = self.finiteness.first_index
        place = f", first at {list(where)}" if where else ""
        size = f" {self.shape}" if not self.is_plain else ""
        return f"{self.path} {self.dtype}{size} holds {self.finiteness}{place}"


class OverflowDump(Dump):
    """A dump of any task that records values; those of Cells are read like those of calls."""

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file; `data_dirs` as for `Dump`.

        Raises:
            DumpError: it cannot be read, or holds no values.
        """
        super().__init__(path, data_dirs)
        if self.task == "structure":
            problem = "a dump of task 'structure' holds no values; dump with statistics or tensor"
            raise DumpError(problem, file=str(path), field="task")
        if not self._records:
            raise DumpError("this dump holds no record; dump a step that runs", file=str(path), field="data")

    def values(self, record: str) -> tuple[list[ObservedValue], Collection[str]]:
        """What the values of `record` hold, inputs first, and the fields that it has, of which some hold no value.

        Raises:
            DumpError: the record cannot be decoded.
        """
        decoded = self.record(record)
        values = [self._observed(leaf) for leaf in flatten(decoded)]
        return sorted(values, key=lambda value: not value.is_input), decoded.fields

    def frames(self, operation: Operation) -> Sequence[Frame]:
        """The call stack of the operation's forward, or its own, innermost frame first."""
        return self.stacks.frames(f"{operation.call}.forward") or self.stacks.frames(operation.record)

    def called_from(self, operation: Operation) -> str:
        """The line of the script that made the call, "" where it is not known."""
        frame = self.stacks.user_frame(f"{operation.call}.forward") or self.stacks.user_frame(operation.record)
        return str(frame or "")

    def _observed(self, leaf: Leaf) -> ObservedValue:
        finiteness, tensor, fault = FINITE, leaf.tensor, leaf.fault
        if tensor is not None:
            try:
                finiteness = self._finiteness(tensor, leaf.place)
            except DumpError as error:
                fault = str(error)
            tensor = tensor if finiteness.is_bad and tensor.data_name is not None else None
        elif not fault:
            finiteness = of_plain(leaf.value)
        return ObservedValue(
            path=leaf.path,
            place=leaf.place,
            dtype=leaf.dtype,
            shape=leaf.shape,
            is_input=not leaf.is_output,
            is_plain=not leaf.is_tensor,
            finiteness=finiteness,
            tensor=tensor,
            fault=fault,
            made_by=leaf.provenance.made_by,
            statistics=str(leaf.statistics),
        )

    def _finiteness(self, tensor: TensorValue, place: FieldPath) -> Finiteness:
        if not can_overflow(tensor):
            return FINITE
        assert tensor.dtype is not None  # can_overflow has seen to it
        if tensor.data_name is None or tensor.dtype.array_name is None:
            return of_statistics(tensor)
        counted = of_array(self.tensors.load(tensor, place))
        if counted.is_bad:
            return counted
        # Mean and Norm overflow where the data does not. Max, Min and counts that say otherwise than the file stay a
        # finding: somebody saw what they say.
        return of_statistics(replace(tensor, mean=None, norm=None))


_KEYS = ("apis", "frameworks", "inputs", "outputs")
_ANY_FRAMEWORK = ""


class RuleError(Exception):
    """A rule file that is not what it should be: one line with file, entry and key."""


class BufferRules:
    """What is known of all APIs (`apis.unwritten`), and what a user's file says instead."""

    def __init__(self, rules: Mapping[tuple[str, str], UnwrittenMemory]) -> None:
        """`rules` are the user's rules by framework and API in lower case."""
        self._own = rules

    def of(self, api: str, framework: str) -> UnwrittenMemory:
        """Which values of an API called `Mint.empty` mean nothing in a dump of `framework`."""
        name = api.lower()
        rule = self._own.get((framework, name)) or self._own.get((_ANY_FRAMEWORK, name))
        return rule or unwritten_memory(api, framework, "overwritten")


def read_rules(path: Path | None) -> BufferRules:
    """The built-in rules, and those in the YAML file `path`, which replace built-in ones for the same API.

    Raises:
        RuleError: the file cannot be read or has another form.
    """
    return BufferRules({} if path is None else _read(path))


def _read(path: Path) -> dict[tuple[str, str], UnwrittenMemory]:
    try:
        content = read_yaml(path)
    except YamlFileError as error:
        raise RuleError(f"{path}: {error}") from None
    if not isinstance(content, list):
        raise RuleError(f"{path}: expected a list of entries with {', '.join(_KEYS)}, found {type(content).__name__}")
    rules: dict[tuple[str, str], UnwrittenMemory] = {}
    for number, entry in enumerate(content, start=1):
        place = f"{path}: entry {number}"
        _check(entry, place)
        outputs, inputs = (frozenset(map(str, entry.get(key, ()))) for key in ("outputs", "inputs"))
        frameworks = entry.get("frameworks", [_ANY_FRAMEWORK])
        for api, framework in product(entry["apis"], frameworks):
            rules[framework, api.lower()] = UnwrittenMemory(outputs, inputs)
    return rules


def _check(entry: Any, place: str) -> None:
    if not isinstance(entry, dict):
        raise RuleError(f"{place}: expected the keys {', '.join(_KEYS)}, found {abbreviated(entry)}")
    for key, value in entry.items():
        if key not in _KEYS:
            raise RuleError(f"{place}: unknown key {abbreviated(key)}; known are {', '.join(_KEYS)}")
        wanted = (str,) if key in ("apis", "frameworks") else (str, int)
        if not isinstance(value, list) or not all(isinstance(item, wanted) for item in value):
            words = "names" if wanted == (str,) else "positions and names of keywords"
            raise RuleError(f"{place}: key {abbreviated(key)}: expected a list of {words}, found {abbreviated(value)}")
    if not entry.get("apis") or not (entry.get("inputs") or entry.get("outputs")):
        raise RuleError(f"{place}: needs apis, and inputs or outputs")
