"""What differs between two manifests, the most likely explanation of other numbers first.

The order: what is compared at all (step, ranks); what the training is told to do (optimizer, model, precision, seed,
switches); where it computes (variables, versions, device); what it begins with (batch, weights, random state); which
script it was. A cause stands before what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from operator import attrgetter, itemgetter
from typing import Any

from msprobe_collector.dump_format.manifest import LayerFacts, Manifest, TensorFacts
from msprobe_collector.dump_format.values import counted, optional
from pytest_msprobe.manifests.optimizers import optimizer_differences
from pytest_msprobe.manifests.pairing import (
    differing_values,
    is_dropout,
    layer_pairs,
    pairs_of,
    plural_of,
    tensors_of,
    unwrapped,
)
from pytest_msprobe.manifests.value import (
    MODE,
    ManifestDifference,
    as_mapping,
    cut,
    difference_of,
    last_name,
    names,
    numbers,
    of_other_step,
    shown,
    shown_of,
    switched,
)

__all__ = ["ManifestDifference", "differences"]


def differences(target: Manifest, golden: Manifest) -> list[ManifestDifference]:
    """In what `target` differs from `golden`, most likely explanation first; at most 200.

    What only one of the manifests knows, such as a switch of another version of the framework, is no difference.
    """
    target, golden = unwrapped(target), unwrapped(golden)
    listed: list[ManifestDifference] = []
    for section in (_step, _ranks, optimizer_differences, _models, _precision, _seeds, _switches, _places, _state):
        listed += section(target, golden)
    listed += _batches(target, golden)
    has_other_values = not {"batch", "initial state"}.isdisjoint(map(attrgetter("section"), listed))
    listed += _random_states(target, golden, has_other_values=has_other_values)
    listed += _script(target, golden)
    return sorted(listed, key=attrgetter("likelihood"), reverse=True)[:200]


def _step(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    step, golden_step = target.number, golden.number
    if step is not None and golden_step is not None and step != golden_step:
        yield of_other_step(str(step), str(golden_step))


def _ranks(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    for name, words, likelihood in (("world_size", "world size", 0.94), ("rank", "rank", 0.98)):
        # A process that is alone does not say so.
        ours, theirs = ((manifest.ranks or {"world_size": 1}).get(name) for manifest in (target, golden))
        if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
            yield difference_of("ranks", words, ours, theirs, likelihood)
    groups, golden_groups = _groups(target), _groups(golden)
    if not groups or not golden_groups:
        return
    for name in dict.fromkeys((*groups, *golden_groups)):
        ours, theirs = _members(groups.get(name)), _members(golden_groups.get(name))
        if ours != theirs and name != "world":
            yield difference_of("ranks", f"group {cut(name)}:", ours, theirs, 0.93, what=name)


def _groups(manifest: Manifest) -> dict[str, list[int]]:
    """The ranks of the groups of processes, by the names of these; what has another form is left out."""
    ranks_of = {}
    for name, group in as_mapping(manifest.ranks.get("groups")).items():
        ranks = as_mapping(group).get("ranks")
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            ranks_of[str(name)] = ranks
    return ranks_of


def _members(ranks: list[int] | None) -> str:
    return "not there" if ranks is None else f"ranks {numbers(ranks)}"


def _models(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    if not target.models or not golden.models:
        return
    if len(target.models) != len(golden.models):
        yield difference_of("model", "number of models", len(target.models), len(golden.models), 0.92)
    for model, golden_model in zip(target.models, golden.models):
        kind, golden_kind = last_name(model.kind), last_name(golden_model.kind)
        if kind != golden_kind:
            yield difference_of("model", "model", kind, golden_kind, 0.92)
    for part in ("parameters", "buffers"):
        yield from _structure(*tensors_of(part, target, golden), part)
    yield from _layers(target, golden)


def _structure(
    target: Mapping[str, TensorFacts], golden: Mapping[str, TensorFacts], nouns: str
) -> Iterator[ManifestDifference]:
    """What differs in names, shapes, dtypes and gradients of parameters or buffers."""
    for tensors, others, where in ((target, golden, "the golden model"), (golden, target, "this model")):
        if missing := list(filterfalse(others.__contains__, tensors)):
            sentence = f"{counted(len(missing), nouns, 'are')} not in {where}: {names(missing)}"
            yield ManifestDifference("model", nouns, str(len(target)), str(len(golden)), sentence, 0.91)
    pairs = pairs_of(target, golden)
    for what, likelihood in (("shape", 0.9), ("dtype", 0.89)):
        for (ours, theirs), differing in _grouped(what, pairs):
            which = f"{counted(len(differing), nouns)} of {len(pairs)} ({names(differing)})"
            if len(differing) == len(pairs) > 1:
                which = f"all {len(pairs)} {nouns}"
            words = f"{what} of {which}:"
            yield difference_of("model", words, shown(ours), shown(theirs), likelihood, what=what, names=differing)
    for (needs, golden_needs), differing in sorted(_grouped("requires_grad", pairs)):
        verb, they = ("requires", "it does") if len(differing) == 1 else ("require", "they do")
        words, golden_words = ("a gradient", f"{they} not") if needs else ("no gradient", they)
        which = f"{counted(len(differing), nouns)} of {len(pairs)}"
        sentence = f"{which} {verb} {words}, golden {golden_words}: {names(differing)}"
        yield ManifestDifference("model", "requires_grad", str(needs), str(golden_needs), sentence, 0.93)
    for name, tensor, golden_tensor in pairs:
        if tensor.tied != golden_tensor.tied:
            words = f"{nouns[:-1]} {cut(name)} is"
            yield difference_of("model", words, _tie(tensor), _tie(golden_tensor), 0.9, what="tied")


def _tie(tensor: TensorFacts) -> str:
    return optional("tied to {}", cut(tensor.tied)) or "not tied"


def _grouped(fact: str, pairs: Iterable[tuple[str, Any, Any]]) -> Iterable[tuple[tuple[Any, Any], list[str]]]:
    """Return both values of a fact where both sides say it otherwise, with the names that have them."""
    groups: dict[tuple[Any, Any], list[str]] = {}
    for name, target, golden in pairs:
        values = getattr(target, fact), getattr(golden, fact)
        if values[0] != values[1] and not {None, "", ()}.intersection(values):
            groups.setdefault(values, []).append(name)
    return groups.items()


def _layers(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    pairs = layer_pairs(target, golden)
    nouns = plural_of(target)
    for (kind, golden_kind), paths in _grouped("kind", pairs) if target.framework == golden.framework else ():
        sentence = f"{cut(kind)}, golden {cut(golden_kind)} in {counted(len(paths), nouns)}: {_paths(paths)}"
        yield ManifestDifference("model", "class", kind, golden_kind, sentence, 0.88)
    yield from _modes(pairs, nouns)
    yield from _settings(pairs, nouns, is_one_version=_framework_version(target) == _framework_version(golden))


def _framework_version(manifest: Manifest) -> object:
    return manifest.versions.get("torch", manifest.versions.get("mindspore"))


def _modes(pairs: Sequence[tuple[str, LayerFacts, LayerFacts]], nouns: str) -> Iterator[ManifestDifference]:
    """Modules that are in training on one side and in eval on the other."""
    total = sum(None not in (layer.is_training, golden.is_training) for _, layer, golden in pairs)
    for (trains, _), paths in sorted(_grouped("is_training", pairs)):
        who, where = counted(len(paths), nouns, "are"), f": {_paths(paths)}"
        if len(paths) == total:
            who, where = "the model is", ""
        word, golden_word = ("training", "eval") if trains else ("eval", "training")
        sentence = f"{who} in {word}, golden in {golden_word}{where}"
        yield ManifestDifference("model", MODE, word, golden_word, sentence, 0.92)


def _settings(
    pairs: Sequence[tuple[str, LayerFacts, LayerFacts]], nouns: str, *, is_one_version: bool
) -> Iterator[ManifestDifference]:
    """Settings of layers, equal differences of all layers in one; those of one side only where versions are equal."""
    groups: dict[tuple[str, str, str], list[LayerFacts]] = {}
    for _, layer, golden_layer in pairs:
        if layer.kind != golden_layer.kind:
            continue
        ours, theirs = layer.settings, golden_layer.settings
        for key in dict.fromkeys((*ours, *theirs)):
            is_on_both = key in ours and key in theirs
            if is_on_both and ours[key] == theirs[key]:
                continue
            if is_on_both or (is_one_version and (ours.get(key) or theirs.get(key))):
                name = "dropout" if is_dropout(key, layer) else cut(key)
                values = shown_of(ours, key, "not set"), shown_of(theirs, key, "not set")
                groups.setdefault((name, *values), []).append(layer)
    for (name, value, golden_value), layers in groups.items():
        paths = _paths(map(attrgetter("path"), layers))
        where = f"{counted(len(layers), nouns)}{_kinds(layers)}: {paths}"
        sentence = f"{name} {value}, golden {golden_value} in {where}"
        likelihood = 0.915 if name == "dropout" else 0.86
        yield ManifestDifference("model", name, value, golden_value, sentence, likelihood)


def _kinds(layers: Sequence[LayerFacts]) -> str:
    """` (LayerNorm)` of layers of one class; Dropout goes without saying."""
    kinds = dict.fromkeys(map(attrgetter("kind"), layers))
    if all(kind.startswith("Dropout") for kind in kinds):
        return ""
    return f" ({names(kinds)})"


def _paths(paths: Iterable[str]) -> str:
    return names(path or "the model itself" for path in paths)


def _precision(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    autocast, golden_autocast = _autocast(target), _autocast(golden)
    if autocast is not None and golden_autocast is not None and autocast != golden_autocast:
        yield difference_of("precision", "autocast", autocast, golden_autocast, 0.9)
    ours, theirs = as_mapping(target.step.get("loss_scale")), as_mapping(golden.step.get("loss_scale"))
    if ours.get("scale") != theirs.get("scale"):
        scales = shown_of(ours, "scale", "none"), shown_of(theirs, "scale", "none")
        yield difference_of("precision", "loss scale", *scales, 0.9)
    for key, value, golden_value in sorted(differing_values(ours, theirs), key=itemgetter(0)):
        if key != "scale":
            words = f"{cut(key)} of the loss scaler"
            yield difference_of("precision", words, shown(value), shown(golden_value), 0.88)


def _autocast(manifest: Manifest) -> str | None:
    by_device = manifest.step.get("autocast")
    if not isinstance(by_device, dict):
        return None
    dtypes = {cut(str(device)): shown(dtype).removeprefix("torch.") for device, dtype in sorted(by_device.items())[:4]}
    if len(dtypes) == 1:
        return next(iter(dtypes.values()))
    return ", ".join(f"{dtype} on {device}" for device, dtype in dtypes.items()) or "off"


def _seeds(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    for name, *seeds in differing_values(_random(target, "seeds"), _random(golden, "seeds")):
        ours, theirs = ("not set" if seed is None else shown(seed) for seed in seeds)
        yield difference_of("random", f"seed of {cut(name)}", ours, theirs, 0.87, what="seed", names=(name,))


def _random(manifest: Manifest, part: str) -> Mapping[str, object]:
    return as_mapping(as_mapping(manifest.step.get("random")).get(part))


def _random_states(target: Manifest, golden: Manifest, *, has_other_values: bool) -> Iterator[ManifestDifference]:
    """Generators whose state differs; those of Python and NumPy, which few scripts use, where other values do, too."""
    strong, weak = list[str](), list[str]()
    for name, _, _ in differing_values(_random(target, "states"), _random(golden, "states")):
        (weak if name in ("python", "numpy") else strong).append(name)
    words = f"differs when step {shown(target.number)} begins"
    if strong:
        seeds, golden_seeds = _random(target, "seeds"), _random(golden, "seeds")
        is_seeded = all(seeds[name] == golden_seeds.get(name) for name in strong if name in seeds)
        why = ": the seed is the same, other numbers were drawn before" if is_seeded else ""
        sentence = f"the random state of {names(strong)} {words}{why}"
        yield ManifestDifference("random", "state", "", "", sentence, 0.5)
    if weak and has_other_values:
        sentence = f"the random state of {names(weak)} {words}"
        yield ManifestDifference("random", "state", "", "", sentence, 0.35)


#: How likely a switch or a variable explains other numbers, by words in its name.
_WEIGHTS = {
    0.5: ("deterministic: warn",),
    0.4: ("threads", "device", "ALLOC"),
    0.1: ("VISIBLE_DEVICES",),
    0.3: ("THREADS", "WORLD_SIZE", "RANK_SIZE", "MS_WORKER_NUM"),
    0.45: ("PYTHONHASHSEED",),
}
#: Versions of what computes.
_OF_FRAMEWORK = ("torch", "mindspore", "torch_npu", "cann", "cuda", "cudnn")
#: Facts of a device: words, and how likely they explain other numbers.
_OF_DEVICE = {"kind": ("device", 0.6), "name": ("device name", 0.55), "count": ("number of devices", 0.1)}


def _weight(name: str, otherwise: float) -> float:
    for weight, words in _WEIGHTS.items():
        if any(map(name.__contains__, words)):
            return weight
    return otherwise


def _switches(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    for place, name in enumerate(target.switches):
        if name in golden.switches and target.switches[name] != golden.switches[name]:
            ours, theirs = switched(target.switches[name]), switched(golden.switches[name])
            yield difference_of("switches", cut(name), ours, theirs, _weight(name, 0.8) - 1e-6 * place)


def _places(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """Variables, versions, device."""
    ours, theirs = target.environment, golden.environment
    for name in dict.fromkeys((*ours, *theirs)):
        if ours.get(name) != theirs.get(name):
            values = shown_of(ours, name, "not set"), shown_of(theirs, name, "not set")
            yield difference_of("environment", cut(name), *values, _weight(name, 0.75))
    if target.framework != golden.framework and target.framework and golden.framework:
        yield difference_of("versions", "framework", cut(target.framework), cut(golden.framework), 0.74)
    for name in dict.fromkeys((*target.versions, *golden.versions)):
        version, golden_version = shown_of(target.versions, name, ""), shown_of(golden.versions, name, "")
        if version != golden_version and target.versions and golden.versions:
            likelihood = 0.25
            if name in target.versions and name in golden.versions:
                likelihood = 0.72 if name in _OF_FRAMEWORK else 0.45
            versions = version or "not imported", golden_version or "not imported"
            yield difference_of("versions", cut(name), *versions, likelihood)
    for name, value, golden_value in differing_values(target.device, golden.device):
        words, likelihood = _OF_DEVICE.get(name, (cut(name), 0.5))
        yield difference_of("device", words, shown(value), shown(golden_value), likelihood)


def _state(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """Parameters and buffers with other values."""
    number = target.number
    words = f"state before step {number}" if number else "initial state"
    for part, likelihood in (("parameters", 0.62), ("buffers", 0.58)):
        pairs = pairs_of(*tensors_of(part, target, golden))
        alike = [pair for pair in pairs if _are_comparable(*pair[1:])]
        differing = [name for name, ours, theirs in alike if ours.fingerprint != theirs.fingerprint]
        if differing:
            count, share = len(differing), f"{len(differing)} of {len(alike)}"
            which = f"all {count} {part}" if count == len(alike) > 3 else f"{counted(count, part)} of {len(alike)}"
            verb = "differs" if count == 1 else "differ"
            sentence = f"another {words}: {which} {verb}: {names(differing)}"
            yield ManifestDifference("initial state", part, share, "", sentence, likelihood, tuple(differing))


def _batches(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    ours, theirs = target.batches, golden.batches
    if ours is None or theirs is None or target.number != golden.number:
        return
    number = shown(target.number)
    forwards, golden_forwards = target.step.get("forwards"), golden.step.get("forwards")
    if forwards != golden_forwards and isinstance(forwards, int) and isinstance(golden_forwards, int):
        sentence = f"{forwards} forwards of the model in step {number}, golden {golden_forwards}"
        yield ManifestDifference("batch", "forwards", str(forwards), str(golden_forwards), sentence, 0.66)
    contents, golden_contents = _contents(ours), _contents(theirs)
    if contents != golden_contents and Counter(contents) == Counter(golden_contents):
        sentence = f"the batches of step {number} are the same in another order"
        yield ManifestDifference("batch", "order", "", "", sentence, 0.65)
        return
    differing = [at for at, pair in enumerate(zip(ours, theirs)) if _batch_differs(*pair)]
    if not differing:
        return
    at = differing[0]
    which = f"batch of step {number} differs"
    if len(ours) > 1:
        several = f"{len(differing)} of {min(len(ours), len(theirs))} forwards"
        which += f" in forward {at}" if len(differing) == 1 else f" in {several}"
    sentence = f"{which}: {_batch_words(ours[at], theirs[at])}"
    for tensor, golden_tensor in zip(ours[at], theirs[at]):
        if tensor.shape != golden_tensor.shape:
            shapes = shown(tensor.shape), shown(golden_tensor.shape)
            yield ManifestDifference("batch", "shape of the batch", *shapes, sentence, 0.905, (tensor.name,))
            return
    yield ManifestDifference("batch", "content", "", "", sentence, 0.64)


def _contents(batches: Sequence[Sequence[TensorFacts]]) -> list[tuple[str | None, ...]]:
    return [tuple(map(attrgetter("fingerprint"), batch)) for batch in batches]


def differing_batch_shapes(target: Manifest, golden: Manifest) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the tensors that the model was given and of which the fingerprints differ."""
    shapes: set[tuple[int, ...]] = set()
    for batch, golden_batch in zip(target.batches or (), golden.batches or ()):
        shapes.update(map(attrgetter("shape"), _other_values(batch, golden_batch)))
    return frozenset(shapes)


def _batch_differs(target: Sequence[TensorFacts], golden: Sequence[TensorFacts]) -> bool:
    return list(map(_form, target)) != list(map(_form, golden)) or bool(_other_values(target, golden))


def _other_values(target: Sequence[TensorFacts], golden: Sequence[TensorFacts]) -> list[TensorFacts]:
    """The tensors of `target` whose fingerprints differ from those of one kind in `golden`."""
    pairs = [pair for pair in zip(target, golden) if _are_comparable(*pair)]
    return [ours for ours, theirs in pairs if ours.fingerprint != theirs.fingerprint]


def _form(tensor: TensorFacts) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype.lower()


def _are_comparable(target: TensorFacts, golden: TensorFacts) -> bool:
    """Whether both have fingerprints, and of one kind: those of the CPU and of a device say nothing of each other."""
    if not target.fingerprint or not golden.fingerprint:
        return False
    kind, golden_kind = target.fingerprint.rpartition(" ")[0], golden.fingerprint.rpartition(" ")[0]
    return kind == golden_kind and _form(target) == _form(golden)


def _batch_words(target: Sequence[TensorFacts], golden: Sequence[TensorFacts]) -> str:
    if len(target) != len(golden):
        return f"{counted(len(target), 'tensors')}, golden {len(golden)}"
    for ours, theirs in zip(target, golden):
        if _form(ours) != _form(theirs):
            return f"{cut(ours.name)} {_form_words(ours)}, golden {_form_words(theirs)}"
    differing = [ours for ours, theirs in zip(target, golden) if ours.fingerprint != theirs.fingerprint]
    return f"other values in {names(f'{tensor.name} ({_form_words(tensor)})' for tensor in differing)}"


def _form_words(tensor: TensorFacts) -> str:
    return f"{cut(tensor.dtype)} {shown(tensor.shape)}"


def _script(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    revision, golden_revision = _git(target), _git(golden)
    if revision and golden_revision and revision != golden_revision:
        yield difference_of("script", "git revision", revision[:12], golden_revision[:12], 0.3)
    command, golden_command = _command(target), _command(golden)
    if command and golden_command and command != golden_command:
        more, less = Counter(command) - Counter(golden_command), Counter(golden_command) - Counter(command)
        ours, theirs = "the same arguments", "in another order"
        if more or less:
            ours, theirs = _arguments(more), _arguments(less)
        yield difference_of("script", "command line:", ours, theirs, 0.2)


def _arguments(arguments: Counter[str]) -> str:
    return cut(" ".join(arguments.elements()), 80) or "nothing more"


def _command(manifest: Manifest) -> list[str]:
    command = manifest.script.get("command")
    return list(map(str, command)) if isinstance(command, list) else []


def _git(manifest: Manifest) -> str:
    revision = as_mapping(manifest.script.get("git")).get("revision")
    return cut(revision) if isinstance(revision, str) else ""
