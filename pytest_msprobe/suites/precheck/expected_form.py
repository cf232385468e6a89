"""The dtype and shape that a call's arguments ask for: what can be held against uninitialised and random outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msprobe_collector.dump_format import Dtype, dtype_of_array, find_dtype
from pytest_msprobe.engines.protocol import Array


@dataclass(frozen=True, slots=True)
class ExpectedForm:
    """Dtype and shape; None where it is not known."""

    dtype: Dtype | None = None
    shape: tuple[int, ...] | None = None

    def fault(self, output: Array, source: str) -> str | None:
        """What is wrong with the form of `output`, given that `source` asked for this one; None when nothing is."""
        dtype = dtype_of_array(output.dtype)
        if self.dtype is not None and dtype is not self.dtype:
            return f"Tested dtype {dtype.name if dtype else output.dtype}, but {source} {self.dtype.name}."
        if self.shape is not None and tuple(output.shape) != self.shape:
            return f"Tested shape {tuple(output.shape)}, but {source} {self.shape}."
        return None


def _like(source: Any, dtype: Any) -> ExpectedForm:
    if not hasattr(source, "__array_interface__"):
        return ExpectedForm(_dtype(dtype))
    return ExpectedForm(_dtype(dtype) or dtype_of_array(source.dtype), tuple(source.shape))


def _size(size: Any, dtype: Any, default: str) -> ExpectedForm:
    return ExpectedForm(_dtype(dtype) or find_dtype(default), _shape(size))


def _size_of(size: Any, source: Any, dtype: Any) -> ExpectedForm:
    return ExpectedForm(_like(source, dtype).dtype, _shape(size))


def _size_in(size: Any, bounds: tuple[Any, ...], dtype: Any, default: str) -> ExpectedForm:
    """randint, whose size stands last among its positional arguments."""
    return _size(size if size is not None else bounds[-1] if bounds else None, dtype, default)


def _dtype(given: Any) -> Dtype | None:
    return find_dtype(given) if isinstance(given, str) else given if isinstance(given, Dtype) else None


def _shape(size: Any) -> tuple[int, ...] | None:
    """`3`, `(3, 4)`, `((3, 4),)` or a tensor of sizes, as a shape."""
    if hasattr(size, "__array_interface__"):
        size = size.tolist()
    if isinstance(size, int) and not isinstance(size, bool):
        return (size,)
    if not isinstance(size, (tuple, list)):
        return None
    if len(size) == 1 and not isinstance(size[0], int):
        return _shape(size[0])
    return tuple(size) if all(isinstance(length, int) for length in size) else None


#: Reader of each form by its name in the table.
FORMS: Mapping[str, Callable[..., ExpectedForm]] = MappingProxyType(
    {"like": _like, "size": _size, "size_of": _size_of, "size_in": _size_in}
)
