"""Where the members of a zip archive lie in its file, for archives that store them as they are.

`zipfile` reads a directory of any length and inflates a member of any size. Here both are bounded before anything is
read, and a member is a span of the file, which can be mapped.
"""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

#: What `zipfile` may read at once: the largest comment that an archive can end with, and what stands before it.
_MOST_AT_ONCE = (1 << 16) + 22
_MOST_MEMBERS = 64
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_SIGNATURE = b"PK\x03\x04"
_IS_ENCRYPTED = 1


class StoredZipError(ValueError):
    """Why a file is not an archive that can be read."""


@dataclass(frozen=True, slots=True)
class Member:
    """One stored member.

    Attributes:
        name: as the archive writes it.
        start, size: its bytes in the file, which holds all of them.
        checksum: CRC-32 of these bytes.
    """

    name: str
    start: int
    size: int
    checksum: int


class _Directory:
    """The file as `zipfile` may see it while it reads the directory: no single read is large."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, or, for a negative `size`, as many as a directory may have.

        Raises:
            StoredZipError: a single read is larger than the directory of one tensor.
        """
        if size > _MOST_AT_ONCE:
            raise StoredZipError("its directory is too large for one tensor")
        return self._file.read(_MOST_AT_ONCE if size < 0 else size)


def stored_members(file: BinaryIO) -> list[Member]:
    """The members of the archive in `file`.

    Raises:
        StoredZipError: it is not a zip archive, has more than 64 members, or one that is compressed, encrypted or cut
            off.
    """
    try:
        with zipfile.ZipFile(cast(Any, _Directory(file))) as archive:
            entries = archive.infolist()
    except StoredZipError:
        raise
    except Exception as error:  # on damaged archives zipfile raises nearly every class of exception
        reason = str(error) if isinstance(error, zipfile.BadZipFile) else type(error).__name__
        raise StoredZipError(f"it is not a zip archive: {reason}") from None
    if len(entries) > _MOST_MEMBERS:
        raise StoredZipError(f"it has {len(entries)} members, a tensor has fewer than {_MOST_MEMBERS}")
    file_bytes = file.seek(0, os.SEEK_END)
    return [_member(file, entry, file_bytes) for entry in entries]


def _member(file: BinaryIO, entry: zipfile.ZipInfo, file_bytes: int) -> Member:
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise StoredZipError(f"its member {entry.filename!r} is compressed; torch.save stores members as they are")
    if entry.flag_bits & _IS_ENCRYPTED:
        raise StoredZipError(f"its member {entry.filename!r} is encrypted")
    end_of_header = entry.header_offset + _LOCAL_HEADER.size
    if entry.header_offset >= 0 and end_of_header <= file_bytes:
        file.seek(entry.header_offset)
        signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        start = end_of_header + name_bytes + extra_bytes
        if signature == _SIGNATURE and start + entry.file_size <= file_bytes:
            return Member(entry.filename, start, entry.file_size, entry.CRC)
    raise StoredZipError(f"its member {entry.filename!r} is truncated")
