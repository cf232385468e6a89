"""What a framework hands over to the laws: plain values, sampled where tensors are large.

How a framework uses it: it makes one `LawSession` (`session.py`) per process and calls its methods with the values of
this module. Arrays are float64 (masks and tokens: integers), names are those of the model (`layers.0.weight`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from msprobe_collector.dump_format.values import find_dtype
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.numerics.expected import DTYPES

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor is, for the laws on aliases and on what a step may not change.

    Attributes:
        address: of the first element; 0 for an empty one or where the framework does not say.
        dtype: `float32`, `bfloat16`.
        device: `cpu`, `npu:0`.
        shape: of this process's part.
        is_part: whether other ranks have further elements.
    """

    address: int
    dtype: str
    device: str = "cpu"
    shape: tuple[int, ...] = ()
    is_part: bool = False


@dataclass(slots=True)
class Content:
    """What a parameter and its states hold before a step, or after it.

    Attributes:
        values: elements of the parameter; empty where they cannot be read.
        place: of the parameter.
        states: elements by the state's name in PyTorch (`exp_avg`, `exp_avg_sq`, `momentum_buffer`); one of a state
            that is a single number (`step`). A state that the optimizer makes in its first step is not there before.
        state_places: places by state, of those that are tensors; known after the step.
    """

    values: Array
    place: TensorPlace
    states: dict[str, Array] = field(default_factory=dict)
    state_places: dict[str, TensorPlace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdatedParameter:
    """One parameter around one call of its optimizer's `step`.

    The arrays of `before`, `after` and `gradient` hold the same elements, in the same order.

    Attributes:
        name: of the parameter in the model.
        group: index in `Update.settings`.
        before, after: what it and its states hold.
        gradient: as the step gets it, divided by the scale that the optimizer itself takes out; None for no gradient.
        gradient_dtype: "" without a gradient.
        requires_grad: whether it is to be trained.
        steps: with a gradient since it had no state, this one included; 0 where its state was there from the first.
        is_used_again: whether nothing has written the gradient since the step before.
        is_term: whether the gradient is one term of a sum over ranks, which the step takes.
    """

    name: str
    group: int
    before: Content
    after: Content
    gradient: Array | None
    gradient_dtype: str = ""
    requires_grad: bool = True
    steps: int = 0
    is_used_again: bool = False
    is_term: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values that the update sees."""
        return self.before.place.shape

    @property
    def size(self) -> int:
        """Number of elements of the tensor that the arrays were taken from."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether the arrays hold all elements, in the order of the tensor."""
        return self.before.values.size == self.size and not self.before.place.is_part

    @property
    def is_moved_frozen(self) -> bool:
        """Whether it is not to be trained, and is changed without a gradient: by momentum, or by decay."""
        is_zero = self.gradient is not None and self.gradient.size > 0 and not np.any(self.gradient)
        return is_zero and not self.requires_grad and not np.array_equal(self.before.values, self.after.values)


@dataclass(frozen=True, slots=True)
class Update:
    """One call of an optimizer's `step`.

    Attributes:
        optimizer: its name for people, the same in every step: `AdamW`, or `AdamW.1` for the second of that class.
        formula: name in `formulas.FORMULAS`; "" for an optimizer that is not known.
        unknown: why there is no formula, as one line.
        is_own: whether the class is the user's own and only bears the name of a known one, or overrides its step.
        settings: hyper-parameters of each group, as they are when the step begins.
        parameters: those with a gradient, and those without.
        number: of the step of this optimizer, from 0.
        source: line of the script that called `step`, `train.py:25, in main: optimizer.step()`.
        hyper_precision: unit roundoff of the arithmetic in which hyper-parameters are combined: 2^-53 where they are
            Python numbers, 2^-24 where they are float32 tensors.
    """

    optimizer: str
    formula: str
    settings: Sequence[Mapping[str, Any]]
    parameters: Sequence[UpdatedParameter]
    number: int
    source: str = ""
    unknown: str = ""
    is_own: bool = False
    hyper_precision: float = unit_roundoff("float64")

    @property
    def has_gradients(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(item.gradient is not None for item in self.parameters)

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [item.name for item in self.parameters]


@dataclass(frozen=True, slots=True)
class Clipping:
    """One call of a function that clips gradients by their norm.

    Attributes:
        names: of the parameters whose gradients are clipped.
        norm_before: their norm in float64 when the function is called; None where it cannot be computed here.
        norm_after: when it has returned; None where it cannot be computed here.
        reported: the norm that the function returns; None for none.
        max_norm: the limit.
        size: number of elements.
        unit: unit roundoff of the coarsest dtype of the gradients.
        scale: factor of a loss scaler that the gradients still hold; 1.0 for none.
        source: line of the script.
        unknown: why nothing can be compared; "" where it can.
        has_other_ranks: whether the reported norm may be that of gradients on other ranks, too.
    """

    names: Sequence[str]
    norm_before: float | None
    norm_after: float | None
    reported: float | None
    max_norm: float
    size: int
    unit: float
    scale: float = 1.0
    source: str = ""
    unknown: str = ""
    has_other_ranks: bool = False


@dataclass(frozen=True, slots=True)
class DropoutMask:
    """Which elements one call of dropout has dropped.

    Attributes:
        place: layer that made the call, or the source line where there is none.
        dropped: bool array: which of the first elements (at most 1024) are zero although their input is not.
        telling: bool array of the same size: which of them have an input that is not zero.
        rate: probability to drop.
        is_training: whether the innermost layer that decides about it is in training mode.
        is_repeat: whether a checkpoint runs the layer again inside the backward.
    """

    place: str
    dropped: Array
    telling: Array
    rate: float
    is_training: bool = True
    is_repeat: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a training step got.

    Attributes:
        of: the model, or the data loader.
        fingerprint: of all its tensors.
        from_loader: whether a data loader has made it.
        batches: how many batches that loader has; 0 if unknown.
        iteration: number of the loader's iterator that gave it.
        is_poor: whether it has too few different elements for equal batches to tell anything.
    """

    of: str
    fingerprint: str
    from_loader: bool = False
    batches: int = 0
    iteration: int = 0
    is_poor: bool = False


@dataclass(frozen=True, slots=True)
class Labels:
    """Targets of a cross entropy and the tokens that the model got in the same step.

    Attributes:
        tokens: integer array [batch, length].
        targets: integer array with the elements of `tokens` or fewer, in the same order.
        ignored: the target that does not count.
        is_causal: whether the model was seen to look at earlier tokens only.
    """

    tokens: Array
    targets: Array
    ignored: int = -100
    is_causal: bool = False


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return what lists, tuples and mappings hold."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)) and depth < 6:
        for item in value:
            yield from leaves(item, depth + 1)
    else:
        yield value


def fingerprint(parts: Iterable[tuple[tuple[int, ...], str, Array]]) -> tuple[str, bool]:
    """Return a digest of tensors, given as (shape, dtype, elements that stand for it), and `Batch.is_poor`."""
    digest = xxhash.xxh64()
    distinct = count = 0
    for shape, dtype, values in parts:
        digest.update(repr((shape, dtype)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
        count += values.size
        distinct = max(distinct, np.unique(values[:512]).size)
    return digest.hexdigest(), distinct < 12 or count < 24


def coarsest_roundoff(dtypes: Iterable[str]) -> float:
    """Return the unit roundoff of the coarsest of these dtypes; "" stands for a tensor that is not there.

    Raises:
        ValueError: a dtype is not known.
    """
    return max((unit_roundoff(dtype) for dtype in dtypes if dtype), default=unit_roundoff("float64"))


def smallest(dtype: str) -> float:
    """Return the absolute error that a result of `dtype` may have near zero: smaller ones may be flushed to zero."""
    named = find_dtype(dtype)
    return DTYPES[named.name if named is not None and named.name in DTYPES else "Float64"].least
