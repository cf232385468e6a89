"""A JSON object on disk that grows entry by entry and is whole after each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_DECODER = json.JSONDecoder()


class GrowingFile:
    """The JSON object at `path`: `head` fields, then entries one per line.

    Every entry is one write, which takes the closing brackets along: a process that is killed leaves a file that can be
    read, and one that is killed inside a write leaves one that lacks its tail. Nothing is kept in memory. It has one
    user at a time: whoever shares it among processes holds a lock from `reopen` to `close`.

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
        """Write the file without entries, in place of one that stood there. Raises OSError; no file is left then.

        It gets its name when it is whole: neither a full disk nor a kill leaves an empty one.
        """
        if self._descriptor >= 0:
            return
        partial = self.path.with_name(f"{self.path.name}.partial")
        self._descriptor = _opened(partial, os.O_TRUNC)
        self._end = len(self._head)
        try:
            self._write(self._head + self._tail, at=0)
            os.replace(partial, self.path)
        except OSError:
            self._shut()
            with suppress(OSError):
                partial.unlink()
            raise

    def reopen(self) -> frozenset[str]:
        """Go on after the last whole entry of the file that stands at `path`, or create it; the keys of its entries.

        The file was written here with the same head; what a kill cut off of its end is dropped. Raises OSError.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        if not content.startswith(self._head):
            self.create()
            return frozenset()
        self._descriptor = _opened(self.path)
        if content.endswith(self._tail) and len(content) >= len(self._head) + len(self._tail):
            self._end = len(content) - len(self._tail)
        else:
            # An entry holds no line breaks, so that these two characters stand only between entries.
            self._end = max(len(self._head), content.rfind(b",\n", len(self._head)))
            self._mend()
        lines = content[len(self._head) : self._end].decode().split("\n")
        return frozenset(_DECODER.raw_decode(line)[0] for line in lines if line)

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
            self._shut()

    def _shut(self) -> None:
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


def _opened(path: Path, *flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | sum(flags) | getattr(os, "O_CLOEXEC", 0), 0o640)


def quoted(name: str) -> str:
    """`name` as a JSON string; quicker than json.dumps for the names that records have."""
    if name.isascii() and name.isprintable() and '"' not in name and "\\" not in name:
        return f'"{name}"'
    return json.dumps(name)
