"""An interrupted run's CSV pair: what of it is complete, and the pair made ready to be continued."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.dump_format import DIRECTIONS, Direction
from pytest_msprobe.reports.csv_pair import DETAILS_COLUMNS, RESULT_COLUMNS

#: In the message of a call whose process died; the second phrase says that it happened before, and once more is enough.
LOST = "died in this check"
LOST_AGAIN = "as in the run before"
_STEM = "accuracy_checking_result_"


class ResumeError(ValueError):
    """Why a file cannot be resumed, as one sentence."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A pair that can be continued.

    Attributes:
        result, details: its files, which hold complete calls only.
        done: names of these calls.
        lost: names of calls in which a process died once: they are tried once more.
    """

    result: Path
    details: Path
    done: frozenset[str]
    lost: frozenset[str]


def continue_pair(result: Path, directions_of: Callable[[str], Sequence[Direction] | None]) -> EarlierRun:
    """Read the pair of `result`, drop what is torn or incomplete from both files, and say what is done.

    `directions_of` gives the directions that the dump holds for a call's name, or None for a name it does not have.
    A call is done when each of them has a verdict. Both files are replaced as a whole, or stay as they were.

    Raises:
        ResumeError: the file is missing, no result file, or of another dump.
        OSError: the pair cannot be written.
    """
    if not result.name.startswith(_STEM) or result.suffix != ".csv":
        raise ResumeError(f"is no {_STEM}*.csv file")
    details = result.with_name(result.name.replace("result", "details", 1))
    rows = _rows(result, RESULT_COLUMNS)
    known = {name: directions_of(name) for name in (row[0] for row in rows)}
    stranger = next((name for name, directions in known.items() if directions is None), None)
    if stranger is not None:
        raise ResumeError(f"holds a row for {stranger}, which no dump of this run has; it is of another dump")
    done = {row[0]: row for row in rows if _is_complete(row, known[row[0]] or ())}
    lost = frozenset(row[0] for row in rows if LOST in row[3] and row[0] not in done)
    kept = [row for row in (_rows(details, DETAILS_COLUMNS) if details.exists() else []) if _call_of(row[0]) in done]
    _replace(details, DETAILS_COLUMNS, list({row[0]: row for row in kept}.values()))
    _replace(result, RESULT_COLUMNS, list(done.values()))
    return EarlierRun(result, details, frozenset(done), lost)


def _is_complete(row: list[str], directions: Sequence[Direction]) -> bool:
    verdicts = dict(zip(DIRECTIONS, row[1:3]))
    if directions and not all(verdicts[direction] for direction in directions):
        return False
    return LOST not in row[3] or LOST_AGAIN in row[3]


def _call_of(output: str) -> str:
    """`Mint.add.0` of `Mint.add.0.forward.output.0`; a name without direction is its own."""
    for direction in DIRECTIONS:
        call, found, _ = output.rpartition(f".{direction}")
        if found:
            return call
    return output


def _rows(path: Path, columns: Sequence[str]) -> list[list[str]]:
    """Complete records of a CSV file; what stands behind the last complete one is left out."""
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise ResumeError(f"cannot be read: {error.strerror}") from None
    records = list(csv.reader(io.StringIO(text, newline="")))
    if not records or tuple(records[0]) != tuple(columns):
        raise ResumeError(f"{path.name} does not have the columns {', '.join(columns)}")
    if not text.endswith("\r\n") or text.count('"') % 2:
        records.pop()
    return [record for record in records[1:] if len(record) == len(columns)]


def _replace(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with open(descriptor, "w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
