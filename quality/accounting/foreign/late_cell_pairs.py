"""The pairs of MindSpore of the third part; see late_torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from quality.accounting.foreign.cell_pairs import _batch, _edited, _kernel, _one_more, _pair, _planted, _weight
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.torch_pairs import REWIRED

_MINT = "mindspore.mint"
_OPS = "mindspore.ops"
_FUNCTIONS = "mindspore.mint.nn.functional"


def _kernels() -> Iterator[Pair]:
    yield _kernel("encoder", f"{_OPS}.elu", 1, "tile")
    yield _kernel("encoder", f"{_OPS}.softmax", 2, "low")
    yield _kernel("encoder", "Primitive MatMul", 7)
    yield _kernel("encoder", "Primitive LayerNorm", 3, "tile")
    yield _kernel("encoder", f"{_OPS}.elu", 2, "gradient")
    yield _kernel("couplings", f"{_OPS}.softplus", 1, "low")
    yield _kernel("couplings", f"{_MINT}.exp", 2, "gradient")
    yield _kernel("couplings", f"{_FUNCTIONS}.linear", 3, "tile")
    yield _kernel("nodes", f"{_OPS}.unsorted_segment_sum", 1)
    yield _kernel("nodes", f"{_MINT}.erf", 0, "tail")
    yield _kernel("nodes", f"{_OPS}.leaky_relu", 1, "gradient")
    yield _kernel("skips", "Primitive Conv2DTranspose", 0, "tile")
    yield _kernel("skips", f"{_OPS}.selu", 0, "low")
    yield _kernel("skips", f"{_OPS}.relu6", 0, "gradient")
    yield _kernel("codes", f"{_FUNCTIONS}.silu", 1)
    yield _kernel("codes", f"{_MINT}.exp", 1, "tail")
    yield _kernel("sentences", f"{_MINT}.amax", 1, "tile")
    yield _kernel("sentences", f"{_MINT}.sigmoid", 0, "gradient")
    yield _kernel("mindcv poolformer", "Primitive AvgPool", 2)
    yield _kernel("mindcv poolformer", "Primitive Conv2D", 5, "tail")
    yield _kernel("mindcv pit", "Primitive Softmax", 1, "tile")
    yield _kernel("mindcv pit", "Primitive BatchMatMul", 2)


def _called_otherwise() -> Iterator[Pair]:
    for network, place in (
        *(("encoder", "scale 1"), ("encoder", "other activation 2"), ("couplings", "scale squared 1")),
        *(("couplings", "half of the square"), ("nodes", "other activation 1"), ("skips", "max for mean")),
        *(("skips", "sum for mean"), ("codes", "beta"), ("codes", "absolute for square")),
        ("sentences", "tanh for sigmoid"),
    ):
        yield _planted("formula", network, place)
    yield _planted("dtype", "encoder", "step through bfloat16 1")


def _rewired() -> Iterator[Pair]:
    for network, place in (
        *(
            ("encoder", "q and k exchanged 1"),
            ("encoder", "values are the keys 2"),
            ("encoder", "skip of the queries 1"),
        ),
        *(("couplings", "scale and shift exchanged 1"), ("couplings", "halves not exchanged 0")),
        *(("nodes", "ends of edges exchanged 1"), ("nodes", "sum at sources 0"), ("skips", "order of a cat")),
        ("sentences", "order of convolutions"),
    ):
        yield _planted("rewired", network, place, REWIRED)
    place = "mean and width exchanged"
    readers = ("Mint.mul.0", "Mint.add.0", "Mint.square.0", "Mint.exp.1", "Mint.sub.0")
    told = tuple(f"rewired {call}" for call in readers)
    yield _pair("rewired", "codes", place, {"planted": place}, expected=told)


def _data() -> Iterator[Pair]:
    for network, name in (
        ("encoder", "layers.1.up.weight"),
        ("encoder", "places"),
        ("sentences", "table"),
        ("skips", "up.weight"),
        ("codes", "uncode.bias"),
    ):
        yield _edited("data", network, f"one value of {name}", _weight(name), f"parameter {name}")
    yield _edited("data", "nodes", "one edge", _batch("source", _one_more), "batch", "constant")
    yield _edited("data", "codes", "one value of the noise", _batch("noise", _one_more), "batch", "constant")
    yield _edited("data", "encoder", "one label", _batch("labels", _one_more), "batch", "constant")
    yield _edited("data", "mindcv pit", "one pixel", _batch("pixels", _one_more), "batch", "constant")


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        return _pair("clean", network, what, target, golden=golden or {}, answer="nothing")

    other: dict[str, Any] = {"is_reordered": True}
    for network in ("couplings", "nodes", "codes", "sentences"):
        yield pair(network, "another order", other)
    yield pair("encoder", "run again", {"is_reordered": False})
    low: dict[str, Any] = {"dtype": "float16", "is_reordered": False}
    for network in ("skips", "mindcv poolformer", "mindcv pit", "nodes"):
        yield pair(network, "float16 against float32", low)
    for network in ("codes", "sentences"):
        yield pair(network, "float16, another order", {**low, **other}, {"dtype": "float16"})


def pairs() -> tuple[Pair, ...]:
    """All of them; imports MindSpore."""
    makers: tuple[Callable[[], Iterator[Pair]], ...] = (_kernels, _called_otherwise, _rewired, _data, _clean)
    return tuple(dataclasses.replace(pair, part="c") for make in makers for pair in make())
