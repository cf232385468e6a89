"""Values of recorded tensors: `.npy` and `.pt` files read without trusting them."""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from msprobe_collector.dump_format.dtypes import array_dtype
from msprobe_collector.dump_format.files import NotAPlainFileError, open_plain
from msprobe_collector.dump_format.pytorch_files import PytorchFileError, read_pytorch_tensor
from msprobe_collector.dump_format.values import Place, TensorValue

if TYPE_CHECKING:
    import numpy as np

#: From this size on a file is memory-mapped. Below, one read is faster than a mapping and leaves no file open.
MAP_FROM_BYTES = 1 << 16
_MOST_HEADER_BYTES = 1 << 16


class TensorFolder:
    """The folder that holds the tensors of one dump.

    Files are only ever opened inside it, never through a link that leads out of it, and never unpickled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, value: TensorValue, place: Place) -> np.ndarray[Any, Any]:
        """The values of `value` in its recorded dtype and shape; large ones are memory-mapped and read-only.

        bfloat16 and 8-bit floats are stored as float32 and converted back, which is exact.

        Raises:
            DumpError: no file is named, or it is missing, not a plain file inside the folder, cut off, holds objects,
                or holds another dtype or shape than the record says.
        """
        place = place / "data_name"
        if value.data_name is None or value.dtype is None:
            raise place.fault("the record names no file with real data")
        with self._open(value.data_name, place) as file:
            is_pytorch = value.data_name.endswith(".pt")
            stored = _read_pt(file, value, place) if is_pytorch else _read_npy(file, value, place)
        wanted = array_dtype(value.dtype)
        if wanted is None:
            raise place.fault(f"there is no array type for {value.dtype.name}")
        if stored.dtype == wanted:
            return stored
        import numpy as np

        # A signalling NaN or a value out of range is the file's, and no reason to warn.
        with np.errstate(invalid="ignore", over="ignore"):
            return stored.astype(wanted)

    def _open(self, data_name: str, place: Place) -> BinaryIO:
        if (
            data_name != os.path.basename(data_name)
            or data_name in ("", ".", "..")
            or "\0" in data_name
            or "\\" in data_name
        ):
            raise place.fault(f"{data_name!r} is not a plain file name inside the tensor folder; refused")
        path = self.folder / data_name
        try:
            if path.is_symlink() and not _is_inside(path, self.folder):
                raise place.fault(f"{data_name!r} is a link that leads out of {self.folder}; refused")
            return open_plain(path)
        except FileNotFoundError:
            raise place.fault(
                f"{data_name!r} is not in {self.folder}; copy dump_tensor_data beside dump.json"
            ) from None
        except NotAPlainFileError:
            raise place.fault(f"{data_name!r} in {self.folder} is not a plain file; refused") from None
        except OSError as error:
            raise place.fault(f"{data_name!r} in {self.folder} cannot be opened: {error.strerror}") from None


def _is_inside(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _read_pt(file: BinaryIO, value: TensorValue, place: Place) -> np.ndarray[Any, Any]:
    assert value.dtype is not None  # load() has seen to it
    try:
        return read_pytorch_tensor(file, value.shape, value.dtype)
    except PytorchFileError as error:
        raise place.fault(f"{value.data_name!r} {error}") from None


def _read_npy(file: BinaryIO, value: TensorValue, place: Place) -> np.ndarray[Any, Any]:
    import numpy as np

    shape, column_major, dtype = _read_header(file, value, place)
    offset = file.tell()
    needed = value.size * dtype.itemsize
    held = os.fstat(file.fileno()).st_size - offset
    if held < needed:
        raise place.fault(f"{value.data_name!r} is cut off: it holds {held} of {needed} bytes of values")
    order: Literal["F", "C"] = "F" if column_major else "C"
    if needed >= MAP_FROM_BYTES:
        source = cast(Any, file)  # NumPy takes an open file, its annotations name only some of them
        mapped: np.ndarray[Any, Any] = np.memmap(source, dtype, "r", offset=offset, shape=shape, order=order)
        return mapped
    # A bytearray keeps the array writable, which frameworks that share memory ask for.
    return np.ndarray(shape, dtype=dtype, buffer=bytearray(file.read(needed)), order=order)


def _read_header(file: BinaryIO, value: TensorValue, place: Place) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        shape, column_major, dtype = _parse_header(_header_bytes(file))
    except Exception as error:  # NumPy evaluates the header as a Python literal: almost anything can come out of it
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise place.fault(f"{value.data_name!r} is not a NumPy .npy file: {reason}") from None
    assert value.dtype is not None  # load() has seen to it
    if dtype.hasobject:
        raise place.fault(f"{value.data_name!r} holds pickled objects, which are never loaded")
    if dtype.newbyteorder("=").name not in (value.dtype.stored_as, value.dtype.array_name):
        raise place.fault(f"{value.data_name!r} holds {dtype.name}, the record says {value.dtype.name}")
    if tuple(shape) != value.shape:
        raise place.fault(f"{value.data_name!r} has shape {tuple(shape)}, the record says {value.shape}")
    return shape, column_major, dtype


def _header_bytes(file: BinaryIO) -> bytes:
    """The header of an .npy file, read to its end: magic string, version, length and description, as far as they go."""
    start = file.read(8)
    length_format = "<H" if start[6:7] == b"\x01" else "<I"
    length = file.read(struct.calcsize(length_format))
    if len(length) < struct.calcsize(length_format):
        return start + length
    return start + length + file.read(min(struct.unpack(length_format, length)[0], _MOST_HEADER_BYTES))


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether column-major, dtype) of an .npy header; a dump has thousands of files and few distinct ones."""
    from numpy.lib import format as npy

    source = BytesIO(header)
    version = npy.read_magic(source)  # type: ignore[no-untyped-call]
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, column_major, dtype = read_header(source)  # type: ignore[no-untyped-call]
    return tuple(shape), bool(column_major), dtype
