"""Machine rows: one JSON object per verdict, streamed. The CSV pair and the page are views of the same rows.

An object holds the fields of `VerdictRow` and `name`, the name of the API call as the CSV pair has it. A figure that is
NaN or infinite stands as the string "nan", "inf" or "-inf", since JSON has no word for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pytest_msprobe.reports.row import VerdictRow

_FIGURES = ("cosine", "max_abs", "max_rel", "max_ulp")


class JsonLines:
    """A file of verdict rows, flushed row by row.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        """Create the file. Raises OSError; FileExistsError for one that is there already, which is never written to."""
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        self.path = path
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, name: str, row: VerdictRow) -> None:
        """Add one row. Raises OSError."""
        encoded = {"name": name, **row.to_wire()}
        encoded["outputs"] = [{**output, **_in_words(output)} for output in encoded["outputs"]]
        self._file.write(msgspec.json.encode(encoded) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_json_lines(path: Path) -> Iterator[tuple[str, VerdictRow]]:
    """(name, row) of every complete line of a file that `JsonLines` wrote; a torn last line is left out.

    Raises:
        ValueError: a line is no verdict row; the text names file and line.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            encoded = msgspec.json.decode(line, type=dict[str, Any])
            name = encoded.pop("name")
            encoded["outputs"] = [{**output, **_in_numbers(output)} for output in encoded["outputs"]]
            yield name, VerdictRow.from_wire(encoded)
        except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: line {number} is no verdict row: {error}") from None


def _in_words(output: dict[str, Any]) -> dict[str, Any]:
    found = ((key, output[key]) for key in _FIGURES)
    return {key: value if value is None or math.isfinite(value) else str(value) for key, value in found}


def _in_numbers(output: dict[str, Any]) -> dict[str, Any]:
    return {key: float(output[key]) if isinstance(output[key], str) else output[key] for key in _FIGURES}
