"""The pairs of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from quality.accounting.foreign import changes
from quality.accounting.foreign.changes import CHANGE
from quality.accounting.foreign.kernels import KERNEL, Fault
from quality.accounting.foreign.pairs import Answer, Pair
from quality.accounting.foreign.training import Change, Way

#: A value at a call; nothing of an operation.
REWIRED = ("rewired {}",)
EITHER = ("{}", "rewired {}")
GRADIENT = ("gradient {}", "unrecorded {}")
UNRECORDED = ("unrecorded {}", "unknown {}")


def _pair(kind: str, network: str, what: str, target: dict[str, Any], both: dict[str, Any], **more: Any) -> Pair:
    name = f"{network}: {what}"
    # Every second target sums in another order, as runs on two devices do.
    is_reordered = bool(len(name) % 2)
    golden = Way(**both)
    return Pair(name, kind, "pytorch", network, Way(**{"is_reordered": is_reordered, **both, **target}), golden, **more)


def _kernel(
    network: str,
    operator: str,
    call: int,
    how: str = "factor",
    phase: str = "forward",
    *,
    output: int = 0,
    argument: int | None = None,
    answer: Answer = "fault",
    **both: Any,
) -> Pair:
    fault = Fault(operator, call, how, phase, output, argument)
    what = f"{operator} {call} {how} {phase}" + (f" of output {output}" if output else "")
    what += f" of argument {argument}" if argument is not None else ""
    what += "".join(f", {value}" for value in both.values())
    return _pair("kernel", network, what, {"fault": fault}, both, place=KERNEL, answer=answer)


def _backward(network: str, operator: str, call: int, how: str = "factor", **more: Any) -> Pair:
    return _kernel(network, operator, call, how, "backward", **more)


def _planted(kind: str, network: str, place: str, forms: tuple[str, ...] = ("{}",), *more: str, **both: Any) -> Pair:
    return _pair(kind, network, place, {"planted": place}, both, place=place, forms=forms, expected=more)


def _changed(
    kind: str, network: str, what: str, change: Change, forms: tuple[str, ...] = ("{}",), *more: str, **both: Any
) -> Pair:
    return _pair(kind, network, what, {"change": change}, both, place=CHANGE, forms=forms, expected=more)


def _patched(kind: str, network: str, what: str, patch: Change, forms: tuple[str, ...] = ("{}",), *more: str) -> Pair:
    return _pair(kind, network, what, {"patch": patch}, {}, place=CHANGE, forms=forms, expected=more)


def _value(network: str, what: str, change: Change, *expected: str) -> Pair:
    return _pair("data", network, what, {"change": change}, {}, expected=expected)


_SDPA = "_scaled_dot_product_flash_attention_for_cpu"


def _kernels() -> Iterator[Pair]:
    yield _kernel("stablelm", "mm", 7)
    yield _kernel("starcoder2", "addmm", 3, "tail")
    yield _kernel("starcoder2", _SDPA, 1, "tile")
    yield _kernel("cohere", "rsqrt", 1)
    yield _kernel("granite", "mul", 10, "one")
    yield _kernel("olmoe", "_grouped_mm", 2, "stale")
    yield _kernel("olmoe", "silu", 1, "tile")
    yield _kernel("gpt_neo", "tanh", 1, "low")
    yield _kernel("codegen", "bmm", 2, "transposed")
    yield _kernel("rwkv", "div", 7)
    yield _kernel("rwkv", "maximum", 11, "tile")
    yield _kernel("albert", "pow", 1)
    yield _kernel("roformer", "_softmax", 1)
    yield _kernel("mpnet", "addmm", 5, "low")
    yield _kernel("longformer", "bmm", 2, "tile")
    yield _kernel("longformer", "mm", 4)
    yield _kernel("pegasus", _SDPA, 3, "stale")
    yield _kernel("marian", "addmm", 11, "tail")
    yield _kernel("umt5", "bmm", 5)
    yield _kernel("dinov2", "native_layer_norm", 3, "tile")
    yield _kernel("pvt_v2", "convolution", 5, "tile")
    yield _kernel("poolformer", "avg_pool2d", 2, "tail")
    yield _kernel("timm xcit", "linalg_vector_norm", 2)
    yield _kernel("timm edgenext", "native_layer_norm", 4, "low")
    yield _kernel("timm levit", "native_batch_norm", 6)
    yield _kernel("torchvision squeezenet", "max_pool2d_with_indices", 1, "stale")
    yield _kernel("torchvision mnasnet", "convolution", 20, "low")
    yield _kernel("UNet2DModel", "native_group_norm", 8, "tile")
    yield _kernel("UNet2DModel", "upsample_nearest2d", 0, "shifted")
    yield _kernel("PixArtTransformer2DModel", "gelu", 1)
    yield _kernel("AutoencoderTiny", "convolution", 9, "transposed")
    yield _kernel("recurrent", "mkldnn_rnn_layer", 1)
    yield _kernel("recurrent", "tanh_", 5, "tile")
    yield _kernel("translator", "native_layer_norm", 5, "tile")
    yield _kernel("translator", "bmm", 7, answer="unaccounted")
    yield _kernel("experts", "topk", 0)
    yield _kernel("scan", "mul", 6, "tile")
    yield _kernel("windows", "sigmoid", 0, "low")
    yield _kernel("siamese", "mish", 1)
    yield _kernel("teacher", "elu", 1, "tail")
    yield _kernel("images", "amax", 0, "one")
    yield _kernel("gan", "addcdiv_", 4)
    yield _kernel("accumulated", "lerp_", 10, "10 %")
    yield _kernel("images", "native_batch_norm", 0, argument=3)
    yield _kernel("images", "native_batch_norm", 1, "10 %", argument=4)
    low: dict[str, Any] = {"dtype": "bfloat16"}
    yield _kernel("islands", "mm", 1, "10 %", **low)
    yield _kernel("granite", "mm", 5, "10 %", **low)
    yield _kernel("stablelm", "mm", 5, "10 %", autocast="bfloat16")
    yield _kernel("dinov2", "addmm", 5, "stale", autocast="bfloat16")
    scaled: dict[str, Any] = {"autocast": "float16", "scale": 1024.0, "optimizer": "AdamW"}
    yield _kernel("tied", "addmm", 4, "tile", **scaled)
    yield _backward("tied", "gelu_backward", 1, "10 %", **scaled)
    yield from _backward_kernels()


def _backward_kernels() -> Iterator[Pair]:
    yield _backward("stablelm", "silu_backward", 1)
    yield _backward("cohere", "mm", 12)
    yield _backward("gpt_neo", "native_layer_norm_backward", 2, "sign")
    yield _backward("roformer", "_softmax_backward_data", 0)
    yield _backward("dinov2", "gelu_backward", 0, "low")
    yield _backward("torchvision mnasnet", "native_batch_norm_backward", 10, output=1)
    yield _backward("torchvision squeezenet", "convolution_backward", 12, "tile", output=1)
    yield _backward("PixArtTransformer2DModel", f"{_SDPA}_backward", 2, output=1)
    yield _backward("UNet2DModel", "native_group_norm_backward", 3)
    yield _backward("rwkv", "mul", 100)
    yield _backward("longformer", "native_layer_norm_backward", 2, "tile")
    yield _backward("pvt_v2", "convolution_backward", 4, "stale")
    yield _backward("timm levit", "hardswish_backward", 3)
    yield _backward("olmoe", "scatter", 0)
    yield _backward("pegasus", "embedding_dense_backward", 0)
    yield _backward("gan", "silu_backward", 2)
    yield _backward("accumulated", "mm", 40)
    yield _backward("accumulated", "embedding_dense_backward", 1, "tile")
    yield _backward("siamese", "convolution_backward", 0, output=1)
    yield _backward("teacher", "elu_backward", 0, "low")
    yield _backward("scan", "mm", 3, "sign")
    yield _backward("recurrent", "mkldnn_rnn_layer_backward", 1)
    yield _backward("tied", "mm", 1)
    yield _backward("islands", "bmm", 5, "low")


def _formulas() -> Iterator[Pair]:
    change = functools.partial(_changed, "formula")
    yield change("stablelm", "eps of a layer norm", changes.settings("LayerNorm", 2, eps=1e-3))
    yield change("starcoder2", "gelu by erf", changes.other_class("GELUTanh", 1, nn.GELU))
    yield change("cohere", "eps of a norm", changes.settings("CohereLayerNorm", 1, variance_epsilon=1e-3))
    yield change(
        "granite", "scale of attention", changes.settings("GraniteAttention", 1, scaling=lambda old: old * 1.1)
    )
    yield change("granite", "eps of a norm", changes.settings("GraniteRMSNorm", 3, variance_epsilon=1e-3))
    yield change("torchvision mnasnet", "eps of a batch norm", changes.settings("BatchNorm2d", 20, eps=1e-3))
    yield change("timm levit", "momentum of a batch norm", changes.settings("BatchNorm2d", 2, momentum=0.3))
    yield change("UNet2DModel", "groups of a norm", changes.settings("GroupNorm", 5, num_groups=2))
    yield change("PixArtTransformer2DModel", "eps of a layer norm", changes.settings("LayerNorm", 2, eps=1e-4))
    yield change("umt5", "eps of a norm", changes.settings("UMT5LayerNorm", 4, variance_epsilon=1e-2))
    yield change("timm edgenext", "gelu by tanh", changes.other_class("GELU", 2, lambda: nn.GELU("tanh")))
    yield change("timm levit", "silu for hardswish", changes.other_class("Hardswish", 4, nn.SiLU))
    yield change("poolformer", "a pool of 5", changes.settings("AvgPool2d", 2, kernel_size=5, padding=2))
    yield _planted("formula", "timm xcit", "label smoothing")
    attention = "torch.nn.functional.scaled_dot_product_attention"

    def causal(run: Any, *args: Any, **more: Any) -> Any:
        return run(*args, **{**more, "is_causal": not more.get("is_causal"), "attn_mask": None})

    yield _patched("formula", "pegasus", "causal in the encoder", changes.function(attention, 1, causal))
    yield _planted("formula", "tied", "scale 1")
    yield _planted("formula", "tied", "other activation 1")
    yield _planted("formula", "tied", "mask 1")
    yield _planted("formula", "accumulated", "not divided 1")
    yield _planted("formula", "accumulated", "weight decay")
    yield _planted("formula", "gan", "clip of the generator")
    yield _planted("formula", "teacher", "temperature")
    yield _planted("formula", "teacher", "momentum of the teacher 4")
    yield _planted("formula", "siamese", "temperature")
    yield _planted("formula", "islands", "eps 1", dtype="bfloat16")
    yield _planted("formula", "experts", "weights not normalised", EITHER)
    yield _planted("formula", "scan", "decay at 3", EITHER)
    yield _planted("formula", "windows", "diagonal")
    yield _planted("formula", "images", "mean for max", EITHER)


def _data() -> Iterator[Pair]:
    weight = "model.layers.1.mlp.c_fc.weight"
    yield _value("starcoder2", "one weight", changes.parameter(weight), f"parameter {weight}")
    yield _value("starcoder2", "a frozen weight", changes.frozen(weight), f"parameter {weight}")
    bias = "blocks.1.norm1.bias"
    yield _value("timm xcit", "one bias of a norm", changes.parameter(bias), f"parameter {bias}")
    yield _value(
        "rwkv",
        "one decay",
        changes.parameter("rwkv.blocks.1.attention.time_decay"),
        "parameter rwkv.blocks.1.attention.time_decay",
    )
    yield _value("tied", "one shared weight", changes.parameter("words.weight"), "parameter *.weight")
    yield _value(
        "marian",
        "a layer of another checkpoint",
        changes.checkpoint("model.decoder.layers.1"),
        "parameter model.decoder.layers.1.*",
    )
    yield _value("recurrent", "one recurrent weight", changes.parameter("lstm.weight_hh_l1"), "parameter lstm.*")
    yield _value("olmoe", "one token", changes.batch("ids", changes.one_token), "batch")
    yield _value("esm", "one label", changes.batch("labels", changes.one_token), "batch")
    yield _value(
        "distilbert", "the mask shifted", changes.batch("mask", lambda mask: mask.roll(1, -1)), "batch", "constant"
    )
    yield _value("UNet2DModel", "one pixel", changes.batch("noisy", changes.one_pixel), "batch", "constant")
    yield _value("pvt_v2", "one pixel", changes.batch("pixels", changes.one_pixel), "batch", "constant")
    yield _value(
        "PixArtTransformer2DModel",
        "another timestep",
        changes.batch("timestep", lambda at: at + 1),
        "batch",
        "constant",
    )


def _rewired() -> Iterator[Pair]:
    change = functools.partial(_patched, "rewired")
    attention = "torch.nn.functional.scaled_dot_product_attention"

    def keys_for_queries(run: Any, q: Tensor, k: Tensor, *args: Any, **more: Any) -> Any:
        return run(k, q, *args, **more)

    def values_for_keys(run: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **more: Any) -> Any:
        return run(q, v, k, *args, **more)

    def reversed_parts(run: Any, parts: Any, *args: Any, **more: Any) -> Any:
        return run(list(parts)[::-1], *args, **more)

    yield change("albert", "q and k exchanged", changes.function(attention, 1, keys_for_queries), REWIRED)
    yield change("pegasus", "k and v exchanged", changes.function(attention, 3, values_for_keys), REWIRED)
    yield change("dinov2", "class token behind", changes.function("torch.cat", 0, reversed_parts), REWIRED)
    yield change("torchvision squeezenet", "order of a cat", changes.function("torch.cat", 3, reversed_parts), REWIRED)
    yield change(
        "UNet2DModel", "skip before the hidden state", changes.function("torch.cat", 1, reversed_parts), REWIRED
    )
    rotary = "transformers.models.esm.modeling_esm.apply_rotary_pos_emb"
    yield change("esm", "q and k exchanged before rotation", changes.function(rotary, 1, _exchange_first), REWIRED)
    rotary = "transformers.models.starcoder2.modeling_starcoder2.apply_rotary_pos_emb"
    yield change("starcoder2", "sine for cosine", changes.function(rotary, 1, _exchange_last), REWIRED)
    yield change("timm edgenext", "order of a cat", changes.function("torch.cat", 1, reversed_parts), REWIRED)
    yield change(
        "PixArtTransformer2DModel", "q and k exchanged", changes.function(attention, 2, keys_for_queries), REWIRED
    )
    yield _planted("rewired", "tied", "q and k exchanged 1", REWIRED)
    yield _planted("rewired", "tied", "skip from another layer", EITHER)
    yield _planted("rewired", "islands", "k and v exchanged 1", REWIRED, dtype="bfloat16")
    yield _planted("rewired", "siamese", "one side twice", REWIRED)
    yield _planted("rewired", "siamese", "second loss not transposed", EITHER)
    yield _planted("rewired", "recurrent", "steps in reverse", REWIRED)
    yield _planted("rewired", "recurrent", "state not handed on", ("{}",), "rewired *", "constant")
    yield _planted("rewired", "experts", "expert 2 gets other rows", EITHER)
    yield _planted("rewired", "experts", "choices exchanged", EITHER)
    yield _planted("rewired", "scan", "written to another place 3", EITHER)
    yield _planted("rewired", "windows", "left neighbour", EITHER)
    yield _planted("rewired", "windows", "halves", REWIRED)
    yield _planted("rewired", "images", "order of a cat", REWIRED)
    yield _planted("rewired", "gan", "labels of the fake exchanged", EITHER)


def _exchange_first(run: Any, first: Tensor, second: Tensor, *others: Any, **more: Any) -> Any:
    return run(second, first, *others, **more)


def _exchange_last(run: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *others: Any, **more: Any) -> Any:
    return run(q, k, sin, cos, *others, **more)


def _unrecorded() -> Iterator[Pair]:
    change = functools.partial(_changed, "unrecorded")
    hook, data, memory = changes.other_gradient, changes.through_data, changes.through_numpy
    yield change("stablelm", "hook on a gradient", changes.after("StableLmMLP", 0, hook), GRADIENT)
    yield change("timm xcit", "hook on a gradient", changes.after("GELU", 4, hook), GRADIENT)
    seen = changes.after("GELUActivation", 0, changes.recorded_gradient)
    yield change("roformer", "recorded hook on a gradient", seen, ("{}",), "gradient Functional.gelu.0")
    yield change("starcoder2", "changed through data", changes.after("GELUTanh", 1, data), UNRECORDED)
    yield change("poolformer", "changed through data", changes.after("AvgPool2d", 1, data), UNRECORDED)
    yield change("mpnet", "memory written to", changes.after("GELUActivation", 1, memory), UNRECORDED)
    yield change("timm levit", "memory written to", changes.after("Hardswish", 3, memory), UNRECORDED)
    yield _planted("unrecorded", "tied", "doubled 1", GRADIENT)
    yield _planted("unrecorded", "tied", "doubled 2", GRADIENT)
    yield _planted("unrecorded", "accumulated", "a gradient is cleared")
    yield _planted("unrecorded", "gan", "detached fake", ("{}", *GRADIENT), "batch", "constant")


def _dtypes() -> Iterator[Pair]:
    change = functools.partial(_changed, "dtype")
    yield change("stablelm", "a block under autocast", changes.autocast("StableLmMLP", 1))
    yield change("pvt_v2", "a block under autocast", changes.autocast("PvtV2SelfAttention", 2))
    yield _planted("dtype", "tied", "step through float16 1")
    yield _planted("dtype", "accumulated", "loss in bfloat16")
    yield _planted("dtype", "scan", "loss in bfloat16")


def _checkpoints() -> Iterator[Pair]:
    of_block = ("{}", "gradient {}", "unrecorded {}")
    for network in ("checkpointed", "checkpointed, reentrant"):
        for operator, how in (("gelu", "factor"), ("addmm", "tile")):
            fault, what = Fault(operator, 1, how), f"{operator} {how} in the first forward only"
            yield _pair("checkpoint", network, what, {"fault": fault}, {}, place=KERNEL)
            # The last block is computed again first.
            at = {"gelu": 1, "addmm": 2}[operator]
            fault = Fault(operator, 1, how, "recompute")
            yield _pair(
                "checkpoint", network, f"{operator} {how} in the recomputation only", {"fault": fault}, {},
                place=f"checkpoint {at}", forms=of_block,
            )  # fmt: skip


def _uncomputable() -> Iterator[Pair]:
    for is_reordered in (False, True):
        way = "in another order" if is_reordered else "in the same order"
        target = {"planted": "own function", "is_reordered": is_reordered}
        yield _pair("uncomputable", "custom", f"own function 10 % off, {way}", target, {}, place="own function",
                    answer="unaccounted")  # fmt: skip
    layers = {"level": "L0"}
    more: dict[str, Any] = {"answer": "unaccounted", "expected": ("*blocks.1*",)}
    for place in ("scale 1", "other activation 1", "q and k exchanged 1"):
        target = {"planted": place, "is_reordered": True}
        yield _pair("uncomputable", "tied", f"{place}, layers only", target, layers, **more)
    changed = {"change": changes.settings("LayerNorm", 2, eps=1e-1), "is_reordered": True}
    more["expected"] = ("*layers.1*",)
    yield _pair("uncomputable", "starcoder2", "eps of a layer norm, layers only", changed, layers, **more)


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        name, ways = f"{network}: {what}", (Way(**target), Way(**(golden or {})))
        return Pair(name, "clean", "pytorch", network, *ways, answer="nothing")

    other: dict[str, Any] = {"is_reordered": True}
    for network in (
        *("stablelm", "olmoe", "rwkv", "longformer", "timm xcit", "UNet2DModel", "umt5", "timm levit", "recurrent"),
        *("translator", "gan", "accumulated", "checkpointed", "experts", "scan", "windows", "teacher", "siamese"),
    ):
        yield pair(network, "another order", other)
    low: dict[str, Any] = {"dtype": "bfloat16"}
    for network in ("umt5", "islands", "tied", "granite"):
        yield pair(network, "bfloat16, another order", {**low, **other}, low)
    for network in ("islands", "stablelm", "albert", "dinov2"):
        yield pair(network, "bfloat16 against float32", low)
    cast: dict[str, Any] = {"autocast": "bfloat16"}
    for network in ("UNet2DModel", "pvt_v2", "dinov2", "poolformer"):
        yield pair(network, "autocast, another order", {**cast, **other}, cast)
    for network in ("starcoder2", "timm xcit", "accumulated"):
        yield pair(network, "autocast against float32", cast)
    optimized = {"optimizer": "AdamW"}
    scaled: dict[str, Any] = {"autocast": "float16", "scale": 1024.0, **optimized}
    for network in ("tied", "dinov2"):
        yield pair(network, "GradScaler, another order", {**scaled, **other}, scaled)
    yield pair("tied", "GradScaler against float32", scaled, optimized)
    yield pair("tied", "optimizer, another order", {**optimized, **other}, optimized)
    for network in ("umt5", "siamese", "windows", "images"):
        yield pair(network, "float32 against float64", {}, {"dtype": "float64"})
    for network in ("images", "poolformer", "UNet2DModel"):
        yield pair(network, "channels last", {"memory_format": "channels_last"})
    for network in ("torchvision mnasnet", "codegen"):
        yield pair(network, "two threads", {"threads": 2})
    for network in ("starcoder2", "PixArtTransformer2DModel", "pegasus"):
        yield pair(network, "attention by products", {"attention": "MATH"})


PAIRS: tuple[Pair, ...] = (
    *_kernels(),
    *_formulas(),
    *_data(),
    *_rewired(),
    *_unrecorded(),
    *_dtypes(),
    *_checkpoints(),
    *_uncomputable(),
    *_clean(),
)
