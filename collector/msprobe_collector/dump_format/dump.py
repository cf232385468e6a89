"""A dump.json on disk: its header, the names of its records, and each record when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.construct import read_construct
from msprobe_collector.dump_format.errors import DumpError
from msprobe_collector.dump_format.files import read_plain
from msprobe_collector.dump_format.names import Direction
from msprobe_collector.dump_format.nonfinite import quote_nonfinite
from msprobe_collector.dump_format.records import (
    BackwardRecord,
    ForwardRecord,
    Record,
    decode_backward,
    decode_forward,
    decode_record,
)
from msprobe_collector.dump_format.stacks import CallStacks
from msprobe_collector.dump_format.tensors import TensorFolder
from msprobe_collector.dump_format.truncated_files import repaired

TASKS = frozenset(
    {"statistics", "tensor", "structure", "overflow_check", "exception_dump", "acc_check", "diff_check", "nan_check"}
)
FRAMEWORKS = frozenset({"mindspore", "mindtorch", "pytorch"})
_SHAPE = re.compile(rb'"shape"\s*:\s*\[([^\]]*)\]')
_NUMBER = re.compile(rb"\d{1,15}")
_HALF = re.compile(rb'"dtype"\s*:\s*"(?:torch\.)?b?float16"', re.IGNORECASE)


class _File(msgspec.Struct):
    """Top level of dump.json. Records stay undecoded slices of the text: 100,000 of them cost 10 MB, not 1 GB."""

    data: dict[str, msgspec.Raw]
    task: str
    framework: str | None = None
    level: str | None = None
    dump_data_dir: str | None = None


class Dump:
    """One dump.json, read once and decoded record by record.

    Attributes:
        path: the file.
        task: `statistics`, `tensor`, ... as recorded.
        framework: `mindspore`, `mindtorch` or `pytorch`; `mindspore` when the dump does not say.
        level: `L0`, `L1`, `mix`, ..., or None when the dump does not say.
        problem: one line on what the file lacks, as after a killed training; "" when it is whole.
    """

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file. `data_dirs` are folders outside the dump in which its tensors may be.

        Raises:
            DumpError: it cannot be read, is not JSON, or has not the form of a dump.
        """
        self.path = path
        text = _read(path)
        content, self.problem = _parse(text, path)
        self.task = _one_of(content.task, TASKS, "task", path)
        self.framework = _one_of(content.framework or "mindspore", FRAMEWORKS, "framework", path)
        self.level = content.level
        self._dump_data_dir = content.dump_data_dir
        self._data_dirs = tuple(data_dirs)
        self._records = content.data
        self.holds_real_data = content.task == "tensor" or b'"data_name"' in text

    @property
    def record_names(self) -> list[str]:
        """Names of all records, in the order of the file."""
        return list(self._records)

    def __contains__(self, record_name: str) -> bool:
        return record_name in self._records

    def forward(self, call: str) -> ForwardRecord | None:
        """The forward record of the API call named `call`, or None. Raises DumpError for a malformed one."""
        name = f"{call}.forward"
        encoded = self._decode(name, "forward")
        return None if encoded is None else decode_forward(encoded, file=str(self.path), record=name)

    def backward(self, call: str) -> BackwardRecord | None:
        """The backward record of the API call named `call`, or None. Raises DumpError for a malformed one."""
        name = f"{call}.backward"
        encoded = self._decode(name, "backward")
        return None if encoded is None else decode_backward(encoded, file=str(self.path), record=name)

    def shapes(self, record_name: str) -> list[tuple[int, ...]]:
        """Shapes of the tensors of a record in their order, found in its text: nothing is decoded or checked."""
        raw = self._records.get(record_name)
        if raw is None:
            return []
        return [tuple(int(size) for size in _NUMBER.findall(text)) for text in _SHAPE.findall(memoryview(raw))]

    def holds_half(self, record_name: str) -> bool:
        """Whether a record has tensors of float16 or bfloat16, found in its text as `shapes` are."""
        raw = self._records.get(record_name)
        return raw is not None and _HALF.search(memoryview(raw)) is not None

    @cached_property
    def stacks(self) -> CallStacks:
        """Call stacks of the stack.json beside the dump; empty when there is none or it cannot be read."""
        return CallStacks.beside(self.path)

    @cached_property
    def tensors(self) -> TensorFolder:
        """The tensor files: in the recorded `dump_data_dir` where that may be read, else beside dump.json."""
        return TensorFolder.of_dump(self.path.parent, self._dump_data_dir, self._data_dirs)

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """The Cell that each record ran in; empty for level L1 and where construct.json is missing or broken."""
        try:
            return read_construct(self.path.parent / "construct.json")
        except DumpError:
            return {}

    @cached_property
    def orders(self) -> dict[str, int]:
        """The place of each record in the file, from 0, which is that in the execution."""
        return {name: order for order, name in enumerate(self._records)}

    def ancestors(self, name: str) -> tuple[str, ...]:
        """Records of the Cells that the record `name` ran in, outermost first; empty where construct.json has none."""
        found: list[str] = []
        parent = self.parents.get(name)
        while parent is not None and parent not in found:
            found.append(parent)
            parent = self.parents.get(parent)
        return tuple(reversed(found))

    def record(self, name: str) -> Record:
        """The record of any kind named `name`; its malformed values stand in it as such.

        Raises:
            DumpError: it cannot be decoded.
        """
        return decode_record(self._decoded(name, "record"), file=str(self.path), record=name)

    def _decode(self, name: str, direction: Direction) -> object | None:
        return self._decoded(name, f"{direction} record") if name in self._records else None

    def _decoded(self, name: str, what: str) -> Any:
        try:
            return msgspec.json.decode(self._records[name])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise DumpError(f"the {what} cannot be decoded: {error}", file=str(self.path), record=name) from None


def _read(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", file=str(path)) from None


def _parse(text: bytes, path: Path) -> tuple[_File, str]:
    quoted = quote_nonfinite(text)
    try:
        return msgspec.json.decode(quoted, type=_File), ""
    except msgspec.ValidationError as error:
        raise DumpError(f"is not a dump.json of an API dump: {error}", file=str(path)) from None
    except msgspec.DecodeError as error:
        if (recovered := _recovered(quoted)) is not None:
            count = len(recovered.data)
            return recovered, f"{path} was truncated while it was written: its first {count} records are read"
        cut = " (incomplete file?)" if "truncated" in str(error) else ""
        raise DumpError(f"is not valid JSON: {error}{cut}; dump the step again", file=str(path)) from None
    except RecursionError:
        raise DumpError("is nested too deeply to be a dump", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise DumpError(f"is not UTF-8 text: {error}", file=str(path)) from None


def _recovered(quoted: bytes) -> _File | None:
    """What is whole of a file that lacks its end, or None when nothing is or its fault is another."""
    text = repaired(quoted, brackets=2)
    try:
        return None if text is None else msgspec.json.decode(text, type=_File)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _one_of(value: str, known: frozenset[str], field: str, path: Path) -> str:
    if value not in known:
        raise DumpError(f"unknown {field} {value!r}; known are {', '.join(sorted(known))}", file=str(path), field=field)
    return value
