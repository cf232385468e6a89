"""A JSON object on disk that grows by entries and is whole after each: a killed run leaves a file that can be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO


class GrowingObject:
    """The object between `head` and `tail` in the file at `path`, one entry per line. Its user holds a lock."""

    def __init__(self, path: Path, head: str, tail: str) -> None:
        self._path = path
        self._head = head.encode()
        self._tail = b"\n" + tail.encode() + b"\n"

    def keys(self) -> set[str]:
        """Keys of the entries."""
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return set()
        return {json.JSONDecoder().raw_decode(line.decode())[0] for line in lines if line.startswith(b'"')}

    def add(self, key: str, value: Any) -> None:
        """Append an entry. Raises OSError."""
        entry = f"\n{json.dumps(key)}: {json.dumps(value)}".encode()
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o640)
        with open(descriptor, "r+b", buffering=0) as file:
            start = self._end_of_entries(file)
            comma = b"," if start > len(self._head) else b""
            file.seek(start)
            # One write: what a kill could cut off, the next entry mends.
            file.write((b"" if start else self._head) + comma + entry + self._tail)
            file.truncate()

    def _end_of_entries(self, file: BinaryIO) -> int:
        size = file.seek(0, os.SEEK_END)
        if size >= len(self._head) + len(self._tail):
            file.seek(-len(self._tail), os.SEEK_END)
            if file.read() == self._tail:
                return size - len(self._tail)
        file.seek(0)
        # Cut off: values hold no line breaks, so that these two characters stand only between entries.
        return max(0, file.read().rfind(b",\n"))
