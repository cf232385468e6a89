"""Values of failing calls as dump records: a client of the collector's writer of dumps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from msprobe_collector.dump_format import Dtype, dtype_of_array
from msprobe_collector.dump_format.writing.encoding import RecordText, ValueEncoder, stored_form
from msprobe_collector.dump_format.writing.framework_values import EncodeInner, TensorValues
from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.evidence.evidence import Leaves, NumpyValue, file_stem


class Recording:
    """Encodes the values of one call.

    Attributes:
        files: values met so far, by file name, as they are stored.
    """

    def __init__(self, framework: str) -> None:
        """Name tensors and dtypes as the dumps of `framework` do."""
        self._encoder = ValueEncoder(_Arrays(framework), on_unknown=lambda record, value: None)
        self.files: dict[str, Array] = {}

    def encode(self, value: Any, stem: str) -> str:
        """The JSON text of `value`; its arrays go to files called `stem` and the path inside the value."""
        text = _Text(stem, saves=True)
        encoded = self._encoder.encode(value, text, "")
        self.files.update(text.arrays)
        return encoded

    def encode_leaves(self, leaves: Leaves, stem: str) -> str:
        """The JSON text of outputs that are given leaf by leaf."""
        encoded = _nested(leaves)
        # A number at the top is a position; there is nothing else at the top.
        return listed(self.encode(encoded[index], f"{stem}.{index}") for index in sorted(encoded))

    def keep(self, value: Any, stem: str) -> None:
        """Only the file of `value`, if it is an array of numbers."""
        if isinstance(value, np.ndarray) and dtype_of_array(value.dtype) is not None:
            self.files[f"{file_stem(stem)}.npy"] = stored_form(value)

    @property
    def needed_bytes(self) -> int:
        """What the files take."""
        return sum(array.nbytes + 128 for array in self.files.values())


def listed(texts: Iterable[str]) -> str:
    """JSON values as the text of a list."""
    return f"[{', '.join(texts)}]"


class _Text(RecordText):
    """Names files by what every file system takes."""

    def file_name(self, place: str) -> str:
        return file_stem(super().file_name(place))


class _Arrays:
    """The values of an `Evidence`; see `FrameworkValues`. Nothing changes them, so that frozen is read."""

    tensor_types: tuple[type, ...] = (np.ndarray, NumpyValue)
    dtype_type: type = Dtype
    file_suffix = ".npy"
    hidden_lines: tuple[str, ...] = ()

    def __init__(self, framework: str) -> None:
        self._namespace = "torch" if framework == "pytorch" else "mindspore"
        self.dtype_type_name = f"{self._namespace}.dtype"

    def read(self, tensor: Any) -> TensorValues:
        array = tensor.array if isinstance(tensor, NumpyValue) else tensor
        dtype = dtype_of_array(array.dtype)
        if dtype is None or isinstance(tensor, NumpyValue):
            return TensorValues(array, array.dtype.name, "numpy.ndarray")
        return TensorValues(array, self.dtype_text(dtype), f"{self._namespace}.Tensor")

    frozen = read

    def dtype_text(self, dtype: Dtype) -> str:
        return dtype.name if self._namespace == "mindspore" else f"torch.{dtype.array_name or dtype.name.lower()}"

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        return None


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
