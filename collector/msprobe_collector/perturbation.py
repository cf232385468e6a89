"""Values moved by a few roundings, for a run that shows what rounding alone does to a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from msprobe_collector.dump_format.values import dtype_of_array
from msprobe_collector.framework import Framework

#: By size of a float in bytes: the whole number that its bits are read as.
_BITS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Perturbation:
    """Moves the floating tensors in a value; equal seeds, calls and values give equal results.

    Attributes:
        moved: tensors that were moved so far.
    """

    def __init__(self, framework: Framework, *, roundings: int, seed: int, call: int) -> None:
        """Move by at most `roundings` units in the last place, as `seed` and `call`, a number of the call, decide."""
        self._framework = framework
        self._roundings = roundings
        self._seed = (seed, call)
        self.moved = 0

    def of(self, value: Any) -> Any:
        """`value` with every floating tensor in it (also in lists, tuples and mappings) replaced by a moved one.

        The parameters of a layer are moved in place.
        """
        if isinstance(value, self._framework.values.tensor_types):
            return self.tensor(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.of, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        if isinstance(value, Mapping):
            moved = {key: self.of(item) for key, item in value.items()}
            return moved if type(value) is dict else type(value)(moved)  # type: ignore[call-arg]  # as dicts are made
        if isinstance(value, np.ndarray):
            return self._array(value)
        if self._framework.is_layer(value):
            self._framework.change_parameters(value, self.tensor)
        return value

    def tensor(self, tensor: Any) -> Any:
        """A tensor of the same dtype with moved elements; `tensor` itself when it holds no floating numbers."""
        array = self._framework.values.read(tensor).array
        moved = self._array(array)
        return tensor if moved is array else self._framework.tensor_like(tensor, moved)

    def _array(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dtype = dtype_of_array(array.dtype)
        if dtype is None or dtype.kind not in ("float", "complex") or not array.size:
            return array
        self.moved += 1
        random = np.random.default_rng([*self._seed, self.moved])
        if dtype.kind == "complex":
            parts = array.reshape(-1).view(array.real.dtype)
            return moved_by_roundings(parts, self._roundings, random).view(array.dtype).reshape(array.shape)
        return moved_by_roundings(array, self._roundings, random)


def moved_by_roundings(array: npt.NDArray[Any], roundings: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """A copy with each element moved by 1 to `roundings` units in its last place (ULP), up or down at random.

    Zeros, NaN and infinities stay: a mask or padding has no rounding error. No element changes its sign, becomes zero
    or infinite.

    Args:
        array: of a float dtype, those of ml_dtypes included, in any shape.
        roundings: at least 1.
        random: decides on size and direction.
    """
    flat = np.array(array, order="C").reshape(-1)  # a copy
    bits = flat.view(_BITS[flat.dtype.itemsize])
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    largest = int(_largest_finite(flat.dtype).view(bits.dtype)[0])
    magnitude = (bits & ~sign).astype(np.int64)
    steps = random.integers(1, roundings, flat.size, endpoint=True) * random.choice(np.array([-1, 1]), flat.size)
    # Magnitudes of floats of one sign are ordered as their bits are, one ULP apart.
    moved = np.clip(magnitude + steps, 1, largest)
    stays = (magnitude == 0) | (magnitude > largest)
    bits[:] = np.where(stays, bits, moved.astype(bits.dtype) | (bits & sign))
    return flat.reshape(array.shape)


def _largest_finite(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.isbuiltin == 1:
        return np.array([np.finfo(dtype).max], dtype)
    import ml_dtypes

    return np.array([ml_dtypes.finfo(dtype).max], dtype)  # type: ignore[no-untyped-call]  # it has no types
