"""The dump itself as an engine: what the training run really produced is what is tested."""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe_collector.dump_format import (
    ApiName,
    BackwardRecord,
    ForwardRecord,
    Place,
    PlainValue,
    TensorFolder,
    TensorValue,
    Value,
)
from msprobe_collector.dump_format.fields import OUTPUT
from pytest_msprobe.engines.gradient_pairing import GradientPairing, gradient_field
from pytest_msprobe.engines.protocol import Array, Call, LeafPath, Output, OutputValue, Unsupported, map_leaves


class RecordedEngine:
    """The recorded outputs and gradients of one API call, loaded when asked for.

    Attributes:
        name: `recorded`.
        label: for people.
    """

    name = "recorded"
    label = "recorded values"

    def __init__(
        self,
        forward: ForwardRecord,
        backward: BackwardRecord | None,
        pairing: GradientPairing,
        tensors: TensorFolder,
        file: str,
    ) -> None:
        self._forward = forward
        self._backward = backward
        self._pairing = pairing
        self._tensors = tensors
        self._file = file

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Always None: whether real data is there shows when it is loaded."""
        return None

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> RecordedExecution:
        """The recorded outputs. Raises Unsupported when the dump holds only statistics of them."""
        return RecordedExecution(self, call, differentiate)

    def close(self) -> None:
        """Nothing is held."""

    def load_outputs(self, call: str) -> tuple[Output, ...]:
        """Every recorded output leaf of the API call named `call`.

        Raises:
            Unsupported: the dump holds no outputs of this call.
        """
        if self._forward.outputs is None:
            raise Unsupported("the dump holds no outputs of this call (cut by data_mode or scope?)")
        return tuple(self._leaves((), self._forward.outputs, Place(self._file, f"{call}.forward", OUTPUT)))

    def load_gradient(self, call: str, path: LeafPath) -> Array | None:
        """The recorded gradient of one argument, or None where none was recorded."""
        entry = self._pairing.entries.get(path)
        if entry is None or self._backward is None:
            return None
        value = self._backward.others[entry] if isinstance(entry, str) else (self._backward.outgoing or ())[entry]
        if not isinstance(value, TensorValue):
            return None
        return self._load(value, Place(self._file, f"{call}.backward", gradient_field(entry)) / entry)

    def _leaves(self, path: tuple[int | str, ...], value: Value, place: Place) -> list[Output]:
        if isinstance(value, tuple):
            return [leaf for i, item in enumerate(value) for leaf in self._leaves((*path, i), item, place / i)]
        if isinstance(value, dict):
            return [leaf for key, item in value.items() for leaf in self._leaves((*path, key), item, place / key)]
        return [Output(path, self._leaf(value, place))]

    def _leaf(self, value: Value, place: Place) -> OutputValue:
        if isinstance(value, TensorValue):
            return self._load(value, place)
        if isinstance(value, PlainValue):
            return value.value
        return None if value is None else str(value)

    def _load(self, value: TensorValue, place: Place) -> Array:
        if value.data_name is None:
            raise Unsupported("the dump holds only statistics of this call; check it on a device instead")
        return self._tensors.load(value, place)


class RecordedExecution:
    """The recorded values of one API call, as an execution."""

    def __init__(self, engine: RecordedEngine, call: Call, differentiate: tuple[LeafPath, ...]) -> None:
        self._engine = engine
        self._name = str(call.api)
        self._differentiate = differentiate
        self._dtypes: dict[LeafPath, Any] = {}
        map_leaves(call, lambda path, value: self._dtypes.setdefault(path, getattr(value, "dtype", None)))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every recorded output leaf."""
        return self._engine.load_outputs(self._name)

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """The recorded gradients, in the dtypes of the arguments; `incoming` is what they were computed from."""
        return tuple(
            _as_computed(self._engine.load_gradient(self._name, path), self._dtypes.get(path))
            for path in self._differentiate
        )


def _as_computed(gradient: Array | None, dtype: Any) -> Array | None:
    """A gradient that was widened when it was handed on, in the `dtype` in which it was computed."""
    if gradient is None or dtype is None or dtype.itemsize >= gradient.dtype.itemsize:
        return gradient
    with np.errstate(over="ignore"):
        narrow = gradient.astype(dtype)
    is_same = np.array_equal(narrow.astype(gradient.dtype), gradient, equal_nan=True)
    return narrow if is_same else gradient
