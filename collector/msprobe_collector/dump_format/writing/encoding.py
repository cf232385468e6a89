"""Arguments and outputs as the JSON text of a dump, written piece by piece: formatting is a third of the cost.

The forms are those that `dump_format.decoding` reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format.dtypes import dtype_of_array
from msprobe_collector.dump_format.fields import CHECKSUM, DATA_NAME, FINGERPRINT, INF_COUNT, NAN_COUNT, STATISTICS
from msprobe_collector.dump_format.fingerprint import Fingerprint
from msprobe_collector.dump_format.writing.framework_values import FrameworkValues, TensorValues
from msprobe_collector.dump_format.writing.growing_file import quoted
from msprobe_collector.dump_format.writing.statistics import Number, statistics_of

#: The reader's limit, which no real argument comes near.
_MAX_DEPTH = 100
#: What is written of each tensor: statistics, and perhaps a checksum or a fingerprint.
Summary = Literal["statistics", "md5", "fingerprint"]
_STATISTICS = ", ".join(f'"{name}": %s' for name in STATISTICS)
_SHORT: dict[type, Callable[[Any], str]] = {
    type(None): lambda value: "null",
    bool: lambda value: f'{{"type": "bool", "value": {"true" if value else "false"}}}',
    str: lambda value: f'{{"type": "str", "value": {json.dumps(value)}}}',
    float: lambda value: f'{{"type": "float", "value": {number_text(value)}}}',
    int: lambda value: f'{{"type": "int", "value": {value}}}',
    type(Ellipsis): lambda value: '{"type": "ellipsis", "value": "..."}',
}


#: Bytes of a file's name without its suffix: file systems take 255 in all.
_LONGEST_NAME = 240
#: Characters that are never more bytes than that.
_SHORT_NAME = _LONGEST_NAME // 4


class RecordText:
    """One record while its text is made.

    Attributes:
        name: full record name.
        saves: whether values go to files too, so that tensors get a `data_name`.
        has_nonfinite: whether a tensor so far held NaN or Inf.
        arrays: (file name, values) of the tensors to save, in the form in which they are stored.
    """

    __slots__ = ("arrays", "has_nonfinite", "name", "saves")

    def __init__(self, name: str, *, saves: bool) -> None:
        self.name = name
        self.saves = saves
        self.has_nonfinite = False
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []

    def file_name(self, place: str) -> str:
        """The name, without suffix, of the file of the tensor at `place` (`input.0`) of the record.

        One that is longer than file systems take ends in a digest of the whole.
        """
        name = f"{self.name}.{place}" if place else self.name
        if len(name) <= _SHORT_NAME or len(encoded := name.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME:
            return name
        kept = encoded[: _LONGEST_NAME - 17].decode("utf-8", "ignore")
        return f"{kept}~{hashlib.sha256(encoded).hexdigest()[:16]}"


class ValueEncoder:
    """Writes values of one framework as JSON text.

    A value that has no form in a dump becomes null and is passed to `on_unknown`: no value can spoil a file.
    """

    def __init__(
        self, values: FrameworkValues, *, summary: Summary = "statistics", on_unknown: Callable[[str, object], None]
    ) -> None:
        """Write what `values` reads.

        Args:
            values: of the framework.
            summary: what each tensor gets besides its statistics: `md5` a CRC-32 of its stored bytes, as eight hex
                digits, `fingerprint` what `fingerprint_of` gives.
            on_unknown: called with the record's name and a value that has no form.
        """
        self._values = values
        self._summary = summary
        self._on_unknown = on_unknown
        self._tensor = values.tensor_types
        self._read = values.read

    def encode(self, value: Any, record: RecordText, path: str, depth: int = 0) -> str:
        """The JSON text of `value`; `path` says where in the record it stands (`input.0`) and names its file."""
        if isinstance(value, self._tensor):
            return self._array(self._read(value), record, path)
        try:
            short = _SHORT.get(type(value))
            if short is not None:
                return short(value)
            if depth < _MAX_DEPTH:
                return self._container(value, record, path, depth + 1)
        except (ValueError, TypeError, AttributeError):  # an int of 5,000 digits, a slice of tensors, an odd subclass
            pass
        return self._unknown(value, record)

    def freeze(self, value: Any) -> Any:
        """`value` with every tensor replaced by a copy of its values, so that training may go on and change them."""
        if isinstance(value, self._tensor):
            return self._values.frozen(value)
        if isinstance(value, np.ndarray):
            return value.copy()
        if type(value) in (list, tuple):
            return tuple(self.freeze(item) for item in value)
        if isinstance(value, Mapping):
            return {key: self.freeze(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {key: self.freeze(item) for key, item in zip(value._fields, value)}
        return value

    def _container(self, value: Any, record: RecordText, path: str, depth: int) -> str:
        if isinstance(value, TensorValues):
            return self._array(value, record, path)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._mapping(dict(zip(value._fields, value)), record, path, depth)
        if isinstance(value, (list, tuple)):
            parts = [self.encode(item, record, f"{path}.{index}", depth) for index, item in enumerate(value)]
            return f"[{', '.join(parts)}]"
        if isinstance(value, Mapping):
            return self._mapping(value, record, path, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, self._values.dtype_type)):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return self._mapping(fields, record, path, depth)
        return self._leaf(value, record, path)

    def _mapping(self, value: Mapping[Any, Any], record: RecordText, path: str, depth: int) -> str:
        parts = []
        for key, item in value.items():
            if key == "dtype" and item is not None:
                is_dtype = isinstance(item, self._values.dtype_type)
                text = self._dtype(self._values.dtype_text(item) if is_dtype else str(item))
            else:
                text = self.encode(item, record, f"{path}.{key}", depth)
            parts.append(f"{quoted(str(key))}: {text}")
        return f"{{{', '.join(parts)}}}"

    def _dtype(self, text: str) -> str:
        return f'{{"type": "{self._values.dtype_type_name}", "value": {json.dumps(text)}}}'

    def _leaf(self, value: Any, record: RecordText, path: str) -> str:
        if isinstance(value, self._values.dtype_type):
            return self._dtype(self._values.dtype_text(value))
        if isinstance(value, slice):
            bounds = [_bound(bound) for bound in (value.start, value.stop, value.step)]
            return f'{{"type": "slice", "value": {json.dumps(bounds)}}}'
        if isinstance(value, np.ndarray):
            return self._array(TensorValues(value, value.dtype.name, "numpy.ndarray"), record, path)
        if isinstance(value, np.generic) and value.dtype.kind in "biufU":
            item = value.item()
            text = json.dumps(item) if isinstance(item, str) else number_text(item)
            return f'{{"type": "{type(value).__name__}", "value": {text}}}'
        special = self._values.special(value, lambda inner, step: self.encode(inner, record, f"{path}.{step}"))
        if special is not None:
            return special
        for base in (bool, int, float, str):  # an enum, a subclass
            if isinstance(value, base):
                return _SHORT[base](base(value))
        return self._unknown(value, record)

    def _array(self, tensor: TensorValues, record: RecordText, path: str) -> str:
        # Elements are asked for only where they are written: statistics may be computed on a device.
        array = tensor.array if record.saves or self._summary != "statistics" else None
        if array is not None and array.dtype.kind not in "biufcV":
            array = None
        fingerprint = Fingerprint(array) if array is not None and self._summary == "fingerprint" else None
        text, has_nonfinite = _described(tensor, fingerprint)
        if has_nonfinite:
            record.has_nonfinite = True
        if fingerprint is not None:
            text += f', "{FINGERPRINT}": "{fingerprint.text()}"'
        if not (record.saves or self._summary == "md5") or array is None:
            return text + "}"
        stored = stored_form(array)
        if record.saves:
            place = path.removeprefix(".")
            file_name = record.file_name(place) + self._values.file_suffix
            record.arrays.append((file_name, stored if file_name.endswith(".npy") else array))
            text += _naming(file_name)
        if self._summary == "md5":
            text += f', "{CHECKSUM}": "{zlib.crc32(np.ascontiguousarray(stored).data):08x}"'
        return text + "}"

    def _unknown(self, value: object, record: RecordText) -> str:
        self._on_unknown(record.name, value)
        return "null"


def without_files(text: str, names: Iterable[str]) -> str:
    """`text`, as a `ValueEncoder` made it, naming no file that could not be written."""
    for name in names:
        # As it stands here it stands in no string: there its quotes would be escaped.
        text = text.replace(_naming(name), "")
    return text


def _naming(file_name: str) -> str:
    return f', "{DATA_NAME}": {quoted(file_name)}'


def _described(tensor: TensorValues, fingerprint: Fingerprint | None) -> tuple[str, bool]:
    """(what a dump says about `tensor`, without the closing brace; whether it holds NaN or Inf).

    `fingerprint` takes the elements meanwhile.
    """
    with np.errstate(all="ignore"):  # a training may turn warnings into errors
        found = tensor.statistics() if fingerprint is None else statistics_of(tensor.array, fingerprint.add)
    maximum, minimum, mean, norm, nan_count, inf_count = found
    text = f'{{"type": "{tensor.type_name}", "dtype": "{tensor.dtype_name}", "shape": {list(tensor.shape)}, '
    if type(norm) is float and norm - norm == 0.0:  # finite, and all others with it
        text += _STATISTICS % (maximum, minimum, mean, norm)
    else:
        text += _STATISTICS % tuple(map(number_text, (maximum, minimum, mean, norm)))
    if nan_count or inf_count:
        return f'{text}, "{NAN_COUNT}": {nan_count}, "{INF_COUNT}": {inf_count}{tensor.fields}', True
    return text + tensor.fields, False


def number_text(number: Number) -> str:
    """A statistic as JSON text, with the bare NaN and Infinity that dumps use."""
    if number is None:
        return "null"
    if isinstance(number, bool):
        return "true" if number else "false"
    if isinstance(number, int) or math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def stored_form(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` as .npy files hold it: bfloat16, float8 and int4, which NumPy lacks, as float32 (int4 as int8)."""
    if array.dtype.isbuiltin == 1:
        return array
    dtype = dtype_of_array(array.dtype)
    with np.errstate(all="ignore"):
        return array.astype(np.float32 if dtype is None else dtype.stored_as)


def _bound(bound: Any) -> int | None:
    return None if bound is None else int(bound)
