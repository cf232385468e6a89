"""Pairs of MindSpore that the existing tool's collector writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quality.accounting.other_tool.pairs import ToolPair
from quality.accounting.other_tool.values import Run


def _pair(
    name: str,
    kind: str,
    network: str,
    *expected: str,
    also: tuple[str, ...] = (),
    ways: tuple[str, ...] = (),
    level: str = "mix",
    other: bool = False,
    **planted: Any,
) -> ToolPair:
    golden = Run(network, ways=ways, level=level)
    target = replace(golden, **planted, ways=(*ways, "other-device") if other else ways)
    return ToolPair(f"{name}, {network}", kind, "mindspore", expected, also, target, golden)


_TOKEN = ("batch", "value Primitive.get_shp.Shape.0", "value Primitive.reshape_flat.Reshape.0")
CAUSES = (
    _pair(
        "softmax 2 % off",
        "kernel",
        "gpt",
        "MintFunctional.softmax.1",
        kernel=("functional.softmax", 1, 0, "1.02"),
        other=True,
    ),
    _pair("tail of a gelu", "kernel", "gpt", "Functional.gelu.2", kernel=("ops.gelu", 2, 0, "tail"), level="L1"),
    _pair("tile of a product", "kernel", "gpt", "Mint.matmul.2", kernel=("mint.matmul", 2, 0, "tile")),
    _pair(
        "gradient of a gelu",
        "gradient",
        "gpt",
        "Functional.gelu.1",
        kernel=("ops.gelu", 1, 0, "gradient 1.05"),
        other=True,
    ),
    _pair(
        "query and key swapped",
        "rewired",
        "gpt",
        "rewired Mint.reshape.4",
        also=("rewired Mint.reshape.5",),
        plan={"swap_qk": 1},
        level="L1",
    ),
    _pair("gelu by tanh", "formula", "gpt", "Functional.gelu.0", plan={"tanh": 0}, other=True),
    _pair("scale of attention", "formula", "gpt", "Mint.mul.2", plan={"scale": 2}, level="L1", other=True),
    _pair("eps 1e-3 for 1e-5", "formula", "gpt", "Primitive.layer_norm.LayerNorm.3", plan={"eps": 1}),
    _pair("label smoothing", "formula", "gpt", "Functional.cross_entropy.0", plan={"smoothing": True}),
    _pair("one token", "data", "gpt", *_TOKEN, data="token", other=True),
    _pair("one weight", "data", "gpt", "parameter *blocks.1.up.weight", data="weight blocks.1.up.weight"),
    _pair("tile of a hardswish", "kernel", "mixer", "Functional.hardswish.2", kernel=("ops.hardswish", 2, 0, "tile")),
    _pair("a factor too many", "rewired", "mixer", "Mint.mul.0", "rewired Mint.add.3", plan={"gain": 1}, other=True),
    _pair("minus for plus", "formula", "mixer", "Mint.sub.0", "Mint.add.4", plan={"minus": 2}, level="L1"),
    _pair("eps 1e-3 for 1e-5", "formula", "resnet", "Primitive.bn_train.BatchNorm.1", plan={"eps": 1}),
    _pair("skip connection from the stem", "rewired", "resnet", "rewired Mint.add.1", plan={"skip_stem": 1}),
    _pair("one pixel", "data", "resnet", "batch", "value Primitive.conv2d.Conv2D.0", data="pixel", level="L1"),
    _pair("relu 3 % off", "kernel", "resnet", "Functional.relu.3", kernel=("ops.relu", 3, 0, "1.03"), other=True),
)


def _clean(name: str, network: str, target: tuple[str, ...], golden: tuple[str, ...] = (), **both: Any) -> ToolPair:
    one, other = Run(network, ways=target, **both), Run(network, ways=golden, **{**both, "data": ""})
    return ToolPair(f"{name}, {network}", "", "mindspore", (), (), one, other)


CLEAN = (
    _clean("other order of sums", "gpt", ("other-device",)),
    _clean("other order of sums at L1", "gpt", ("other-device",), level="L1"),
    _clean("batch moved by a rounding, loss scaled", "mixer", ("scaler",), ("scaler",), data="nudged"),
    _clean("batch moved by a rounding", "resnet", ("other-device",), data="nudged"),
    _clean("float16 against float32", "mixer", ("float16", "scaler"), ("scaler",)),
)
