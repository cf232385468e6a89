"""What one manifest shows of its run: what looks wrong in it without another one, and the digits of its products."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, repeat
from math import prod
from operator import attrgetter

from msprobe_collector.dump_format.manifest import LayerFacts, Manifest, ModelFacts, OptimizerFacts
from msprobe_collector.dump_format.values import counted, optional
from pytest_msprobe.manifests.optimizers import left_out, left_out_words, optimizer_parameters, scheduler_kinds
from pytest_msprobe.manifests.pairing import is_dropout, plural_of
from pytest_msprobe.manifests.value import as_mapping, cut, last_name, names, shown, switched

#: Settings of a group that are shown.
_SHOWN = ("lr", "betas", "beta1", "beta2", "momentum", "eps", "weight_decay", "nesterov", "use_nesterov", "loss_scale")


def facts(manifest: Manifest) -> list[str]:
    """What the run is made of, in some twenty lines."""
    devices = list(map(shown, manifest.device.values()))[:6]
    framework = cut(manifest.framework) or "an unknown framework"
    lines = [
        f"step {shown(manifest.number)} of {framework}: {_listed(manifest.versions, ' ')}",
        f"device: {', '.join(devices) or 'unknown'}",
    ]
    lines += map(_model, manifest.models[:8], repeat(plural_of(manifest)))
    for optimizer in manifest.optimizers[:8]:
        lines += _optimizer(optimizer)
    lines.append(_batch(manifest))
    seeds = as_mapping(manifest.step.get("random")).get("seeds")
    if isinstance(seeds, dict):
        lines.append(f"seeds: {_listed(_switched(seeds), ' ')}")
    switches = {name: value for name, value in manifest.switches.items() if name in _SWITCHES}
    if switches:
        lines.append(f"switches: {_listed(_switched(switches), ' ')}")
    if manifest.environment:
        lines.append(f"variables: {_listed(manifest.environment, '=')}")
    command = manifest.script.get("command")
    if isinstance(command, list):
        start = optional(", at {}", cut(manifest.time))
        lines.append(f"command: {cut(' '.join(map(str, command[:40])), 200)}{start}")
    git = as_mapping(manifest.script.get("git"))
    if isinstance(revision := git.get("revision"), str):
        lines.append(f"git: {cut(revision, 40)} {shown(git.get('branch', ''))}".rstrip())
    return lines


def _switched(values: Mapping[str, object]) -> dict[str, str]:
    return dict(zip(values, map(switched, values.values())))


#: Switches that are shown.
_SWITCHES = (
    "deterministic algorithms",
    "deterministic",
    "float32 matmul precision",
    "default dtype",
    "threads",
    "mode",
)


def _listed(values: Mapping[str, object], mark: str) -> str:
    return ", ".join(f"{cut(str(name))}{mark}{shown(value)}" for name, value in list(values.items())[:12])


def _batch(manifest: Manifest) -> str:
    if manifest.batches is None:
        return "batch: no call of the model was seen"
    first = [f"{cut(tensor.name)} {cut(tensor.dtype)} {shown(tensor.shape)}" for tensor in manifest.batches[0][:4]]
    forwards = manifest.step.get("forwards")
    count = counted(forwards, "forwards") if isinstance(forwards, int) else "some forwards"
    return f"batch: {', '.join(first) or 'no tensors'}; {count} of the model in the step"


def _model(model: ModelFacts, nouns: str) -> str:
    parameters = [tensor for tensor in model.parameters if not tensor.tied]
    elements = sum(prod(tensor.shape) for tensor in parameters)
    frozen = list(map(attrgetter("requires_grad"), parameters)).count(False)
    dtypes = Counter(map(cut, map(attrgetter("dtype"), parameters))).most_common(3)
    modes = list(map(attrgetter("is_training"), model.layers))
    mode = "eval" if False in modes else "training"
    if False in modes and True in modes:
        mode = f"{modes.count(False)} of {len(modes)} {nouns} in eval"
    parts = [f"{counted(len(parameters), 'parameters')} with {elements:,} elements ({', '.join(dict(dtypes))})"]
    if frozen:
        parts.append(f"{frozen} frozen")
    parts.append(mode)
    rates = sorted(set(chain.from_iterable(map(dropout_rates, model.layers))))
    if rates:
        parts.append(f"dropout {', '.join(map(shown, rates[:4]))}")
    return f"model {last_name(model.kind)}: {', '.join(parts)}"


def dropout_rates(layer: LayerFacts) -> list[float]:
    """Probabilities with which a layer drops."""
    values = [value for key, value in layer.settings.items() if is_dropout(key, layer)]
    return [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


#: Classes of layers that compute otherwise in training mode, for manifests that do not tell.
_WITH_MODES = ("BatchNorm", "RReLU")


def layers_with_modes(model: ModelFacts) -> list[LayerFacts]:
    """The layers that compute otherwise in training mode.

    They drop, or ask for the mode. What a layer asks it for is known where it, or a layer directly inside it, can drop.
    """
    rates = {layer.path: dropout_rates(layer) for layer in model.layers}
    inside = defaultdict[str, list[float]](list)
    for path, values in rates.items():
        inside[path] += values
        if path:
            inside[path.rpartition(".")[0]] += values
    return [layer for layer in model.layers if _has_modes(layer, rates[layer.path], inside[layer.path])]


def _has_modes(layer: LayerFacts, rates: list[float], rates_inside: list[float]) -> bool:
    is_fixed = "use_batch_statistics" in layer.settings or layer.settings.get("track_running_stats") is False
    if is_fixed or rates_inside:
        return max(rates, default=0.0) > 0
    if layer.reads_mode is None:
        return any(kind in layer.kind for kind in _WITH_MODES)
    return layer.reads_mode


def _optimizer(optimizer: OptimizerFacts) -> Iterator[str]:
    yield f"optimizer {last_name(optimizer.kind)}{optional(' with {}', scheduler_kinds(optimizer))}"
    for number, group in enumerate(optimizer.groups[:8]):
        settings = ", ".join(f"{key} {shown(group.settings[key])}" for key in _SHOWN if key in group.settings)
        yield f"  group {number}: {counted(len(group.parameters), 'parameters')}, {settings}"


def suspicions(manifest: Manifest) -> list[str]:
    """What looks wrong in a run by itself, one line each."""
    return [*_parameters(manifest), *_rates(manifest), *_modes(manifest), *_precision(manifest)]


def _parameters(manifest: Manifest) -> Iterator[str]:
    if missing := left_out(manifest):
        yield f"{left_out_words(manifest, len(missing))}: {names(missing)}"
    counts = Counter(chain.from_iterable(map(optimizer_parameters, manifest.optimizers)))
    parameters = manifest.parameters
    several = [name for name, count in counts.items() if count > 1 and name in parameters]
    if several:
        yield f"{counted(len(several), 'parameters', 'are')} in several groups or optimizers: {names(several)}"


def _rates(manifest: Manifest) -> Iterator[str]:
    for optimizer in manifest.optimizers:
        idle = [number for number, group in enumerate(optimizer.groups) if group.settings.get("lr") == 0]
        if idle and not optimizer.schedulers:  # one may warm up
            yield f"lr of {last_name(optimizer.kind)} is 0 in group {', '.join(map(str, idle[:8]))}: it changes nothing"


def _modes(manifest: Manifest) -> Iterator[str]:
    nouns = plural_of(manifest)
    for model in manifest.models:
        root = model.layers[0] if model.layers else None
        if root is None or root.is_training is None:
            continue
        others = [layer for layer in model.layers[1:] if layer.is_training is (not root.is_training)]
        drops = [layer.path for layer in others if max(dropout_rates(layer), default=0) > 0]
        if drops:
            state, whole = ("in eval", "trains") if root.is_training else ("active", "is in eval")
            yield f"dropout is {state} in {counted(len(drops), nouns)} while the model {whole}: {names(drops)}"
        elif not root.is_training and manifest.optimizers and not others and layers_with_modes(model):
            since = optional(", since {}", model.eval_at)
            yield f"model {last_name(model.kind)} is in eval while an optimizer trains it{since}"


def _precision(manifest: Manifest) -> Iterator[str]:
    tensors = manifest.parameters.values()
    half = [tensor.name for tensor in tensors if tensor.requires_grad and tensor.dtype.lower() == "float16"]
    groups = chain.from_iterable(map(attrgetter("groups"), manifest.optimizers))
    is_unscaled = all(group.settings.get("loss_scale", 1.0) == 1.0 for group in groups)
    if half and manifest.step.get("loss_scale") is None and is_unscaled:
        count = counted(len(half), "parameters")
        yield f"{count} of float16 and no loss scale: small gradients become 0: {names(half)}"


#: Precisions of float32 products by which PyTorch allows TF32 on CUDA.
_COARSE = ("tf32", "high", "medium")
#: Of each kind of product the switches of PyTorch, the most special first: each decides unless it is not set.
_ON_CUDA = {
    "conv": ("float32 precision of convolutions in cuDNN", "TF32 in cuDNN", "float32 precision"),
    "matmul": (
        "float32 precision of matmul in CUDA",
        "float32 precision",
        "TF32 in cuBLAS",
        "float32 matmul precision",
    ),
}
_ON_NPU = {"conv": "HF32 in convolutions of the NPU", "matmul": "HF32 in products of the NPU"}
_ON_ASCEND = {"conv": "conv_allow_hf32", "matmul": "matmul_allow_hf32"}
_REDUCED = {
    "float16": "reduced precision sums of float16 in cuBLAS",
    "bfloat16": "reduced precision sums of bfloat16 in cuBLAS",
}
_WHOLLY_IN_HALF = "sums in float16 in cuBLAS"
#: What cuDNN and CANN do where nothing is set.
_DEFAULTS = {"conv": True, "matmul": False}


def rounded_operands(manifest: Manifest) -> Mapping[str, str]:
    """Return the format of float32 operands, `TF32` or `HF32`, by kind of product, `conv` and `matmul`.

    What is not rounded is left out, and so is everything where the manifest does not say what computed.
    """
    device, switches = manifest.device.get("kind"), manifest.switches
    if device == "cuda":
        if manifest.environment.get("NVIDIA_TF32_OVERRIDE") == "0":
            return {}
        return {kind: "TF32" for kind in _ON_CUDA if _is_coarse(kind, map(switches.get, _ON_CUDA[kind]))}
    settings: Mapping[str, object] = {}
    if device == "npu":
        settings = {kind: switches[name] for kind, name in _ON_NPU.items() if name in switches}
    elif device == "Ascend":
        config = as_mapping(switches.get("ascend_config"))
        settings = {kind: config[name] for kind, name in _ON_ASCEND.items() if name in config}
    else:
        return {}
    return {kind: "HF32" for kind in _DEFAULTS if settings.get(kind, _DEFAULTS[kind]) is True}


def narrow_sums(manifest: Manifest) -> Mapping[str, float]:
    """Return how many partial sums of a product may be added up in the half dtype of its operands, by that dtype.

    cuBLAS splits long sums among blocks, whose results it may add in the dtype of the output unless told not to.
    """
    if manifest.device.get("kind") != "cuda":
        return {}
    switches = manifest.switches
    # Blocks among which cuBLAS splits a sum at most.
    allowed = {dtype: 32 for dtype, name in _REDUCED.items() if switches.get(name) is not False}
    return {**allowed, "float16": math.inf} if switches.get(_WHOLLY_IN_HALF) is True else allowed


def default_manifest(device: str) -> Manifest:
    """Return what is known of a run that sets nothing, by the label of what computes."""
    kind = next((kind for kind in ("cuda", "npu", "Ascend") if kind.lower() in device.lower()), "")
    return Manifest(device={"kind": kind}, environment=os.environ)


def digits(manifest: Manifest) -> str:
    """Return what a run rounds more than its dtypes say, for people; "" for nothing."""
    words = {"conv": "convolutions", "matmul": "products"}
    parts = [f"{name} in float32 {words[kind]}" for kind, name in rounded_operands(manifest).items()]
    parts += [f"partial sums in {dtype}" for dtype in narrow_sums(manifest)]
    return ", ".join(parts)


def _is_coarse(kind: str, values: Iterable[object]) -> bool:
    for value in values:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value != "none":
            return value in _COARSE
    return _DEFAULTS[kind]
