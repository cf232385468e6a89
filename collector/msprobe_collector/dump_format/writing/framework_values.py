"""What the writer of a dump must know of a framework's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from msprobe_collector.dump_format.writing.statistics import Statistics, statistics_of


class TensorValues:
    """The values of a tensor at one moment, and what a dump says about the tensor besides its statistics.

    Attributes:
        array: its elements, in its own dtype (bfloat16 and its like through ml_dtypes); a subclass may have None for a
            tensor whose elements nobody can read.
        dtype_name: name of the dtype as the framework's dumps write it: `Float32`, `torch.float32`.
        type_name: the entry's `type`: `mindspore.Tensor`.
        fields: further fields of the entry as JSON text that begins with a comma: `, "requires_grad": true`.

    A framework that computes statistics where its tensors are overrides `shape`, `statistics` and `array`, which is
    then asked for only where the elements are written.
    """

    __slots__ = ("array", "dtype_name", "fields", "type_name")

    def __init__(self, array: np.ndarray[Any, Any], dtype_name: str, type_name: str, fields: str = "") -> None:
        self.array = array
        self.dtype_name = dtype_name
        self.type_name = type_name
        self.fields = fields

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the dimensions."""
        return self.array.shape

    def statistics(self) -> Statistics:
        """Statistics of the elements, for the dump."""
        return statistics_of(self.array)


class ComputationFailed(BaseException):
    """Reading a tensor brought up the error of the script's own computation, which must go on to the script.

    No Exception, so that it passes what keeps faults of the collector away from training. Whoever stands between the
    collector and the script raises `error` in its place.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


#: Encodes a value that stands inside another: (value, last step of its path) -> JSON text.
EncodeInner: TypeAlias = Callable[[Any, str], str]


class FrameworkValues(Protocol):
    """How the values of one framework are read.

    Attributes:
        tensor_types: the classes of its tensors, for isinstance.
        dtype_type: the class of its dtypes.
        dtype_type_name: the `type` of a dtype's entry: `mindspore.dtype`.
        hidden_lines: parts of source lines that hand a call on inside the framework; their frames are in no stack.
        file_suffix: of tensor files: `.npy`, or `.pt` for files that `torch.load` reads.
    """

    tensor_types: tuple[type, ...]
    dtype_type: type
    dtype_type_name: str
    file_suffix: str
    hidden_lines: tuple[str, ...]

    def read(self, tensor: Any) -> TensorValues:
        """The values of `tensor` as they are now; the array may share memory with it.

        Waits until a device has computed them.

        Raises:
            ComputationFailed: what the script had started raised an error, which reading has brought up.
        """

    def frozen(self, tensor: Any) -> TensorValues:
        """Values as of `read`, in memory of their own: the training may change the tensor afterwards."""

    def dtype_text(self, dtype: Any) -> str:
        """The `value` of a dtype's entry."""

    def special(self, value: Any, encode: EncodeInner) -> str | None:
        """JSON text of a value that only this framework has (a process group, a peer operation), None for others."""
