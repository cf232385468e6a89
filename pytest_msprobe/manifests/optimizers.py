"""What differs between the optimizers and schedulers of two manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msprobe_collector.dump_format.manifest import Manifest, OptimizerFacts
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.manifests.pairing import common_names, same_settings
from pytest_msprobe.manifests.value import Make, ManifestDifference
from pytest_msprobe.manifests.wording import last_name, names, shown, together

#: Settings that choose an implementation; others of one side only are named by newer versions.
_IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable", "use_locking", "use_offload"})
#: Settings that follow from the learning rate.
_FOLLOWING = frozenset({"initial_lr", "base_lrs", "_last_lr"})
#: Settings of a scheduler that count.
_COUNTERS = frozenset({"last_epoch", "last_step", "num_bad_epochs", "cooldown_counter"})


def optimizer_differences(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """In what optimizers, their groups and schedulers differ; nothing where one side has seen none."""
    if not target.optimizers or not golden.optimizers:
        return
    if len(target.optimizers) != len(golden.optimizers):
        yield Make("optimizer")("number of optimizers", len(target.optimizers), len(golden.optimizers), 0.94)
    yield from _left_out(target, golden)
    is_translated = target.framework != golden.framework
    is_one = len(target.optimizers) == 1
    for number, (left, right) in enumerate(_pairs(target, golden)):
        of = "" if is_one else f" of optimizer {number}"
        yield from _of_pair(left, right, of, target, golden, is_translated=is_translated)


def left_out(manifest: Manifest) -> list[str]:
    """Parameters that require a gradient and are in no optimizer; none where no optimizer is known."""
    held = {name for one in manifest.optimizers for group in one.groups for name in group.parameters}
    trained = [one for model in manifest.models for one in model.parameters if one.requires_grad]
    # Of wrappers that update copies of the parameters no name is known.
    if not held & {one.name for one in trained}:
        return []
    return [one.name for one in trained if one.name not in held]


def _left_out(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    found = left_out(target), left_out(golden)
    if set(found[0]) == set(found[1]):
        return
    sentences = []
    for missing, manifest in zip(found, (target, golden)):
        count = sum(1 for model in manifest.models for one in model.parameters if not one.tied)
        verb = "is" if len(missing) == 1 else "are"
        named = f": {names(missing)}" if missing else ""
        sentences.append(
            f"{counted(len(missing), 'parameters')} of {count} {verb} in no optimizer{named}" if missing else ""
        )
    ours, theirs = sentences
    if ours:
        sentence = f"{ours}; golden {len(found[1])}" if theirs else f"{ours}; golden none"
    else:
        sentence = f"all parameters are in an optimizer, golden {theirs}"
    yield ManifestDifference("optimizer", "left out", str(len(found[0])), str(len(found[1])), sentence, 0.97)


def _pairs(target: Manifest, golden: Manifest) -> list[tuple[OptimizerFacts, OptimizerFacts]]:
    """Optimizers that have most parameters in common, each once."""
    rename = common_names(target, golden)
    rest = [({rename(name) for group in one.groups for name in group.parameters}, one) for one in golden.optimizers]
    found = []
    for one in target.optimizers[: len(rest)]:
        held = {rename(name) for group in one.groups for name in group.parameters}
        best = max(range(len(rest)), key=lambda at: len(held & rest[at][0]))
        found.append((one, rest.pop(best)[1]))
    return found


def _of_pair(
    left: OptimizerFacts, right: OptimizerFacts, of: str, target: Manifest, golden: Manifest, *, is_translated: bool
) -> Iterator[ManifestDifference]:
    make = Make("optimizer")
    kinds = last_name(left.kind), last_name(right.kind)
    if kinds[0] != kinds[1]:
        yield make(f"optimizer{of}", *kinds, 0.965)
    rename = common_names(target, golden)
    values = _by_parameter(right, rename, is_translated=is_translated)
    found: dict[str, tuple[str, object, object, list[int], list[str]]] = {}
    for number, group in enumerate(left.groups):
        settings = same_settings(group.settings, is_translated=is_translated)
        shared = [name for name in map(rename, group.parameters) if name in values]
        others = [values[name] for name in shared]
        if not others and number < len(right.groups):  # no names in common: by their order
            others = [same_settings(right.groups[number].settings, is_translated=is_translated)]
        for key, value in settings.items():
            known = [(name, other[key]) for name, other in zip(shared or [""], others) if key in other]
            unlike = [(name, other) for name, other in known if not _is_equal(value, other)]
            for other in {repr(other): other for _, other in unlike}.values():
                named = [name for name, item in unlike if repr(item) == repr(other)]
                place = f"{key}\0{value!r}\0{other!r}\0{len(named) == len(known)}"
                entry = found.setdefault(place, (key, value, other, [], []))
                entry[3].append(number)
                if len(named) != len(known):
                    entry[4].extend(named)
    has_other_rate = any(key == "lr" for key, *_ in found.values())
    for key, value, other, groups, named in found.values():
        if key in _FOLLOWING and has_other_rate:
            continue
        which = f"group {groups[0]}" if len(groups) == 1 else f"groups {together([str(number) for number in groups])}"
        some = f" ({names(named)})" if named else ""
        likelihood = {"lr": 0.96}.get(key, 0.4 if key in _IMPLEMENTATION else 0.955)
        words = f"{shown(key)} of {which}{of}{some}:"
        yield make(words, shown(value), shown(other), likelihood, what=key)
    yield from _schedulers(left, right, of, has_other_rate=has_other_rate)
    yield from _state(left, right, of, target)


def _by_parameter(
    optimizer: OptimizerFacts, rename: Callable[[str], str], *, is_translated: bool
) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for group in optimizer.groups:
        settings = same_settings(group.settings, is_translated=is_translated)
        found.update((rename(name), settings) for name in group.parameters)
    return found


def _is_equal(left: object, right: object) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _schedulers(
    left: OptimizerFacts, right: OptimizerFacts, of: str, *, has_other_rate: bool
) -> Iterator[ManifestDifference]:
    make = Make("optimizer")
    ours, theirs = (", ".join(last_name(one.kind) for one in side.schedulers) or "none" for side in (left, right))
    if ours != theirs:
        yield make(f"scheduler{of}", ours, theirs, 0.95)
        return
    for one, other in zip(left.schedulers, right.schedulers):
        for key in one.settings.keys() & other.settings.keys():
            value, golden = one.settings[key], other.settings[key]
            if value != golden and not (key in _FOLLOWING and has_other_rate):
                words = f"{shown(key)} of {last_name(one.kind)}{of}:"
                yield make(words, shown(value), shown(golden), 0.7 if key in _COUNTERS else 0.95, what=key)


def _state(left: OptimizerFacts, right: OptimizerFacts, of: str, target: Manifest) -> Iterator[ManifestDifference]:
    if left.state == right.state:
        return
    ours, theirs = (_steps(one.state) or 0 for one in (left, right))
    when = f"when step {shown(target.number)} begins"
    if ours != theirs:
        words = f"updates that the optimizer{of} has made {when}:"
        yield Make("optimizer")(words, ours, theirs, 0.71, what="steps")
    keys = [key for key in dict.fromkeys((*left.state, *right.state)) if left.state.get(key) != right.state.get(key)]
    keys = [key for key in keys if key != "step"]
    if keys:
        sentence = f"the state of the optimizer{of} differs {when}: {names(keys)}"
        yield ManifestDifference("initial state", "optimizer", "", "", sentence, 0.6)


def _steps(state: Mapping[str, object]) -> int | None:
    values = state.get("step")
    found = [value for value in values if isinstance(value, (int, float))] if isinstance(values, list) else []
    return int(max(found)) if found else None
