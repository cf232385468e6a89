"""What differs between two manifests, the most likely explanation of other numbers first.

The order: what is compared at all (step, ranks); what the training is told to do (optimizer, model, precision, seed,
switches); where it computes (variables, versions, device); what it begins with (batch, weights, random state); which
script it was. A cause stands before what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msprobe_collector.dump_format.manifest import LayerFacts, Manifest, TensorFacts
from pytest_msprobe.manifests.optimizers import optimizer_differences
from pytest_msprobe.manifests.pairing import common_names, layer_pairs, plural_of, tensor_pairs
from pytest_msprobe.manifests.value import Make, ManifestDifference
from pytest_msprobe.manifests.wording import counted, cut, last_name, names, numbers, shown, switched

__all__ = ["ManifestDifference", "differences"]

#: No file can hold more that anybody reads.
_MOST = 200


def differences(target: Manifest, golden: Manifest) -> list[ManifestDifference]:
    """In what `target` differs from `golden`, most likely explanation first; at most 200.

    What only one of the manifests knows, such as a switch of another version of the framework, is no difference.
    """
    found: list[ManifestDifference] = []
    for section in (_step, _ranks, optimizer_differences, _models, _precision, _seeds, _switches, _places, _state):
        found += section(target, golden)
    found += _batches(target, golden)
    has_other_values = any(one.section in ("batch", "initial state") for one in found)
    found += _random_states(target, golden, has_other_values=has_other_values)
    found += _script(target, golden)
    found.sort(key=lambda one: -one.likelihood)
    return found[:_MOST]


def _step(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = target.number, golden.number
    if left is not None and right is not None and left != right:
        sentence = f"step {left}, golden step {right}: these are not the same step"
        yield ManifestDifference("step", "number", str(left), str(right), sentence, 1.0)


def _ranks(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    make = Make("ranks")
    for name, words, likelihood in (("world_size", "world size", 0.94), ("rank", "rank", 0.98)):
        left, right = target.ranks.get(name), golden.ranks.get(name)
        if isinstance(left, int) and isinstance(right, int) and left != right:
            yield make(words, left, right, likelihood)
    if bool(target.ranks) != bool(golden.ranks):
        sides = tuple(one.ranks.get("world_size", 1) for one in (target, golden))
        if sides[0] != sides[1]:
            yield make("world size", *sides, 0.94)
    groups = [_groups(one) for one in (target, golden)]
    for name in groups[0].keys() | groups[1].keys() if all(groups) else ():
        left, right = (found.get(name) for found in groups)
        if left != right and name != "world":
            sides = tuple("not there" if ranks is None else f"ranks {numbers(ranks)}" for ranks in (left, right))
            sentence = f"group {cut(name)}: {sides[0]}, golden {sides[1]}"
            yield ManifestDifference("ranks", name, *sides, sentence, 0.93)


def _groups(manifest: Manifest) -> dict[str, list[int]]:
    groups = manifest.ranks.get("groups")
    found = {}
    for name, group in groups.items() if isinstance(groups, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            found[str(name)] = ranks
    return found


def _models(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    if not target.models or not golden.models:
        return
    make = Make("model")
    if len(target.models) != len(golden.models):
        yield make("number of models", len(target.models), len(golden.models), 0.92)
    for left, right in zip(target.models, golden.models):
        kinds = last_name(left.kind), last_name(right.kind)
        if kinds[0] != kinds[1]:
            yield make("model", *kinds, 0.92)
    rename = common_names(target, golden)
    yield from _structure(_by_name(target, "parameters", rename), _by_name(golden, "parameters", rename), "parameter")
    yield from _structure(_by_name(target, "buffers", rename), _by_name(golden, "buffers", rename), "buffer")
    yield from _layers(target, golden)


def _by_name(manifest: Manifest, part: str, rename: Callable[[str], str]) -> dict[str, TensorFacts]:
    return {rename(one.name): one for model in manifest.models for one in getattr(model, part)}


def _structure(
    target: Mapping[str, TensorFacts], golden: Mapping[str, TensorFacts], noun: str
) -> Iterator[ManifestDifference]:
    """What differs in names, shapes, dtypes and gradients of parameters or buffers."""
    make = Make("model")
    only = [name for name in target if name not in golden], [name for name in golden if name not in target]
    for missing, where in ((only[0], "the golden model"), (only[1], "this model")):
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            sentence = f"{counted(len(missing), noun)} {verb} not in {where}: {names(missing)}"
            sides = (str(len(target)), str(len(golden)))
            yield ManifestDifference("model", f"{noun}s", *sides, sentence, 0.91)
    both = tensor_pairs(target, golden)
    ask: tuple[tuple[str, Callable[[TensorFacts], object], float], ...] = (
        ("shape", lambda one: list(one.shape), 0.9),
        ("dtype", lambda one: one.dtype, 0.89),
    )
    for what, of, likelihood in ask:
        for (left, right), found in _grouped((name, of(one), of(other)) for name, one, other in both).items():
            of_all = (
                f"all {len(both)} {noun}s"
                if len(found) == len(both) > 1
                else f"{counted(len(found), noun)} of {len(both)}"
            )
            named = "" if len(found) == len(both) > 1 else f" ({names(found)})"
            yield make(f"{what} of {of_all}{named}:", shown(left), shown(right), likelihood, what=what)
    for needs, words in (
        (False, ("requires no gradient", "require no gradient")),
        (True, ("requires a gradient", "require a gradient")),
    ):
        found = [name for name, one, other in both if one.requires_grad is needs and other.requires_grad is (not needs)]
        if found:
            word = words[len(found) != 1]
            golden_word = "it does" if needs is False else "it does not"
            golden_word = golden_word if len(found) == 1 else golden_word.replace("it does", "they do")
            sentence = f"{counted(len(found), noun)} of {len(both)} {word}, golden {golden_word}: {names(found)}"
            yield ManifestDifference("model", "requires_grad", str(needs), str(not needs), sentence, 0.93)
    for name, one, other in both:
        if one.tied != other.tied:
            sides = tuple(f"tied to {cut(item.tied)}" if item.tied else "not tied" for item in (one, other))
            sentence = f"{noun} {cut(name)} is {sides[0]}, golden {sides[1]}"
            yield ManifestDifference("model", "tied", *sides, sentence, 0.9)


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
    noun = plural_of(target)
    kinds = _grouped((one.path, one.kind, other.kind) for one, other in pairs if target.framework == golden.framework)
    for (left, right), paths in kinds.items():
        count = counted(len(paths), noun)
        sentence = f"{cut(str(left))}, golden {cut(str(right))} in {count}: {_paths(paths)}"
        yield ManifestDifference("model", "class", str(left), str(right), sentence, 0.88)
    yield from _modes(pairs, noun)
    yield from _settings(pairs, noun)


def _modes(pairs: Sequence[tuple[LayerFacts, LayerFacts]], noun: str) -> Iterator[ManifestDifference]:
    """Modules that are in training on one side and in eval on the other."""
    known = [(one, other) for one, other in pairs if None not in (one.is_training, other.is_training)]
    for trains, words in ((False, ("eval", "training")), (True, ("training", "eval"))):
        found = [one.path for one, other in known if one.is_training is trains and other.is_training is not trains]
        if found:
            is_whole = len(found) == len(known)
            who = "the model is" if is_whole else f"{counted(len(found), noun)} {'is' if len(found) == 1 else 'are'}"
            named = "" if is_whole else f": {_paths(found)}"
            sentence = f"{who} in {words[0]}, golden in {words[1]}{named}"
            yield ManifestDifference("model", "training", words[0], words[1], sentence, 0.92)


def _settings(pairs: Sequence[tuple[LayerFacts, LayerFacts]], noun: str) -> Iterator[ManifestDifference]:
    found: dict[str, tuple[str, object, object, list[LayerFacts]]] = {}
    for one, other in pairs:
        if one.kind != other.kind:
            continue
        for key in one.settings.keys() & other.settings.keys():
            left, right = one.settings[key], other.settings[key]
            if left != right:
                name = "dropout" if _is_dropout(key, one) else key
                entry = found.setdefault(f"{name}\0{left!r}\0{right!r}\0{one.kind}", (name, left, right, []))
                entry[3].append(one)
    for name, left, right, layers in found.values():
        kinds = together_kinds(layers)
        where = f"{counted(len(layers), noun)}{kinds}: {_paths([one.path for one in layers])}"
        sentence = f"{cut(name)} {shown(left)}, golden {shown(right)} in {where}"
        likelihood = 0.915 if name == "dropout" else 0.86
        yield ManifestDifference("model", name, shown(left), shown(right), sentence, likelihood)


def together_kinds(layers: Sequence[LayerFacts]) -> str:
    """` (LayerNorm)` of layers of one class; Dropout goes without saying."""
    kinds = Counter(one.kind for one in layers)
    return f" ({names(kinds)})" if not all(kind.startswith("Dropout") for kind in kinds) else ""


def _is_dropout(key: str, layer: LayerFacts) -> bool:
    return "dropout" in key.lower() or (key == "p" and "dropout" in layer.kind.lower())


def _paths(paths: Sequence[str]) -> str:
    return names(path or "the model itself" for path in paths)


def _precision(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = (_autocast(one) for one in (target, golden))
    if left is not None and right is not None and left != right:
        yield ManifestDifference("precision", "autocast", left, right, f"autocast {left}, golden {right}", 0.9)
    scales = [one.step.get("loss_scale") for one in (target, golden)]
    numbers_of = [scale.get("scale") if isinstance(scale, dict) else None for scale in scales]
    if numbers_of[0] != numbers_of[1]:
        sides = tuple("none" if number is None else shown(number) for number in numbers_of)
        sentence = f"loss scale {sides[0]}, golden {sides[1]}"
        yield ManifestDifference("precision", "loss scale", *sides, sentence, 0.9)
    if all(isinstance(scale, dict) for scale in scales):
        for key in sorted(scales[0].keys() & scales[1].keys()):  # type: ignore[union-attr]
            one, other = scales[0][key], scales[1][key]  # type: ignore[index]
            if key != "scale" and one != other:
                yield Make("precision")(f"{cut(key)} of the loss scaler", shown(one), shown(other), 0.88)


def _autocast(manifest: Manifest) -> str | None:
    found = manifest.step.get("autocast")
    if not isinstance(found, dict):
        return None
    parts = [f"{shown(dtype).removeprefix('torch.')} on {cut(str(device))}" for device, dtype in sorted(found.items())]
    return ", ".join(parts[:4]) or "off"


def _seeds(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    left, right = _random(target, "seeds"), _random(golden, "seeds")
    for name in left:
        if name in right and left[name] != right[name]:
            sides = tuple("not set" if side[name] is None else shown(side[name]) for side in (left, right))
            sentence = f"seed of {cut(name)} {sides[0]}, golden {sides[1]}"
            yield ManifestDifference("random", f"seed of {name}", *sides, sentence, 0.87)


def _random(manifest: Manifest, part: str) -> Mapping[str, object]:
    found = manifest.step.get("random")
    inner = found.get(part) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else {}


def _random_states(target: Manifest, golden: Manifest, *, has_other_values: bool) -> Iterator[ManifestDifference]:
    """Generators whose state differs. Python's and NumPy's, which scripts may never use, where other values differ too."""
    left, right = _random(target, "states"), _random(golden, "states")
    found = [name for name in left if name in right and left[name] != right[name]]
    strong = [name for name in found if name not in ("python", "numpy")]
    weak = [name for name in found if name not in strong]
    if strong:
        seeds = _random(target, "seeds"), _random(golden, "seeds")
        is_seeded = all(seeds[0].get(name) == seeds[1].get(name) for name in strong if name in seeds[0])
        why = ": the seed is the same, so other numbers were drawn before" if is_seeded else ""
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
            sentence = f"{cut(name)} {left}, golden {right}"
            likelihood = _weight(name, 0.8) - 1e-6 * place
            yield ManifestDifference("switches", name, left, right, sentence, likelihood)


def _places(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """Variables, versions, device."""
    left, right = target.environment, golden.environment
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            sides = tuple(shown(side[name]) if name in side else "not set" for side in (left, right))
            sentence = f"{cut(name)} {sides[0]}, golden {sides[1]}"
            yield ManifestDifference("environment", name, *sides, sentence, _weight(name, 0.75))
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
    for part, noun, likelihood in (("parameters", "parameter", 0.62), ("buffers", "buffer", 0.58)):
        both = tensor_pairs(_by_name(target, part, rename), _by_name(golden, part, rename))
        known = [(name, one, other) for name, one, other in both if one.fingerprint and other.fingerprint]
        alike = [
            (name, one, other)
            for name, one, other in known
            if one.shape == other.shape and one.dtype == other.dtype and _kind(one) == _kind(other)
        ]
        found = [name for name, one, other in alike if one.fingerprint != other.fingerprint]
        if found:
            is_all = len(found) == len(alike) > 3
            which = f"all {len(found)} {noun}s" if is_all else f"{counted(len(found), noun)} of {len(alike)}"
            verb = "differs" if len(found) == 1 else "differ"
            sentence = f"another {words}: {which} {verb}: {names(found)}"
            yield ManifestDifference("initial state", noun, "", "", sentence, likelihood)


def _kind(tensor: TensorFacts) -> str:
    """How a fingerprint was made: those of the CPU and of a device cannot be compared."""
    return (tensor.fingerprint or "").partition(" ")[0] if " " in (tensor.fingerprint or "") else ""


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
    which = f"batch of step {number} differs"
    if len(left) > 1:
        which = (
            f"batch of step {number} differs in forward {at}"
            if len(found) == 1
            else f"batch of step {number} differs in {len(found)} of {min(len(left), len(right))} forwards"
        )
    yield ManifestDifference("batch", "content", "", "", f"{which}: {_batch_words(left[at], right[at])}", 0.64)


def _batch_differs(left: Sequence[TensorFacts], right: Sequence[TensorFacts]) -> bool:
    if len(left) != len(right):
        return True
    return any(
        one.shape != other.shape
        or one.dtype.lower() != other.dtype.lower()
        or (
            one.fingerprint
            and other.fingerprint
            and _kind(one) == _kind(other)
            and one.fingerprint != other.fingerprint
        )
        for one, other in zip(left, right)
    )


def _batch_words(left: Sequence[TensorFacts], right: Sequence[TensorFacts]) -> str:
    if len(left) != len(right):
        return f"{counted(len(left), 'tensor')}, golden {len(right)}"
    for one, other in zip(left, right):
        if one.shape != other.shape or one.dtype.lower() != other.dtype.lower():
            sides = tuple(f"{cut(item.dtype)} {shown(list(item.shape))}" for item in (one, other))
            return f"{cut(one.name)} {sides[0]}, golden {sides[1]}"
    found = [one for one, other in zip(left, right) if one.fingerprint != other.fingerprint]
    return f"other values in {names(f'{one.name} ({one.dtype} {shown(list(one.shape))})' for one in found)}"


def _script(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    revisions = tuple(_git(one) for one in (target, golden))
    if revisions[0] != revisions[1] and all(revisions):
        yield Make("script")("git revision", revisions[0][:12], revisions[1][:12], 0.3)
    commands = [one.script.get("command") for one in (target, golden)]
    if all(isinstance(command, list) for command in commands) and commands[0] != commands[1]:
        left, right = (Counter(str(part) for part in command) for command in commands)  # type: ignore[union-attr]
        sides = tuple(
            cut(" ".join((one - other).elements()), 80) or "nothing more"
            for one, other in ((left, right), (right, left))
        )
        if left == right:
            sides = ("the same arguments", "in another order")
        yield Make("script")("command line:", *sides, 0.2, what="command line")


def _git(manifest: Manifest) -> str:
    git = manifest.script.get("git")
    revision = git.get("revision") if isinstance(git, dict) else None
    return cut(revision) if isinstance(revision, str) else ""
