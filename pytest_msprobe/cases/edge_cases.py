"""Edge cases made from a recorded API call: other shapes, layouts and values of its tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, inf, nan, prod
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import FieldPath, ForwardRecord, TensorValue, dtype_of_array, tensors_in
from msprobe_collector.dump_format.values import INCOMING
from pytest_msprobe.engines.protocol import Array, LeafPath, NotJudged, Output, arrays_in, with_leaves

if TYPE_CHECKING:
    from pytest_msprobe.cases.case import Case

#: How each is made, in words; by the names that end the names of their items.
EDGE_CASES = {
    "empty": "every tensor as long as the first one along axis 0 cut to length 0 there",
    "scalar": "every tensor replaced by its first element, without dimensions",
    "broadcast": "the second tensor, of the shape of the first, cut to length 1 along axis 0",
    "strided": "every tensor a transposed view: the same values, not contiguous",
    "large": "every tensor as long as the first one along axis 0 repeated there to more than 2^31 elements",
    "extreme": "largest, smallest and subnormal numbers of the dtype, 0 and -0 put into its float tensors, once each",
    "nan": "three NaN put into its float tensors",
    "inf": "Inf, -Inf and Inf put into its float tensors",
}
#: Those whose gradients are judged as well, where the recorded call has a backward: not those of NaN and Inf, which
#: frameworks define differently, nor those of 2^31 elements, whose gradients would take as much memory again.
WITH_GRADIENTS = frozenset({"empty", "scalar", "broadcast", "strided", "extreme"})
#: APIs that share memory with their input, and so refuse most transposed ones.
_VIEWS = frozenset({"view", "view_as"})
_LARGE = 2**31
#: How Python, PyTorch and CANN say that memory is used up.
_OUT_OF_MEMORY = ("memoryerror", "can't allocate memory", "out of memory")

_Change = Callable[[int, Array], Array]


def edge_cases_of(record: ForwardRecord) -> tuple[str, ...]:
    """Names of the edge cases that can be made from a recorded forward. Loads no NumPy."""
    tensors = [*tensors_in((record.arguments or (), record.keywords))]
    shaped = [tensor for tensor in tensors if tensor.size and tensor.shape]
    if not shaped:
        return ()
    first, *others = tensors
    has_matrix = any(len(tensor.shape) > 1 and min(tensor.shape[-2:]) > 1 for tensor in shaped)
    can_broadcast = bool(others) and others[0].shape == first.shape and bool(first.shape) and first.shape[0] > 1
    has_floats = any(tensor.size and tensor.dtype is not None and tensor.dtype.kind == "float" for tensor in tensors)
    applicable = {
        "empty": bool(first.shape) and first.size > 0,
        "scalar": True,
        "broadcast": can_broadcast,
        "strided": has_matrix,
        "large": bool(first.shape) and first.size > 0,
        **dict.fromkeys(("extreme", "nan", "inf"), has_floats),
    }
    return tuple(name for name in EDGE_CASES if applicable[name])


def edge_case(case: Case, name: str, max_memory_bytes: int) -> Case:
    """`case` with the tensors of the edge case called `name`, without recorded outputs.

    Its gradients are those of the arguments that the recorded call has gradients of, where they are judged at all.

    Raises:
        NotJudged: it needs more than `max_memory_bytes`, or the API takes contiguous tensors only.
    """
    if name == "strided" and case.api.short in _VIEWS:
        raise NotJudged("skip", "a view of a tensor that is not contiguous does not exist in general")
    tensors = [*arrays_in(case.call).values()]
    if name == "large":
        _refuse_large(case, tensors, max_memory_bytes)
    change = _CHANGES[name](tensors)
    count = itertools.count()

    def changed(path: LeafPath, value: Any) -> Any:
        return change(next(count), value) if hasattr(value, "__array_interface__") else value

    if name not in WITH_GRADIENTS:
        case = replace(case, backward=None, wanted=())
    return replace(
        case,
        call=replace(with_leaves(case.call, changed), is_strided=name == "strided"),
        forward=replace(case.forward, outputs=None),
        notes=(*case.notes, f"constructed: {EDGE_CASES[name]}"),
        constructed=name,
    )


def refuse_lack_of_memory(case: Case, raised: str) -> None:
    """Nothing, unless `case` is too large for an engine that said `raised`; what others hold is not known before.

    Raises:
        NotJudged: a skip.
    """
    if case.constructed == "large" and any(words in raised.lower() for words in _OUT_OF_MEMORY):
        raise NotJudged("skip", f"there is not enough memory for more than 2^31 elements: {raised}")


def constructed_incoming(case: Case, outputs: Sequence[Output], seed: int) -> tuple[Array | None, ...]:
    """Incoming gradients of an edge case, drawn from -1 to 1; None for an output that carries none.

    Args:
        case: the edge case.
        outputs: what its forward returned, which no dump knows the shapes of.
        seed: of random inputs.

    Raises:
        NotJudged: no output carries a gradient.
    """
    from pytest_msprobe.cases.random_data import generator_for, random_array

    place = FieldPath("", f"{case.api}-{case.constructed}.backward", INCOMING)
    tensors = [output.value for output in outputs if len(output.path) == 1 and hasattr(output.value, "nbytes")]
    gradients: list[Array | None] = []
    for index, value in enumerate(tensors):
        dtype = dtype_of_array(value.dtype)  # type: ignore[union-attr]  # arrays only
        is_float = dtype is not None and dtype.kind in ("float", "complex")
        wanted = TensorValue(dtype, value.shape, 1.0, -1.0, None, None, None)  # type: ignore[union-attr]
        gradients.append(random_array(wanted, generator_for(seed, place / index), place / index) if is_float else None)
    if all(gradient is None for gradient in gradients):
        raise NotJudged("skip", "no output of this edge case carries a gradient")
    return tuple(gradients)


def _refuse_large(case: Case, tensors: Sequence[Array], limit: int) -> None:
    dtypes = [*(dtype_of_array(tensor.dtype) for tensor in tensors), *case.output_dtypes()]
    largest = max(tensor.itemsize for tensor in tensors)
    is_exact = all(dtype is not None and dtype.kind in ("int", "bool") for dtype in dtypes)
    beside = 4 * largest if is_exact else 4 * 8
    elements = sum(tensor.size for tensor in tensors)
    elements += (_repeats(tensors) - 1) * sum(tensor.size for tensor in tensors if _is_along(tensor, tensors))
    needed = elements * (largest + beside)
    if needed > limit:
        raise NotJudged(
            "skip",
            f"more than 2^31 elements need up to {needed / 1e9:.3g}GB, more than "
            f"--msprobe-max-memory={limit / 1e9:.3g}GB",
        )


def _is_along(tensor: Array, tensors: Sequence[Array]) -> bool:
    """Whether axis 0 is that of the first tensor."""
    return bool(tensor.ndim and tensors[0].ndim and tensor.shape[0] == tensors[0].shape[0])


def _repeats(tensors: Sequence[Array]) -> int:
    return ceil((_LARGE + 1) / prod(tensors[0].shape))


def _large(tensors: Sequence[Array]) -> _Change:
    import numpy as np

    count = _repeats(tensors)
    return lambda place, array: np.concatenate([array] * count) if _is_along(array, tensors) else array


def _with(values: Callable[[Array], Sequence[float]]) -> Callable[[Sequence[Array]], _Change]:
    """Put `values`, which may depend on the dtype, into float tensors, once each and far from each other.

    More of them would meet in one sum, whose overflow in the dtype is no fault of the device.
    """

    def make(tensors: Sequence[Array]) -> _Change:
        import numpy as np

        from pytest_msprobe.numerics.dtypes import kind_of

        def change(place: int, array: Array) -> Array:
            if kind_of(array.dtype) != "float" or not array.size:
                return array
            changed = array.copy(order="C")
            special = np.array(values(array)).astype(array.dtype)[: array.size]
            changed.reshape(-1)[np.arange(special.size) * array.size // special.size] = special
            return changed

        return change

    return make


def _extremes(array: Array) -> Sequence[float]:
    from pytest_msprobe.numerics.dtypes import float_format

    limits = float_format(array.dtype)
    tiny = limits.smallest_normal
    return (limits.largest, -limits.largest, tiny, -tiny, tiny * 2.0**-limits.mantissa_bits, 0.0, -0.0)


def _without_elements(tensors: Sequence[Array]) -> _Change:
    return lambda place, array: array[:0] if _is_along(array, tensors) else array


def _to_scalar(tensors: Sequence[Array]) -> _Change:
    return lambda place, array: array.reshape(-1)[:1].reshape(()) if array.size else array


_CHANGES: dict[str, Callable[[Sequence[Array]], _Change]] = {
    "empty": _without_elements,
    "scalar": _to_scalar,
    "broadcast": lambda tensors: lambda place, array: array[:1] if place == 1 else array,
    "strided": lambda tensors: lambda place, array: array,
    "large": _large,
    "extreme": _with(_extremes),
    "nan": _with(lambda array: (nan,) * 3),
    "inf": _with(lambda array: (inf, -inf, inf)),
}
