"""What a kernel of `kernels.py` is, and the precision of its intermediate results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Forward = Callable[..., Any]
#: (arguments, outputs as stored, incoming gradients) -> gradient of each float argument, in order.
Backward = Callable[[list[Any], list[Any], list[Any]], list[Any]]
#: Arguments and keywords of a call.
Drawn = tuple[tuple[Any, ...], dict[str, Any]]
Draw = Callable[[np.random.Generator, float], Drawn]
F32 = np.float32


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation.

    Attributes:
        api: its name in a dump.
        draw: arguments and keywords for a generator and a scale.
        forward: of float32 arguments.
        backward: None for what has no gradient.
        scales: of the arguments; one call each.
    """

    api: str
    draw: Draw
    forward: Forward
    backward: Backward | None = None
    scales: tuple[float, ...] = (0.3, 1.0, 4.0)


#: What intermediate results are rounded to: None in honest kernels, whose float32 they are already.
_INSIDE: list[np.dtype[Any] | None] = []


def inside(value: Any) -> Any:
    """An intermediate result, in the precision that the kernel keeps it in."""
    return np.asarray(value, F32).astype(_INSIDE[-1]).astype(F32) if is_narrow_inside() else value


@contextmanager
def narrow_inside(dtype: np.dtype[Any] | None) -> Iterator[None]:
    """While open, intermediate results are rounded to `dtype`, or not at all."""
    _INSIDE.append(dtype)
    try:
        yield
    finally:
        _INSIDE.pop()


def is_narrow_inside() -> bool:
    """Whether intermediate results are rounded."""
    return bool(_INSIDE) and _INSIDE[-1] is not None


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Floats:
    """Normal values of a size."""
    return (scale * rng.standard_normal(shape)).astype(F32)


def rows(*shape: int) -> Draw:
    """Draws one tensor of normal values."""
    return lambda rng, scale: ((normal(rng, *shape, scale=scale),), {})


def rows_last_axis(*shape: int) -> Draw:
    """Draws one tensor, and the last axis as second argument."""
    return lambda rng, scale: ((normal(rng, *shape, scale=scale), -1), {})


def two(*shape: int) -> Draw:
    """Draws two tensors of one shape."""
    return lambda rng, scale: ((normal(rng, *shape, scale=scale), normal(rng, *shape, scale=scale)), {})
