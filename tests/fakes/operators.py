"""A few operators with their gradients, in NumPy: what the fake engine can compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        forward: arguments -> outputs, a tuple.
        backward: (incoming gradients, arguments) -> gradient of each array among the arguments; None without one.
    """

    forward: Callable[..., tuple[Any, ...]]
    backward: Callable[..., tuple[Array, ...]] | None = None


def _split(x: Array, size: int) -> tuple[Array, ...]:
    return tuple(x[start : start + size] for start in range(0, len(x), size))


def _matmul(x: Array, y: Array) -> Array:
    """Add up in one order for all shapes, which `@` does not on every machine."""
    total: Array = (x[:, :, None] * y[None]).sum(axis=1)
    return total


def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    order = np.argsort(-x if largest else x, axis=dim, kind="stable")
    chosen = np.take(order, np.arange(k), axis=dim)
    return np.take_along_axis(x, chosen, axis=dim), chosen.astype(np.int64)


def _topk_backward(incoming: tuple[Array, ...], x: Array, k: int, dim: int = -1) -> tuple[Array, ...]:
    gradient = np.zeros_like(x)
    np.put_along_axis(gradient, _topk(x, k, dim)[1], incoming[0], axis=dim)
    return (gradient,)


#: By the short name of the API.
OPERATORS: dict[str, Operator] = {
    "neg": Operator(lambda x: (-x,), lambda g, x: (-g[0],)),
    "exp": Operator(lambda x: (np.exp(x),), lambda g, x: (g[0] * np.exp(x),)),
    "add": Operator(lambda x, y: (x + y,), lambda g, x, y: (g[0], g[0])),
    "mul": Operator(lambda x, y: (x * y,), lambda g, x, y: (g[0] * y, g[0] * x)),
    "matmul": Operator(lambda x, y: (_matmul(x, y),), lambda g, x, y: (_matmul(g[0], y.T), _matmul(x.T, g[0]))),
    "split": Operator(_split, lambda g, x, size: (np.concatenate(g),)),
    "topk": Operator(_topk, _topk_backward),
    "unique": Operator(lambda x, sorted=True: (np.unique(x),)),
    "item": Operator(lambda x: (x.item(),)),
    "nothing": Operator(lambda *given: ()),
    "dynamic_quant_ext": Operator(lambda x: (np.round(x).astype(np.int8),)),
    "zeros_like": Operator(lambda x: (np.zeros_like(x),)),
    "dropout": Operator(lambda x, p=0.5: (x,)),
}
