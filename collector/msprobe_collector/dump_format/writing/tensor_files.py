"""The .npy and .pt files of a dump."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from msprobe_collector.dump_format.writing.pytorch_file import pytorch_file


class TensorFiles:
    """Writes arrays into the dump_tensor_data of a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_there = False

    def save(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `array` to the file `name`, which is whole afterwards or not there.

        Raises:
            OSError: the disk refuses, or the name is longer than file systems take.
        """
        if "/" in name:
            raise OSError(errno.EINVAL, "a name with '/' is not a file name", name)
        if not self._is_there:
            self.folder.mkdir(mode=0o750, exist_ok=True)
            self._is_there = True
        path = self.folder / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                if name.endswith(".npy"):
                    write_npy(file, array)
                else:
                    _write_parts(file.fileno(), pytorch_file(array))
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise


def write_npy(file: BinaryIO, array: np.ndarray[Any, Any]) -> None:
    """Write `array`, of a dtype that .npy files hold, into an open file. Raises OSError."""
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    file.flush()
    _write_all(file.fileno(), _header(contiguous.dtype.str, contiguous.shape))
    _write_all(file.fileno(), contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b"")


def _write_parts(descriptor: int, parts: tuple[bytes | memoryview, ...]) -> None:
    written = os.writev(descriptor, parts)
    for part in parts:
        if written < len(part):
            _write_all(descriptor, memoryview(part)[written:])
        written = max(0, written - len(part))


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    buffer = BytesIO()
    description = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)  # type: ignore[no-untyped-call]
    return buffer.getvalue()
