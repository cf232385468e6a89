"""The pairs of PyTorch of the fourth part: networks and scripts that none of the other three has.

What may be named was written down before any of them was diagnosed, by someone who had not read the accounting.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from quality.accounting.foreign import changes
from quality.accounting.foreign.kernels import KERNEL, Fault
from quality.accounting.foreign.late_torch import _all_at_once, _all_planted, _by_products, _exact, _garbage, _only
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.torch_pairs import (
    EITHER,
    GRADIENT,
    REWIRED,
    UNRECORDED,
    _backward,
    _changed,
    _kernel,
    _pair,
    _patched,
    _planted,
    _value,
)
from quality.accounting.foreign.training import Change, Way

_SDPA = "_scaled_dot_product_flash_attention_for_cpu"
_LOW: dict[str, Any] = {"dtype": "bfloat16"}
_CAST: dict[str, Any] = {"autocast": "bfloat16"}
_SCALED: dict[str, Any] = {"autocast": "float16", "scale": 256.0, "optimizer": "AdamW"}


def _kernels_of_packages() -> Iterator[Pair]:
    yield _kernel("olmo", "clamp_", 3, "tile")
    yield _kernel("phimoe", "native_layer_norm", 3, "tile")
    yield _kernel("helium", "stack", 1, "shifted")
    yield _kernel("smollm3", "rsqrt", 3)
    yield _kernel("exaone4", _SDPA, 1, "tail")
    yield _kernel("apertus", "expm1", 1, "low")
    yield _kernel("nanochat", "relu", 1, "stale")
    yield _kernel("cohere2", "mean", 3)
    yield _kernel("qwen2_moe", "_grouped_mm", 1, "tail")
    yield _kernel("qwen3_next", "linalg_solve_triangular", 0, "tile")
    yield _kernel("jamba", "softplus", 0, "low")
    yield _kernel("minimax", "bmm", 5, "tile")
    yield _kernel("falcon_mamba", "convolution", 1, "tile")
    yield _kernel("arcee", "mm", 8, "transposed")
    yield _kernel("biogpt", "bmm", 3, answer="unaccounted")
    yield _kernel("ibert", "sqrt", 3)
    yield _kernel("roberta-prelayernorm", "native_layer_norm", 4, "one")
    yield _kernel("yoso", "acos", 1)
    yield _kernel("perceiver", "addmm", 11, "stale")
    yield _kernel("blenderbot", _SDPA, 4, "tile")
    yield _kernel("mvp", "_softmax", 4, "low")
    yield _kernel("nllb-moe", "index_add_", 2)
    yield _kernel("whisper", "convolution", 1, "tile")
    yield _kernel("wav2vec2-conformer", "glu", 1)
    yield _kernel("wav2vec2-conformer", "_ctc_loss", 0)
    yield _kernel("unispeech-sat", "native_group_norm", 0, "tile")
    yield _kernel("vit_mae", "gather", 0, "tile")
    yield _kernel("clip", "exp", 0)
    yield _kernel("swinv2", "linalg_vector_norm", 2, "tile")
    yield _kernel("mobilevit", "upsample_bilinear2d", 0, "tile")
    yield _kernel("hiera", "max", 1)
    yield _kernel("timm volo", "col2im", 0, "tile")
    yield _kernel("timm nest", "max_pool2d_with_indices", 1, "stale")
    yield _kernel("timm nfnet", "avg_pool2d", 1)
    yield _kernel("timm eva", "stack", 2, "shifted")
    yield _kernel("torchvision densenet", "cat", 3, "one")
    yield _kernel("torchvision swin_v2", "roll", 1, "tile")
    yield _kernel("DiTTransformer2DModel", "silu", 4)
    yield _kernel("WanTransformer3DModel", "rsqrt", 4)
    yield _kernel("VQModel", "argmin", 0, "shifted")


def _kernels_of_scripts() -> Iterator[Pair]:
    yield _kernel("attend", "tanh", 2, "low")
    yield _kernel("capsules", "sqrt", 2)
    yield _kernel("capsules", "bmm", 0, "tile")
    yield _kernel("remembered", "constant_pad_nd", 1, "shifted")
    yield _kernel("adapters", "round", 0, "one")
    yield _kernel("ranks", "elu", 0, "tile")
    yield _kernel("ranks", "_cdist_forward", 0)
    yield _kernel("tasks", "log_sigmoid_forward", 0)
    yield _kernel("critic", "mv", 9)
    yield _kernel("critic", "rrelu_with_noise", 2, "tile")
    yield _kernel("transport", "logsumexp", 3, "tile")
    yield _kernel("dynamic", "hardsigmoid", 1, "low")
    yield _kernel("ponder", "minimum", 1)
    yield _kernel("chain", "logsumexp", 3, "one")
    yield _kernel("spectral", "_fft_c2r", 1, "tile")
    yield _kernel("spread", "lerp", 1)
    yield _kernel("tasks, factored", "sqrt", 2)
    yield _kernel("adapters", "mm", 3, "10 %", **_LOW)
    yield _kernel("attend", "addmm", 4, "10 %", **_CAST)
    yield _kernel("adapters", "hardswish", 1, "tile", **_SCALED)


def _backward_kernels() -> Iterator[Pair]:
    yield _backward("helium", "silu_backward", 1)
    yield _backward("nanochat", "threshold_backward", 0, "tile")
    yield _backward("apertus", "softplus_backward", 2)
    yield _backward("qwen3_next", "convolution_backward", 0, output=1)
    yield _backward("perceiver", "_softmax_backward_data", 2)
    yield _backward("whisper", "gelu_backward", 4, "low")
    yield _backward("swinv2", "native_layer_norm_backward", 3)
    yield _backward("mobilevit", "upsample_bilinear2d_backward", 0, "tile")
    yield _backward("wav2vec2-conformer", "glu_backward", 1)
    yield _backward("timm nfnet", "avg_pool2d_backward", 1)
    yield _backward("spectral", "gelu_backward", 1, "tile")
    yield _backward("adapters", "hardswish_backward", 1, "tile")
    yield _backward("critic", "rrelu_with_noise_backward", 3)
    yield _backward("tasks", "hardtanh_backward", 0, "10 %")
    yield _backward("ponder", "elu_backward", 0)
    yield _backward("chain", "scatter_add", 0)


def _formulas() -> Iterator[Pair]:
    change = functools.partial(_changed, "formula")

    def set_(kind: str, number: int, *patterns: str, **values: Any) -> Change:
        return _only(changes.settings(kind, number, **values), *patterns)

    eps = set_("HeliumRMSNorm", 2, "Tensor.__add__.*", variance_epsilon=1e-2)
    yield change("helium", "eps of a norm", eps)
    yield change("perceiver", "eps of a layer norm", changes.settings("LayerNorm", 4, eps=1e-1))
    eps = set_("BatchNorm2d", 5, "Functional.batch_norm.*", eps=1e-1)
    yield change("mobilenet_v1", "eps of a batch norm", eps)
    eps = set_("BatchNorm2d", 3, "Functional.batch_norm.*", eps=1e-1)
    yield change("timm repvit", "eps of a batch norm", eps)
    groups = changes.settings("GroupNorm", 4, num_groups=2)
    yield change("VQModel", "groups of a norm", groups)
    yield change("segformer", "gelu by tanh", changes.other_class("GELUActivation", 1, lambda: nn.GELU("tanh")))
    yield change(
        "timm fasternet", "silu for gelu", changes.other_class("GELU", 2, nn.SiLU), ("{}",), "Functional.gelu.2"
    )
    yield change("perceiver", "share of a dropout", changes.settings("Dropout", 2, p=0.3))

    def all_seen(run: Any, *args: Any, **more: Any) -> Any:
        return run(*args, **{**more, "is_causal": not more.get("is_causal")})

    attention = "torch.nn.functional.scaled_dot_product_attention"
    yield _patched("formula", "olmo", "not causal", changes.function(attention, 1, all_seen))

    def larger_scale(run: Any, *args: Any, **more: Any) -> Any:
        return run(*args, **{**more, "scale": 0.4})

    yield _patched("formula", "timm eva", "scale of attention", changes.function(attention, 1, larger_scale))
    places: dict[str, tuple[str, ...]] = {
        "attend": ("no tanh 2", "begins with zeros"),
        "capsules": ("large 1 squashed by another constant", "softmax over the small ones 1", "margin"),
        "remembered": ("scale 1", "label smoothing"),
        "adapters": ("rounded down", "steps cut", "weight of the adapter 1", "adapter taken off 2"),
        "ranks": ("margin of the triplet", "embedded apart", "power of the hardest"),
        "tasks": ("focal power", "count not logarithmic"),
        "tasks, factored": ("size of a step 4", "decay 2", "share of a batch 1"),
        "critic": ("step of the slope", "slope towards one", "hinge of the made ones"),
        "transport": ("heat", "columns twice 1", "rows by their largest 2"),
        "dynamic": ("heat of the shares 1",),
        "ponder": ("limit 1",),
        "chain": ("the best way alone 3", "scores of the word before 2"),
        "spectral": ("in and out exchanged 1",),
        "spread": ("share of the neighbours 1",),
    }
    yield from _all_planted("formula", places)
    either: dict[str, tuple[str, ...]] = {
        "tasks": ("doubt not added",),
        "ponder": ("all that is left 1",),
        "spread": ("degree on one side",),
    }
    yield from _all_planted("formula", either, EITHER)


def _data() -> Iterator[Pair]:
    for network, what, name in (
        ("helium", "one weight", "model.layers.0.mlp.up_proj.weight"),
        ("swinv2", "one scale", "swinv2.encoder.layers.0.blocks.0.attention.self.logit_scale"),
        ("capsules", "one weight", "weight"),
        ("critic", "one weight", "second.parametrizations.weight.original"),
        ("chain", "one move", "moves"),
        ("timm nfnet", "one gain", "stages.1.0.conv2.gain"),
    ):
        yield _value(network, what, changes.parameter(name), f"parameter {name}")
    name = "model.decoder.layers.1.fc1.weight"
    yield _value("blenderbot", "a frozen weight", changes.frozen(name), f"parameter {name}")
    other = changes.checkpoint("transformer_blocks.1")
    yield _value("SD3Transformer2DModel", "a layer of another checkpoint", other, "parameter transformer_blocks.1.*")
    batch, either = changes.batch, ("batch", "constant")
    yield _value("clip", "one word", batch("ids", changes.one_token), *either)
    yield _value("DiTTransformer2DModel", "another class", batch("class_labels", lambda old: old.flip(0)), *either)
    yield _value("spread", "another known row", batch("known", lambda old: old.roll(1)), *either)
    yield _value("attend", "another mask", batch("mask", lambda old: old.roll(1, 0)), *either)
    # A value of the batch that is plain numbers is as well of unknown origin, where it is used first.
    pixel = batch("sound", changes.one_pixel)
    yield _value("whisper", "one value of the sound", pixel, *either, "unknown Functional.conv1d.0")
    used = "unknown Functional.poisson_nll_loss.0"
    yield _value("tasks", "another count", batch("count", lambda old: old + torch.eye(6)[2]), *either, used)
    used = "unknown Torch.argsort.0"
    yield _value("vit_mae", "other patches left out", batch("noise", lambda old: old.flip(1)), *either, used)


def _rewired() -> Iterator[Pair]:
    change = functools.partial(_patched, "rewired")
    attention = "torch.nn.functional.scaled_dot_product_attention"

    def keys_for_queries(run: Any, q: Tensor, k: Tensor, *args: Any, **more: Any) -> Any:
        return run(k, q, *args, **more)

    def values_for_keys(run: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **more: Any) -> Any:
        return run(q, v, k, *args, **more)

    def reversed_parts(run: Any, parts: Any, *args: Any, **more: Any) -> Any:
        return run(list(parts)[::-1], *args, **more)

    yield change("arcee", "k and v exchanged", changes.function(attention, 1, values_for_keys), REWIRED)
    yield change("nomic_bert", "q and k exchanged", changes.function(attention, 0, keys_for_queries), REWIRED)
    yield change("timm davit", "k and v exchanged", changes.function(attention, 2, values_for_keys), REWIRED)
    for network, number in (("SD3Transformer2DModel", 3), ("timm fasternet", 1), ("torchvision densenet", 2)):
        yield change(network, "order of a cat", changes.function("torch.cat", number, reversed_parts), REWIRED)
    exchanged: dict[str, tuple[str, ...]] = {
        "attend": ("sum of keys 1", "state and cell exchanged 2"),
        "remembered": ("memory behind 1", "biases exchanged 2"),
        "ranks": ("near and far exchanged",),
        "tasks": ("mean and width exchanged",),
        "critic": ("share turned round",),
        "ponder": ("left before 1",),
        "chain": ("moves to and from exchanged",),
    }
    yield from _all_planted("rewired", exchanged, REWIRED)
    either: dict[str, tuple[str, ...]] = {
        "attend": ("mask turned round 1",),
        "capsules": ("scores not added 1",),
        "ranks": ("far ones of another row", "order turned round"),
        "transport": ("cost of the other side",),
        "dynamic": ("shares of another picture 1",),
        "chain": ("moves turned 2",),
        "spectral": ("past left out 0",),
    }
    yield from _all_planted("rewired", either, EITHER)


def _in_place() -> Iterator[Pair]:
    planted = functools.partial(_planted, "in place")
    yield planted("dynamic", "shifted the other way 1", EITHER)
    yield planted("dynamic", "kept channels 0")
    yield planted("dynamic", "added in place 1")
    yield planted("spread", "known rows 1", EITHER)
    yield planted("spectral", "waves put elsewhere 0", EITHER)


def _gradients() -> Iterator[Pair]:
    planted = functools.partial(_planted, "gradient")
    yield planted("attend", "state hands half a gradient on 1", GRADIENT)
    yield planted("adapters", "gradient turned round 1", GRADIENT)
    yield planted("transport", "a round hands no gradient on 1", GRADIENT)
    yield planted("ponder", "state counts twice 0", GRADIENT)
    # What is copied into rows leaves the value that the round before gave: both make the one whose gradient is less.
    made = ("gradient Torch.lerp.1", "unrecorded Torch.lerp.1")
    yield planted("spread", "a round counts less 1", GRADIENT, *made)
    # A detach is no record: what it cuts off is told as the gradient of the value, or where the value is read.
    for network, place, maker, reader in (
        ("capsules", "not the held ones 0", "Torch.einsum.0", "Tensor.__mul__.1"),
        ("remembered", "memory takes a gradient 0", "Functional.layer_norm.0", "Torch.cat.1"),
        ("tasks", "trunk cut off one head", "Functional.logsigmoid.0", "Functional.linear.2"),
        ("critic", "made ones take a gradient", "Torch.tanh.0", "Tensor.__mul__.0"),
    ):
        yield _exact("gradient", network, place, *(form.format(maker) for form in GRADIENT), f"rewired {reader}")
    hook = functools.partial(_changed, "gradient")
    yield hook("segformer", "hook", changes.after("GELUActivation", 2, changes.other_gradient), GRADIENT)
    yield hook("timm eva", "hook", changes.after("GluMlp", 0, changes.other_gradient), GRADIENT)
    seen = changes.after("GELUActivation", 1, changes.recorded_gradient)
    yield hook("whisper", "recorded hook", seen, ("{}",), "gradient Functional.gelu.3")


def _others() -> Iterator[Pair]:
    change = functools.partial(_changed, "unrecorded")
    data, memory = changes.through_data, changes.through_numpy
    yield change("timm repvit", "changed through data", changes.after("GELU", 4, data), UNRECORDED)
    yield change("perceiver", "memory written to", changes.after("GELUActivation", 2, memory), UNRECORDED)
    # What is called next is not what reads the value: another linear layer, the counter of a norm.
    for network, what, where, reader in (
        ("helium", "changed through data", changes.after("SiLUActivation", 1, data), "Tensor.__mul__.20"),
        ("timm convmixer", "memory written to", changes.after("GELU", 2, memory), "Functional.batch_norm.2"),
    ):
        told = tuple(form.format(reader) for form in UNRECORDED)
        yield _pair("unrecorded", network, what, {"change": where}, {}, expected=told)
    change = functools.partial(_changed, "dtype")
    yield change("smollm3", "a block under autocast", changes.autocast("SmolLM3MLP", 1))
    yield change("timm nest", "a block under autocast", changes.autocast("Mlp", 1))
    yield change("timm eva", "a block under autocast", changes.autocast("GluMlp", 1))
    yield _planted("dtype", "adapters", "head through float16")
    network = "adapters, checkpointed"
    for operator, how in (("hardswish", "factor"), ("addmm", "tile")):
        what = f"{operator} {how} in the first forward only"
        yield _pair("checkpoint", network, what, {"fault": Fault(operator, 1, how)}, {}, place=KERNEL)
    # Of three layers the last one is computed again first. What is wrong shows where the sum is read: at hardswish.
    what, fault = "addmm tile in the recomputation only", Fault("addmm", 1, "tile", "recompute")
    calls, forms = ("Functional.linear.5", "Functional.hardswish.1"), ("{}", "gradient {}", "unrecorded {}")
    told = tuple(form.format(call) for call in calls for form in forms)
    yield _pair("checkpoint", network, what, {"fault": fault}, {}, expected=told)
    eps = changes.settings("HeliumRMSNorm", 2, variance_epsilon=1e-1)
    layers: dict[str, Any] = {"answer": "unaccounted", "expected": ("*layers.1.input_layernorm*",)}
    yield _pair("uncomputable", "helium", "eps of a norm, layers only", {"change": eps}, {"level": "L0"}, **layers)
    scale = {"planted": "weight of the adapter 1"}
    layers["expected"] = ("*frozen.2*",)
    yield _pair("uncomputable", "adapters", "weight of the adapter, layers only", scale, {"level": "L0"}, **layers)


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        name, ways = f"{network}: {what}", (Way(**target), Way(**(golden or {})))
        return Pair(name, "clean", "pytorch", network, *ways, answer="nothing")

    other: dict[str, Any] = {"is_reordered": True}
    for network in (
        *("phimoe", "exaone4", "apertus", "qwen3_next", "minimax", "nllb-moe", "perceiver", "unispeech-sat", "swinv2"),
        *("bitnet", "doge", "pegasus_x", "timm convit", "timm volo", "VQModel", "attend", "capsules", "remembered"),
        *("ranks", "tasks, factored", "critic", "transport"),
        *("dynamic", "ponder", "chain", "spectral", "spread"),
    ):
        yield pair(network, "another order", other)
    for network in ("adapters", "smollm3"):
        yield pair(network, "bfloat16, another order", {**_LOW, **other}, _LOW)
    for network in ("olmo", "tasks", "rembert"):
        yield pair(network, "bfloat16 against float32", _LOW)
    for network in ("dynamic", "timm eva"):
        yield pair(network, "autocast, another order", {**_CAST, **other}, _CAST)
    for network in ("arcee", "timm convmixer", "AuraFlowTransformer2DModel", "data2vec-audio"):
        yield pair(network, "autocast against float32", _CAST)
    yield pair("adapters", "GradScaler, another order", {**_SCALED, **other}, _SCALED)
    yield pair("spectra", "GradScaler against float32", _SCALED, {"optimizer": "AdamW"})
    yield pair("ponder", "optimizer, another order", {"optimizer": "SGD", **other}, {"optimizer": "SGD"})
    for network in ("attend", "remembered", "chain", "timm fasternet"):
        yield pair(network, "float32 against float64", {}, {"dtype": "float64"})
    for network in ("timm nfnet", "timm repvit", "torchvision densenet", "torchvision proposals"):
        yield pair(network, "channels last", {"memory_format": "channels_last"})
    for network in ("whisper", "mvp"):
        yield pair(network, "two threads", {"threads": 2})
    yield pair("nomic_bert", "attention by products", {"attention": "MATH"})
    for network in ("olmo", "arcee"):
        yield pair(network, "eager attention", {"change": changes.edit(_by_products)})
    for network in ("attend", "qwen2_moe"):
        yield pair(network, "other garbage in unfilled memory", {"change": _garbage, **other})
    yield pair("adapters", "checkpointed on one side", {"change": changes.edit(_all_at_once), **other})
    yield pair("clip", "run again", {"level": "mix"})


_MAKERS: tuple[Callable[[], Iterator[Pair]], ...] = (
    *(_kernels_of_packages, _kernels_of_scripts, _backward_kernels, _formulas, _data, _rewired, _in_place),
    *(_gradients, _others, _clean),
)
PAIRS: tuple[Pair, ...] = tuple(dataclasses.replace(pair, part="d") for make in _MAKERS for pair in make())
