"""Tensors of checkpoints, read from their files a few elements at a time.

Files are read, not mapped: the pages of a mapped file count as memory of the process, and a file that is cut off while
it is mapped ends it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, cast

import numpy as np

from msprobe_collector.dump_format.values import Dtype, array_dtype
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import DTYPES, Times

Array = np.ndarray[Any, Any]
#: Files that are open at once; sharded checkpoints have thousands.
_MOST_OPEN = 64
#: Behind a block of at least so many bytes, so many more are asked for: the disk reads while elements are compared.
_LARGE_BYTES, _AHEAD_BYTES = 1 << 16, 16 << 20


class ReadError(ValueError):
    """Why a part of a checkpoint cannot be read, in one line."""


@dataclass
class _Opened:
    """A descriptor, and how many threads read from it."""

    descriptor: int
    readers: int = 0


class File:
    """A file that is read at any place, opened when it is needed."""

    _open: ClassVar[OrderedDict[Path, _Opened]] = OrderedDict()
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, path: Path) -> None:
        """The file at `path`, which stays as it is. Raises ReadError when it cannot be opened or is no regular file."""
        self.path = path
        if not path.is_file():
            raise ReadError("is not a file" if path.exists() else "does not exist")
        with self._descriptor() as descriptor:
            self.size = os.fstat(descriptor).st_size
        self._asked = 0  # up to where the system has been asked to read

    def read(self, start: int, size: int) -> bytes:
        """The bytes from `start` on.

        Raises:
            ReadError: it is damaged or cut off.
        """
        content = b""
        with self._descriptor() as descriptor:
            while len(content) < size:
                more = os.pread(descriptor, size - len(content), start + len(content))
                if not more:
                    raise ReadError(f"ends at byte {start + len(content)}, {size - len(content)} bytes early")
                content += more
        return content

    def read_into(self, start: int, array: Array) -> None:
        """Fill a contiguous array with the bytes from `start` on.

        Raises:
            ReadError: it is damaged or cut off.
        """
        rest = memoryview(cast(Any, array.reshape(-1).view(np.uint8)))
        with self._descriptor() as descriptor:
            if len(rest) >= _LARGE_BYTES:
                self._ask_ahead(descriptor, start, start + len(rest))
            while rest:
                count = os.preadv(descriptor, [rest], start)
                if not count:
                    raise ReadError(f"ends at byte {start}, {len(rest)} bytes early")
                rest, start = rest[count:], start + count

    def _ask_ahead(self, descriptor: int, start: int, stop: int) -> None:
        """Have the system read what follows a block, unless it has been asked for half of that already."""
        is_known = start <= self._asked and stop + _AHEAD_BYTES // 2 <= self._asked <= stop + _AHEAD_BYTES
        if not is_known and hasattr(os, "posix_fadvise"):
            first = max(stop, self._asked) if start <= self._asked <= stop + _AHEAD_BYTES else stop
            os.posix_fadvise(descriptor, first, stop + _AHEAD_BYTES - first, os.POSIX_FADV_WILLNEED)
            self._asked = stop + _AHEAD_BYTES

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        """The descriptor of the file, which stays open in the meantime; several threads may read it."""
        with File._lock:
            opened = File._open.pop(self.path, None)
            if opened is None:
                try:
                    opened = _Opened(os.open(self.path, os.O_RDONLY))
                except OSError as error:
                    raise ReadError(f"cannot be opened: {error.strerror}") from None
            File._open[self.path] = opened
            opened.readers += 1
            if len(File._open) > _MOST_OPEN:
                idle = [path for path, opened_file in File._open.items() if not opened_file.readers]
                for path in idle[: len(File._open) - _MOST_OPEN]:
                    os.close(File._open.pop(path).descriptor)
        try:
            yield opened.descriptor
        finally:
            with File._lock:
                opened.readers -= 1

    @classmethod
    def close_all(cls) -> None:
        """Close what is open."""
        while cls._open:
            os.close(cls._open.popitem()[1].descriptor)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file, with the methods of `pytorch_files.Content`."""

    file: File
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: slice, /) -> bytes:
        first, last, _ = places.indices(self.size)
        return self.file.read(self.start + first, max(0, last - first))

    def rfind(self, sub: bytes, start: int, /) -> int:
        """Where `sub` stands last, from `start` on; -1 where it does not."""
        place = self[start:].rfind(sub)
        return place if place < 0 else place + start


class Tensor(ABC):
    """A tensor of one shape and dtype; its elements are counted in row-major order."""

    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def width(self) -> int:
        """Number of elements of one index along the first dimension."""
        return prod(self.shape[1:])

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """Dtype of its elements as arrays have them."""
        dtype = array_dtype(self.dtype)
        assert dtype is not None  # the readers refuse others
        return dtype

    @property
    def nbytes(self) -> int:
        """Size of all elements."""
        return self.size * self.array_dtype.itemsize

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Elements `start` to `stop`, in one dimension. Raises ReadError."""

    def at(self, places: Array) -> Array:
        """The elements at ascending places. Raises ReadError."""
        if not places.size:
            return np.empty(0, self.array_dtype)
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = np.split(places, ends)
        return np.concatenate([self.read(int(run[0]), int(run[-1]) + 1) for run in runs])

    def release(self) -> None:  # noqa: B027  # most keep nothing
        """Forget what was kept to read it."""

    @property
    def step(self) -> int:
        """Elements are best read in multiples of so many."""
        return 1

    @property
    def key(self) -> object:
        """Equal for tensors that are the same bytes of the same files; None where that is not known."""
        return None


@dataclass(frozen=True)
class Stored(Tensor):
    """A tensor as it stands in a file.

    Attributes:
        spans: its bytes, one behind the other; MindSpore divides large tensors.
        strides: in elements, where they are not row-major: `spans` are then the whole storage.
        offset: of the first element in the storage.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    spans: tuple[Span, ...]
    strides: tuple[int, ...] | None = None
    offset: int = 0
    _kept: list[Array] = field(default_factory=list, compare=False)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for span in self.spans:
            starts.append(starts[-1] + span.size)
        return starts

    def read(self, start: int, stop: int) -> Array:
        if self.strides is not None:
            return self._strided().reshape(-1)[start:stop]
        return self._stored(self.offset + start, self.offset + stop)

    def at(self, places: Array) -> Array:
        if self.strides is None:
            return super().at(places)
        index = np.unravel_index(places, self.shape)
        stored = self.offset + sum(i * stride for i, stride in zip(index, self.strides))
        elements = [self._stored(place, place + 1)[0] for place in map(int, np.atleast_1d(stored))]
        return np.array(elements, self.array_dtype)

    def release(self) -> None:
        self._kept.clear()

    @property
    def key(self) -> object:
        return tuple((span.file.path, span.start, span.size) for span in self.spans), self.offset, self.shape

    def _strided(self) -> Array:
        """The whole tensor: reading parts of it would read most of its storage each time."""
        for kept in self._kept:
            return kept
        assert self.strides is not None
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides))
        held = self._stored(self.offset, last + 1)
        steps = [stride * held.itemsize for stride in self.strides]
        view: Array = np.ndarray(self.shape, held.dtype, held, 0, steps)
        flat = view.reshape(-1) if view.flags.c_contiguous else view.copy(order="C").reshape(-1)
        self._kept.append(flat)
        return flat

    def _stored(self, start: int, stop: int) -> Array:
        array = np.empty(stop - start, self.array_dtype)
        raw = array.view(np.uint8)
        first, last = start * array.itemsize, stop * array.itemsize
        index = bisect_right(self._starts, first) - 1
        done = first
        while done < last:
            span, begin = self.spans[index], self._starts[index]
            end = min(last, begin + span.size)
            span.file.read_into(span.start + done - begin, raw[done - first : end - first])
            done, index = end, index + 1
        return array


@dataclass(frozen=True)
class LoadedTensor(Tensor):
    """A small tensor that was read with the description of its file, such as an array in a pickle."""

    dtype: Dtype
    shape: tuple[int, ...]
    values: Array

    def read(self, start: int, stop: int) -> Array:
        return self.values.reshape(-1)[start:stop]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a tensor, and where they stand in a larger one.

    Attributes:
        tensor: of the same number of dimensions as the larger one.
        at: the place of the first element.
        first, rows: which of its rows, along dimension 0.
    """

    tensor: Tensor
    at: tuple[int, ...]
    first: int
    rows: int

    @classmethod
    def whole(cls, tensor: Tensor, at: tuple[int, ...]) -> Piece:
        """All of a tensor."""
        return cls(tensor, at, 0, tensor.shape[0])


class Joined(Tensor):
    """A tensor put together from pieces that fill it."""

    def __init__(self, dtype: Dtype, shape: tuple[int, ...], pieces: Sequence[Piece]) -> None:
        """The tensor of this shape."""
        self.dtype, self.shape = dtype, shape
        self._pieces = sorted(pieces, key=lambda piece: piece.at[0])
        self._starts = [piece.at[0] for piece in self._pieces]
        self._longest = max((piece.rows for piece in pieces), default=0)

    def read(self, start: int, stop: int) -> Array:
        if start >= stop:
            return np.empty(0, self.array_dtype)
        first, last = start // self.width, -(-stop // self.width)
        out = np.empty((last - first, *self.shape[1:]), self.array_dtype)
        for piece in self._overlapping(first, last):
            low, high = max(first, piece.at[0]), min(last, piece.at[0] + piece.rows)
            shift = piece.first - piece.at[0]
            read = piece.tensor.read((low + shift) * piece.tensor.width, (high + shift) * piece.tensor.width)
            columns = [slice(at, at + size) for at, size in zip(piece.at[1:], piece.tensor.shape[1:])]
            place = (slice(low - first, high - first), *columns)
            out[place] = read.reshape(high - low, *piece.tensor.shape[1:])
        return out.reshape(-1)[start - first * self.width : stop - first * self.width]

    def release(self) -> None:
        for piece in self._pieces:
            piece.tensor.release()

    @property
    def step(self) -> int:
        return max(1, self.width)

    def _overlapping(self, first: int, last: int) -> Iterator[Piece]:
        index = bisect_right(self._starts, first - self._longest)
        for piece in self._pieces[index:]:
            if piece.at[0] >= last:
                return
            if piece.at[0] + piece.rows > first:
                yield piece


class TensorSlice(Tensor):
    """Elements of a tensor that follow each other, in another shape."""

    def __init__(self, tensor: Tensor, shape: tuple[int, ...], first: int = 0) -> None:
        """As many elements of `tensor` as the shape has, from element `first` on."""
        self._tensor, self._first = tensor, first
        self.dtype, self.shape = tensor.dtype, shape

    def read(self, start: int, stop: int) -> Array:
        return self._tensor.read(self._first + start, self._first + stop)

    def at(self, places: Array) -> Array:
        return self._tensor.at(self._first + places)

    def release(self) -> None:
        self._tensor.release()

    @property
    def step(self) -> int:
        return self._tensor.step


class Scaled(Tensor):
    """Numbers of few bits times a scale: of the tensor, of its rows or columns, or of blocks of both."""

    def __init__(self, tensor: Tensor, scale: Tensor) -> None:
        """The tensor of these numbers. Raises ReadError: the scale does not fit, or cannot be read."""
        self._tensor = tensor
        self.dtype, self.shape = scale.dtype, tensor.shape
        of_vector = (scale.size, 1) if scale.size == self.shape[0] else (1, scale.size)
        sizes = scale.shape if len(scale.shape) == 2 else of_vector
        if any(not size or whole % size for size, whole in zip(sizes, self.shape)) or len(self.shape) != 2:
            raise ReadError(f"a scale of shape {scale.shape} does not fit")
        self._scale = scale.read(0, scale.size).reshape(sizes).astype(np.float64)

    def read(self, start: int, stop: int) -> Array:
        return (self._tensor.read(start, stop).astype(np.float64) * self._steps(start, stop)).astype(self.array_dtype)

    def allowed(self, start: int, stop: int) -> Array:
        """How far the elements that were rounded may have been from elements `start` to `stop`."""
        steps = self._steps(start, stop)
        if self._tensor.array_dtype.kind in "iu":
            return Times.WHOLE_STEP * steps
        rounded = np.abs(self._tensor.read(start, stop).astype(np.float64)) * unit_roundoff(self._tensor.array_dtype)
        return np.maximum(rounded, DTYPES["Float8E4M3FN"].least) * steps

    def _steps(self, start: int, stop: int) -> Array:
        rows, columns = np.divmod(np.arange(start, stop), self.shape[1])
        blocks = [whole // size for whole, size in zip(self.shape, self._scale.shape)]
        steps: Array = np.abs(self._scale[rows // blocks[0], columns // blocks[1]])
        return steps


class Transposed(Tensor):
    """A tensor with its dimensions in another order; read as a whole."""

    def __init__(self, tensor: Tensor, axes: tuple[int, ...]) -> None:
        """The tensor whose dimensions are these of `tensor`."""
        self._tensor, self.axes = tensor, axes
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape[axis] for axis in axes)
        self._kept: Array | None = None

    def read(self, start: int, stop: int) -> Array:
        if start >= stop:
            return np.empty(0, self.array_dtype)
        kept = self._kept
        if kept is None:
            kept = self._tensor.read(0, self._tensor.size).reshape(self._tensor.shape).transpose(self.axes)
            self._kept = kept
            self._tensor.release()
        first, last = start // self.width, -(-stop // self.width)
        rows = np.ascontiguousarray(kept[first:last]).reshape(-1)
        return rows[start - first * self.width : stop - first * self.width]

    def at(self, places: Array) -> Array:
        index = dict(zip(self.axes, np.unravel_index(places, self.shape)))
        stored = np.ravel_multi_index([index[axis] for axis in sorted(index)], self._tensor.shape)
        order = np.argsort(stored, kind="stable")
        values = np.empty(places.size, self.array_dtype)
        values[order] = self._tensor.at(stored[order])
        return values

    def release(self) -> None:
        self._kept = None
        self._tensor.release()

    @property
    def step(self) -> int:
        return max(1, self.width)
