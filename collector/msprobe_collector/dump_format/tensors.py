"""Values of recorded tensors: `.npy` and `.pt` files read without trusting them.

Files that come from elsewhere are opened when they are plain ones, and never waited for.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from msprobe_collector.dump_format.pytorch_files import MAP_FROM_BYTES, PytorchFileError, read_pytorch_tensor
from msprobe_collector.dump_format.values import DATA_NAME, FieldPath, TensorValue, abbreviated, array_dtype, printable

if TYPE_CHECKING:
    import numpy as np

#: A shape of 64 dimensions fits. NumPy evaluates the header as a Python literal, which takes 250 times its length.
_MOST_HEADER_BYTES = 2048
_MOST_REASON = 200
TENSOR_FOLDER = "dump_tensor_data"


class NotAPlainFileError(OSError):
    """A pipe, a device or a folder stands where a file should."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(None, "it is not a plain file", str(path))


def open_plain(path: str | Path) -> BinaryIO:
    """Return the file at `path`, open for reading.

    Raises:
        OSError: it cannot be opened.
        NotAPlainFileError: it is something else than a file, such as a pipe, which could block.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAPlainFileError(path)
    return os.fdopen(descriptor, "rb")


class TensorFolder:
    """The folder that holds the tensors of one dump.

    Files are only ever opened inside it or a folder that the user named, never through a link that leads elsewhere,
    and never unpickled.
    """

    def __init__(self, folder: Path, data_dirs: Sequence[Path] = (), *, refused: str = "", note: str = "") -> None:
        """Tensors in `folder`; links may also lead into `data_dirs`.

        `refused` is why the folder may not be read; `note` is what is added where a file is missing.
        """
        self.folder = folder
        self._data_dirs = tuple(data_dirs)
        self._refused = refused
        self._note = note

    @classmethod
    def of_dump(cls, dump: Path, recorded: str | None, data_dirs: Sequence[Path] = ()) -> TensorFolder:
        """Return the tensors of the dump in the folder `dump`.

        They are in the folder that it recorded, `recorded`, or in dump_tensor_data beside dump.json. A folder outside
        the dump, also one that a link leads to, is read only when it is in one of `data_dirs`.
        """
        beside = dump / TENSOR_FOLDER
        allowed = (dump, *data_dirs)
        outside = ""
        if recorded and os.path.isabs(recorded) and "\0" not in recorded and os.path.isdir(recorded):
            if _is_inside(Path(recorded), allowed):
                return cls(Path(recorded), data_dirs)
            outside = recorded
        if not _is_inside(beside, allowed):
            target = os.path.realpath(beside)
            return cls(beside, data_dirs, refused=f"{printable(str(beside))} is a link to {_not_followed(target)}")
        return cls(beside, data_dirs, note=f"dump_data_dir is {_not_followed(outside)}" if outside else "")

    @property
    def is_lost(self) -> bool:
        """Whether the folder is not there or empty, and there is none elsewhere that may not be read."""
        if self._refused or self._note:
            return False
        try:
            with os.scandir(self.folder) as entries:
                return next(entries, None) is None
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def load(self, value: TensorValue, place: FieldPath) -> np.ndarray[Any, Any]:
        """The values of `value` in its recorded dtype and shape; large ones are memory-mapped and read-only.

        bfloat16 and 8-bit floats are stored as float32 and converted back, which is exact.

        Raises:
            DumpError: no file is named, or it is missing, not a plain file inside the folder, cut off, holds objects,
                or holds another dtype or shape than the record says.
        """
        if value.data_name is None or value.dtype is None:
            raise place.fault("the record names no file with real data", DATA_NAME)
        wanted = array_dtype(value.dtype)
        if wanted is None:
            raise place.fault(f"there is no array type for {value.dtype.name}", DATA_NAME)
        is_pytorch = value.data_name.endswith(".pt")
        with self._open(value.data_name, place) as file:
            try:
                stored = _read_pt(file, value, place) if is_pytorch else _read_npy(file, value, place)
                return _converted(stored, wanted)
            except OSError as error:
                raise place.fault(f"{value.data_name!r} cannot be read: {error.strerror}", DATA_NAME) from None
            except (ValueError, OverflowError, MemoryError) as error:
                # What NumPy refuses: too many dimensions, too many bytes.
                reason = printable(str(error))[:_MOST_REASON] or type(error).__name__
                raise place.fault(
                    f"{value.data_name!r} cannot be read as {abbreviated(value.shape)}: {reason}", DATA_NAME
                ) from None

    def read_ahead(self, value: TensorValue, place: FieldPath) -> None:
        """Have the system read the file of `value` while something else is computed, where it can.

        Raises:
            DumpError: the file cannot be opened.
        """
        if value.data_name is None or not hasattr(os, "posix_fadvise"):
            return
        with self._open(value.data_name, place) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def _open(self, data_name: str, place: FieldPath) -> BinaryIO:
        if (
            data_name != os.path.basename(data_name)
            or data_name in ("", ".", "..")
            or "\0" in data_name
            or "\\" in data_name
        ):
            raise place.fault(f"{data_name!r} is not a plain file name inside the tensor folder; refused", DATA_NAME)
        if self._refused:
            raise place.fault(self._refused, DATA_NAME)
        path = os.path.join(self.folder, data_name)  # a Path costs as much as reading a small file
        try:
            if os.path.islink(path) and not _is_inside(path, (self.folder, *self._data_dirs)):
                raise place.fault(f"{data_name!r} is a link that leads out of {self.folder}; refused", DATA_NAME)
            return open_plain(path)
        except FileNotFoundError:
            advice = self._note or "copy dump_tensor_data beside dump.json"
            raise place.fault(f"{data_name!r} is not in {self.folder}; {advice}", DATA_NAME) from None
        except NotAPlainFileError:
            raise place.fault(f"{data_name!r} in {self.folder} is not a plain file; refused", DATA_NAME) from None
        except OSError as error:
            raise place.fault(f"{data_name!r} in {self.folder} cannot be opened: {error.strerror}", DATA_NAME) from None


def _is_inside(path: str | Path, folders: Sequence[Path]) -> bool:
    real = Path(os.path.realpath(path))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _not_followed(folder: str) -> str:
    words = printable(folder)
    return f"{words}, outside the dump, and is not followed; allow it with --msprobe-data-dir={words}"


def _converted(stored: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if stored.dtype == wanted:
        return stored
    import numpy as np

    # A signalling NaN or a value out of range is the file's, and no reason to warn.
    with np.errstate(invalid="ignore", over="ignore"):
        return stored.astype(wanted)


def _read_pt(file: BinaryIO, value: TensorValue, place: FieldPath) -> np.ndarray[Any, Any]:
    assert value.dtype is not None  # load() has seen to it
    try:
        return read_pytorch_tensor(file, value.shape, value.dtype)
    except PytorchFileError as error:
        raise place.fault(f"{value.data_name!r} {error}", DATA_NAME) from None


def _read_npy(file: BinaryIO, value: TensorValue, place: FieldPath) -> np.ndarray[Any, Any]:
    import numpy as np

    shape, column_major, dtype = _read_header(file, value, place)
    offset = file.tell()
    needed = prod(shape) * dtype.itemsize
    held = os.fstat(file.fileno()).st_size - offset
    if held < needed:
        raise place.fault(f"{value.data_name!r} is truncated: it holds {held} of {needed} bytes of values", DATA_NAME)
    order: Literal["F", "C"] = "F" if column_major else "C"
    if needed >= MAP_FROM_BYTES:
        source = cast(Any, file)  # NumPy takes an open file, its annotations name only some of them
        mapped: np.ndarray[Any, Any] = np.memmap(source, dtype, "r", offset=offset, shape=shape, order=order)
        return mapped
    # A bytearray keeps the array writable, which frameworks that share memory ask for.
    return np.ndarray(shape, dtype=dtype, buffer=bytearray(file.read(needed)), order=order)


def _read_header(file: BinaryIO, value: TensorValue, place: FieldPath) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        shape, column_major, dtype, name = _parse_header(_header_bytes(file))
    except Exception as error:  # NumPy evaluates the header as a Python literal: almost anything can come out of it
        reason = printable((str(error) or type(error).__name__).splitlines()[0])[:_MOST_REASON]
        raise place.fault(f"{value.data_name!r} is not a NumPy .npy file: {reason}", DATA_NAME) from None
    assert value.dtype is not None  # load() has seen to it
    if dtype.hasobject:
        raise place.fault(f"{value.data_name!r} holds pickled objects, which are never loaded", DATA_NAME)
    if name not in (value.dtype.stored_as, value.dtype.array_name):
        raise place.fault(f"{value.data_name!r} holds {dtype.name}, the record says {value.dtype.name}", DATA_NAME)
    if shape != value.shape:
        raise place.fault(
            f"{value.data_name!r} has shape {abbreviated(shape)}, the record says {abbreviated(value.shape)}", DATA_NAME
        )
    return shape, column_major, dtype


def _header_bytes(file: BinaryIO) -> bytes:
    """The header of an .npy file, read to its end: magic string, version, length and description, as far as they go."""
    start = file.read(8)
    length_format = "<H" if start[6:7] == b"\x01" else "<I"
    length = file.read(struct.calcsize(length_format))
    if len(length) < struct.calcsize(length_format):
        return start + length
    (header_bytes,) = struct.unpack(length_format, length)
    if start.startswith(b"\x93NUMPY") and header_bytes > _MOST_HEADER_BYTES:
        raise ValueError(f"its header of {header_bytes} bytes is longer than {_MOST_HEADER_BYTES}")
    return start + length + file.read(min(header_bytes, _MOST_HEADER_BYTES))


@lru_cache(maxsize=4096)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], str]:
    """(shape, whether column-major, dtype, its name in native byte order) of an .npy header.

    A dump has thousands of files and few distinct headers.
    """
    from numpy.lib import format as npy

    source = BytesIO(header)
    version = npy.read_magic(source)  # type: ignore[no-untyped-call]
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, column_major, dtype = read_header(source)  # type: ignore[no-untyped-call]
    return tuple(shape), bool(column_major), dtype, dtype.newbyteorder("=").name
