"""The pairs of MindSpore of the fourth part; see fourth_torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from quality.accounting.foreign.cell_pairs import _batch, _edited, _kernel, _one_more, _pair, _planted, _weight
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.torch_pairs import EITHER, REWIRED

_MINT = "mindspore.mint"
_OPS = "mindspore.ops"
_FUNCTIONS = "mindspore.mint.nn.functional"


def _kernels() -> Iterator[Pair]:
    yield _kernel("matching", f"{_OPS}.logsumexp", 3, "tile")
    yield _kernel("matching", f"{_MINT}.sin", 0, "low")
    yield _kernel("matching", f"{_MINT}.exp", 0, "gradient")
    yield _kernel("capsules", f"{_OPS}.hardsigmoid", 0, "tile")
    yield _kernel("capsules", f"{_OPS}.sqrt", 1)
    yield _kernel("capsules", "Primitive Conv2D", 0, "tail")
    yield _kernel("adapted", f"{_OPS}.mish", 1, "low")
    yield _kernel("adapted", f"{_OPS}.hardswish", 2, "tile")
    yield _kernel("adapted", f"{_OPS}.hardswish", 1, "gradient")
    yield _kernel("adapted", "Primitive MatMul", 6)
    yield _kernel("chosen", f"{_MINT}.bmm", 1, "tile")
    yield _kernel("chosen", f"{_FUNCTIONS}.silu", 0, "gradient")
    yield _kernel("chosen", f"{_OPS}.gelu", 0, "low")
    yield _kernel("steps", f"{_OPS}.smooth_l1_loss", 0, "gradient")
    yield _kernel("mindcv convnext", "Primitive Conv2D", 3, "tile")
    yield _kernel("mindcv vit", "Primitive LayerNorm", 2)
    yield _kernel("mindcv shufflenet_v2", "Primitive BatchNorm", 5, "tile")


def _called_otherwise() -> Iterator[Pair]:
    for network, place in (
        *(("matching", "heat"), ("matching", "columns twice 1"), ("matching", "rows by their largest 0")),
        *(("matching", "added to the plan 1"), ("capsules", "softmax over the small ones 1")),
        *(("capsules", "mean for sum 0"), ("capsules", "squashed by another constant 1")),
        *(("adapted", "weight of the adapter 1"), ("adapted", "skip turned round 2"), ("chosen", "other activation")),
        *(("chosen", "largest for sum"), ("steps", "label smoothing"), ("steps", "threshold of the loss")),
        *(("steps", "weight of the second head"), ("steps", "share of the step 3")),
    ):
        yield _planted("formula", network, place)
    yield _planted("formula", "chosen", "shares not normalised", EITHER)
    yield _planted("dtype", "adapted", "head through float16")


def _rewired() -> Iterator[Pair]:
    yield _planted("rewired", "matching", "matched with themselves", REWIRED)
    yield _planted("rewired", "adapted", "adapter of the layer before 1", REWIRED)
    yield _planted("rewired", "chosen", "shares of another expert", EITHER)


def _data() -> Iterator[Pair]:
    for network, name in (("adapted", "lower.1.weight"), ("capsules", "weight"), ("chosen", "down")):
        yield _edited("data", network, f"one value of {name}", _weight(name), f"parameter {name}")
    yield _edited("data", "adapted", "one label", _batch("labels", _one_more), "batch", "constant")
    yield _edited("data", "steps", "one class", _batch("kinds", _one_more), "batch", "constant")
    # A value of the batch that is plain numbers is as well of unknown origin, where it is used first.
    used = "unknown Functional.smooth_l1_loss.0"
    yield _edited("data", "steps", "one size", _batch("size", _one_more), "batch", "constant", used)


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        return _pair("clean", network, what, target, golden=golden or {}, answer="nothing")

    other: dict[str, Any] = {"is_reordered": True}
    for network in ("matching", "chosen"):
        yield pair(network, "another order", other)
    for network in ("steps", "capsules"):
        yield pair(network, "run again", {"is_reordered": False})
    low: dict[str, Any] = {"dtype": "float16", "is_reordered": False}
    for network in ("adapted", "mindcv convnext", "mindcv vit", "capsules"):
        yield pair(network, "float16 against float32", low)
    yield pair("chosen", "float16, another order", {**low, **other}, {"dtype": "float16"})


def pairs() -> tuple[Pair, ...]:
    """All of them; imports MindSpore."""
    makers: tuple[Callable[[], Iterator[Pair]], ...] = (_kernels, _called_otherwise, _rewired, _data, _clean)
    return tuple(dataclasses.replace(pair, part="d") for make in makers for pair in make())
