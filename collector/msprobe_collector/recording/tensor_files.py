"""The .npy files of a dump."""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger("msprobe_collector")

_LONGEST_NAME_BYTES = 255


class TensorFiles:
    """Writes arrays into the dump_tensor_data of a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_there = False

    def save(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Write `array` to the file `name`. A name longer than file systems take is skipped with a warning.

        Raises:
            OSError: the disk refuses.
        """
        if len(name.encode()) > _LONGEST_NAME_BYTES or "/" in name:
            logger.warning("%s is no possible name of a file; the tensor is not saved", name)
            return
        if not self._is_there:
            self.folder.mkdir(mode=0o750, exist_ok=True)
            self._is_there = True
        contiguous = np.ascontiguousarray(array).reshape(array.shape)
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        with open(descriptor, "wb", buffering=0) as file:
            _write_all(file.fileno(), _header(contiguous.dtype.str, contiguous.shape))
            _write_all(file.fileno(), contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b"")


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
