"""Names of tensor dtypes as dumps write them, and the NumPy dtype behind each.

Sources: the `dtype` names of MindSpore dumps (`Float32`), of PyTorch dumps (`torch.float32`), and of a keyword
argument called `dtype` (`float32`). NumPy and ml_dtypes load only when an array dtype is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """A tensor element type.

    Attributes:
        name: canonical name, as MindSpore dumps write it.
        kind: what class of numbers it holds.
        item_bytes: size of one element in memory.
        array_name: NumPy (or ml_dtypes) name, or None when there is no such array type.
        stored_as: NumPy name of the element type in `.npy` files, which lack the small floats.
    """

    name: str
    kind: Kind
    item_bytes: int
    array_name: str | None
    stored_as: str | None


def _plain(name: str, kind: Kind, item_bytes: int) -> Dtype:
    return Dtype(name, kind, item_bytes, name.lower(), name.lower())


_DTYPES = (
    _plain("Bool", "bool", 1),
    *(_plain(f"{sign}{bits}", "int", bits // 8) for sign in ("Int", "UInt") for bits in (8, 16, 32, 64)),
    *(_plain(f"Float{bits}", "float", bits // 8) for bits in (16, 32, 64)),
    *(_plain(f"Complex{bits}", "complex", bits // 8) for bits in (64, 128)),
    Dtype("BFloat16", "float", 2, "bfloat16", "float32"),
    Dtype("Float8E4M3FN", "float", 1, "float8_e4m3fn", "float32"),
    Dtype("Float8E5M2", "float", 1, "float8_e5m2", "float32"),
    Dtype("HiFloat8", "float", 1, None, "float32"),
    Dtype("Int4", "int", 1, "int4", "int8"),
)

_ALIASES = {
    "bool_": "Bool",
    "half": "Float16",
    "float": "Float32",
    "double": "Float64",
    "short": "Int16",
    "int": "Int32",
    "long": "Int64",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
}

_BY_LOWER_NAME = {dtype.name.lower(): dtype for dtype in _DTYPES}
_BY_LOWER_NAME |= {alias: _BY_LOWER_NAME[name.lower()] for alias, name in _ALIASES.items()}


@cache
def find_dtype(text: str) -> Dtype | None:
    """The dtype that `text` names in any spelling a dump may hold (`Float32`, `torch.float32`, `float32`), or None."""
    return _BY_LOWER_NAME.get(text.rpartition(".")[2].lower())


@cache
def array_dtype(dtype: Dtype) -> np.dtype[np.generic] | None:
    """NumPy dtype for arrays of `dtype` (bfloat16, float8 and int4 through ml_dtypes); None when there is none."""
    if dtype.array_name is None:
        return None
    import ml_dtypes
    import numpy as np

    # Not by name alone: MindSpore, once imported, registers a bfloat16 of its own under the same name.
    return np.dtype(getattr(ml_dtypes, dtype.array_name, dtype.array_name))


@cache
def dtype_of_array(numpy_dtype: np.dtype[np.generic]) -> Dtype | None:
    """The dtype whose arrays are `numpy_dtype`, or None for one that no dump can hold."""
    return _BY_LOWER_NAME.get(numpy_dtype.name.lower())
