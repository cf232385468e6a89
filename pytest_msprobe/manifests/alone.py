"""What one manifest shows of its run, and what looks wrong in it without another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod

from msprobe_collector.dump_format.manifest import LayerFacts, Manifest, ModelFacts, OptimizerFacts
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.manifests.optimizers import left_out
from pytest_msprobe.manifests.pairing import is_dropout, plural_of
from pytest_msprobe.manifests.wording import cut, last_name, names, shown, switched

#: Settings of a group that are shown.
_SHOWN = ("lr", "betas", "beta1", "beta2", "momentum", "eps", "weight_decay", "nesterov", "use_nesterov", "loss_scale")


def facts(manifest: Manifest) -> list[str]:
    """What the run is made of, in some twenty lines."""
    versions = ", ".join(f"{cut(name)} {shown(version)}" for name, version in list(manifest.versions.items())[:12])
    device = manifest.device
    found = [f"step {shown(manifest.number)} of {cut(manifest.framework) or 'an unknown framework'}: {versions}"]
    found.append(f"device: {', '.join(shown(value) for value in list(device.values())[:6]) or 'unknown'}")
    found += [_model(model, plural_of(manifest)) for model in manifest.models[:8]]
    for optimizer in manifest.optimizers[:8]:
        found += _optimizer(optimizer)
    found.append(_batch(manifest))
    random = manifest.step.get("random")
    seeds = random.get("seeds") if isinstance(random, dict) else None
    if isinstance(seeds, dict):
        found.append(f"seeds: {_listed({name: switched(seed) for name, seed in seeds.items()}, ' ')}")
    switches = {name: switched(value) for name, value in manifest.switches.items() if name in _SWITCHES}
    if switches:
        found.append(f"switches: {_listed(switches, ' ')}")
    if manifest.environment:
        found.append(f"variables: {_listed(manifest.environment, '=')}")
    command = manifest.script.get("command")
    if isinstance(command, list):
        begun = f", at {cut(manifest.time)}" if manifest.time else ""
        found.append(f"command: {cut(' '.join(str(part) for part in command[:40]), 200)}{begun}")
    git = manifest.script.get("git")
    if isinstance(git, dict) and isinstance(git.get("revision"), str):
        found.append(f"git: {cut(git['revision'], 40)} {shown(git.get('branch', ''))}".rstrip())
    return found


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
    first = [f"{cut(one.name)} {cut(one.dtype)} {shown(list(one.shape))}" for one in manifest.batches[0][:4]]
    forwards = manifest.step.get("forwards")
    count = counted(forwards, "forwards") if isinstance(forwards, int) else "some forwards"
    return f"batch: {', '.join(first) or 'no tensors'}; {count} of the model in the step"


def _model(model: ModelFacts, nouns: str) -> str:
    own = [one for one in model.parameters if not one.tied]
    elements = sum(prod(one.shape) for one in own)
    frozen = sum(one.requires_grad is False for one in own)
    dtypes = ", ".join(cut(dtype) for dtype, _ in Counter(one.dtype for one in own).most_common(3))
    modes = Counter(one.is_training for one in model.layers)
    mode = "training" if not modes[False] else "eval"
    if modes[False] and modes[True]:
        mode = f"{modes[False]} of {len(model.layers)} {nouns} in eval"
    rates = sorted({rate for one in model.layers for rate in dropout_rates(one)})
    told = f", dropout {', '.join(shown(rate) for rate in rates[:4])}" if rates else ""
    return (
        f"model {last_name(model.kind)}: {counted(len(own), 'parameters')} with {elements:,} elements ({dtypes})"
        f"{f', {frozen} frozen' if frozen else ''}, {mode}{told}"
    )


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
    inside: dict[str, list[float]] = {path: list(own) for path, own in rates.items()}
    for path, own in rates.items():
        if path:
            inside.setdefault(path.rpartition(".")[0], []).extend(own)
    return [layer for layer in model.layers if _has_modes(layer, rates[layer.path], inside[layer.path])]


def _has_modes(layer: LayerFacts, rates: list[float], rates_inside: list[float]) -> bool:
    is_fixed = "use_batch_statistics" in layer.settings or layer.settings.get("track_running_stats") is False
    if is_fixed or rates_inside:
        return any(rate > 0 for rate in rates)
    if layer.reads_mode is None:
        return any(kind in layer.kind for kind in _WITH_MODES)
    return layer.reads_mode


def _optimizer(optimizer: OptimizerFacts) -> Iterator[str]:
    schedulers = ", ".join(last_name(one.kind) for one in optimizer.schedulers)
    yield f"optimizer {last_name(optimizer.kind)}{f' with {schedulers}' if schedulers else ''}"
    for number, group in enumerate(optimizer.groups[:8]):
        settings = ", ".join(f"{key} {shown(group.settings[key])}" for key in _SHOWN if key in group.settings)
        yield f"  group {number}: {counted(len(group.parameters), 'parameters')}, {settings}"


def suspicions(manifest: Manifest) -> list[str]:
    """What looks wrong in a run by itself, one line each."""
    looks = (_unoptimized, _twice, _rates, _modes, _precision)
    return [line for look in looks for line in look(manifest)]


def _unoptimized(manifest: Manifest) -> Iterator[str]:
    if missing := left_out(manifest):
        count = sum(1 for model in manifest.models for one in model.parameters if not one.tied)
        verb = "is" if len(missing) == 1 else "are"
        yield f"{counted(len(missing), 'parameters')} of {count} {verb} in no optimizer: {names(missing)}"


def _twice(manifest: Manifest) -> Iterator[str]:
    counts = Counter(name for one in manifest.optimizers for group in one.groups for name in group.parameters)
    known = manifest.parameters
    several = [name for name, count in counts.items() if count > 1 and name in known]
    if several:
        verb = "is" if len(several) == 1 else "are"
        yield f"{counted(len(several), 'parameters')} {verb} in several groups or optimizers: {names(several)}"


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
        other = [one.path for one in model.layers[1:] if one.is_training is (not root.is_training)]
        drops = [one.path for one in model.layers if any(rate > 0 for rate in dropout_rates(one)) and one.path in other]
        if drops:
            state, whole = ("in eval", "trains") if root.is_training else ("active", "is in eval")
            yield f"dropout is {state} in {counted(len(drops), nouns)} while the model {whole}: {names(drops)}"
        elif not root.is_training and manifest.optimizers and not other and layers_with_modes(model):
            since = f", since {model.eval_at}" if model.eval_at else ""
            yield f"model {last_name(model.kind)} is in eval while an optimizer trains it{since}"


def _precision(manifest: Manifest) -> Iterator[str]:
    half = [one.name for one in manifest.parameters.values() if one.dtype.lower() == "float16" and one.requires_grad]
    scales = [group.settings.get("loss_scale", 1.0) for one in manifest.optimizers for group in one.groups]
    if half and manifest.step.get("loss_scale") is None and all(scale == 1.0 for scale in scales):
        count = counted(len(half), "parameters")
        yield f"{count} of float16 and no loss scale: small gradients become 0: {names(half)}"
