"""A JSON object on disk that grows entry by entry and is whole after each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


class GrowingFile:
    """The JSON object at `path`: `head` fields, then entries one per line.

    Every entry is one write, which takes the closing brackets along: a process that is killed leaves a file that can be
    read, and one that is killed inside a write leaves one that lacks its tail. Nothing is kept in memory.

    Attributes:
        path: the file; it is created with the first entry, or by `create`.
    """

    def __init__(
        self,
        path: Path,
        *,
        head: Mapping[str, object] | None = None,
        entries_key: str | None = None,
        entries_per_write: int = 1,
    ) -> None:
        """Prepare the file.

        Args:
            path: where it will stand.
            head: fields before the entries.
            entries_key: field that holds the entries; None when the object itself does.
            entries_per_write: entries that a kill may cost, to write less often.
        """
        self.path = path
        self._opening, self._tail = (
            ("", b"\n}\n") if entries_key is None else (f"{json.dumps(entries_key)}: {{", b"\n}\n}\n")
        )
        self._head = self._head_of(head or {})
        self._descriptor = -1
        self._end = 0
        self._entries_per_write = entries_per_write
        self._waiting: list[str] = []

    def create(self) -> None:
        """Write the file without entries, in place of one that stood there. Raises OSError."""
        if self._descriptor < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = os.open(self.path, flags, 0o640)
            self._end = len(self._head)
            self._write(self._head + self._tail, at=0)

    def change(self, path: Path, head: Mapping[str, object]) -> None:
        """The file has been moved to `path`: write another `head` where it stands. Raises OSError.

        A head longer than the one before has no room and is given up: the old one stays.
        """
        self.path = path
        missing = len(self._head) - len(self._head_of(head))
        if self._descriptor >= 0 and missing >= 0:
            self._head = self._head_of(head, padding=" " * missing)
            self._write(self._head, at=0)

    def add(self, entry: str) -> None:
        """Append `entry`, the text of a key and its value. Raises OSError."""
        self._waiting.append(entry)
        if len(self._waiting) >= self._entries_per_write:
            self.flush()

    def flush(self) -> None:
        """Write the entries that wait. Raises OSError; they are given up then, and the file is whole without them."""
        if not self._waiting:
            return
        if self._descriptor < 0:
            self.create()
        text = ",\n".join(self._waiting).encode()
        self._waiting.clear()
        separator = b"\n" if self._end == len(self._head) else b",\n"
        try:
            self._write(separator + text + self._tail, at=self._end)
        except OSError:
            self._mend()
            raise
        self._end += len(separator) + len(text)

    def close(self) -> None:
        """Write what waits and close the file; it stays whole. Raises OSError."""
        try:
            self.flush()
        finally:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _mend(self) -> None:
        """Put the closing brackets back where a write that failed half-way ran over them."""
        with suppress(OSError):
            self._write(self._tail, at=self._end)
            os.ftruncate(self._descriptor, self._end + len(self._tail))

    def _head_of(self, head: Mapping[str, object], *, padding: str = "") -> bytes:
        fields = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
        return f"{{{fields}{padding}{self._opening}".encode()

    def _write(self, content: bytes, *, at: int) -> None:
        view = memoryview(content)
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written


def quoted(name: str) -> str:
    """`name` as a JSON string; quicker than json.dumps for the names that records have."""
    if name.isascii() and name.isprintable() and '"' not in name and "\\" not in name:
        return f'"{name}"'
    return json.dumps(name)
