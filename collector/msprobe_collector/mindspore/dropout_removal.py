"""Dropout without effect, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

#: What stood in each place before: (owner, attribute, value). Filled while dropout is removed.
_originals: list[tuple[Any, str, Any]] = []


def remove_dropout() -> None:
    """Let dropout pass its input on, in PyNative and graph mode, until `restore_dropout`.

    Reached are: the layers of `nn` and `mint.nn`, also those built before; `mint.nn.functional.dropout` and
    `dropout2d`, unless imported by name before; `ops.dropout` and its kin; `ops.Dropout`, `Dropout2D` and `Dropout3D`
    made from now on. Dropout inside fused operators, such as flash attention, stays: set its probability to 0 in the
    model.
    """
    if _originals:
        return
    for owner, name, replacement in _replacements():
        _originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, replacement)


def restore_dropout() -> None:
    """Put dropout back. Primitives that were made while it was removed keep passing their input on."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def _replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    from mindspore import mint, nn, ops

    for layer in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        yield layer, "construct", _layer_of_x
    for layer in (mint.nn.Dropout, mint.nn.Dropout2d):
        yield layer, "construct", _layer_of_input
    for name in ("dropout", "dropout2d"):
        yield mint.nn.functional, name, _function_of_input
    for primitive in (ops.Dropout, ops.Dropout2D, ops.Dropout3D):
        yield primitive, "__init__", _keeping_all(primitive.__init__)


# The parameters have the names of those that they replace: callers may pass them by name.
def _layer_of_x(self: Any, x: Any) -> Any:
    return x


def _layer_of_input(self: Any, input: Any) -> Any:
    return input


def _function_of_input(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input


def _keeping_all(initialise: Callable[..., None]) -> Callable[..., None]:
    """The initialiser of a dropout Primitive that keeps every element, whatever it is asked for."""

    @functools.wraps(initialise)
    def initialise_keeping_all(self: Any, keep_prob: float = 0.5, *arguments: Any, **keywords: Any) -> None:
        initialise(self, 1.0, *arguments, **keywords)

    return initialise_keeping_all
