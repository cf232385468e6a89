"""Pairs of PyTorch that the existing tool's collector writes."""

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
    shared: dict[str, Any] | None = None,
    **planted: Any,
) -> ToolPair:
    """The target has what is `planted`, and sums in another order where it is the `other` device."""
    golden = Run(network, plan=shared or {}, ways=ways, level=level)
    planted["plan"] = {**golden.plan, **planted.get("plan", {})}
    target = replace(golden, **planted, ways=(*ways, "other-device") if other else ways)
    return ToolPair(f"{name}, {network}", kind, "pytorch", expected, also, target, golden)


def _changed(call: str) -> tuple[str, ...]:
    """An input of the call is another one, made by what the dump does not hold."""
    return f"rewired {call}", f"value {call}"


_UPDATE = ("clip", "stop-late")
_GPT = (
    _pair("gelu 2 % off", "kernel", "gpt", "Functional.gelu.1", kernel=("gelu", 1, 0, "1.02"), level="L1", other=True),
    _pair("tail of a softmax", "kernel", "gpt", "Functional.softmax.2", kernel=("_softmax", 2, 0, "tail")),
    _pair(
        "layer norm in bfloat16",
        "kernel",
        "gpt",
        "Functional.layer_norm.3",
        kernel=("native_layer_norm", 3, 0, "bfloat16"),
        level="L1",
        other=True,
    ),
    _pair("tile of a product", "kernel", "gpt", "Torch.matmul.2", kernel=("bmm", 2, 0, "tile")),
    _pair(
        "gradient of a softmax",
        "gradient",
        "gpt",
        "Functional.softmax.1",
        kernel=("_softmax_backward_data", 1, 0, "1.05"),
        other=True,
    ),
    _pair(
        "gradient of a norm's weight",
        "gradient",
        "gpt",
        "Functional.layer_norm.4",
        kernel=("native_layer_norm_backward", 2, 1, "tile"),
        ways=_UPDATE,
    ),
    _pair("gelu by tanh", "formula", "gpt", "Functional.gelu.2", plan={"tanh": 2}, shared={"tied": True}, other=True),
    _pair(
        "query and key swapped",
        "rewired",
        "gpt",
        "rewired Torch.matmul.2",
        plan={"swap_qk": 1},
        level="L1",
        other=True,
    ),
    _pair("the key's chunk as value", "rewired", "gpt", "rewired Torch.matmul.1", plan={"v_is_k": 0}),
    _pair("scale of attention", "formula", "gpt", "Tensor.__mul__.2", plan={"scale": 2}, other=True),
    _pair(
        "a norm left out",
        "rewired",
        "gpt",
        "rewired Functional.linear.6",
        "Functional.layer_norm.3",
        plan={"no_norm": 1},
        other=True,
    ),
    _pair(
        "eps 1e-3 for 1e-5",
        "formula",
        "gpt",
        "Functional.layer_norm.1",
        plan={"eps": 0},
        ways=_UPDATE,
        other=True,
    ),
    _pair("dropout left on", "formula", "gpt", "Functional.dropout.1", plan={"dropout": 1}, level="L1"),
    _pair("label smoothing", "formula", "gpt", "Functional.cross_entropy.0", plan={"smoothing": True}, other=True),
    _pair("mask of another diagonal", "data", "gpt", *_changed("Tensor.masked_fill.0"), plan={"mask": 0}, other=True),
    _pair(
        "places from 1 on", "data", "gpt", *_changed("Functional.embedding.1"), plan={"later_places": True}, level="L1"
    ),
    _pair(
        "a block gets the input of the one before",
        "rewired",
        "gpt",
        "rewired Functional.layer_norm.4",
        also=("rewired Tensor.__add__.5",),
        plan={"from_before": 2},
    ),
    _pair("one token", "data", "gpt", "batch", "value Functional.embedding.0", data="token", other=True),
    _pair("one weight", "data", "gpt", "parameter *blocks.1.up.weight", data="weight blocks.1.up.weight"),
    _pair(
        "softmax in bfloat16",
        "dtype",
        "gpt",
        "Functional.softmax.1",
        "Tensor.bfloat16.0",
        *_changed("Functional.softmax.1"),
        plan={"half_softmax": 1},
    ),
    _pair(
        "written to behind the collector", "hidden", "gpt", *_changed("Functional.linear.3"), plan={"hidden_write": 0}
    ),
    _pair("another checkpoint", "data", "gpt", "parameter*", data="checkpoint", other=True),
    _pair(
        "one word's weight, tied",
        "data",
        "gpt",
        "parameter *words.weight",
        "parameter *head.weight",
        data="weight words.weight",
        shared={"tied": True},
        ways=_UPDATE,
        other=True,
    ),
)
_LLAMA = (
    _pair("rsqrt 1 % off", "kernel", "llama", "Torch.rsqrt.2", kernel=("rsqrt", 2, 0, "1.01"), level="L1", other=True),
    _pair("tail of a silu", "kernel", "llama", "Functional.silu.0", kernel=("silu", 0, 0, "tail"), ways=("autocast",)),
    _pair(
        "tile of attention",
        "kernel",
        "llama",
        "Functional.scaled_dot_product_attention.1",
        kernel=("_scaled_dot_product_flash_attention_for_cpu", 1, 0, "tile"),
        other=True,
    ),
    _pair("eps of a norm", "formula", "llama", "Tensor.__add__.10", plan={"eps": 1}, other=True),
    _pair(
        "gate and up swapped",
        "rewired",
        "llama",
        "rewired Functional.silu.0",
        also=("rewired Tensor.__mul__.8",),
        plan={"gate_is_up": 0},
        level="L1",
    ),
    _pair(
        "places turned the other way",
        "rewired",
        "llama",
        *_changed("Tensor.__mul__.3"),
        also=_changed("Tensor.__mul__.5"),
        plan={"other_way": 0},
    ),
    _pair(
        "keys not turned",
        "rewired",
        "llama",
        "rewired Functional.scaled_dot_product_attention.1",
        "Tensor.__mul__.13",
        "Tensor.__mul__.14",
        "Tensor.__add__.8",
        plan={"k_unturned": 1},
        other=True,
    ),
    _pair(
        "heads repeated in another order",
        "rewired",
        "llama",
        *_changed("Functional.scaled_dot_product_attention.0"),
        plan={"tiled_heads": 0},
        other=True,
    ),
    _pair(
        "base of the rotary places",
        "data",
        "llama",
        "value Tensor.__mul__.2",
        also=("value Tensor.__mul__.3",),
        plan={"base": True},
        level="L1",
    ),
    _pair(
        "an update of AdamW 1 % off",
        "kernel",
        "llama",
        "Tensor.addcdiv_.4",
        kernel=("addcdiv_", 4, 0, "1.01"),
        ways=_UPDATE,
        other=True,
    ),
    _pair(
        "one weight of a key",
        "data",
        "llama",
        "value Functional.linear.1",
        data="weight blocks.0.k.weight",
        level="L1",
        other=True,
    ),
)
_RECURRENT = (
    _pair(
        "tile of an embedding",
        "kernel",
        "recurrent",
        "Functional.embedding.0",
        kernel=("embedding", 0, 0, "tile"),
        level="L1",
    ),
    _pair(
        "log softmax 3 % off",
        "kernel",
        "recurrent",
        "Functional.log_softmax.0",
        kernel=("_log_softmax", 0, 0, "1.03"),
        other=True,
    ),
    _pair("tanh left out", "rewired", "recurrent", "Torch.tanh.0", plan={"no_tanh": True}),
    _pair(
        "mean for the last state",
        "rewired",
        "recurrent",
        "Tensor.mean.0",
        "rewired Tensor.__add__.0",
        plan={"mean": True},
        other=True,
    ),
    _pair(
        "a weight of the LSTM",
        "data",
        "recurrent",
        "parameter *lstm.weight_hh_l0",
        "value Torch.tanh.0",
        data="weight lstm.weight_hh_l0",
    ),
    _pair(
        "norm of a gradient",
        "kernel",
        "recurrent",
        "Torch._foreach_norm.0",
        kernel=("_foreach_norm", 0, 2, "1.5"),
        ways=_UPDATE,
        other=True,
    ),
)
_SCAN = (
    _pair(
        "the first input again",
        "rewired",
        "scan",
        *_changed("Tensor.__add__.3"),
        plan={"first_again": 3},
        other=True,
    ),
    _pair("one time not written", "rewired", "scan", "Tensor.__setitem__.2", plan={"not_written": 2}, level="L1"),
    _pair("another factor in place", "formula", "scan", "Tensor.__imul__.0", plan={"last": True}, other=True),
    _pair("sigmoid 2 % off", "kernel", "scan", "Torch.sigmoid.0", kernel=("sigmoid", 0, 0, "1.02"), level="L1"),
)
_RESNET = (
    _pair(
        "tile of a batch norm",
        "kernel",
        "resnet",
        "Functional.batch_norm.2",
        kernel=("native_batch_norm", 2, 0, "tile"),
        other=True,
    ),
    _pair(
        "tail of a convolution",
        "kernel",
        "resnet",
        "Functional.conv2d.3",
        kernel=("convolution", 3, 0, "tail"),
        ways=("channels-last",),
    ),
    _pair(
        "gradient of a filter 3 % off",
        "gradient",
        "resnet",
        "Functional.conv2d.3",
        kernel=("convolution_backward", 1, 1, "1.03"),
        ways=("sgd", "stop-late"),
        other=True,
    ),
    _pair(
        "eps 1e-3 for 1e-5",
        "formula",
        "resnet",
        "Functional.batch_norm.1",
        plan={"eps": 1},
        level="L1",
        other=True,
    ),
    _pair(
        "momentum 0.3 for 0.1",
        "formula",
        "resnet",
        "Functional.batch_norm.0",
        also=("Functional.batch_norm.5",),
        plan={"momentum": 0},
        ways=("accumulate",),
    ),
    _pair(
        "a norm that does not train",
        "formula",
        "resnet",
        "Functional.batch_norm.2",
        also=("Tensor.add_.2", "Tensor.add_.4"),
        plan={"frozen": 2},
        other=True,
    ),
    _pair(
        "skip connection from the stem",
        "rewired",
        "resnet",
        "rewired Tensor.__add__.1",
        plan={"skip_stem": 1},
        level="L1",
        other=True,
    ),
    _pair(
        "skip connection left out",
        "rewired",
        "resnet",
        "Tensor.__add__.0",
        "rewired Functional.relu.2",
        plan={"no_skip": 0},
    ),
    _pair("one pixel", "data", "resnet", "batch", "value Functional.conv2d.0", data="pixel", other=True),
    _pair(
        "two samples swapped", "data", "resnet", "batch", *_changed("Functional.conv2d.0"), data="samples", level="L1"
    ),
    _pair(
        "labels of others",
        "data",
        "resnet",
        "batch",
        *_changed("Functional.cross_entropy.0"),
        data="targets",
        other=True,
    ),
)
_VIT = (
    _pair(
        "token of the class behind",
        "rewired",
        "vit",
        *_changed("Tensor.__add__.0"),
        plan={"class_last": True},
        other=True,
    ),
    _pair(
        "the last token read out",
        "rewired",
        "vit",
        *_changed("Functional.linear.8"),
        plan={"last_token": True},
        level="L1",
    ),
    _pair(
        "key and value swapped",
        "rewired",
        "vit",
        "rewired Functional.scaled_dot_product_attention.1",
        plan={"swap_kv": 1},
        other=True,
    ),
    _pair("scale of attention", "formula", "vit", "Functional.scaled_dot_product_attention.0", plan={"scale": 0}),
    _pair(
        "tile of a gelu's gradient",
        "gradient",
        "vit",
        "Functional.gelu.0",
        kernel=("gelu_backward", 1, 0, "tile"),
        other=True,
    ),
    _pair("patches by columns", "rewired", "vit", *_changed("Tensor.__add__.0"), plan={"columns": True}),
    _pair(
        "one place's weight",
        "data",
        "vit",
        "parameter *places",
        "value Tensor.__add__.0",
        data="weight places",
        other=True,
    ),
)
_MIXER = (
    _pair(
        "hardswish 2 % off",
        "kernel",
        "mixer",
        "Functional.hardswish.1",
        kernel=("hardswish", 1, 0, "1.02"),
        level="L1",
        other=True,
    ),
    _pair(
        "gradient of an elu 4 % off",
        "gradient",
        "mixer",
        "Functional.elu.2",
        kernel=("elu_backward", 0, 0, "1.04"),
        ways=_UPDATE,
    ),
    _pair("alpha 0.7 for 1", "formula", "mixer", "Functional.elu.1", plan={"alpha": 1}, other=True),
    _pair(
        "a step through float16",
        "dtype",
        "mixer",
        "Tensor.half.0",
        "Tensor.float.0",
        *_changed("Tensor.__add__.5"),
        plan={"half": 2},
        level="L1",
    ),
    _pair(
        "minus for plus",
        "formula",
        "mixer",
        "Tensor.__sub__.0",
        "Tensor.__add__.0",
        plan={"minus": 0},
        other=True,
    ),
)
_UNET = (
    _pair(
        "slope 0.2 for 0.1", "formula", "unet", "Functional.leaky_relu.0", plan={"slope": True}, level="L1", other=True
    ),
    _pair("bilinear for nearest", "formula", "unet", "Functional.interpolate.0", plan={"bilinear": True}),
    _pair("order of a cat", "rewired", "unet", *_changed("Functional.conv2d.3"), plan={"order": True}, other=True),
    _pair(
        "skip of other samples",
        "rewired",
        "unet",
        *_changed("Functional.conv2d.4"),
        "Torch.flip.0",
        "Tensor.flip.0",
        plan={"flipped": True},
        other=True,
    ),
    _pair(
        "tail of a pool", "kernel", "unet", "Functional.avg_pool2d.0", kernel=("avg_pool2d", 0, 0, "tail"), level="L1"
    ),
    _pair(
        "gradient of a transposed convolution",
        "gradient",
        "unet",
        "Functional.conv_transpose2d.0",
        kernel=("convolution_backward", 2, 0, "tile"),
        other=True,
    ),
)
_DIFFUSION = (
    _pair("2 groups for 4", "formula", "diffusion", "Functional.group_norm.1", plan={"groups": 1}, other=True),
    _pair(
        "group norm in bfloat16",
        "kernel",
        "diffusion",
        "Functional.group_norm.2",
        kernel=("native_group_norm", 2, 0, "bfloat16"),
        level="L1",
    ),
    _pair(
        "gradient of a norm's weight",
        "gradient",
        "diffusion",
        "Functional.group_norm.1",
        kernel=("native_group_norm_backward", 1, 1, "1.1"),
    ),
    _pair(
        "cosines before sines",
        "rewired",
        "diffusion",
        *_changed("Functional.linear.0"),
        plan={"cos_first": True},
        other=True,
    ),
    _pair(
        "scale and shift swapped",
        "rewired",
        "diffusion",
        "rewired Tensor.__radd__.0",
        also=("rewired Tensor.__add__.1",),
        plan={"shift_is_scale": True},
        level="L1",
    ),
    _pair("slower sines", "formula", "diffusion", "Tensor.__mul__.3", plan={"slow": True}, other=True),
)
_GAN = (
    _pair(
        "real is 0.9",
        "data",
        "gan",
        *_changed("Functional.binary_cross_entropy_with_logits.0"),
        "batch",
        plan={"soft": True},
        other=True,
    ),
    _pair(
        "fake not detached",
        "gradient",
        "gan",
        "gradient Functional.linear.1",
        "gradient Functional.linear.4",
        "Functional.linear.4",
        plan={"attached": True},
        other=True,
    ),
    _pair(
        "a tanh too many",
        "rewired",
        "gan",
        "Torch.tanh.0",
        "rewired Functional.linear.6",
        plan={"tanh": True},
        ways=_UPDATE,
    ),
    _pair(
        "one weight of the judge",
        "data",
        "gan",
        "parameter *judge.2.weight",
        data="weight judge.2.weight",
        ways=("scaler", *_UPDATE),
        other=True,
    ),
    _pair("softplus 5 % off", "kernel", "gan", "Functional.softplus.0", kernel=("softplus", 0, 0, "1.05"), level="L1"),
)
CAUSES = (*_GPT, *_LLAMA, *_RECURRENT, *_SCAN, *_RESNET, *_VIT, *_MIXER, *_UNET, *_DIFFUSION, *_GAN)


def _clean(name: str, network: str, target: tuple[str, ...], golden: tuple[str, ...] = (), **both: Any) -> ToolPair:
    one, other = Run(network, ways=target, **both), Run(network, ways=golden, **both)
    return ToolPair(f"{name}, {network}", "", "pytorch", (), (), one, other)


_B = "other-device"
CLEAN = (
    _clean("other order of sums", "gpt", (_B,), level="L1"),
    _clean("other order of sums, tied, AdamW", "gpt", (_B, *_UPDATE), _UPDATE, plan={"tied": True}),
    _clean("other order of sums, autocast", "gpt", (_B, "autocast"), ("autocast",)),
    _clean("other order of sums, two micro-batches", "gpt", (_B, "accumulate"), ("accumulate",), level="L1"),
    _clean("other order of sums, bfloat16", "gpt", (_B, "bfloat16"), ("bfloat16",)),
    _clean("other order of sums", "llama", (_B,)),
    _clean(
        "other order of sums, autocast and scaler",
        "llama",
        (_B, "autocast", "scaler", *_UPDATE),
        ("autocast", "scaler", *_UPDATE),
    ),
    _clean("other order of sums, bfloat16", "llama", (_B, "bfloat16"), ("bfloat16",), level="L1"),
    _clean("bfloat16 against float32", "llama", ("bfloat16",)),
    _clean("other order of sums, AdamW", "recurrent", (_B, *_UPDATE), _UPDATE),
    _clean("other order of sums", "recurrent", (_B,), level="L1"),
    _clean("other order of sums", "scan", (_B,)),
    _clean("other order of sums", "resnet", (_B, "sgd", "stop-late"), ("sgd", "stop-late")),
    _clean("channels last", "resnet", ("channels-last",)),
    _clean("channels last, other order of sums", "unet", ("channels-last", _B), level="L1"),
    _clean("without oneDNN", "resnet", ("mkldnn-off",), level="L1"),
    _clean("three threads", "vit", ("threads",)),
    _clean("other order of sums", "vit", (_B,), level="L1"),
    _clean("autocast against float32", "vit", ("autocast",)),
    _clean("other order of sums", "mixer", (_B, *_UPDATE), _UPDATE),
    _clean("bfloat16 against float32", "mixer", ("bfloat16",), level="L1"),
    _clean("other order of sums", "unet", (_B,)),
    _clean("other order of sums, autocast", "unet", (_B, "autocast"), ("autocast",), level="L1"),
    _clean("other order of sums", "diffusion", (_B, *_UPDATE), _UPDATE),
    _clean("without oneDNN", "diffusion", ("mkldnn-off", _B), ()),
    _clean("other order of sums, scaler", "gan", (_B, "scaler", *_UPDATE), ("scaler", *_UPDATE)),
    _clean("the same twice", "gan", _UPDATE, _UPDATE),
    ToolPair(
        "a sum divided for a mean, mixer",
        "",
        "pytorch",
        (),
        (),
        Run("mixer", plan={"sum": True}),
        Run("mixer"),
    ),
)
