"""Machine rows: one JSON object per verdict, streamed. What other files hold can be made from these rows again.

An object holds the fields of `VerdictRow`, the name of the group as the other reports have it (`name`), and
`direction`; each of its `outputs` holds its figures beside its other fields. A figure that is NaN or infinite stands as
the string "nan", "inf" or "-inf", since JSON has no word for it. `attachment` is the suite's own.
"""

from __future__ import annotations

import errno
import math
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from pytest_msprobe.answers import Answer
from pytest_msprobe.reports.baseline import BaselineCounts
from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.terminal import VerdictCounts
from pytest_msprobe.suites.contract import ANSWER, COVERS, KNOWN_FAULTS, PARTIAL, RUN_FAULTS, Suite
from pytest_msprobe.verdicts import Change, OutputRow, VerdictRow

_OUTPUT_FIELDS = frozenset(field.name for field in fields(OutputRow))
#: Four hexadecimal digits: half of a character in UTF-16, or a whole one.
_UNIT = re.compile("[0-9a-f]{4}")
_FIRST_LINE = b'{"name":'


class JsonLines:
    """A file of verdict rows, flushed row by row.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, *, appends: bool = False) -> None:
        """Create the file, in place of one that this tool wrote, or append to it.

        Raises:
            OSError: it cannot be written; FileExistsError when the file there holds something else.
        """
        if not appends:
            check_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if appends else os.O_TRUNC), 0o666)
        self.path = path
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, name: str, row: VerdictRow) -> None:
        """Add one row. Raises OSError."""
        self._file.write(encode_row(name, row))
        self._file.flush()

    def append_corrections(self, levels: Mapping[tuple[str, str, str], str], changes: Mapping[str, Change]) -> None:
        """Add rows once more, with what the whole run says of them: of rows on one record the last one counts.

        Args:
            levels: property `level` by (dump, call, part).
            changes: what items are after all, by their node ids.

        Raises OSError.
        """
        if not (levels or changes):
            return
        decode = msgspec.json.Decoder(_Key).decode
        last = {}
        for _, line in _whole_lines(self.path):
            record = decode(line)
            if (key := (record.dump, record.call, record.part)) in levels or record.node_id in changes:
                last[key] = line
        for key, line in last.items():
            name, row = _decoded(line, str(self.path))
            if (change := changes.get(row.node_id)) is not None:
                row = replace(row, status="error", outcome=change.after, message=change.text)
            self.write(name, row.with_property("level", levels[key]) if key in levels else row)

    def attach(
        self,
        answer: Answer | None,
        faults: Sequence[str] = (),
        expected: Collection[str] = (),
        partial: Sequence[str] = (),
    ) -> None:
        """Put what the run amounts to into the attachment of the last row: its answer, and its faults as a whole.

        A baseline has the faults `expected`; `partial` says why rows are missing. Raises OSError.
        """
        every: dict[str, Any] = {
            ANSWER: answer and answer.to_wire(),
            RUN_FAULTS: list(faults),
            KNOWN_FAULTS: [fault for fault in faults if fault in expected],
            PARTIAL: list(partial),
        }
        attachment = {key: value for key, value in every.items() if value}
        start, last, covered = 0, b"", Covered()
        for _, line in _whole_lines(self.path) if attachment else ():
            start, last = start + len(last), line
            covered.add(msgspec.json.decode(line, type=_Key))
        if last:
            if answer is not None:
                attachment[COVERS] = covered.number
            name, row = _decoded(last, str(self.path))
            longer = encode_row(name, replace(row, attachment={**(row.attachment or {}), **attachment}))
            _replace(self.path, start, last, longer)
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _replace(path: Path, start: int, before: bytes, after: bytes) -> None:
    """Write a line in place of the last one, which stays where there is no room. Raises OSError."""
    with path.open("r+b", buffering=0) as file:
        file.seek(start)
        rest = memoryview(after)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.seek(start)
            file.write(before)
            file.truncate(start + len(before))
            raise
        file.truncate(start + len(after))


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file at `path` that this plugin did not write.

    Raises:
        FileExistsError: the file holds something else than verdict rows.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        beginning = file.read(len(_FIRST_LINE))
    if not _FIRST_LINE.startswith(beginning):  # a full disk may have cut it short
        raise FileExistsError(f"{path} holds something else than rows of --msprobe-jsonl, and is not replaced")


def encode_row(name: str, row: VerdictRow) -> bytes:
    """The line for one row."""
    encoded = {"name": name, **row.to_wire(), "direction": row.direction}
    for output in encoded["outputs"]:
        for name_of_figure, value in output.pop("figures").items():
            output[name_of_figure] = value if value is None or math.isfinite(value) else str(value)
    try:
        line = msgspec.json.encode(encoded)
    except UnicodeEncodeError:
        line = msgspec.json.encode(encodable(encoded))
    return _unprintable_escaped(line) + b"\n"


def read_json_lines(path: Path) -> Iterator[tuple[str, VerdictRow]]:
    """(name, row) of every complete line of a file that `JsonLines` wrote; a truncated last line is left out.

    Raises:
        ValueError: a line is not a verdict row; the text names file and line.
        OSError: it cannot be read.
    """
    for number, line in _whole_lines(path):
        yield _decoded(line, f"{path}: line {number}")


class Covered:
    """Which rows an answer was made from, and how they were judged, in any order; of rows on one record the last."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], str] = {}

    def add(self, row: _Key | VerdictRow) -> None:
        """Take one row."""
        self._rows[row.dump, row.call, row.part or row.direction or ""] = row.outcome

    @property
    def number(self) -> int:
        """Another one for other rows."""
        rows = sorted(f"{key} {outcome}" for key, outcome in self._rows.items())
        return zlib.crc32("\n".join(rows).encode("utf-8", "backslashreplace"))


def answer_with(row: VerdictRow) -> tuple[int, Answer] | None:
    """The number of the rows, as `Covered` has it, and the answer that was made from them; None without one."""
    if row.attachment is None or ANSWER not in row.attachment:
        return None
    answer = Answer.from_wire(row.attachment[ANSWER])
    findings = tuple(structs.replace(finding, figures=_numbers(finding.figures)) for finding in answer.findings)
    return int(row.attachment[COVERS]), structs.replace(answer, findings=findings)


def _numbers(figures: Mapping[str, float | int | str]) -> dict[str, float | int | str]:
    """Figures with the words that stand for NaN and infinities as numbers."""
    words = {name: float(value) for name, value in figures.items() if value in ("nan", "inf", "-inf")}
    return {**figures, **words}


class _Key(msgspec.Struct):
    """What tells a row from the others: the record that it is on."""

    dump: str
    call: str
    part: str = ""
    direction: str | None = None
    suite: str = ""
    node_id: str = ""
    outcome: str = ""


def read_latest_rows(paths: Sequence[Path]) -> Iterator[VerdictRow]:
    """The rows of several files; of rows on one record only the last, in the order of the files.

    Raises:
        ValueError: a line is not a verdict row; the text names file and line.
        OSError: a file cannot be read.
    """
    decode = msgspec.json.Decoder(_Key).decode
    last: dict[tuple[str, ...], tuple[int, int]] = {}
    for index, path in enumerate(paths):
        for number, line in _whole_lines(path):
            try:
                key = decode(line)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}: line {number} is not a verdict row: {error}") from None
            last[key.suite, key.dump, key.call, key.part or key.direction or ""] = index, number
    kept = set(last.values())
    for index, path in enumerate(paths):
        for number, line in _whole_lines(path):
            if (index, number) in kept:
                yield _decoded(line, f"{path}: line {number}")[1]


def why_partial(path: Path) -> tuple[str, ...]:
    """Why the file lacks rows, as its last row says; a run that was completed later says it no more.

    Raises:
        ValueError: that line is not a verdict row.
        OSError: it cannot be read.
    """
    last = b""
    for _, line in _whole_lines(path):
        last = line
    attachment = _decoded(last, str(path))[1].attachment if last else None
    return tuple(map(str, (attachment or {}).get(PARTIAL, ())))


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from ((number, line) for number, line in enumerate(file, start=1) if line.endswith(b"\n"))


def _decoded(line: bytes, where: str) -> tuple[str, VerdictRow]:
    try:
        encoded = msgspec.json.decode(line, type=dict[str, Any])
        name = encoded.pop("name")
        encoded["outputs"] = list(map(_nested, encoded["outputs"]))
        return name, VerdictRow.from_wire(encoded)
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not a verdict row: {error}") from None


def _nested(output: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {"figures": {}}
    for key, value in output.items():
        if key in _OUTPUT_FIELDS:
            nested[key] = value
        else:
            nested["figures"][key] = float(value) if isinstance(value, str) else value
    return nested


def encodable(value: Any) -> Any:
    """`value` with lone surrogates, which paths and names of a dump may hold and UTF-8 has not, written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(encodable, value))
    return value


def _unprintable_escaped(line: bytes) -> bytes:
    r"""The same JSON, with what a terminal would obey written as `\u009b`."""
    if line.isascii() and b"\x7f" not in line:
        return line
    text = line.decode("utf-8")
    for character in sorted(set(text)):
        if not character.isprintable():
            text = text.replace(character, _UNIT.sub(r"\\u\g<0>", character.encode("utf-16-be").hex()))
    return text.encode("utf-8")


MERGED_NAME = "merged.jsonl"
#: The suite whose rows also make a CSV pair.
_WITH_PAIR = "precheck"

_Rows = dict[tuple[str, str], VerdictRow]


@dataclass(slots=True)
class Merged:
    """What became of the rows.

    Attributes:
        tallies: of each suite that has rows.
        known: what became of failures that a baseline knows.
        files: (what it is, path) of each file.
    """

    tallies: list[VerdictCounts] = field(default_factory=list)
    known: BaselineCounts = field(default_factory=BaselineCounts)
    files: list[tuple[str, Path | None]] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether a row is a failure."""
        return any(map(attrgetter("failed"), self.tallies))

    def lines(self) -> list[str]:
        """The summary."""
        lines = []
        for tally in self.tallies:
            lines += [*map(attrgetter("text"), tally.lines()), ""]
        if self.known:
            lines += [*self.known.lines(), ""]
        return lines + [f"{name}: {path}" for name, path in self.files]


def merge_runs(sources: Sequence[Path], folder: Path, suite_of: Callable[[str], type[Suite] | None]) -> Merged:
    """Write the rows of all `sources` into `folder` as one JSONL file, and those of the pre-check as a CSV pair.

    A source is a JSONL file of `--msprobe-jsonl`, or a folder with some. Of rows for the same check the last counts, in
    the order of the sources: a later run replaces what an earlier one said. `suite_of` gives a suite by its name.

    Raises:
        ValueError: a source is missing, or holds something else.
        OSError: `folder` cannot be written, or has merged rows already.
    """
    suites: dict[str, _Rows] = {}
    for path in _files(sources):
        for name, row in read_json_lines(path):
            suites.setdefault(row.suite, {})[name, row.part] = row
    if (folder / MERGED_NAME).exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder / MERGED_NAME))
    merged = Merged()
    lines, pair = JsonLines(folder / MERGED_NAME), CsvPair(folder)
    try:
        for suite, rows in suites.items():
            tally = VerdictCounts(suite=suite_of(suite) or Suite)
            merged.tallies.append(tally)
            for name, rows_of_call in _by_call(rows).items():
                for row in rows_of_call:
                    lines.write(name, row)
                    tally.add(name, row)
                    merged.known.add(name, row)
                if suite == _WITH_PAIR:
                    pair.write(name, rows_of_call)
    finally:
        lines.close()
        pair.close()
    if pair.result is not None:
        merged.files += [("results", pair.result), ("details", pair.details)]
    merged.files.append(("rows", lines.path))
    return merged


def _by_call(rows: _Rows) -> dict[str, list[VerdictRow]]:
    calls: dict[str, list[VerdictRow]] = {}
    for (name, _), row in rows.items():
        calls.setdefault(name, []).append(row)
    for rows_of_call in calls.values():
        rows_of_call.sort(key=lambda row: row.part == "backward")
    return calls


def _files(sources: Sequence[Path]) -> list[Path]:
    listed: list[Path] = []
    for source in sources:
        files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
        if not files:
            raise ValueError(f"{source}: this folder holds no .jsonl file; write them with --msprobe-jsonl=FILE")
        if not files[0].is_file():
            raise ValueError(f"{source}: there is no such file or folder")
        listed += files
    return listed
