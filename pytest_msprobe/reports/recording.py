"""Values as dump records: the JSON form of each, and the arrays that belong in files beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dtype, Frame, dtype_of_array
from pytest_msprobe.reports.evidence import Array, Leaves, NumpyValue, file_stem

_CHUNK = 1 << 20


@dataclass(slots=True)
class Recording:
    """Arrays that were met while values were encoded, by file name.

    Attributes:
        framework: whose names tensors and dtypes get.
        files: values as they are stored.
    """

    framework: str
    files: dict[str, Array] = field(default_factory=dict)

    def encode(self, value: Any, stem: str) -> Any:
        """The JSON form of `value`; its arrays go to files called `stem` and the path inside the value."""
        if isinstance(value, NumpyValue):
            return self._array(value.array, stem, "numpy.ndarray")
        if isinstance(value, np.ndarray):
            return self._array(value, stem, f"{self._namespace}.Tensor")
        if isinstance(value, (tuple, list)):
            return [self.encode(item, f"{stem}.{index}") for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: self.encode(item, f"{stem}.{key}") for key, item in value.items()}
        if isinstance(value, Dtype):
            return {"type": f"{self._namespace}.dtype", "value": self._dtype_name(value)}
        if isinstance(value, slice):
            return {"type": "slice", "value": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"type": "ellipsis", "value": "..."}
        return None if value is None else {"type": type(value).__name__, "value": value}

    def encode_leaves(self, leaves: Leaves, stem: str) -> list[Any]:
        """The JSON form of outputs that are given leaf by leaf."""
        encoded = _nested(leaves)
        # A number at the top is a position; there is nothing else at the top.
        return [self.encode(encoded[index], f"{stem}.{index}") for index in sorted(encoded)]

    def keep(self, value: Any, stem: str) -> None:
        """Only the file of `value`, if it is an array."""
        if isinstance(value, np.ndarray):
            self._array(value, stem, "")

    @property
    def needed_bytes(self) -> int:
        """What the files take."""
        return sum(array.size * _stored_bytes(array) + 128 for array in self.files.values())

    @property
    def _namespace(self) -> str:
        return "torch" if self.framework == "pytorch" else "mindspore"

    def _dtype_name(self, dtype: Dtype) -> str:
        return dtype.name if self._namespace == "mindspore" else f"torch.{dtype.array_name or dtype.name.lower()}"

    def _array(self, array: Array, stem: str, type_name: str) -> Any:
        dtype = dtype_of_array(array.dtype)
        if dtype is None:
            return None
        data_name = f"{file_stem(stem)}.npy"
        self.files[data_name] = array
        if not type_name:
            return None
        entry = {"type": type_name, "dtype": self._dtype_name(dtype), "shape": list(array.shape)}
        return {**entry, **_statistics(array), "data_name": data_name}


def stored(array: Array) -> Array:
    """`array` in the element type of files, which lack bfloat16 and its like."""
    dtype = dtype_of_array(array.dtype)
    assert dtype is not None  # Recording lets in no other
    return array if dtype.stored_as in (None, array.dtype.name) else array.astype(dtype.stored_as)


def frame_text(frame: Frame) -> str:
    """A frame as stack.json writes it."""
    if not frame.file:
        return frame.source
    return f"File {frame.file}, line {frame.line}, in {frame.function}, \n {frame.source}"


def _stored_bytes(array: Array) -> int:
    dtype = dtype_of_array(array.dtype)
    return np.dtype(dtype.stored_as).itemsize if dtype is not None and dtype.stored_as else array.itemsize


def _nested(leaves: Leaves) -> dict[Any, Any]:
    """Leaves put back in their tuples and dicts."""
    root: dict[Any, Any] = {}
    for path, value in leaves:
        place = root
        for step in path[:-1]:
            place = place.setdefault(step, {})
        place[path[-1]] = value
    return {key: _closed(value) for key, value in root.items()}


def _closed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if all(isinstance(key, int) for key in value):
        return tuple(_closed(value[key]) for key in sorted(value))
    return {key: _closed(item) for key, item in value.items()}


def _statistics(array: Array) -> dict[str, Any]:
    names = ("Max", "Min", "Mean", "Norm")
    if not array.size:
        return dict.fromkeys(names)
    if array.dtype.kind == "b":
        return dict(zip(names, (bool(array.max()), bool(array.min()), None, None)))
    flat = array.reshape(-1)
    highest, lowest, total, squares = -np.inf, np.inf, 0.0, 0.0
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _CHUNK):
            chunk = flat[start : start + _CHUNK]
            wide = (np.abs(chunk) if chunk.dtype.kind == "c" else chunk).astype(np.float64)
            highest, lowest = np.maximum(highest, wide.max()), np.minimum(lowest, wide.min())
            total += wide.sum()
            squares += np.dot(wide, wide)
    return dict(zip(names, map(float, (highest, lowest, total / flat.size, squares**0.5))))
