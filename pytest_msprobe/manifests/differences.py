"""What differs between two manifests, the most likely explanation of other numbers first.

The order: what is compared at all (step, ranks); what the training is told to do (optimizer, model, precision, seed,
switches); where it computes (variables, versions, device); what it begins with (batch, weights, random state); which
script it was. A cause stands before what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msprobe_collector.dump_format.manifest import LayerFacts, Manifest, TensorFacts
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.manifests.optimizers import optimizer_differences
from pytest_msprobe.manifests.pairing import common_names, is_dropout, layer_pairs, plural_of, tensor_pairs, unwrapped
from pytest_msprobe.manifests.value import MODE, Make, ManifestDifference, of_other_step
from pytest_msprobe.manifests.wording import cut, last_name, names, numbers, shown, switched

__all__ = ["ManifestDifference", "differences"]


def differences(target: Manifest, golden: Manifest) -> list[ManifestDifference]:
    """In what `target` differs from `golden`, most likely explanation first; at most 200.

    What only one of the manifests knows, such as a switch of another version of the framework, is no difference.
    """
    target, golden = unwrapped(target), unwrapped(golden)
    found: list[ManifestDifference] = []
    for section in (_step, _ranks, optimizer_differences, _models, _precision, _seeds, _switches, _places, _state):
        found += section(target, golden)
    found += _batches(target, golden)
    has_other_values = any(one.section in ("batch", "initial state") for one in found)
    found += _random_states(target, golden, has_other_values=has_other_values)
    found += _script(target, golden)
    found.sort(key=lambda one: -one.likelihood)
    # No file can hold more that anybody reads.
    return found[:200]


def _step(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = target.number, golden.number
    if left is not None and right is not None and left != right:
        yield of_other_step(str(left), str(right))


def _ranks(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    make = Make("ranks")
    for name, words, likelihood in (("world_size", "world size", 0.94), ("rank", "rank", 0.98)):
        left, right = target.ranks.get(name), golden.ranks.get(name)
        if isinstance(left, int) and isinstance(right, int) and left != right:
            yield make(words, left, right, likelihood)
    if bool(target.ranks) != bool(golden.ranks):
        left, right = (one.ranks.get("world_size", 1) for one in (target, golden))
        if left != right:
            yield make("world size", shown(left), shown(right), 0.94)
    groups = [_groups(one) for one in (target, golden)]
    for name in groups[0].keys() | groups[1].keys() if all(groups) else ():
        ours, theirs = (_members(found.get(name)) for found in groups)
        if ours != theirs and name != "world":
            yield make(f"group {cut(name)}:", ours, theirs, 0.93, what=name)


def _groups(manifest: Manifest) -> dict[str, list[int]]:
    groups = manifest.ranks.get("groups")
    found = {}
    for name, group in groups.items() if isinstance(groups, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            found[str(name)] = ranks
    return found


def _members(ranks: list[int] | None) -> str:
    return "not there" if ranks is None else f"ranks {numbers(ranks)}"


def _models(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    if not target.models or not golden.models:
        return
    make = Make("model")
    if len(target.models) != len(golden.models):
        yield make("number of models", len(target.models), len(golden.models), 0.92)
    for left, right in zip(target.models, golden.models):
        if last_name(left.kind) != last_name(right.kind):
            yield make("model", last_name(left.kind), last_name(right.kind), 0.92)
    rename = common_names(target, golden)
    yield from _structure(_by_name(target, "parameters", rename), _by_name(golden, "parameters", rename), "parameters")
    yield from _structure(_by_name(target, "buffers", rename), _by_name(golden, "buffers", rename), "buffers")
    yield from _layers(target, golden)


def _by_name(manifest: Manifest, part: str, rename: Callable[[str], str]) -> dict[str, TensorFacts]:
    return {rename(one.name): one for model in manifest.models for one in getattr(model, part)}


def _structure(
    target: Mapping[str, TensorFacts], golden: Mapping[str, TensorFacts], nouns: str
) -> Iterator[ManifestDifference]:
    """What differs in names, shapes, dtypes and gradients of parameters or buffers."""
    make = Make("model")
    only = [name for name in target if name not in golden], [name for name in golden if name not in target]
    for missing, where in ((only[0], "the golden model"), (only[1], "this model")):
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            sentence = f"{counted(len(missing), nouns)} {verb} not in {where}: {names(missing)}"
            sides = (str(len(target)), str(len(golden)))
            yield ManifestDifference("model", nouns, *sides, sentence, 0.91)
    both = tensor_pairs(target, golden)
    ask: tuple[tuple[str, Callable[[TensorFacts], object], float], ...] = (
        ("shape", lambda one: list(one.shape), 0.9),
        ("dtype", lambda one: one.dtype, 0.89),
    )
    for what, of, likelihood in ask:
        for (left, right), found in _grouped((name, of(one), of(other)) for name, one, other in both).items():
            is_all = len(found) == len(both) > 1
            which = f"all {len(both)} {nouns}" if is_all else f"{counted(len(found), nouns)} of {len(both)}"
            named = "" if is_all else f" ({names(found)})"
            yield make(f"{what} of {which}{named}:", shown(left), shown(right), likelihood, what=what, names=found)
    for needs in (False, True):
        found = [name for name, one, other in both if one.requires_grad is needs and other.requires_grad is (not needs)]
        if found:
            verb, they = ("requires", "it does") if len(found) == 1 else ("require", "they do")
            ours, theirs = ("a gradient", f"{they} not") if needs else ("no gradient", they)
            sentence = f"{counted(len(found), nouns)} of {len(both)} {verb} {ours}, golden {theirs}: {names(found)}"
            yield ManifestDifference("model", "requires_grad", str(needs), str(not needs), sentence, 0.93)
    for name, one, other in both:
        if one.tied != other.tied:
            ours, theirs = (f"tied to {cut(item.tied)}" if item.tied else "not tied" for item in (one, other))
            yield make(f"{nouns[:-1]} {cut(name)} is", ours, theirs, 0.9, what="tied")


def _grouped(found: Iterator[tuple[str, object, object]]) -> dict[tuple[object, object], list[str]]:
    """Names by the pair of values that differ."""
    groups: dict[str, tuple[object, object]] = {}
    listed: dict[str, list[str]] = {}
    for name, left, right in found:
        if left != right and left not in ("", []) and right not in ("", []):
            key = repr((left, right))
            groups[key] = (left, right)
            listed.setdefault(key, []).append(name)
    return {_hashable(groups[key]): named for key, named in listed.items()}


def _hashable(pair: tuple[object, object]) -> tuple[object, object]:
    left, right = (tuple(one) if isinstance(one, list) else one for one in pair)
    return left, right


def _layers(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    pairs = layer_pairs(target, golden)
    nouns = plural_of(target)
    kinds = _grouped((one.path, one.kind, other.kind) for one, other in pairs if target.framework == golden.framework)
    for (left, right), paths in kinds.items():
        count = counted(len(paths), nouns)
        sentence = f"{cut(str(left))}, golden {cut(str(right))} in {count}: {_paths(paths)}"
        yield ManifestDifference("model", "class", str(left), str(right), sentence, 0.88)
    yield from _modes(pairs, nouns)
    versions = [one.versions.get("torch", one.versions.get("mindspore")) for one in (target, golden)]
    yield from _settings(pairs, nouns, is_one_version=versions[0] == versions[1])


def _modes(pairs: Sequence[tuple[LayerFacts, LayerFacts]], nouns: str) -> Iterator[ManifestDifference]:
    """Modules that are in training on one side and in eval on the other."""
    known = [(one, other) for one, other in pairs if None not in (one.is_training, other.is_training)]
    for trains, words in ((False, ("eval", "training")), (True, ("training", "eval"))):
        found = [one.path for one, other in known if one.is_training is trains and other.is_training is not trains]
        if found:
            is_whole = len(found) == len(known)
            who = "the model is" if is_whole else f"{counted(len(found), nouns)} {'is' if len(found) == 1 else 'are'}"
            named = "" if is_whole else f": {_paths(found)}"
            sentence = f"{who} in {words[0]}, golden in {words[1]}{named}"
            yield ManifestDifference("model", MODE, words[0], words[1], sentence, 0.92)


def _settings(
    pairs: Sequence[tuple[LayerFacts, LayerFacts]], nouns: str, *, is_one_version: bool
) -> Iterator[ManifestDifference]:
    """Settings of layers, equal differences of all layers in one; those of one side only where versions are equal."""
    found: dict[str, tuple[str, str, str, list[LayerFacts]]] = {}
    for one, other in pairs:
        if one.kind != other.kind:
            continue
        for key in dict.fromkeys((*one.settings, *other.settings)):
            ours, theirs = (shown(side.settings[key]) if key in side.settings else "not set" for side in (one, other))
            is_known = key in one.settings and key in other.settings
            if is_known and one.settings[key] == other.settings[key]:
                continue
            if is_known or (is_one_version and (one.settings.get(key) or other.settings.get(key))):
                name = "dropout" if is_dropout(key, one) else cut(key)
                found.setdefault(f"{name}\0{ours}\0{theirs}", (name, ours, theirs, []))[3].append(one)
    for name, ours, theirs, layers in found.values():
        where = f"{counted(len(layers), nouns)}{together_kinds(layers)}: {_paths([one.path for one in layers])}"
        sentence = f"{name} {ours}, golden {theirs} in {where}"
        likelihood = 0.915 if name == "dropout" else 0.86
        yield ManifestDifference("model", name, ours, theirs, sentence, likelihood)


def together_kinds(layers: Sequence[LayerFacts]) -> str:
    """` (LayerNorm)` of layers of one class; Dropout goes without saying."""
    kinds = Counter(one.kind for one in layers)
    return f" ({names(kinds)})" if not all(kind.startswith("Dropout") for kind in kinds) else ""


def _paths(paths: Sequence[str]) -> str:
    return names(path or "the model itself" for path in paths)


def _precision(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = (_autocast(one) for one in (target, golden))
    if left is not None and right is not None and left != right:
        yield ManifestDifference("precision", "autocast", left, right, f"autocast {left}, golden {right}", 0.9)
    ours, theirs = (_scale(one) for one in (target, golden))
    if ours.get("scale") != theirs.get("scale"):
        one, other = (shown(scale["scale"]) if "scale" in scale else "none" for scale in (ours, theirs))
        yield Make("precision")("loss scale", one, other, 0.9)
    for key in sorted(ours.keys() & theirs.keys() - {"scale"}):
        if ours[key] != theirs[key]:
            yield Make("precision")(f"{cut(key)} of the loss scaler", shown(ours[key]), shown(theirs[key]), 0.88)


def _scale(manifest: Manifest) -> Mapping[str, object]:
    found = manifest.step.get("loss_scale")
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _autocast(manifest: Manifest) -> str | None:
    found = manifest.step.get("autocast")
    if not isinstance(found, dict):
        return None
    dtypes = {cut(str(device)): shown(dtype).removeprefix("torch.") for device, dtype in sorted(found.items())[:4]}
    if len(dtypes) == 1:
        return next(iter(dtypes.values()))
    return ", ".join(f"{dtype} on {device}" for device, dtype in dtypes.items()) or "off"


def _seeds(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = _random(target, "seeds"), _random(golden, "seeds")
    for name in left:
        if name in right and left[name] != right[name]:
            ours, theirs = ("not set" if side[name] is None else shown(side[name]) for side in (left, right))
            yield Make("random")(f"seed of {cut(name)}", ours, theirs, 0.87, what="seed", names=(name,))


def _random(manifest: Manifest, part: str) -> Mapping[str, object]:
    found = manifest.step.get("random")
    inner = found.get(part) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _random_states(target: Manifest, golden: Manifest, *, has_other_values: bool) -> Iterator[ManifestDifference]:
    """Generators whose state differs; those of Python and NumPy, which few scripts use, where other values do, too."""
    left, right = _random(target, "states"), _random(golden, "states")
    found = [name for name in left if name in right and left[name] != right[name]]
    strong = [name for name in found if name not in ("python", "numpy")]
    weak = [name for name in found if name not in strong]
    if strong:
        seeds = _random(target, "seeds"), _random(golden, "seeds")
        is_seeded = all(seeds[0].get(name) == seeds[1].get(name) for name in strong if name in seeds[0])
        why = ": the seed is the same, other numbers were drawn before" if is_seeded else ""
        sentence = f"the random state of {names(strong)} differs when step {shown(target.number)} begins{why}"
        yield ManifestDifference("random", "state", "", "", sentence, 0.5)
    if weak and has_other_values:
        sentence = f"the random state of {names(weak)} differs when step {shown(target.number)} begins"
        yield ManifestDifference("random", "state", "", "", sentence, 0.35)


#: Words in the name of a switch or a variable: how likely it explains other numbers.
_WEIGHTS = (
    ("deterministic: warn", 0.5),
    ("threads", 0.4),
    ("device", 0.4),
    ("VISIBLE_DEVICES", 0.1),
    ("THREADS", 0.3),
    ("WORLD_SIZE", 0.3),
    ("RANK_SIZE", 0.3),
    ("MS_WORKER_NUM", 0.3),
    ("PYTHONHASHSEED", 0.45),
    ("ALLOC", 0.4),
)


def _weight(name: str, otherwise: float) -> float:
    return next((weight for words, weight in _WEIGHTS if words in name), otherwise)


def _switches(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    for place, name in enumerate(target.switches):
        if name in golden.switches and target.switches[name] != golden.switches[name]:
            left, right = switched(target.switches[name]), switched(golden.switches[name])
            yield Make("switches")(cut(name), left, right, _weight(name, 0.8) - 1e-6 * place)


def _places(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """Variables, versions, device."""
    left, right = target.environment, golden.environment
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            ours, theirs = (shown(side[name]) if name in side else "not set" for side in (left, right))
            yield Make("environment")(cut(name), ours, theirs, _weight(name, 0.75))
    if target.framework != golden.framework and target.framework and golden.framework:
        yield Make("versions")("framework", cut(target.framework), cut(golden.framework), 0.74)
    for name in dict.fromkeys((*target.versions, *golden.versions)):
        one, other = (shown(side.versions[name]) if name in side.versions else None for side in (target, golden))
        if one != other and target.versions and golden.versions:
            is_framework = name in ("torch", "mindspore", "torch_npu", "cann", "cuda", "cudnn")
            is_on_both = one is not None and other is not None
            likelihood = (0.72 if is_framework else 0.45) if is_on_both else 0.25
            yield Make("versions")(cut(name), one or "not imported", other or "not imported", likelihood)
    for name in target.device:
        if name in golden.device and target.device[name] != golden.device[name]:
            words = {"kind": "device", "name": "device name", "count": "number of devices"}.get(name, cut(name))
            likelihood = {"kind": 0.6, "name": 0.55, "count": 0.1}.get(name, 0.5)
            yield Make("device")(words, shown(target.device[name]), shown(golden.device[name]), likelihood)


def _state(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """Parameters and buffers with other values."""
    rename = common_names(target, golden)
    number = target.number
    words = "initial state" if not number else f"state before step {number}"
    for part, likelihood in (("parameters", 0.62), ("buffers", 0.58)):
        both = tensor_pairs(_by_name(target, part, rename), _by_name(golden, part, rename))
        alike = [(name, one, other) for name, one, other in both if _are_comparable(one, other)]
        found = [name for name, one, other in alike if one.fingerprint != other.fingerprint]
        if found:
            is_all = len(found) == len(alike) > 3
            which = f"all {len(found)} {part}" if is_all else f"{counted(len(found), part)} of {len(alike)}"
            verb = "differs" if len(found) == 1 else "differ"
            sentence = f"another {words}: {which} {verb}: {names(found)}"
            share = f"{len(found)} of {len(alike)}"
            yield ManifestDifference("initial state", part, share, "", sentence, likelihood, tuple(found))


def _batches(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = target.batches, golden.batches
    if left is None or right is None or target.number != golden.number:
        return
    number = shown(target.number)
    counts = tuple(one.step.get("forwards") for one in (target, golden))
    if counts[0] != counts[1] and all(isinstance(count, int) for count in counts):
        sentence = f"{counts[0]} forwards of the model in step {number}, golden {counts[1]}"
        yield ManifestDifference("batch", "forwards", str(counts[0]), str(counts[1]), sentence, 0.66)
    contents = [tuple(tuple(one.fingerprint for one in batch) for batch in side) for side in (left, right)]
    if contents[0] != contents[1] and Counter(contents[0]) == Counter(contents[1]):
        sentence = f"the batches of step {number} are the same in another order"
        yield ManifestDifference("batch", "order", "", "", sentence, 0.65)
        return
    found = [at for at, (one, other) in enumerate(zip(left, right)) if _batch_differs(one, other)]
    if not found:
        return
    at = found[0]
    forwards = min(len(left), len(right))
    which = f"batch of step {number} differs"
    if len(left) > 1:
        which += f" in forward {at}" if len(found) == 1 else f" in {len(found)} of {forwards} forwards"
    sentence = f"{which}: {_batch_words(left[at], right[at])}"
    forms = [(one, other) for one, other in zip(left[at], right[at]) if one.shape != other.shape]
    if forms:
        one, other = forms[0]
        shapes = shown(list(one.shape)), shown(list(other.shape))
        yield ManifestDifference("batch", "shape of the batch", *shapes, sentence, 0.905, (one.name,))
    else:
        yield ManifestDifference("batch", "content", "", "", sentence, 0.64)


def differing_batch_shapes(target: Manifest, golden: Manifest) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the tensors that the model was given and of which the fingerprints differ."""
    batches = zip(target.batches or (), golden.batches or ())
    pairs = [pair for left, right in batches for pair in zip(left, right) if _are_comparable(*pair)]
    return frozenset(one.shape for one, other in pairs if one.fingerprint != other.fingerprint)


def _batch_differs(left: Sequence[TensorFacts], right: Sequence[TensorFacts]) -> bool:
    if len(left) != len(right) or any(_form(one) != _form(other) for one, other in zip(left, right)):
        return True
    return any(one.fingerprint != other.fingerprint for one, other in zip(left, right) if _are_comparable(one, other))


def _form(tensor: TensorFacts) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype.lower()


def _are_comparable(left: TensorFacts, right: TensorFacts) -> bool:
    """Whether both have fingerprints, and of one kind: those of the CPU and of a device say nothing of each other."""
    kinds = [(one.fingerprint or "").rpartition(" ")[0] for one in (left, right)]
    return bool(left.fingerprint and right.fingerprint) and kinds[0] == kinds[1] and _form(left) == _form(right)


def _batch_words(left: Sequence[TensorFacts], right: Sequence[TensorFacts]) -> str:
    if len(left) != len(right):
        return f"{counted(len(left), 'tensors')}, golden {len(right)}"
    for one, other in zip(left, right):
        if _form(one) != _form(other):
            ours, theirs = (f"{cut(item.dtype)} {shown(list(item.shape))}" for item in (one, other))
            return f"{cut(one.name)} {ours}, golden {theirs}"
    found = [one for one, other in zip(left, right) if one.fingerprint != other.fingerprint]
    return f"other values in {names(f'{one.name} ({one.dtype} {shown(list(one.shape))})' for one in found)}"


def _script(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    ours, theirs = (_git(one) for one in (target, golden))
    if ours and theirs and ours != theirs:
        yield Make("script")("git revision", ours[:12], theirs[:12], 0.3)
    left, right = (_command(one) for one in (target, golden))
    if left and right and left != right:
        more, less = Counter(left) - Counter(right), Counter(right) - Counter(left)
        ours, theirs = (cut(" ".join(part.elements()), 80) or "nothing more" for part in (more, less))
        if not more and not less:
            ours, theirs = "the same arguments", "in another order"
        yield Make("script")("command line:", ours, theirs, 0.2)


def _command(manifest: Manifest) -> list[str]:
    command = manifest.script.get("command")
    return [str(part) for part in command] if isinstance(command, list) else []


def _git(manifest: Manifest) -> str:
    git = manifest.script.get("git")
    revision = git.get("revision") if isinstance(git, dict) else None
    return cut(revision) if isinstance(revision, str) else ""
