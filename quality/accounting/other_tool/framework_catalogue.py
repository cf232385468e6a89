"""Pairs of MindSpore (target) and PyTorch (golden), written by our collectors from equal weights and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quality.accounting.other_tool.pairs import ToolPair
from quality.accounting.other_tool.values import Run

_Changes = Mapping[str, Any]
_NOTHING: _Changes = {}


def _pair(
    name: str,
    kind: str,
    network: str,
    *expected: str,
    also: tuple[str, ...] = (),
    mindspore: _Changes = _NOTHING,
    pytorch: _Changes = _NOTHING,
) -> ToolPair:
    # MindSpore's elu is exp(x) - 1: near 0 it is off by much more than a rounding, which would be no clean pair.
    common = {"silu": True} if network == "mixer" else {}
    target, golden = (
        Run(network, tool="ours", **{**changes, "plan": {**common, **changes.get("plan", {})}})
        for changes in (mindspore, pytorch)
    )
    return ToolPair(f"{name}, {network}", kind, "frameworks", expected, also, target, golden)


def _kernel(name: str, call: int, fault: str) -> _Changes:
    return {"kernel": (name, call, 0, fault)}


_B = {"ways": ("other-device",)}
CAUSES = (
    _pair(
        "softmax 2 % off in MindSpore",
        "kernel",
        "gpt",
        "MintFunctional.softmax.1",
        mindspore=_kernel("functional.softmax", 1, "1.02"),
    ),
    _pair(
        "tail of a gelu in MindSpore",
        "kernel",
        "gpt",
        "Functional.gelu.2",
        mindspore=_kernel("ops.gelu", 2, "tail"),
        pytorch=_B,
    ),
    _pair(
        "tile of a product in MindSpore",
        "kernel",
        "gpt",
        "Mint.matmul.3",
        mindspore=_kernel("mint.matmul", 3, "tile"),
    ),
    _pair(
        "gradient of a gelu in MindSpore",
        "gradient",
        "gpt",
        "Functional.gelu.0",
        mindspore=_kernel("ops.gelu", 0, "gradient 1.06"),
    ),
    _pair(
        "layer norm in bfloat16 in PyTorch",
        "kernel",
        "gpt",
        "Primitive.layer_norm.LayerNorm.3",
        "Functional.layer_norm.3",
        pytorch=_kernel("native_layer_norm", 3, "bfloat16"),
    ),
    _pair(
        "softmax's gradient in PyTorch",
        "gradient",
        "gpt",
        "MintFunctional.softmax.1",
        "Functional.softmax.1",
        pytorch=_kernel("_softmax_backward_data", 1, "1.05"),
    ),
    _pair("gelu by tanh in MindSpore", "formula", "gpt", "Functional.gelu.1", mindspore={"plan": {"tanh": 1}}),
    _pair("gelu by tanh in PyTorch", "formula", "gpt", "Functional.gelu.2", pytorch={"plan": {"tanh": 2}, **_B}),
    _pair(
        "scale of attention in MindSpore",
        "formula",
        "gpt",
        "Mint.mul.0",
        "Tensor.__mul__.0",
        mindspore={"plan": {"scale": 0}},
    ),
    _pair(
        "eps of a norm in MindSpore",
        "formula",
        "gpt",
        "Primitive.layer_norm.LayerNorm.1",
        "Functional.layer_norm.1",
        mindspore={"plan": {"eps": 0}},
    ),
    _pair(
        "query and key swapped in MindSpore",
        "rewired",
        "gpt",
        "rewired Mint.reshape.4",
        "rewired Mint.transpose.5",
        "rewired Mint.matmul.2",
        also=("rewired Mint.reshape.5", "rewired Mint.transpose.6"),
        mindspore={"plan": {"swap_qk": 1}},
    ),
    _pair(
        "the key's chunk as value in PyTorch",
        "rewired",
        "gpt",
        "rewired Mint.reshape.2",
        "rewired Mint.transpose.2",
        "rewired Mint.matmul.1",
        pytorch={"plan": {"v_is_k": 0}},
    ),
    _pair(
        "a block gets the input of the one before, in MindSpore",
        "rewired",
        "gpt",
        "rewired Tensor.to.8",
        "rewired Primitive.layer_norm.LayerNorm.4",
        also=("rewired Mint.add.5",),
        mindspore={"plan": {"from_before": 2}},
    ),
    _pair(
        "label smoothing in PyTorch",
        "formula",
        "gpt",
        "Functional.cross_entropy.0",
        pytorch={"plan": {"smoothing": True}},
    ),
    _pair(
        "one weight in MindSpore",
        "data",
        "gpt",
        "parameter *blocks.1.up.weight",
        mindspore={"data": "weight blocks.1.up.weight"},
        pytorch=_B,
    ),
    _pair(
        "one token in PyTorch",
        "data",
        "gpt",
        "batch",
        "value Primitive.get_shp.Shape.0",
        "value Primitive.reshape_flat.Reshape.0",
        "value Primitive.gather.Gather.0",
        pytorch={"data": "token"},
    ),
    _pair(
        "hardswish 2 % off in PyTorch",
        "kernel",
        "mixer",
        "Functional.hardswish.1",
        pytorch=_kernel("hardswish", 1, "1.02"),
    ),
    _pair(
        "a factor too many in MindSpore",
        "rewired",
        "mixer",
        "Mint.mul.0",
        "rewired Mint.add.3",
        mindspore={"plan": {"gain": 1}},
    ),
    _pair(
        "minus for plus in MindSpore",
        "formula",
        "mixer",
        "Mint.sub.0",
        "Mint.add.4",
        "Tensor.__add__.4",
        mindspore={"plan": {"minus": 2}},
        pytorch=_B,
    ),
    _pair(
        "elu for silu in PyTorch",
        "formula",
        "mixer",
        "MintFunctional.silu.1",
        "Functional.elu.0",
        pytorch={"plan": {"elu_in": 1}},
    ),
    _pair(
        "tail of a convolution in PyTorch",
        "kernel",
        "resnet",
        "Primitive.conv2d.Conv2D.3",
        "Functional.conv2d.3",
        pytorch=_kernel("convolution", 3, "tail"),
    ),
    _pair(
        "eps of a batch norm in MindSpore",
        "formula",
        "resnet",
        "Primitive.bn_train.BatchNorm.2",
        "Functional.batch_norm.2",
        mindspore={"plan": {"eps": 2}},
    ),
    _pair(
        "skip connection from the stem in PyTorch",
        "rewired",
        "resnet",
        "rewired Mint.add.1",
        "rewired Tensor.__add__.1",
        pytorch={"plan": {"skip_stem": 1}},
    ),
    _pair(
        "one pixel in MindSpore",
        "data",
        "resnet",
        "batch",
        "value Primitive.conv2d.Conv2D.0",
        mindspore={"data": "pixel"},
    ),
)
CLEAN = tuple(
    _pair(name, "", network, mindspore=one, pytorch=other)
    for name, network, one, other in (
        ("equal weights", "gpt", _NOTHING, _NOTHING),
        ("equal weights, other order of sums in PyTorch", "gpt", _NOTHING, _B),
        ("equal weights, other order of sums in MindSpore", "gpt", _B, _NOTHING),
        ("equal weights", "mixer", _NOTHING, _NOTHING),
        ("equal weights, loss scaled", "mixer", {"ways": ("scaler",)}, {"ways": ("scaler",)}),
        ("equal weights, another batch", "mixer", {"data": "seed"}, {"data": "seed", **_B}),
        ("equal weights", "resnet", _NOTHING, _NOTHING),
        ("equal weights, channels last in PyTorch", "resnet", _NOTHING, {"ways": ("channels-last",)}),
    )
)
