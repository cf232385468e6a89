"""Which parameters, layers and settings of two manifests belong together, also of different frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TypeVar

from msprobe_collector.dump_format.manifest import (
    LayerFacts,
    Manifest,
    ModelFacts,
    OptimizerFacts,
    TensorFacts,
)

_Side = TypeVar("_Side")
#: The last part of a parameter's name: what it is called in PyTorch.
_PARTS = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
#: Hyper-parameters of mindspore.nn: what they are called in torch.optim and mint.optim.
_SETTINGS = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "use_nesterov": "nesterov",
    "use_amsgrad": "amsgrad",
    "decay": "alpha",
}


#: What begins the names of all parameters in a model that is wrapped (DistributedDataParallel, torch.compile).
_WRAPPERS = ("module.", "_orig_mod.")


def unwrapped(manifest: Manifest) -> Manifest:
    """The manifest with the names and classes that models have without what is put around them to run them."""
    front = ""
    names = list(manifest.parameters)
    while wrapper := _wrapper_of(names, front):
        front += wrapper
    models = tuple(map(_model_inside, manifest.models, repeat(front)))
    optimizers = tuple(map(_optimizer_inside, manifest.optimizers, repeat(front)))
    return replace(manifest, models=models, optimizers=optimizers)


def _wrapper_of(names: Sequence[str], front: str) -> str:
    """What all `names` begin with behind `front`; "" where that is no wrapper."""
    for wrapper in _WRAPPERS:
        if names and all(name.startswith(front + wrapper) for name in names):
            return wrapper
    return ""


def _model_inside(model: ModelFacts, front: str) -> ModelFacts:
    layers = [_layer_inside(layer, front) for layer in model.layers if f"{layer.path}.".startswith(front)]
    module, _, kind = model.kind.rpartition(".")
    if front and layers:
        kind = layers[0].kind
    kind = f"{module}.{_without_fsdp(kind)}"
    parameters, buffers = _tensors_inside(model.parameters, front), _tensors_inside(model.buffers, front)
    return replace(model, kind=kind, parameters=parameters, buffers=buffers, layers=tuple(layers))


def _layer_inside(layer: LayerFacts, front: str) -> LayerFacts:
    path = f"{layer.path}.".removeprefix(front).removesuffix(".")
    return replace(layer, path=path, kind=_without_fsdp(layer.kind))


def _tensors_inside(tensors: Iterable[TensorFacts], front: str) -> tuple[TensorFacts, ...]:
    inside = []
    for tensor in tensors:
        name, tied = tensor.name.removeprefix(front), tensor.tied.removeprefix(front)
        inside.append(replace(tensor, name=name, tied=tied))
    return tuple(inside)


def _optimizer_inside(optimizer: OptimizerFacts, front: str) -> OptimizerFacts:
    groups = []
    for group in optimizer.groups:
        parameters = tuple(name.removeprefix(front) for name in group.parameters)
        groups.append(replace(group, parameters=parameters))
    return replace(optimizer, groups=tuple(groups))


def _without_fsdp(kind: str) -> str:
    """FSDP2 makes `FSDPLinear` of `Linear`."""
    return kind.removeprefix("FSDP") if kind[4:5].isupper() else kind


def common_names(target: Manifest, golden: Manifest) -> Callable[[str], str]:
    """Gives the name under which both sides have a parameter: its own, save where the frameworks are different."""
    return _translated if target.framework != golden.framework else lambda name: name


def _translated(name: str) -> str:
    front, dot, last = name.rpartition(".")
    return f"{front}{dot}{_PARTS.get(last, last)}"


def tensors_of(part: str, target: Manifest, golden: Manifest) -> tuple[dict[str, TensorFacts], dict[str, TensorFacts]]:
    """Return the `parameters` or `buffers` of all models of both sides, by their common names."""
    rename = common_names(target, golden)
    sides: tuple[dict[str, TensorFacts], dict[str, TensorFacts]] = {}, {}
    for manifest, tensors in zip((target, golden), sides):
        for model in manifest.models:
            tensors |= {rename(tensor.name): tensor for tensor in getattr(model, part)}
    return sides


def pairs_of(target: Mapping[str, _Side], golden: Mapping[str, _Side]) -> list[tuple[str, _Side, _Side]]:
    """Return name and both sides of what has one name."""
    return [(name, fact, golden[name]) for name, fact in target.items() if name in golden]


def layer_pairs(target: Manifest, golden: Manifest) -> list[tuple[str, LayerFacts, LayerFacts]]:
    """Return path and both sides of the layers that have one path in models of one place."""
    pairs = []
    for model, golden_model in zip(target.models, golden.models):
        others = {layer.path: layer for layer in golden_model.layers}
        pairs += [(layer.path, layer, others[layer.path]) for layer in model.layers if layer.path in others]
    return pairs


def differing_values(
    target: Mapping[str, object], golden: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """Yield name and both values of what both sides have, and not alike."""
    return (entry for entry in pairs_of(target, golden) if entry[1] != entry[2])


def plural_of(manifest: Manifest) -> str:
    """Give the word of the framework for layers."""
    return "Cells" if manifest.framework == "mindspore" else "Modules"


def same_settings(settings: Mapping[str, object], *, is_translated: bool) -> dict[str, object]:
    """Hyper-parameters, flat; by the names that both frameworks share, where they are different ones."""
    flat = dict(_flat(settings))
    if not is_translated:
        return flat
    renamed = {_SETTINGS.get(key, key): value for key, value in flat.items()}
    if "beta1" in renamed and "beta2" in renamed:
        renamed["betas"] = [renamed.pop("beta1"), renamed.pop("beta2")]
    return renamed


def _flat(settings: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Settings inside others by both names: `decay_rate of lr_schedule`."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from ((f"{inner} of {key}", item) for inner, item in value.items())
        else:
            yield key, value


def is_dropout(key: str, layer: LayerFacts) -> bool:
    """Whether a setting of a layer is the probability with which it drops."""
    return "dropout" in key.lower() or (key == "p" and "dropout" in layer.kind.lower())
