"""An interrupted run's file: what of it is complete, and the file made ready to be continued."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from msprobe_collector.dump_format import DIRECTIONS
from msprobe_collector.dump_format.values import counted
from msprobe_collector.dump_format.yaml_files import read_plain
from pytest_msprobe.reports.csv_pair import DETAILS_COLUMNS, RESULT_COLUMNS, STATUSES, csv_rows, neutral, original
from pytest_msprobe.reports.jsonl import check_replaceable, encode_row, read_json_lines
from pytest_msprobe.support import write_whole
from pytest_msprobe.verdicts import OUTCOMES, VerdictRow

#: In the message of a call whose process died; the second phrase says that it happened before, and once more is enough.
LOST = "died in this check"
LOST_AGAIN = "as in the run before"
_STEM = "accuracy_checking_result_"

#: The parts of a group that the run's files hold, by its name in reports; None for a name that they do not have.
PartsOf = Callable[[str], Sequence[str] | None]


class ResumeError(ValueError):
    """Why a file cannot be resumed, as one line."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that can be continued.

    Attributes:
        rows: (name, row) of what it has done; of a CSV pair, without outputs.
        lost: names of groups in which a process died once: they are tried once more.
        jsonl: its JSONL file, which holds complete groups only; None for a CSV pair.
        pair: its CSV files, which hold complete groups only, as (details, result); None for a JSONL file.
        note: what was wrong with its files, as one line.
    """

    rows: tuple[tuple[str, VerdictRow], ...]
    lost: frozenset[str]
    jsonl: Path | None = None
    pair: tuple[Path, Path] | None = None
    note: str = ""

    @property
    def done(self) -> frozenset[str]:
        """Names of the groups that need not be judged again."""
        return frozenset(dict(self.rows))


def resume(file: Path, suite: str, parts_of: PartsOf) -> EarlierRun:
    """Read what an interrupted run of `suite` wrote, and drop from its files what is truncated or incomplete.

    A group is done when each of its records has a verdict. Files are replaced as a whole, or stay as they were.

    Raises:
        ResumeError: the file is missing, of another kind, or of another dump.
        OSError: it cannot be written.
    """
    if file.suffix == ".jsonl" or suite != "precheck":
        return _resume_rows(file, suite, parts_of)
    return _resume_pair(file, parts_of)


def _resume_rows(file: Path, suite: str, parts_of: PartsOf) -> EarlierRun:
    groups: dict[str, dict[str, VerdictRow]] = {}
    try:
        check_replaceable(file)
        for name, row in read_json_lines(file):
            if row.suite not in (suite, ""):
                raise ResumeError(f"holds verdicts of the suite {row.suite}, and this run is one of {suite}")
            groups.setdefault(name, {})[row.part] = row
    except ResumeError:
        raise
    except FileExistsError:
        raise ResumeError("is not a file of --msprobe-jsonl") from None
    except OSError as error:
        raise ResumeError(f"cannot be read: {error.strerror}; name the --msprobe-jsonl file of that run") from None
    except ValueError as error:
        raise ResumeError(f"is not a file of --msprobe-jsonl: {error}") from None
    parts = _parts_of_groups(groups, parts_of)
    kept: list[tuple[str, VerdictRow]] = []
    lost: set[str] = set()
    for name, rows in groups.items():
        if all(part in rows and not _is_to_be_tried(rows[part].message) for part in parts[name]):
            kept += [(name, row) for row in rows.values()]
        elif any(LOST in row.message for row in rows.values()):
            lost.add(name)
    _replace(file, b"".join(encode_row(name, row) for name, row in kept))
    return EarlierRun(tuple(kept), frozenset(lost), jsonl=file)


def _is_to_be_tried(message: str) -> bool:
    return LOST in message and LOST_AGAIN not in message


def _parts_of_groups(names: Iterable[str], parts_of: PartsOf) -> dict[str, Sequence[str]]:
    parts_of_groups = {}
    for name in names:
        parts = parts_of(name)
        if parts is None:
            raise ResumeError(f"holds a row for {name}, which no dump of this run has; it belongs to another dump")
        parts_of_groups[name] = parts
    return parts_of_groups


def _resume_pair(result: Path, parts_of: PartsOf) -> EarlierRun:
    if not result.name.startswith(_STEM) or result.suffix != ".csv":
        raise ResumeError(f"is neither a file of --msprobe-jsonl nor an {_STEM}*.csv file")
    details = result.with_name(result.name.replace("result", "details", 1))
    rows = [[original(row[0]), *row[1:]] for row in _csv_rows(result, RESULT_COLUMNS)]
    parts = _parts_of_groups(map(itemgetter(0), rows), parts_of)
    outputs = _csv_rows(details, DETAILS_COLUMNS) if details.exists() else []
    done = {row[0]: row for row in rows if _is_complete(row, parts[row[0]])}
    lost = frozenset(row[0] for row in rows if LOST in row[3] and row[0] not in done)
    without = _without_details(done, parts, list(map(itemgetter(0), outputs)))
    for name in without:
        del done[name]
    kept = {output[0]: output for output in outputs if original(_call_of(output[0])) in done}
    _replace(details, _csv_text(DETAILS_COLUMNS, list(kept.values())))
    _replace(result, _csv_text(RESULT_COLUMNS, [[neutral(row[0]), *row[1:]] for row in done.values()]))
    verdicts: list[tuple[str, VerdictRow]] = []
    for name, row in done.items():
        verdicts += _verdicts(row, parts[name])
    again = counted(len(without), f"API calls of {result.name}", "are")
    note = f"{again} judged again: {details.name} is cut" if without else ""
    return EarlierRun(tuple(verdicts), lost, pair=(details, result), note=note)


def _without_details(
    done: Mapping[str, list[str]], parts: Mapping[str, Sequence[str]], outputs: Sequence[str]
) -> set[str]:
    """Which calls of `done` lack lines among the details `outputs`: where some lack all, the last one may lack some."""
    held = {(original(_call_of(output)), _direction_of(output)) for output in outputs}
    without = {
        name
        for name, row in done.items()
        for direction, verdict in zip(DIRECTIONS, row[1:3])
        if verdict and direction in parts[name] and (name, direction) not in held
    }
    return {*without, original(_call_of(outputs[-1]))} & set(done) if without and outputs else without


def _is_complete(row: list[str], parts: Sequence[str]) -> bool:
    verdicts = zip(DIRECTIONS, row[1:3])
    lacks_verdict = any(direction in parts and not verdict for direction, verdict in verdicts)
    return not lacks_verdict and not _is_to_be_tried(row[3])


def _verdicts(row: list[str], parts: Sequence[str]) -> Iterator[tuple[str, VerdictRow]]:
    """The verdicts of one line of the result file."""
    name, forward, backward, message = row
    words = {"forward": forward, "backward": backward}
    for part in parts:
        status = STATUSES.get(words.get(part, forward), "skip")
        lines = [line for line in message.splitlines() if line.startswith(f"{part}: ")]
        yield (
            name,
            VerdictRow(
                node_id="",
                dump="",
                call=name.rpartition("/")[2],
                part=part,
                recorded=tuple(parts),
                selected=tuple(parts),
                status=status,
                outcome=OUTCOMES[status],
                suite="precheck",
                message=next(iter(lines or message.splitlines()), ""),
            ),
        )


def _direction_of(output: str) -> str:
    """`forward` of `Mint.add.0.forward.output.0`; "" for a name without direction."""
    return output[len(_call_of(output)) + 1 :].partition(".")[0]


def _call_of(output: str) -> str:
    """`Mint.add.0` of `Mint.add.0.forward.output.0`; a name without direction is its own."""
    for direction in DIRECTIONS:
        call, separator, _ = output.rpartition(f".{direction}")
        if separator:
            return call
    return output


def _csv_rows(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Complete records of a CSV file; what stands behind the last complete one is left out."""
    try:
        content = read_plain(path)
    except OSError as error:
        raise ResumeError(f"cannot be read: {error.strerror}") from None
    if _csv_text(columns, []).startswith(content) and path.stat().st_size == len(content):
        return []  # the disk was full before its heading was whole
    text = content.decode("utf-8-sig", errors="replace")
    try:
        records = csv_rows(text)
    except csv.Error as error:
        raise ResumeError(f"is not a CSV file of pytest-msprobe: {error}") from None
    if not records or tuple(records[0]) != tuple(columns):
        raise ResumeError(f"{path.name} does not have the columns {', '.join(columns)}")
    if not text.endswith("\r\n") or text.count('"') % 2:
        records.pop()
    return [record for record in records[1:] if len(record) == len(columns)]


def _csv_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *rows])
    return text.getvalue().encode("utf-8-sig", errors="backslashreplace")


def _replace(path: Path, content: bytes) -> None:
    def write(file: BinaryIO) -> None:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

    write_whole(path, write)
