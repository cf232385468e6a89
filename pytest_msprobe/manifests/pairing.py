"""Which parameters, layers and settings of two manifests belong together, also of different frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from msprobe_collector.dump_format.manifest import GroupFacts, LayerFacts, Manifest, ModelFacts, TensorFacts

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
    while wrapper := next((one for one in _WRAPPERS if names and all(n.startswith(front + one) for n in names)), ""):
        front += wrapper

    def own(tensors: tuple[TensorFacts, ...]) -> tuple[TensorFacts, ...]:
        return tuple(
            replace(one, name=one.name.removeprefix(front), tied=one.tied.removeprefix(front)) for one in tensors
        )

    models = []
    for model in manifest.models:
        inside = [one for one in model.layers if f"{one.path}.".startswith(front)]
        layers = tuple(
            replace(one, path=f"{one.path}.".removeprefix(front).removesuffix("."), kind=_without_fsdp(one.kind))
            for one in inside
        )
        module, _, kind = model.kind.rpartition(".")
        kind = _without_fsdp(layers[0].kind if front and layers else kind)
        models.append(ModelFacts(f"{module}.{kind}", own(model.parameters), own(model.buffers), layers, model.eval_at))
    optimizers = tuple(
        replace(
            one,
            groups=tuple(
                GroupFacts(group.settings, tuple(name.removeprefix(front) for name in group.parameters))
                for group in one.groups
            ),
        )
        for one in manifest.optimizers
    )
    return replace(manifest, models=tuple(models), optimizers=optimizers)


def _without_fsdp(kind: str) -> str:
    """FSDP2 makes `FSDPLinear` of `Linear`."""
    return kind.removeprefix("FSDP") if kind[4:5].isupper() else kind


def common_names(target: Manifest, golden: Manifest) -> Callable[[str], str]:
    """Gives the name under which both sides have a parameter: its own, save where the frameworks are different."""
    return _translated if target.framework != golden.framework else lambda name: name


def _translated(name: str) -> str:
    front, dot, last = name.rpartition(".")
    return f"{front}{dot}{_PARTS.get(last, last)}"


def tensor_pairs(
    target: Mapping[str, TensorFacts], golden: Mapping[str, TensorFacts]
) -> list[tuple[str, TensorFacts, TensorFacts]]:
    """Name and both sides of what has one name."""
    return [(name, one, golden[name]) for name, one in target.items() if name in golden]


def layer_pairs(target: Manifest, golden: Manifest) -> list[tuple[LayerFacts, LayerFacts]]:
    """The layers that have one path in models of one place."""
    found = []
    for left, right in zip(target.models, golden.models):
        others = {one.path: one for one in right.layers}
        found += [(one, others[one.path]) for one in left.layers if one.path in others]
    return found


def plural_of(manifest: Manifest) -> str:
    """Give the word of the framework for layers."""
    return "Cells" if manifest.framework == "mindspore" else "Modules"


def same_settings(settings: Mapping[str, object], *, is_translated: bool) -> dict[str, object]:
    """Hyper-parameters, flat; by the names that both frameworks share, where they are different ones."""
    flat = dict(_flat(settings))
    if not is_translated:
        return flat
    found = {_SETTINGS.get(key, key): value for key, value in flat.items()}
    if "beta1" in found and "beta2" in found:
        found["betas"] = [found.pop("beta1"), found.pop("beta2")]
    return found


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
