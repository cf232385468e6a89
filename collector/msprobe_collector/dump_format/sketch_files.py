"""The sketches of a dump: `sketches.bin` beside dump.json, whose records hold the numbers of its rows.

Layout: 256 bytes of JSON text, filled with blanks, which say version, numbers and seed; then rows of 64 float32,
little-endian. A binary file, since 256 bytes in base64 are 344 characters of a text that every reader of dump.json has
to pass over.

In a record the key `sketch` of a tensor holds the number of its row, from 0, or an object: `row`, `exponent` where the
row is of the value divided by 2**exponent, `not_finite` with the numbers of NaN, +Inf and -Inf where there are such.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from msprobe_collector.dump_format.sketches import NUMBERS, SEED, VERSION, Sketch, SketchRow
from msprobe_collector.dump_format.tensors import open_plain
from msprobe_collector.dump_format.values import SKETCH, DumpError, FieldPath, abbreviated
from msprobe_collector.dump_format.writing.files import write_at

if TYPE_CHECKING:
    from msprobe_collector.dump_format.values import TensorValue

SKETCH_FILE = "sketches.bin"
_ROW_BYTES = 4 * NUMBERS
#: What the norm that a sketch estimates may be of the recorded one: values for which chance gives more are unknown.
_MOST_RATIO = 4.0
_HEAD = {"sketches": VERSION, "numbers": NUMBERS, "seed": SEED}


class SketchRows:
    """Writes the rows of one step, many at a time."""

    def __init__(self, path: Path) -> None:
        """Rows for the file at `path`."""
        self.path = path
        self._lock = Lock()
        self._waiting: list[np.ndarray[Any, Any]] = []
        self._written = 0
        self._descriptor = -1
        #: Keys in the record of values by their content.
        self._known: dict[Hashable, str] = {}
        self._is_full = False
        self._error: OSError | None = None

    def create(self) -> None:
        """Make the file, without rows, in place of one that stood there. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(self.path, flags, 0o640)
        write_at(self._descriptor, json.dumps(_HEAD).ljust(_ROW_BYTES - 1).encode() + b"\n", 0)

    def known(self, content: Hashable) -> str:
        """Return what `add` gave for a value of this content, "" for none."""
        return self._known.get(content, "")

    def add(self, row: SketchRow, content: Hashable | None = None) -> str:
        """The key of a row as JSON text, for a value of which `content` is a key; "" where the disk takes no more."""
        with self._lock:
            if self._is_full:
                return ""
            number = self._written + len(self._waiting)
            self._waiting.append(row.numbers)
            # What a kill may cost.
            if len(self._waiting) >= 64:
                self._flush()
        text = str(number)
        if row.exponent or any(row.not_finite):
            text = json.dumps({"row": number, "exponent": row.exponent, "not_finite": row.not_finite})
        text = f', "{SKETCH}": {text}'
        if content is not None:
            self._known[content] = text
        return text

    def flush(self) -> None:
        """Write the rows that wait.

        Raises:
            OSError: the disk refused some since the last call; no more are taken then.
        """
        with self._lock:
            self._flush()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Write what waits and close the file. Raises OSError."""
        try:
            self.flush()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting or self._is_full:
            return
        try:
            rows = np.stack(waiting).astype("<f4").tobytes()
            write_at(self._descriptor, rows, _ROW_BYTES * (1 + self._written))
            self._written += len(waiting)
        except OSError as error:  # rows that come later would get wrong numbers
            self._is_full, self._error = True, error


class SketchFile:
    """The rows of a dump, read where they are asked for.

    Attributes:
        path: the file.
        numbers: its rows, float32 (rows, 64), mapped into memory.
    """

    def __init__(self, path: Path) -> None:
        """Look at the header of the file at `path`.

        Raises:
            DumpError: it is not there, cannot be read, or holds sketches that cannot be used.
        """
        self.path = path
        try:
            with open_plain(path) as file:
                head = file.read(_ROW_BYTES)
                rows = max(0, os.fstat(file.fileno()).st_size // _ROW_BYTES - 1)
                _check_head(head, path)
                self.numbers: np.ndarray[Any, Any] = np.zeros((0, NUMBERS), np.float32)
                if rows:
                    self.numbers = np.asarray(np.memmap(file, "<f4", "r", _ROW_BYTES, (rows, NUMBERS)))
        except OSError as error:
            problem = f"cannot be read ({error.strerror}), and the records name sketches in it; collect the step again"
            raise DumpError(problem, file=str(path)) from None

    def sketch(self, value: TensorValue, place: FieldPath) -> Sketch | None:
        """The sketch of the tensor `value`, which stands at `place`; None where the dump has none of it.

        Raises:
            DumpError: its row is not there, or contradicts the statistics.
        """
        if (reference := value.sketch) is None:
            return None
        if reference.problem:
            raise place.fault(reference.problem, SKETCH)
        if reference.row >= (rows := len(self.numbers)):
            problem = f"row {reference.row} is not in {self.path}, which holds {rows} rows (was the training killed?)"
            raise place.fault(problem, SKETCH)
        row = SketchRow(self.numbers[reference.row], reference.exponent, reference.not_finite)
        sketch = Sketch.of_row(row, value.shape)
        if problem := _contradiction(sketch, value):
            raise place.fault(f"row {reference.row} of {self.path} contradicts the statistics: {problem}", SKETCH)
        return sketch


def _check_head(head: bytes, path: Path) -> None:
    try:
        head_facts = json.loads(head)
    except (ValueError, RecursionError):
        head_facts = None
    if not isinstance(head_facts, dict) or "sketches" not in head_facts or len(head) != _ROW_BYTES:
        raise DumpError("is not a file of sketches; collect the step again", file=str(path))
    for key, wanted in _HEAD.items():
        if head_facts.get(key) != wanted:
            problem = f"sketches with {key} {abbreviated(head_facts.get(key))} cannot be used here, only {wanted}"
            raise DumpError(f"{problem}; collect both sides with one version of the collector", file=str(path))


def _contradiction(sketch: Sketch, value: TensorValue) -> str:
    """Why a sketch is not one of this tensor; "" where it may be."""
    nan, above, below = sketch.not_finite
    if (nan, above + below) != (value.nan_count or 0, value.inf_count or 0):
        return f"{nan} NaN and {above + below} Inf, where these are {value.nan_count or 0} and {value.inf_count or 0}"
    if not np.isfinite(sketch.counters).all():
        return "it holds NaN or Inf"
    norm, estimate = value.norm, sketch.norm
    if nan or above or below or isinstance(norm, bool) or norm is None or not math.isfinite(norm):
        return ""
    if not abs(norm) / _MOST_RATIO <= estimate <= abs(norm) * _MOST_RATIO:
        return f"its norm is about {estimate:.3g}, and Norm {norm:.3g}"
    return ""
