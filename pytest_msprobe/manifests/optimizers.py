"""What differs between the optimizers and schedulers of two manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from msprobe_collector.dump_format.manifest import Manifest, OptimizerFacts
from msprobe_collector.dump_format.values import counted, optional
from pytest_msprobe.manifests.pairing import common_names, differing_values, same_settings
from pytest_msprobe.manifests.value import ManifestDifference, difference_of, last_name, names, shown, together

#: How likely a setting explains other numbers: little where it chooses an implementation.
_LIKELIHOODS = {
    "lr": 0.96,
    **dict.fromkeys(("foreach", "fused", "capturable", "differentiable", "use_locking", "use_offload"), 0.4),
}
#: Settings that follow from the learning rate.
_FOLLOWING = frozenset({"initial_lr", "base_lrs", "_last_lr"})
#: Settings of a scheduler that count, likewise.
_COUNTERS = dict.fromkeys(("last_epoch", "last_step", "num_bad_epochs", "cooldown_counter"), 0.7)


def optimizer_differences(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    """In what optimizers, their groups and schedulers differ; nothing where one side has seen none."""
    if not target.optimizers or not golden.optimizers:
        return
    if len(target.optimizers) != len(golden.optimizers):
        yield difference_of("optimizer", "number of optimizers", len(target.optimizers), len(golden.optimizers), 0.94)
    yield from _left_out(target, golden)
    is_one = len(target.optimizers) == 1
    for number, (ours, theirs) in enumerate(_pairs(target, golden)):
        of = "" if is_one else f" of optimizer {number}"
        yield from _of_pair(ours, theirs, of, target, golden)


def optimizer_parameters(optimizer: OptimizerFacts) -> list[str]:
    """The names of the parameters of all groups, in their order."""
    return list(chain.from_iterable(map(attrgetter("parameters"), optimizer.groups)))


def left_out(manifest: Manifest) -> list[str]:
    """Parameters that require a gradient and are in no optimizer; none where no optimizer is known."""
    in_optimizers = set(chain.from_iterable(map(optimizer_parameters, manifest.optimizers)))
    tensors = chain.from_iterable(map(attrgetter("parameters"), manifest.models))
    trained = [tensor.name for tensor in tensors if tensor.requires_grad]
    # Of wrappers that update copies of the parameters no name is known.
    if in_optimizers.isdisjoint(trained):
        return []
    return [name for name in trained if name not in in_optimizers]


def left_out_words(manifest: Manifest, count: int) -> str:
    """`2 parameters of 5 are in no optimizer`, of `count` parameters in a manifest."""
    tensors = chain.from_iterable(map(attrgetter("parameters"), manifest.models))
    total = list(map(attrgetter("tied"), tensors)).count("")
    return counted(count, f"parameters of {total}", "are") + " in no optimizer"


def _left_out(target: Manifest, golden: Manifest) -> Iterator[ManifestDifference]:
    missing, golden_missing = left_out(target), left_out(golden)
    if set(missing) == set(golden_missing):
        return
    if missing:
        others = len(golden_missing) or "none"
        sentence = f"{left_out_words(target, len(missing))}: {names(missing)}; golden {others}"
    else:
        words = left_out_words(golden, len(golden_missing))
        sentence = f"all parameters are in an optimizer, golden {words}: {names(golden_missing)}"
    yield ManifestDifference("optimizer", "left out", str(len(missing)), str(len(golden_missing)), sentence, 0.97)


def _pairs(target: Manifest, golden: Manifest) -> list[tuple[OptimizerFacts, OptimizerFacts]]:
    """Optimizers that have most parameters in common, each once."""
    rename = common_names(target, golden)
    rest = [(set(map(rename, optimizer_parameters(optimizer))), optimizer) for optimizer in golden.optimizers]
    pairs = []
    for optimizer in target.optimizers[: len(rest)]:
        parameters = set(map(rename, optimizer_parameters(optimizer)))
        shared = [len(parameters & others) for others, _ in rest]
        pairs.append((optimizer, rest.pop(shared.index(max(shared)))[1]))
    return pairs


class _Setting(NamedTuple):
    """A setting that two optimizers have otherwise, and where.

    Attributes:
        key: its name.
        value, other: of the two.
        groups: numbers of the groups.
        parameters: those that have it otherwise, where others of their group do not.
    """

    key: str
    value: object
    other: object
    groups: list[int]
    parameters: list[str]


def _of_pair(
    ours: OptimizerFacts, theirs: OptimizerFacts, of: str, target: Manifest, golden: Manifest
) -> Iterator[ManifestDifference]:
    kind, golden_kind = last_name(ours.kind), last_name(theirs.kind)
    if kind != golden_kind:
        yield difference_of("optimizer", f"optimizer{of}", kind, golden_kind, 0.965)
    settings = _other_settings(ours, theirs, target, golden)
    has_other_rate = "lr" in map(attrgetter("key"), settings)
    for setting in settings:
        if setting.key in _FOLLOWING and has_other_rate:
            continue
        noun = "group" if len(setting.groups) == 1 else "groups"
        which = f"{noun} {together(list(map(str, setting.groups)))}"
        some = optional(" ({})", names(setting.parameters))
        words = f"{shown(setting.key)} of {which}{of}{some}:"
        values = shown(setting.value), shown(setting.other)
        yield difference_of("optimizer", words, *values, _LIKELIHOODS.get(setting.key, 0.955), what=setting.key)
    yield from _schedulers(ours, theirs, of, has_other_rate=has_other_rate)
    yield from _state(ours, theirs, of, target)


def _other_settings(
    ours: OptimizerFacts, theirs: OptimizerFacts, target: Manifest, golden: Manifest
) -> Collection[_Setting]:
    """The settings of groups that differ, equal differences of several groups in one."""
    rename = common_names(target, golden)
    is_translated = target.framework != golden.framework
    settings_of = _by_parameter(theirs, rename, is_translated=is_translated)
    listed: dict[str, _Setting] = {}
    for number, group in enumerate(ours.groups):
        settings = same_settings(group.settings, is_translated=is_translated)
        others = [(name, settings_of[name]) for name in map(rename, group.parameters) if name in settings_of]
        if not others and number < len(theirs.groups):  # no names in common: by their order
            others = [("", same_settings(theirs.groups[number].settings, is_translated=is_translated))]
        for key, value in settings.items():
            values = [(name, other[key]) for name, other in others if key in other]
            unlike: dict[str, tuple[object, list[str]]] = {}
            for name, other in values:
                if value != other or isinstance(value, bool) != isinstance(other, bool):
                    unlike.setdefault(repr(other), (other, []))[1].append(name)
            for other, parameters in unlike.values():
                is_whole = len(parameters) == len(values)
                alike = repr((key, value, other, is_whole))
                setting = listed.setdefault(alike, _Setting(key, value, other, [], []))
                setting.groups.append(number)
                if not is_whole:
                    setting.parameters.extend(parameters)
    return listed.values()


def _by_parameter(
    optimizer: OptimizerFacts, rename: Callable[[str], str], *, is_translated: bool
) -> dict[str, dict[str, object]]:
    settings_of: dict[str, dict[str, object]] = {}
    for group in optimizer.groups:
        settings = same_settings(group.settings, is_translated=is_translated)
        settings_of |= dict.fromkeys(map(rename, group.parameters), settings)
    return settings_of


def _schedulers(
    ours: OptimizerFacts, theirs: OptimizerFacts, of: str, *, has_other_rate: bool
) -> Iterator[ManifestDifference]:
    kinds, golden_kinds = scheduler_kinds(ours), scheduler_kinds(theirs)
    if kinds != golden_kinds:
        yield difference_of("optimizer", f"scheduler{of}", kinds or "none", golden_kinds or "none", 0.95)
        return
    for scheduler, golden in zip(ours.schedulers, theirs.schedulers):
        for key, value, other in differing_values(scheduler.settings, golden.settings):
            if not (key in _FOLLOWING and has_other_rate):
                words = f"{shown(key)} of {last_name(scheduler.kind)}{of}:"
                likelihood = _COUNTERS.get(key, 0.95)
                yield difference_of("optimizer", words, shown(value), shown(other), likelihood, what=key)


def scheduler_kinds(optimizer: OptimizerFacts) -> str:
    """Return the classes of the schedulers of an optimizer; "" without any."""
    return ", ".join(map(last_name, map(attrgetter("kind"), optimizer.schedulers)))


def _state(ours: OptimizerFacts, theirs: OptimizerFacts, of: str, target: Manifest) -> Iterator[ManifestDifference]:
    if ours.state == theirs.state:
        return
    steps, golden_steps = _steps(ours.state), _steps(theirs.state)
    when = f"when step {shown(target.number)} begins"
    if steps != golden_steps:
        words = f"updates that the optimizer{of} has made {when}:"
        yield difference_of("optimizer", words, steps, golden_steps, 0.71, what="steps")
    every = dict.fromkeys((*ours.state, *theirs.state))
    keys = [key for key in every if key != "step" and ours.state.get(key) != theirs.state.get(key)]
    if keys:
        sentence = f"the state of the optimizer{of} differs {when}: {names(keys)}"
        yield ManifestDifference("initial state", "optimizer", "", "", sentence, 0.6)


def _steps(state: Mapping[str, object]) -> int:
    """Return the number of updates that were made; 0 where the state does not say it."""
    steps = state.get("step")
    return (
        int(max((step for step in steps if isinstance(step, (int, float))), default=0))
        if isinstance(steps, list)
        else 0
    )
