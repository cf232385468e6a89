"""The pairs of PyTorch of the third part: on other networks than the first two, by someone who had seen no answer.

What may be named was written down before any of them was diagnosed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from quality.accounting.foreign import changes
from quality.accounting.foreign.changes import CHANGE
from quality.accounting.foreign.kernels import KERNEL, Fault
from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.torch_pairs import (
    EITHER,
    GRADIENT,
    REWIRED,
    UNRECORDED,
    _backward,
    _changed,
    _exchange_last,
    _kernel,
    _pair,
    _patched,
    _planted,
    _value,
)
from quality.accounting.foreign.training import Change, Training, Way
from quality.accounting.foreign.watching import Watch

#: A value that a detach cuts off may be told at the call that it is handed to, at the detach, or as its gradient.
CUT = ("{}", "rewired {}", *GRADIENT)
_SDPA = "_scaled_dot_product_flash_attention_for_cpu"
_LOW: dict[str, Any] = {"dtype": "bfloat16"}
_CAST: dict[str, Any] = {"autocast": "bfloat16"}
_SCALED: dict[str, Any] = {"autocast": "float16", "scale": 512.0, "optimizer": "AdamW"}


def _only(change: Change, *patterns: str) -> Change:
    """Of the calls inside a Module that is changed, those that the change reaches."""

    @contextmanager
    def narrowed(training: Training, watch: Watch) -> Iterator[None]:
        with change(training, watch):
            yield
        watch.marked[CHANGE] = [
            name
            for name in watch.marked.get(CHANGE, ())
            if any(fnmatchcase(name.removesuffix(".forward"), one) for one in patterns)
        ]

    return narrowed


class _Garbage(TorchDispatchMode):
    """Memory that nothing has filled holds what it never holds otherwise."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a call."""
        with torch._C.DisableTorchFunction():
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket.__name__ in ("empty", "empty_like", "new_empty") and result.is_floating_point():
                result.fill_(1e30)
        return result


@contextmanager
def _garbage(training: Training, watch: Watch) -> Iterator[None]:
    with _Garbage():
        yield


def _exact(kind: str, network: str, place: str, *expected: str) -> Pair:
    """Of the calls at a place, those that what is planted there reaches."""
    return _pair(kind, network, place, {"planted": place}, {}, expected=expected)


def _all_planted(kind: str, places: dict[str, tuple[str, ...]], forms: tuple[str, ...] = ("{}",)) -> Iterator[Pair]:
    for network, some in places.items():
        for place in some:
            yield _planted(kind, network, place, forms)


def _kernels() -> Iterator[Pair]:
    yield _kernel("glm", "rsqrt", 2)
    yield _kernel("nemotron", "pow", 1, "tile")
    yield _kernel("persimmon", _SDPA, 1, "stale")
    yield _kernel("mpt", "_softmax", 1, "low")
    yield _kernel("xglm", "index_select", 0, "shifted")
    yield _kernel("granitemoe", "topk", 1)
    yield _kernel("granitemoe", "_grouped_mm", 3, "tile")
    yield _kernel("jetmoe", "index_add", 3, "tail")
    yield _kernel("gpt_oss", "sigmoid", 1, "low")
    yield _kernel("ctrl", "addmm", 5, "one")
    yield _kernel("recurrent_gemma", "baddbmm", 2)
    yield _kernel("recurrent_gemma", "softplus", 1, "tile")
    yield _kernel("lfm2", "convolution", 0, "tail")
    yield _kernel("diffllama", "exp", 2)
    yield _kernel("convbert", "im2col", 1, "shifted")
    yield _kernel("fnet", "_fft_c2c", 1, "tile")
    yield _kernel("deberta", "gather", 2, "tile")
    yield _kernel("m2m_100", "bmm", 7, answer="unaccounted")
    yield _kernel("led", "_softmax", 3)
    yield _kernel("prophetnet", "bmm", 6, "tail")
    yield _kernel("beit", "gelu", 1, "low")
    yield _kernel("focalnet", "native_layer_norm", 3, "tile")
    yield _kernel("bit", "native_group_norm", 4, "one")
    yield _kernel("regnet", "mean", 1)
    yield _kernel("wavlm", "_weight_norm_interface", 0)
    yield _kernel("speech_to_text", "glu", 1, "tile")
    yield _kernel("patchtst", "native_batch_norm", 2)
    yield _kernel("autoformer", "_fft_c2r", 1)
    yield _kernel("siglip", "log_sigmoid_forward", 0)
    yield _kernel("timm resnest", "_softmax", 2, "tile")
    yield _kernel("timm sequencer", "mkldnn_rnn_layer", 5)
    yield _kernel("timm starnet", "convolution", 14, "tile")
    yield _kernel("timm tnt", "im2col", 0, "tail")
    yield _kernel("torchvision vit", "addmm", 2, "low")
    yield _kernel("torchvision lraspp", "upsample_bilinear2d", 1, "shifted")
    yield _kernel("AutoencoderDC", "pixel_unshuffle", 0, "tile")
    yield _kernel("UNet1DModel", "mish", 9, "tile")
    yield _kernel("graph", "index_add", 1, "one")
    yield _kernel("graph", "scatter_reduce", 0)
    yield _kernel("flow", "softplus", 2, "low")
    yield _kernel("vae", "addcmul", 0)
    yield _kernel("clicks", "_embedding_bag", 1, "tile")
    yield _kernel("policy", "std", 0)
    yield _kernel("codes", "_cdist_forward", 0)
    yield _kernel("waves", "_prelu_kernel", 0, "tile")
    yield _kernel("waves", "_fft_r2c", 0, "tile")
    yield _kernel("mixture", "logsumexp", 0, "one")
    yield _kernel("averaged", "addcmul_", 5, "10 %")
    yield _kernel("mpt", "mm", 3, "10 %", **_LOW)
    yield _kernel("xglm", "addmm", 4, "10 %", **_CAST)
    yield _kernel("timm tnt", "addmm", 5, "stale", **_CAST)
    yield _kernel("words", "silu", 1, "tile", **_SCALED)


def _backward_kernels() -> Iterator[Pair]:
    yield _backward("glm", "silu_backward", 0)
    yield _backward("nemotron", "threshold_backward", 1, "tile")
    yield _backward("mpt", "_softmax_backward_data", 0, "low")
    yield _backward("deberta", "scatter_add", 1, "tile")
    yield _backward("focalnet", "convolution_backward", 3, "tile", output=1)
    yield _backward("bit", "native_group_norm_backward", 2)
    yield _backward("timm twins", "convolution_backward", 2, "stale")
    yield _backward("UNet1DModel", "mish_backward", 12)
    yield _backward("lfm2", "mm", 10)
    yield _backward("graph", "leaky_relu_backward", 0, "10 %")
    yield _backward("flow", "tanh_backward", 2)
    yield _backward("policy", "smooth_l1_loss_backward", 0)
    yield _backward("skips", "upsample_bilinear2d_backward", 1)
    yield _backward("skips", "max_pool2d_with_indices_backward", 0, "tile")
    yield _backward("gates", "sigmoid_backward", 7)
    yield _backward("waves", "_weight_norm_interface_backward", 1)
    yield _backward("averaged", "silu_backward", 5, "low")


def _formulas() -> Iterator[Pair]:
    change = functools.partial(_changed, "formula")

    def set_(kind: str, number: int, *patterns: str, **values: Any) -> Change:
        return _only(changes.settings(kind, number, **values), *patterns)

    product = "Tensor.__mul__.*"
    eps = set_("GlmRMSNorm", 2, "Tensor.__add__.*", variance_epsilon=1e-2)
    yield change("glm", "eps of a norm", eps)
    eps = set_("NemotronLayerNorm1P", 1, "Functional.layer_norm.*", eps=1e-2)
    yield change("nemotron", "eps of a norm", eps)
    yield change("mpt", "scale of attention", set_("MptAttention", 1, product, softmax_scale=lambda old: old * 1.1))
    # It is added once, and one minus it is a factor.
    both = ("Tensor.__add__.11", "Tensor.__mul__.25")
    yield change("diffllama", "another lambda", set_("DiffLlamaAttention", 1, *both, lambda_init=0.5))
    yield change("gpt_oss", "alpha of the gate", set_("GptOssExperts", 0, "Tensor.__mul__.16", alpha=1.5))
    yield change("gpt_oss", "limit of the gate", set_("GptOssExperts", 1, "Tensor.clamp.*", limit=0.01))
    yield change("beit", "gelu by tanh", changes.other_class("GELUActivation", 1, lambda: nn.GELU("tanh")))
    yield change("bit", "eps of a group norm", set_("BitGroupNormActivation", 3, "Functional.group_norm.*", eps=1e-1))
    scale = set_("SiglipAttention", 1, "Functional.scaled_dot_product_attention.*", scale=lambda old: old * 1.2)
    yield change("siglip", "scale of attention", scale)
    yield change("timm resnest", "eps of a batch norm", set_("BatchNorm2d", 5, "Functional.batch_norm.*", eps=1e-2))
    yield change("timm starnet", "silu for relu6", changes.other_class("ReLU6", 2, nn.SiLU))
    scale = set_("TalkingHeadAttn", 1, product, scale=lambda old: old * 1.1)
    yield change("timm cait", "scale of attention", scale)
    yield change("timm tnt", "scale of attention", set_("Attention", 2, product, scale=lambda old: old * 1.1))
    yield change("UNet1DModel", "groups of a norm", changes.settings("GroupNorm", 6, num_groups=2))
    yield change("AutoencoderDC", "eps of a norm", set_("RMSNorm", 3, "Tensor.__add__.21", eps=1e-1))
    yield change("persimmon", "eps of a layer norm", changes.settings("LayerNorm", 3, eps=1e-2))
    eps = set_("DebertaLayerNorm", 2, "Tensor.__add__.14", variance_epsilon=1e-1)
    yield change("deberta", "eps of a norm", eps)

    def all_seen(run: Any, *args: Any, **more: Any) -> Any:
        return run(*args, **{**more, "is_causal": not more.get("is_causal")})

    attention = "torch.nn.functional.scaled_dot_product_attention"
    yield _patched("formula", "persimmon", "not causal", changes.function(attention, 1, all_seen))
    called_otherwise: dict[str, tuple[str, ...]] = {
        "graph": ("scores not exponential 1", "mean of messages 0"),
        "vae": ("reduction", "beta"),
        "flow": ("density without a constant",),
        "policy": ("clip", "larger of both", "decay at 2", "weight of the entropy", "added to the deviation"),
        "motion": ("a whole step 1", "weights of speeds 2"),
        "skips": ("mean for max 0", "other way up 1", "padding 0"),
        "gates": ("relu for tanh 3",),
        "queue": ("temperature of the second loss",),
        "words": ("other labels left out",),
        "slots": ("copied by index", "mask by another limit"),
        "averaged": ("share of a batch 1", "value of the clip", "average 7"),
        "waves": ("squares of spectra",),
        "mixture": ("width by exponential", "logarithm of the sum"),
    }
    yield from _all_planted("formula", called_otherwise)
    yield _exact("formula", "averaged", "clip of another size", "Tensor.__rtruediv__.0")
    yield _planted("formula", "flow", "no exponential 2", EITHER)
    yield _planted("formula", "vae", "variance for deviation", EITHER)
    yield _planted("formula", "words", "dropout left out 3", EITHER)
    yield _planted("formula", "mixture", "shares not normalised", EITHER)
    yield _planted("formula", "gates", "norm left out 2", EITHER)


def _untied(training: Training) -> None:
    head: Any = training.net.get_submodule("lm_head")
    head.weight = nn.Parameter(head.weight.detach().clone())


def _data() -> Iterator[Pair]:
    for network, what, name in (
        ("glm", "one weight", "model.layers.0.mlp.down_proj.weight"),
        ("jetmoe", "one weight of an expert", "model.layers.0.mlp.output_linear.weight"),
        ("gpt_oss", "one sink", "model.layers.1.self_attn.sinks"),
        ("wavlm", "one size of a weight", "wavlm.encoder.pos_conv_embed.conv.parametrizations.weight.original0"),
        ("timm cait", "one scale of a layer", "blocks.1.gamma_1"),
        ("timm sequencer", "one recurrent weight", "stages.1.blocks.0.rnn_tokens.rnn_v.weight_hh_l0_reverse"),
        ("flow", "one scale", "scale"),
    ):
        yield _value(network, what, changes.parameter(name), f"parameter {name}")
    name = "transformer.blocks.1.attn.out_proj.weight"
    yield _value("mpt", "a frozen weight", changes.frozen(name), f"parameter {name}")
    other = changes.checkpoint("encoder.h.1")
    yield _value("decision_transformer", "a layer of another checkpoint", other, "parameter encoder.h.1.*")
    uses = ("Functional.linear.12", "Functional.embedding.0")
    told = [f"{kind} {call}" for kind in ("rewired", "gradient", "unrecorded") for call in uses]
    names = ("parameter *embed_tokens.weight", "parameter *lm_head.weight")
    yield _value("xglm", "head not tied", changes.edit(_untied), *names, *told)
    batch, either = changes.batch, ("batch", "constant")
    yield _value("beit", "one pixel", batch("pixels", changes.one_pixel), *either)
    yield _value("siglip", "one word", batch("ids", changes.one_token), *either)
    yield _value("wavlm", "one sample", batch("sound", changes.one_pixel), *either)
    yield _value("clicks", "one word", batch("words", changes.one_token), *either)
    yield _value("prophetnet", "one label", batch("labels", changes.one_token), *either)
    yield _value("policy", "other rewards", batch("rewards", lambda old: old + torch.eye(3, 6)), *either)
    other_ends = batch("edges", lambda old: (old + torch.eye(2, 15, dtype=old.dtype)) % 7)
    yield _value("graph", "other edges", other_ends, *either)


def _rewired() -> Iterator[Pair]:
    change = functools.partial(_patched, "rewired")
    attention = "torch.nn.functional.scaled_dot_product_attention"

    def keys_for_queries(run: Any, q: Tensor, k: Tensor, *args: Any, **more: Any) -> Any:
        return run(k, q, *args, **more)

    def values_for_keys(run: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **more: Any) -> Any:
        return run(q, v, k, *args, **more)

    def reversed_parts(run: Any, parts: Any, *args: Any, **more: Any) -> Any:
        return run(list(parts)[::-1], *args, **more)

    yield change("persimmon", "q and k exchanged", changes.function(attention, 1, keys_for_queries), REWIRED)
    yield change("mbart", "k and v exchanged", changes.function(attention, 4, values_for_keys), REWIRED)
    rotary = "transformers.models.glm.modeling_glm.apply_rotary_pos_emb"
    yield change(
        "glm", "sine for cosine", _only(changes.function(rotary, 1, _exchange_last), "Tensor.unsqueeze.*"), REWIRED
    )
    for network, number in (("timm crossvit", 2), ("AutoencoderDC", 0), ("UNet1DModel", 2), ("timm inception_next", 1)):
        yield change(network, "order of a cat", changes.function("torch.cat", number, reversed_parts), REWIRED)
    exchanged: dict[str, tuple[str, ...]] = {
        "graph": ("ends of edges exchanged 0", "sum at sources 1", "weights of other nodes 1"),
        "flow": ("scale and shift exchanged 1", "halves not exchanged 2"),
        "clicks": ("tables exchanged", "products of the upper half"),
        "policy": ("steps not reversed",),
        "motion": ("speed before 1",),
        "gates": ("entry and forget exchanged 3",),
        "queue": ("negatives before the positive",),
        "words": ("gate and value exchanged 1", "one layer twice in the mean", "skip around another layer 2"),
        "waves": ("tanh and gate exchanged 1",),
    }
    yield from _all_planted("rewired", exchanged, REWIRED)
    yield _exact("rewired", "queue", "keys of the left view", "rewired Functional.linear.2")
    readers = ("Torch.addcmul.0", "Torch.randn_like.0", "Tensor.__add__.0", "Tensor.pow.0", "Tensor.exp.0")
    yield _exact("rewired", "vae", "mean and width exchanged", *(f"rewired {call}" for call in readers))
    either: dict[str, tuple[str, ...]] = {
        "flow": ("order inverted",),
        "vae": ("code of another picture",),
        "skips": ("skip mirrored 0",),
        "queue": ("keys of other rows",),
        "codes": ("second nearest",),
        "mixture": ("weights of another task",),
        "clicks": ("bags begin elsewhere 2",),
        "waves": ("not added 1",),
    }
    yield from _all_planted("rewired", either, EITHER)


def _in_place() -> Iterator[Pair]:
    planted = functools.partial(_planted, "in place")
    yield planted("gates", "cell written 4", REWIRED)
    yield planted("queue", "written elsewhere", EITHER)
    yield planted("slots", "rows of a copy", EITHER)
    yield planted("slots", "index put elsewhere", EITHER, "constant*", "batch*")
    yield planted("slots", "columns of a view", EITHER)
    yield planted("slots", "added to a view twice")
    yield planted("slots", "added by index", EITHER)
    yield planted("slots", "slices scattered")


def _gradients() -> Iterator[Pair]:
    planted = functools.partial(_planted, "gradient")
    yield planted("graph", "a message hands no gradient on 0", GRADIENT)
    yield planted("gates", "state hands no gradient on 3", GRADIENT)
    yield planted("words", "gradient counts twice 2", GRADIENT)
    yield planted("flow", "determinant hands no gradient on 1", CUT)
    yield planted("clicks", "lower tower detached", CUT)
    yield planted("codes", "commitment of the code", CUT)
    yield planted("codes", "not straight through", CUT)
    hook = functools.partial(_changed, "gradient")
    yield hook("timm twins", "hook", changes.after("GELU", 2, changes.other_gradient), GRADIENT)
    yield hook("lfm2", "hook", changes.after("Lfm2MLP", 0, changes.other_gradient), GRADIENT)
    seen = changes.after("GELUActivation", 0, changes.recorded_gradient)
    yield hook("beit", "recorded hook", seen, ("{}",), "gradient Functional.gelu.0")


def _others() -> Iterator[Pair]:
    change = functools.partial(_changed, "unrecorded")
    data, memory = changes.through_data, changes.through_numpy
    yield change("timm starnet", "changed through data", changes.after("ReLU6", 2, data), UNRECORDED)
    yield change("glm", "changed through data", changes.after("SiLUActivation", 1, data), UNRECORDED)
    yield change("mpt", "memory written to", changes.after("GELU", 1, memory), UNRECORDED)
    yield change("timm cait", "memory written to", changes.after("GELU", 2, memory), UNRECORDED)
    change = functools.partial(_changed, "dtype")
    yield change("persimmon", "a block under autocast", changes.autocast("PersimmonMLP", 1))
    yield change("timm tnt", "a block under autocast", changes.autocast("Mlp", 2))
    yield change("SanaTransformer2DModel", "a block under autocast", changes.autocast("GLUMBConv", 1))
    yield _planted("dtype", "words", "mean through bfloat16")
    network, of_block = "words, checkpointed", ("{}", "gradient {}", "unrecorded {}")
    for operator, how in (("silu", "factor"), ("native_layer_norm", "tile")):
        what = f"{operator} {how} in the first forward only"
        yield _pair("checkpoint", network, what, {"fault": Fault(operator, 1, how)}, {}, place=KERNEL)
        # The last layer is computed again first.
        what, fault = f"{operator} {how} in the recomputation only", Fault(operator, 2, how, "recompute")
        yield _pair("checkpoint", network, what, {"fault": fault}, {}, place="checkpoint 1", forms=of_block)
    layers: dict[str, Any] = {"answer": "unaccounted", "expected": ("*layers.1*",)}
    target = {"planted": "gate and value exchanged 1", "is_reordered": True}
    yield _pair("uncomputable", "words", "gate and value exchanged, layers only", target, {"level": "L0"}, **layers)


def _all_at_once(training: Training) -> None:
    training.net.is_checkpointed = True  # type: ignore[assignment]


def _by_products(training: Training) -> None:
    training.net.set_attn_implementation("eager")  # type: ignore[operator]


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        name, ways = f"{network}: {what}", (Way(**target), Way(**(golden or {})))
        return Pair(name, "clean", "pytorch", network, *ways, answer="nothing")

    other: dict[str, Any] = {"is_reordered": True}
    for network in (
        *("glm", "jetmoe", "gpt_oss", "recurrent_gemma", "diffllama", "deberta", "prophetnet", "longt5", "focalnet"),
        *("autoformer", "wavlm", "timm sequencer", "timm resnest", "timm twins", "AutoencoderDC", "torchvision vit"),
        *("torchvision fcos head", "ctrl", "graph", "flow", "clicks", "policy", "averaged", "codes", "slots", "waves"),
        *("queue", "vae"),
    ):
        yield pair(network, "another order", other)
    for network in ("words", "xglm"):
        yield pair(network, "bfloat16, another order", {**_LOW, **other}, _LOW)
    for network in ("persimmon", "beit", "mixture"):
        yield pair(network, "bfloat16 against float32", _LOW)
    for network in ("squeezebert", "timm starnet"):
        yield pair(network, "autocast, another order", {**_CAST, **other}, _CAST)
    by_products: dict[str, Any] = {"attention": "MATH"}
    yield pair("persimmon", "bfloat16, attention by products", {**_LOW, **by_products}, _LOW)
    yield pair("siglip", "autocast, attention by products", {**_CAST, **by_products}, _CAST)
    yield pair("bit", "autocast, channels last", {**_CAST, "memory_format": "channels_last"}, _CAST)
    for network in ("motion", "timm mambaout", "glm"):
        yield pair(network, "autocast against float32", _CAST)
    yield pair("words", "GradScaler, another order", {**_SCALED, **other}, _SCALED)
    yield pair("patchtst", "GradScaler against float32", _SCALED, {"optimizer": "AdamW"})
    yield pair("vilt", "optimizer, another order", {"optimizer": "Adam", **other}, {"optimizer": "Adam"})
    for network in ("skips", "gates", "motion", "timm tnt"):
        yield pair(network, "float32 against float64", {}, {"dtype": "float64"})
    for network in ("bit", "skips", "timm resnest", "torchvision mobilenet_v2"):
        yield pair(network, "channels last", {"memory_format": "channels_last"})
    for network in ("convbert", "timm crossvit"):
        yield pair(network, "two threads", {"threads": 2})
    for network in ("persimmon", "siglip"):
        yield pair(network, "attention by products", by_products)
    for network in ("glm", "persimmon"):
        yield pair(network, "eager attention", {"change": changes.edit(_by_products)})
    for network in ("gates", "slots", "jetmoe"):
        yield pair(network, "other garbage in unfilled memory", {"change": _garbage, **other})
    yield pair("words", "checkpointed on one side", {"change": changes.edit(_all_at_once), **other})


_MAKERS: tuple[Callable[[], Iterator[Pair]], ...] = (
    *(_kernels, _backward_kernels, _formulas, _data, _rewired, _in_place, _gradients, _others, _clean),
)
PAIRS: tuple[Pair, ...] = tuple(dataclasses.replace(pair, part="c") for make in _MAKERS for pair in make())
